//! One host of the simulation: a disk that outlives processes, and the process that runs on it now.
//!
//! A process has a tokio runtime of its own with time of its own, so that it can die as a whole, stand still, and
//! have a clock that goes faster than others.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use klamm_io::Threads;
use klamm_server::{Machine, NodeView};
use klamm_testing::{HostClock, SeededRandom, SimulatedDisk, SimulatedNetwork};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::settings::node_config;

/// 2026-01-01 00:00:00 UTC.
const EPOCH_MS: i64 = 1_767_225_600_000;

/// The address of a node's host.
pub(crate) fn node_address(id: i32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, u8::try_from(id).expect("there are few nodes")))
}

/// The time of one process.
pub(crate) struct ProcessTime {
    pub(crate) runtime: Runtime,
    base: Instant,
    began: Duration,
    /// How much faster it goes than the simulation's, in millionths.
    rate_ppm: i64,
    passed_ms: u64,
}

impl ProcessTime {
    /// A process that begins when the simulation's time is `now`. The seed decides what tokio leaves to chance.
    #[cfg_attr(not(tokio_unstable), allow(unused_variables, reason = "only such a build can seed tokio"))]
    pub(crate) fn new(now: Duration, rate_ppm: i64, seed: u64) -> ProcessTime {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        #[cfg(tokio_unstable)]
        builder.rng_seed(tokio::runtime::RngSeed::from_bytes(&seed.to_be_bytes()));
        let runtime = builder.enable_time().start_paused(true).build().expect("a runtime needs no resource");
        let base = runtime.block_on(async { Instant::now() });
        ProcessTime { runtime, base, began: now, rate_ppm, passed_ms: 0 }
    }

    /// Runs what there is to do until the simulation's time is `now`. What a process misses while it stands still,
    /// it sees at once.
    pub(crate) fn run_until(&mut self, now: Duration) {
        let elapsed = now.saturating_sub(self.began).as_micros() as i128;
        let own_ms = elapsed * i128::from(1_000_000 + self.rate_ppm) / 1_000_000_000;
        let own_ms = own_ms as u64;
        if own_ms <= self.passed_ms {
            return;
        }
        let missed = Duration::from_millis(own_ms - self.passed_ms - 1);
        self.passed_ms = own_ms;
        let until = self.base + Duration::from_millis(own_ms);
        self.runtime.block_on(async {
            if missed > Duration::from_millis(2) {
                tokio::time::advance(missed).await;
            }
            tokio::time::sleep_until(until).await;
        });
    }
}

/// What became of a process so far.
#[derive(Clone, Default)]
pub(crate) enum Phase {
    #[default]
    Starting,
    Serving(NodeView),
    /// It ended by itself, with this message.
    Failed(String),
    /// It was asked to stop, and did.
    Stopped,
}

struct Process {
    time: ProcessTime,
    phase: Arc<Mutex<Phase>>,
    terminate: Option<oneshot::Sender<()>>,
    is_stopped: bool,
    /// It waits for its disk until then.
    waits_until: Duration,
}

/// A node's host.
pub(crate) struct NodeHost {
    pub(crate) id: i32,
    pub(crate) address: IpAddr,
    pub(crate) disk: SimulatedDisk,
    /// How far its wall clock is off.
    wall_offset_ms: i64,
    rate_ppm: i64,
    random: SeededRandom,
    process: Option<Process>,
}

impl NodeHost {
    /// A host whose clock and disk follow from the seed.
    pub(crate) fn new(id: i32, random: SeededRandom) -> NodeHost {
        const HOUR_MS: u64 = 3_600_000;
        let wall_offset_ms = random.below(2 * HOUR_MS) as i64 - HOUR_MS as i64;
        let rate_ppm = random.below(1000) as i64 - 500;
        let disk = SimulatedDisk::new(random.below(u64::MAX));
        NodeHost { id, address: node_address(id), disk, wall_offset_ms, rate_ppm, random, process: None }
    }

    /// Starts a process on it.
    pub(crate) fn start(&mut self, network: &SimulatedNetwork, nodes: i32, now: Duration) {
        assert!(self.process.is_none(), "node {} runs already", self.id);
        let time = ProcessTime::new(now, self.rate_ppm, self.random.below(u64::MAX));
        let wall_ms = EPOCH_MS + self.wall_offset_ms + i64::try_from(now.as_millis()).unwrap_or(i64::MAX);
        let clock = time.runtime.block_on(async { HostClock::starting_now(wall_ms) });
        let machine = Machine {
            disk: Arc::new(self.disk.clone()),
            network: Arc::new(network.host(self.address)),
            clock: Arc::new(clock),
            random: Arc::new(self.random.fork()),
            threads: Threads::Inline,
            loggers: Arc::default(),
        };
        let phase = Arc::new(Mutex::new(Phase::Starting));
        let (terminate, terminated) = oneshot::channel();
        time.runtime.spawn(live(node_config(self.id, nodes), machine, phase.clone(), terminated));
        let terminate = Some(terminate);
        self.process = Some(Process { time, phase, terminate, is_stopped: false, waits_until: now });
    }

    /// Runs the process until `now`. Returns why it has ended, if it has by itself.
    pub(crate) fn run_until(&mut self, now: Duration) -> Option<String> {
        let process = self.process.as_mut()?;
        if process.is_stopped || now < process.waits_until {
            return None;
        }
        process.time.run_until(now);
        process.waits_until = now + self.disk.take_owed();
        match self.phase() {
            Phase::Failed(reason) => Some(reason),
            Phase::Stopped => Some("it was asked to stop".to_owned()),
            Phase::Starting | Phase::Serving(_) => None,
        }
    }

    /// What the process has come to; `Stopped` where there is none.
    pub(crate) fn phase(&self) -> Phase {
        self.process.as_ref().map_or(Phase::Stopped, |process| {
            process.phase.lock().unwrap_or_else(PoisonError::into_inner).clone()
        })
    }

    /// What can be looked at, if it serves.
    pub(crate) fn view(&self) -> Option<NodeView> {
        match self.phase() {
            Phase::Serving(view) => Some(view),
            _ => None,
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.process.is_some()
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.is_stopped)
    }

    /// SIGTERM.
    pub(crate) fn terminate(&mut self) {
        if let Some(terminate) = self.process.as_mut().and_then(|process| process.terminate.take()) {
            // A process that has just ended needs no signal.
            let _ = terminate.send(());
        }
    }

    /// SIGSTOP and SIGCONT.
    pub(crate) fn set_stopped(&mut self, is_stopped: bool) {
        if let Some(process) = &mut self.process {
            process.is_stopped = is_stopped;
        }
    }

    /// The process is no more, as after `kill -9` or its own end. What it wrote is there.
    pub(crate) fn kill(&mut self, network: &SimulatedNetwork) {
        self.disk = self.disk.kill();
        network.kill(self.address);
        self.process = None;
    }

    /// The power goes: what was not synced may be lost, and nobody hears a word.
    pub(crate) fn power_off(&mut self, network: &SimulatedNetwork) {
        self.disk = self.disk.crash();
        network.power_off(self.address);
        self.process = None;
    }

    /// The process is killed, and the disk with all that was on it is replaced by an empty one.
    pub(crate) fn lose_disk(&mut self, network: &SimulatedNetwork) {
        self.kill(network);
        self.disk = SimulatedDisk::new(self.random.below(u64::MAX));
    }
}

/// A process from its start to its end.
async fn live(
    config: klamm_config::BrokerConfig,
    machine: Machine,
    phase: Arc<Mutex<Phase>>,
    terminated: oneshot::Receiver<()>,
) {
    let set = |new| *phase.lock().unwrap_or_else(PoisonError::into_inner) = new;
    let server = match klamm_server::start(config, machine).await {
        Ok(server) => server,
        Err(error) => return set(Phase::Failed(error.to_string())),
    };
    set(Phase::Serving(server.view()));
    let failure = tokio::select! {
        biased;
        reason = server.failed() => Some(reason),
        _ = terminated => None,
    };
    match failure {
        Some(reason) => set(Phase::Failed(reason)),
        None => {
            server.stop().await;
            set(Phase::Stopped);
        }
    }
}
