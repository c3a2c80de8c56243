//! A network in memory on which everything that a network does to its users can be done.
//!
//! It behaves as TCP between kernels: what was sent on a connection arrives in order or not at all, different
//! connections overtake each other, a message on a way that is cut waits and is sent again when the way heals,
//! and nobody is told of a host that is gone until it answers again. A process that dies closes its sockets; a
//! process that stands still leaves its kernel answering, until the windows are full.
//!
//! Time stands still until [`SimulatedNetwork::advance`]. A message takes at least [`Delays::least`], so hosts
//! may run one after another for that long without missing anything.

mod connection;
mod host;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use crate::SeededRandom;

use connection::{Connection, Content, Side, UnderWay, Woken};
use host::Listening;
pub use host::SimulatedHost;

/// How long a message is under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Delays {
    /// At least so long.
    pub least: Duration,
    /// Most take less than this.
    pub usual: Duration,
    /// A few take up to this.
    pub most: Duration,
}

impl Default for Delays {
    fn default() -> Delays {
        let millis = Duration::from_millis;
        Delays { least: millis(1), usual: millis(3), most: millis(40) }
    }
}

/// One message of this many takes longer than [`Delays::usual`].
const SLOW_ONE_OF: u64 = 50;

/// After how long a kernel sends again what was not confirmed.
const RETRANSMIT: Duration = Duration::from_millis(400);

/// How long a kernel tries to connect.
const CONNECT_GIVEN_UP: Duration = Duration::from_secs(20);

/// A network. Clones are the same one.
#[derive(Clone)]
pub struct SimulatedNetwork {
    shared: Arc<Mutex<State>>,
}

struct State {
    now: Duration,
    delays: Delays,
    random: SeededRandom,
    /// Hosts that have power.
    hosts: BTreeMap<IpAddr, HostState>,
    /// Ways on which nothing gets through.
    cut: BTreeSet<(IpAddr, IpAddr)>,
    connections: BTreeMap<u64, Connection>,
    connection_next: u64,
    /// When something arrives at which end; the number keeps the order of what arrives together.
    arrivals: BTreeMap<(Duration, u64), (u64, Side)>,
    sequence: u64,
    counters: NetworkCounters,
    hasher: DefaultHasher,
}

struct HostState {
    listening: BTreeMap<u16, Listening>,
    port_next: u16,
}

/// What happened on a network.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct NetworkCounters {
    /// Messages that arrived.
    pub delivered: u64,
    /// Messages that met a way that was cut, or a host that was down, each time they tried.
    pub held_up: u64,
    /// Connections that were opened.
    pub opened: u64,
    /// Connections that were broken by a reset.
    pub reset: u64,
}

impl SimulatedNetwork {
    /// A network without hosts. All that chance decides on it follows from the seed.
    pub fn new(seed: u64, delays: Delays) -> SimulatedNetwork {
        let state = State {
            now: Duration::ZERO,
            delays,
            random: SeededRandom::new(seed),
            hosts: BTreeMap::new(),
            cut: BTreeSet::new(),
            connections: BTreeMap::new(),
            connection_next: 0,
            arrivals: BTreeMap::new(),
            sequence: 0,
            counters: NetworkCounters::default(),
            hasher: DefaultHasher::new(),
        };
        SimulatedNetwork { shared: Arc::new(Mutex::new(state)) }
    }

    /// The network as the process on one host sees it. A host that was down is up again, without sockets.
    pub fn host(&self, address: IpAddr) -> SimulatedHost {
        let fresh = HostState { listening: BTreeMap::new(), port_next: 32_768 };
        self.state().hosts.insert(address, fresh);
        SimulatedHost::new(self.clone(), address)
    }

    /// The network as another process on a host that is up sees it; the sockets of the others stay.
    pub fn process_on(&self, address: IpAddr) -> SimulatedHost {
        SimulatedHost::new(self.clone(), address)
    }

    /// Lets time pass up to `now` since the network was made, and delivers what arrives by then.
    pub fn advance(&self, now: Duration) {
        let mut woken = Vec::new();
        {
            let mut state = self.state();
            while let Some(entry) = state.arrivals.first_entry().filter(|entry| entry.key().0 <= now) {
                let ((due, _), (connection, side)) = entry.remove_entry();
                state.now = due;
                state.arrive(connection, side, &mut woken);
            }
            state.now = now;
        }
        woken.into_iter().for_each(Waker::wake);
    }

    /// Nothing gets from one host to another any more, until [`SimulatedNetwork::heal`]. The other direction is
    /// another way.
    pub fn cut(&self, from: IpAddr, to: IpAddr) {
        self.state().cut.insert((from, to));
    }

    /// What goes from one host to another gets through again.
    pub fn heal(&self, from: IpAddr, to: IpAddr) {
        self.state().cut.remove(&(from, to));
    }

    /// All ways are open again.
    pub fn heal_all(&self) {
        self.state().cut.clear();
    }

    /// Breaks some of the connections between two hosts, one of `one_of`, as a box on the way does that forgets
    /// them: both sides are told.
    pub fn break_connections(&self, one: IpAddr, other: IpAddr, one_of: u64) {
        let mut woken = Vec::new();
        {
            let mut state = self.state();
            let between = |connection: &Connection| {
                let (client, server) = (connection.client.ip(), connection.server.ip());
                (client, server) == (one, other) || (client, server) == (other, one)
            };
            let all: Vec<u64> =
                state.connections.iter().filter(|(_, one)| between(one)).map(|(id, _)| *id).collect();
            for id in all {
                if state.random.chance(1, one_of) {
                    state.break_both_sides(id, &mut woken);
                }
            }
        }
        woken.into_iter().for_each(Waker::wake);
    }

    /// The process on a host died: its kernel closes its sockets and tells those at their other ends. Another
    /// process can have the host at once.
    pub fn kill(&self, address: IpAddr) {
        let mut state = self.state();
        if let Some(host) = state.hosts.get_mut(&address) {
            host.listening.clear();
        }
        for (id, side) in state.ends_of(address) {
            state.close(id, side, true);
        }
    }

    /// The host has lost its power: nobody is told, and nothing answers until [`SimulatedNetwork::host`].
    pub fn power_off(&self, address: IpAddr) {
        let mut state = self.state();
        state.hosts.remove(&address);
        for (id, side) in state.ends_of(address) {
            state.forget(id, side);
        }
    }

    /// What happened so far.
    pub fn counters(&self) -> NetworkCounters {
        self.state().counters
    }

    /// What all that was delivered comes to, every byte with its time and its connection: two runs that differ
    /// anywhere differ here.
    pub fn digest(&self) -> u64 {
        self.state().hasher.finish()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn delay(&mut self) -> Duration {
        let Delays { least, usual, most } = self.delays;
        let below = if self.random.chance(1, SLOW_ONE_OF) { most } else { usual };
        let range = below.saturating_sub(least).as_micros() as u64;
        least + Duration::from_micros(self.random.below(range + 1))
    }

    /// Sends a message to one side of a connection; it overtakes nothing that was sent there before.
    fn send(&mut self, id: u64, to: Side, content: Content) {
        let (sent, soonest) = (self.now, self.now + self.delay());
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let end = connection.end_mut(to);
        let last = end.incoming.back().map_or(end.held_until, |last| last.due.max(end.held_until));
        let due = soonest.max(last);
        end.incoming.push_back(UnderWay { due, sent, content });
        self.expect(due, id, to);
    }

    fn expect(&mut self, due: Duration, id: u64, side: Side) {
        self.sequence += 1;
        self.arrivals.insert((due, self.sequence), (id, side));
    }

    /// What is due at one end of a connection arrives, or is held up.
    fn arrive(&mut self, id: u64, side: Side, woken: &mut Woken) {
        while let Some(connection) = self.connections.get_mut(&id) {
            let (from, to) = connection.way_to(side);
            let end = connection.end_mut(side);
            let Some(first) = end.incoming.front() else { return };
            if first.due > self.now || end.held_until > self.now {
                return;
            }
            if self.cut.contains(&(from, to)) || !self.hosts.contains_key(&to) {
                return self.hold_up(id, side, woken);
            }
            let Some(UnderWay { content, .. }) = end.incoming.pop_front() else { return };
            self.counters.delivered += 1;
            (self.now, id, side, &content).hash(&mut self.hasher);
            match content {
                Content::Open => self.accept(id, woken),
                // Nobody has this socket any more: the kernel says so.
                Content::Data(_) | Content::Opened if end.is_gone => {
                    end.incoming.clear();
                    self.send(id, side.other(), Content::Reset);
                }
                content => {
                    self.counters.opened += u64::from(matches!(content, Content::Opened));
                    self.counters.reset += u64::from(matches!(content, Content::Reset));
                    end.take(content, woken);
                }
            }
        }
    }

    /// The way is cut or the host is down: the kernel sends again later.
    fn hold_up(&mut self, id: u64, side: Side, woken: &mut Woken) {
        self.counters.held_up += 1;
        let again = self.now + RETRANSMIT + self.delay();
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let end = connection.end_mut(side);
        let is_given_up = end.incoming.front().is_some_and(|first| {
            matches!(first.content, Content::Open) && self.now - first.sent > CONNECT_GIVEN_UP
        });
        if is_given_up {
            end.is_gone = true;
            return connection.end_mut(Side::Client).fail(io::ErrorKind::TimedOut, woken);
        }
        end.held_until = again;
        self.expect(again, id, side);
    }

    /// The server's kernel is asked for a connection.
    fn accept(&mut self, id: u64, woken: &mut Woken) {
        let Some(connection) = self.connections.get(&id) else { return };
        let server = connection.server;
        let host = self.hosts.get_mut(&server.ip());
        match host.and_then(|host| host.listening.get_mut(&server.port())) {
            Some(listening) if listening.has_room() => {
                woken.extend(listening.push(id));
                self.send(id, Side::Client, Content::Opened);
            }
            _ => {
                self.send(id, Side::Client, Content::Reset);
                self.forget(id, Side::Server);
            }
        }
    }

    /// The ends of connections that a host has.
    fn ends_of(&self, address: IpAddr) -> Vec<(u64, Side)> {
        let ends = self.connections.iter().flat_map(|(id, connection)| {
            let sides = [(Side::Client, connection.client), (Side::Server, connection.server)];
            sides.into_iter().filter(|(_, end)| end.ip() == address).map(|(side, _)| (*id, side))
        });
        ends.collect()
    }

    /// One side closes its socket. Where something was not read, or the process died, the other one gets a reset.
    fn close(&mut self, id: u64, side: Side, is_killed: bool) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let end = connection.end_mut(side);
        if std::mem::replace(&mut end.is_gone, true) {
            return;
        }
        let content = if is_killed || end.has_unread() { Content::Reset } else { Content::End };
        self.send(id, side.other(), content);
        self.drop_if_over(id);
    }

    /// One side of a connection is gone without a word.
    fn forget(&mut self, id: u64, side: Side) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.end_mut(side).is_gone = true;
            self.drop_if_over(id);
        }
    }

    fn break_both_sides(&mut self, id: u64, woken: &mut Woken) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        self.counters.reset += 1;
        for side in [Side::Client, Side::Server] {
            connection.end_mut(side).fail(io::ErrorKind::ConnectionReset, woken);
        }
    }

    fn drop_if_over(&mut self, id: u64) {
        if self.connections.get(&id).is_some_and(Connection::is_over) {
            self.connections.remove(&id);
        }
    }
}
