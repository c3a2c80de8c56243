//! A machine without a runtime, whose time only the test moves.
#![allow(dead_code, reason = "each test file uses its part of this")]

use klamm_coordinator::machine::{Effects, Machine, Now, Origin, Ticket};
use klamm_metadata::Image;
use klamm_model::{ProducerId, TimestampMs};

/// A machine whose log takes everything at once.
pub(crate) struct Driven<M: Machine> {
    pub(crate) machine: M,
    pub(crate) now: Now,
    pub(crate) records: i64,
    pub(crate) commands: Vec<M::Command>,
    replies: Vec<M::Reply>,
}

impl<M: Machine> Driven<M> {
    pub(crate) fn start(machine: M) -> Driven<M> {
        let mut driven = Driven::over(machine);
        let effects = driven.machine.start(driven.now, &Image::empty("cluster"));
        driven.carry_out(effects);
        driven
    }

    /// A machine that is started already.
    pub(crate) fn over(machine: M) -> Driven<M> {
        let now = Now { wall_ms: 1_700_000_000_000, monotonic_ms: 0 };
        Driven { machine, now, records: 0, commands: Vec::new(), replies: Vec::new() }
    }

    /// Asks, and returns all answers that went out.
    pub(crate) fn ask(&mut self, request: M::Request) -> Vec<M::Reply> {
        let effects = self.machine.handle(self.now, Ticket(0), request);
        self.carry_out(effects);
        std::mem::take(&mut self.replies)
    }

    fn carry_out(&mut self, effects: Effects<M>) {
        self.commands.extend(effects.commands);
        self.replies.extend(effects.replies.into_iter().map(|(_, reply)| reply));
        for write in effects.writes {
            for record in write.records {
                let written_ms = self.now.wall_ms;
                let origin = Origin { offset: self.records, transaction_of: ProducerId::NONE, written_ms };
                self.machine.replay(origin, record);
                self.records += 1;
            }
            let effects = self.machine.completed(self.now, write.then, Ok(()));
            self.carry_out(effects);
        }
    }

    /// Lets time pass; answers that go out meanwhile are returned with the next one.
    pub(crate) fn wait(&mut self, by_ms: u64) {
        let end = self.now.monotonic_ms + by_ms;
        while let Some(at) = self.machine.next_deadline_ms().filter(|at| *at <= end) {
            self.move_to(at);
            while let Some(effects) = self.machine.expire(self.now) {
                self.carry_out(effects);
            }
        }
        self.move_to(end);
    }

    fn move_to(&mut self, monotonic_ms: u64) {
        self.now.wall_ms += (monotonic_ms - self.now.monotonic_ms) as TimestampMs;
        self.now.monotonic_ms = monotonic_ms;
    }
}
