//! What the measurements share: the two brokers as processes, what the kernel says of them, a client, tables.
//!
//! A broker is measured from outside, as a process that speaks Kafka's protocol. This crate must never use
//! Klamm's own crates (the client is built on the independent `kafka-protocol`), never tune one side and not
//! the other, and never compare numbers of different runs: both brokers take turns on one machine.
#![allow(clippy::disallowed_methods, reason = "it measures real processes, files, sockets and time")]

pub mod broker;
pub mod client;
pub mod coordination;
pub mod process;
pub mod raw_limit;
pub mod table;
