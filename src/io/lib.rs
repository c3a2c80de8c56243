//! The edge of the process: files, network, clock and randomness, as traits, and the real ones.
//!
//! Everything that is not a pure function of its inputs enters through here, because simulation replaces all
//! four and must be able to replay a run from its seed. This crate must never hold helpers, and nothing but
//! this crate may call `std::fs`, `std::net`, `std::time::*::now` or a random source of the system.

mod clock;
mod cold_reads;
mod files;
mod network;
mod random;
mod threads;

pub use clock::{Clock, SystemClock};
pub use files::{Disk, Entry, File, OpenMode, SystemDisk};
pub use network::{BoxFuture, Listener, Network, Stream, SystemNetwork};
pub use random::{Random, SystemRandom};
pub use threads::Threads;
