//! The controller's decisions one after another: scripts in, golden text out, and a random walk with what must hold
//! after every step.
//!
//! Each file in `scripts/` holds scripts. A script begins with `== ` and its story; then come commands, and behind
//! each, indented, the answer and the partitions that changed. `KLAMM_UPDATE=1` writes the files anew; read the
//! difference before you commit it. The commands are listed in `Stage::run`. Scripts that name Kafka were played on
//! Kafka 4.4.0 first.
#![allow(clippy::disallowed_methods, reason = "scripts are read and written with std")]

mod judge;
mod scripts;
mod stage;
mod walk;
