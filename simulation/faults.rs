//! What is done to a cluster, as a seed has it.

mod late_word;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use klamm_testing::{Failure, Fault, OperationKind, SeededRandom};

use crate::observer::{Observer, Registration};
use crate::world::{CLIENT_HOSTS, World, client_address};
use late_word::LateWord;

/// How often each kind of thing happened.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct FaultCounts {
    /// Processes that were killed, hosts that lost their power, and nodes that lost their disks.
    pub(crate) crashes: u64,
    /// Of these, hosts that lost their power.
    pub(crate) power_losses: u64,
    /// Nodes that were killed and came back with an empty disk.
    pub(crate) lost_disks: u64,
    /// Times at which several nodes were killed shortly after each other.
    pub(crate) sieges: u64,
    /// Processes that were asked to stop.
    pub(crate) clean_stops: u64,
    /// Processes that stood still for a while.
    pub(crate) pauses: u64,
    /// Ways that were cut.
    pub(crate) cuts: u64,
    /// Times at which connections were broken.
    pub(crate) broken_connections: u64,
    /// Disks that were full for a while.
    pub(crate) full_disks: u64,
    /// Disks that were slow for a while.
    pub(crate) slow_disks: u64,
    /// Replicas that had lost records when the controller heard that they have caught up.
    pub(crate) late_words: u64,
}

/// Something that is to happen at a time: mostly the end of a fault.
enum Later {
    Start(usize),
    Continue(usize),
    Heal(IpAddr, IpAddr),
    ClearDisk(usize),
    Kill(usize),
}

/// Makes trouble, and ends it again.
pub(crate) struct Troublemaker {
    random: SeededRandom,
    next: Duration,
    later: Vec<(Duration, Later)>,
    /// Whether all replicas were in sync since a host has lost its power.
    has_recovered: bool,
    /// A node that has lost records, with the registration that the cluster still counts on. Were the others killed now, it
    /// could be made a leader, and nobody would know (KIP-966).
    counted_on: Option<Registration>,
    /// When a node has lost its disk last.
    disk_lost: Option<Duration>,
    late_word: Option<LateWord>,
    pub(crate) counts: FaultCounts,
}

/// The mean time between two faults.
const EVERY: Duration = Duration::from_secs(6);

/// How long a node that has lost its disk, and serves and has all records again, may take until its new directory votes. A
/// second one that is lost before could cost the quorum its majority for good.
const VOTES_AGAIN_AFTER: Duration = Duration::from_secs(40);

impl Troublemaker {
    pub(crate) fn new(random: SeededRandom, from: Duration) -> Troublemaker {
        Troublemaker {
            random,
            next: from,
            later: Vec::new(),
            has_recovered: true,
            counted_on: None,
            disk_lost: None,
            late_word: None,
            counts: FaultCounts::default(),
        }
    }

    /// A process has ended by itself: it is started again, as an operator's supervisor does.
    pub(crate) fn restart_later(&mut self, world: &World, index: usize) {
        let at = world.now() + self.millis(100, 5000);
        self.later.push((at, Later::Start(index)));
    }

    /// Does what is due.
    pub(crate) fn step(&mut self, world: &mut World, observer: &Observer) {
        self.counted_on = self.counted_on.filter(|registration| observer.counts_on(*registration));
        self.end_due(world);
        if let Some(word) = self.late_word {
            self.go_on_with_late_word(world, observer, word);
        } else if world.now() >= self.next {
            self.next = world.now() + self.millis(1, 2 * EVERY.as_millis() as u64);
            self.begin(world, observer);
        }
    }

    /// Ends what is due to end, and begins nothing.
    pub(crate) fn end_due(&mut self, world: &mut World) {
        let now = world.now();
        let (due, left): (Vec<_>, Vec<_>) = self.later.drain(..).partition(|(at, _)| *at <= now);
        self.later = left;
        due.into_iter().for_each(|(_, later)| self.end(world, later));
    }

    /// Ends all trouble at once.
    pub(crate) fn end_all(&mut self, world: &mut World) {
        let mut all = std::mem::take(&mut self.later);
        all.retain(|(_, later)| !matches!(later, Later::Kill(_)));
        all.into_iter().for_each(|(_, later)| self.end(world, later));
        self.late_word = None;
        world.network.heal_all();
        world.trace.line("all faults end");
    }

    fn end(&mut self, world: &mut World, later: Later) {
        match later {
            Later::Start(index) => {
                if !world.nodes[index].is_running() {
                    world.trace.line(&format!("node {} starts", index + 1));
                    world.start(index);
                }
            }
            Later::Continue(index) => {
                world.trace.line(&format!("node {} goes on", index + 1));
                world.nodes[index].set_stopped(false);
            }
            Later::Heal(from, to) => {
                world.trace.line(&format!("the way from {from} to {to} is open again"));
                world.network.heal(from, to);
            }
            Later::Kill(index) => {
                let is_up = world.nodes[index].is_running() && !world.nodes[index].is_stopped();
                if is_up && self.counted_on.is_none() {
                    self.kill(world, index);
                }
            }
            Later::ClearDisk(index) => {
                world.trace.line(&format!("the disk of node {} is well again", index + 1));
                world.nodes[index].disk.clear_faults();
                world.nodes[index].disk.set_slowness(Duration::ZERO);
            }
        }
    }

    fn begin(&mut self, world: &mut World, observer: &Observer) {
        if self.counted_on.is_some() {
            return;
        }
        let index = self.random.below(world.nodes.len() as u64) as usize;
        let is_up = world.nodes[index].is_running() && !world.nodes[index].is_stopped();
        self.has_recovered |= observer.what_is_amiss(world).is_none();
        match self.random.below(15) {
            0..=2 if is_up => self.kill(world, index),
            3 if is_up && self.may_lose_power(world, index, observer) => {
                let down = self.millis(1000, 15_000);
                self.power_off(world, observer, index, down)
            }
            12 => self.besiege(world, index),
            14 if is_up && observer.what_is_amiss(world).is_none() => {
                self.begin_late_word(world, observer, index)
            }
            13 if is_up && self.may_lose_disk(world, index, observer) => {
                self.lose_disk(world, observer, index)
            }
            4 if is_up => self.terminate(world, index),
            5 | 6 if is_up => self.pause(world, index),
            7 => self.cut(world, index),
            8 => self.isolate(world, index),
            9 => self.break_connections(world, index),
            10 if is_up => self.fill_disk(world, index),
            11 if is_up => self.slow_disk(world, index),
            _ => {}
        }
    }

    fn kill(&mut self, world: &mut World, index: usize) {
        let down = self.millis(50, 15_000);
        world.trace.line(&format!("node {} is killed for {down:?}", index + 1));
        let World { nodes, network, .. } = world;
        nodes[index].kill(network);
        self.note_crash(world, index, down);
    }

    fn note_crash(&mut self, world: &World, index: usize, down: Duration) {
        self.counts.crashes += 1;
        self.later.push((world.now() + down, Later::Start(index)));
    }

    /// The node lacks records when it comes back.
    fn note_loss(&mut self, world: &World, observer: &Observer, index: usize, down: Duration) {
        self.has_recovered = false;
        self.counted_on = observer.registration(world, index);
        self.note_crash(world, index, down);
    }

    /// Kafka's acknowledgements do not wait for the disk, and after an unclean stop nobody knows who has lost something
    /// (KIP-966). So a host loses its power only if all replicas were in sync since the last one has, and if it leads
    /// nothing or all replicas are in sync now; and if another one of each partition has no trouble, which stays so until the
    /// cluster knows what has happened.
    fn may_lose_power(&self, world: &World, index: usize, observer: &Observer) -> bool {
        let is_whole = observer.what_is_amiss(world).is_none();
        let may_lose =
            is_whole || (self.has_recovered && !self.kills_follow() && observer.is_spare(index, world));
        may_lose && observer.has_sound_others(index, world, &self.troubled(world))
    }

    /// The nodes to which something is done, or was done and is not over.
    fn troubled(&self, world: &World) -> BTreeSet<usize> {
        let index_of = |address: &IpAddr| world.nodes.iter().position(|node| node.address == *address);
        let under_way = self.later.iter().flat_map(|(_, later)| match later {
            Later::Start(index) | Later::Continue(index) | Later::ClearDisk(index) | Later::Kill(index) => {
                [Some(*index), None]
            }
            Later::Heal(from, to) => [index_of(from), index_of(to)],
        });
        under_way.flatten().collect()
    }

    /// Whether a siege goes on.
    fn kills_follow(&self) -> bool {
        self.later.iter().any(|(_, later)| matches!(later, Later::Kill(_)))
    }

    /// What was not synced is lost.
    fn power_off(&mut self, world: &mut World, observer: &Observer, index: usize, down: Duration) {
        world.trace.line(&format!("node {} has no power for {down:?}", index + 1));
        let World { nodes, network, .. } = world;
        nodes[index].power_off(network);
        self.counts.power_losses += 1;
        self.note_loss(world, observer, index, down);
    }

    /// Nothing is left of what the node had. The others have all of it, and will have it until they know that it is gone.
    fn may_lose_disk(&self, world: &World, index: usize, observer: &Observer) -> bool {
        let votes_again = self.disk_lost.is_none_or(|lost| world.now() - lost > VOTES_AGAIN_AFTER);
        world.nodes.len() >= 3
            && votes_again
            && !self.kills_follow()
            && observer.what_is_amiss(world).is_none()
            && observer.has_sound_others(index, world, &self.troubled(world))
    }

    /// The node joins again as a new member under a new directory id.
    fn lose_disk(&mut self, world: &mut World, observer: &Observer, index: usize) {
        let down = self.millis(50, 15_000);
        world.trace.line(&format!("node {} loses its disk, and is down for {down:?}", index + 1));
        let World { nodes, network, .. } = world;
        nodes[index].lose_disk(network);
        self.counts.lost_disks += 1;
        self.disk_lost = Some(world.now());
        self.note_loss(world, observer, index, down);
    }

    /// Several nodes are killed shortly after each other.
    fn besiege(&mut self, world: &mut World, first: usize) {
        let count = world.nodes.len();
        let mut at = world.now();
        for turn in 0..2 + self.random.below(count as u64 - 1) as usize {
            self.later.push((at, Later::Kill((first + turn) % count)));
            at += self.millis(200, 6000);
        }
        self.counts.sieges += 1;
    }

    /// It starts again when it has stopped, which the world tells.
    fn terminate(&mut self, world: &mut World, index: usize) {
        world.trace.line(&format!("node {} is asked to stop", index + 1));
        world.nodes[index].terminate();
        self.counts.clean_stops += 1;
    }

    fn pause(&mut self, world: &mut World, index: usize) {
        let long = if self.random.chance(1, 2) { self.millis(100, 3000) } else { self.millis(3000, 20_000) };
        world.trace.line(&format!("node {} stands still for {long:?}", index + 1));
        world.nodes[index].set_stopped(true);
        self.counts.pauses += 1;
        self.later.push((world.now() + long, Later::Continue(index)));
    }

    fn cut(&mut self, world: &mut World, index: usize) {
        let one = world.nodes[index].address;
        let count = world.nodes.len() as u64;
        let other = if self.random.chance(1, 4) {
            client_address(self.random.below(u64::from(CLIENT_HOSTS)) as u8)
        } else {
            let step = 1 + self.random.below(count - 1) as usize;
            world.nodes[(index + step) % world.nodes.len()].address
        };
        let long = self.millis(200, 20_000);
        self.cut_way(world, one, other, long);
        if self.random.chance(1, 2) {
            self.cut_way(world, other, one, long);
        }
    }

    /// A node hears nobody, or is heard by nobody, or both.
    fn isolate(&mut self, world: &mut World, index: usize) {
        let long = self.millis(500, 20_000);
        let one = world.nodes[index].address;
        let (is_heard, hears) = (self.random.chance(1, 4), self.random.chance(1, 4));
        let others: Vec<IpAddr> =
            world.nodes.iter().map(|node| node.address).filter(|address| *address != one).collect();
        let clients = (0..CLIENT_HOSTS).map(client_address).filter(|_| self.random.chance(1, 3));
        let all: Vec<IpAddr> = others.into_iter().chain(clients.collect::<Vec<_>>()).collect();
        for other in all {
            if !is_heard {
                self.cut_way(world, one, other, long);
            }
            if !hears {
                self.cut_way(world, other, one, long);
            }
        }
    }

    fn cut_way(&mut self, world: &mut World, from: IpAddr, to: IpAddr, long: Duration) {
        world.trace.line(&format!("the way from {from} to {to} is cut for {long:?}"));
        world.network.cut(from, to);
        self.counts.cuts += 1;
        self.later.push((world.now() + long, Later::Heal(from, to)));
    }

    fn break_connections(&mut self, world: &mut World, index: usize) {
        let one = world.nodes[index].address;
        let nodes = world.nodes.iter().map(|node| node.address);
        let others: Vec<IpAddr> = nodes.chain((0..CLIENT_HOSTS).map(client_address)).collect();
        let other = others[self.random.below(others.len() as u64) as usize];
        world.trace.line(&format!("connections between {one} and {other} break"));
        world.network.break_connections(one, other, 2);
        self.counts.broken_connections += 1;
    }

    fn fill_disk(&mut self, world: &mut World, index: usize) {
        let long = self.millis(200, 10_000);
        world.trace.line(&format!("the disk of node {} is full for {long:?}", index + 1));
        for kind in [OperationKind::Write, OperationKind::Create] {
            let fault = Fault::new(Failure::NoSpace).of(kind);
            let fault = if self.random.chance(1, 2) { fault.after_half_a_write() } else { fault };
            world.nodes[index].disk.inject(fault);
        }
        self.counts.full_disks += 1;
        self.later.push((world.now() + long, Later::ClearDisk(index)));
    }

    fn slow_disk(&mut self, world: &mut World, index: usize) {
        let (long, slowness) = (self.millis(1000, 20_000), self.millis(1, 100));
        world.trace.line(&format!("the disk of node {} takes {slowness:?} a call for {long:?}", index + 1));
        world.nodes[index].disk.set_slowness(slowness);
        self.counts.slow_disks += 1;
        self.later.push((world.now() + long, Later::ClearDisk(index)));
    }

    fn millis(&self, least: u64, most: u64) -> Duration {
        Duration::from_millis(least + self.random.below(most - least))
    }
}
