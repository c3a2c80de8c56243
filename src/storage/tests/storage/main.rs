//! The store as its users see it, on the simulated disk: what Apache Kafka wrote, what Klamm writes, and what
//! faults and crashes leave of it.

#![allow(
    clippy::disallowed_methods,
    reason = "fixtures are copied from the real disk into the simulated one"
)]

mod appending;
mod background_recovery;
mod bad_input;
mod compaction;
mod compaction_crashes;
mod compaction_model;
mod compaction_rules;
mod compaction_world;
mod crashes;
mod directories;
mod every_call;
mod faults;
mod fixtures;
mod gaps;
mod group_commit;
mod invariants;
mod moves;
#[cfg(debug_assertions)]
mod planted;
mod random_crashes;
mod recovery;
mod retention;
mod scenarios;
mod support;
mod truncation;
mod world;
