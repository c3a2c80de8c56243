//! Doubles of the machine for tests: a disk that crashes, a network that is cut, clocks that are set, randomness that
//! repeats; the player of scripts for state machines, and what is told to the log.
//!
//! The doubles implement a trait of `klamm_io` each and are driven by a seed, so a failing run can be run
//! again. This crate knows only `model` and `io`; it must never be a dependency of what runs in earnest,
//! never touch the real machine but to read a script, and never know what the bytes that it keeps mean.

mod clock;
mod disk;
mod gate;
mod host_clock;
mod network;
mod random;
mod script;
mod told;

pub use clock::SimulatedClock;
pub use disk::{Counters, Failure, Fault, FaultId, Operation, OperationKind, SimulatedDisk, Unsynced};
pub use gate::GatedDisk;
pub use host_clock::HostClock;
pub use network::{Delays, NetworkCounters, SimulatedHost, SimulatedNetwork};
pub use random::SeededRandom;
pub use script::{Play, check_script};
pub use told::told;
