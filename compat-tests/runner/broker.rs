//! A node under test: Klamm or, as the oracle, Apache Kafka; a process on a free port with its data in the scenario's
//! folder. The port after its own is its controller's, where it has one of its own.

use crate::process::Group;
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use std::fmt;
use std::fs::OpenOptions;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

/// Outside the range from which the system gives ports to outgoing connections, so that none can take the port of a
/// broker that is being restarted.
const PORTS: std::ops::Range<u16> = 23500..24000;
const START_LIMIT: Duration = Duration::from_secs(90);
const STOP_LIMIT: Duration = Duration::from_secs(60);
/// The shortest session that ZooKeeper grants by default, and its tick.
const ZOOKEEPER_SESSION: Duration = Duration::from_secs(10);
/// Apache Kafka before 3.3 listens before the controller has told it its topics.
const WARM_UP: Duration = Duration::from_secs(3);

/// Which broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavor {
    Klamm,
    Kafka(&'static str),
}

impl Flavor {
    pub(crate) const ALL: [Flavor; 4] =
        [Flavor::Klamm, Flavor::Kafka("2.8.2"), Flavor::Kafka("3.9.1"), Flavor::Kafka("4.4.0")];
}

impl FromStr for Flavor {
    type Err = String;

    fn from_str(word: &str) -> Result<Flavor, String> {
        Flavor::ALL
            .into_iter()
            .find(|flavor| flavor.to_string() == word)
            .ok_or_else(|| format!("{word:?} is none of klamm, 2.8.2, 3.9.1, 4.4.0"))
    }
}

impl fmt::Display for Flavor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Flavor::Klamm => "klamm",
            Flavor::Kafka(version) => version,
        })
    }
}

/// Where the programs are.
#[derive(Clone)]
pub(crate) struct Programs {
    pub(crate) klamm: PathBuf,
    pub(crate) oracle: PathBuf,
}

/// One node, running or not.
pub(crate) struct Broker {
    pub(crate) flavor: Flavor,
    pub(crate) port: u16,
    pub(crate) folder: PathBuf,
    settings: Vec<String>,
    programs: Programs,
    process: Option<Group>,
}

impl Broker {
    pub(crate) fn new(
        flavor: Flavor,
        port: u16,
        folder: &Path,
        settings: Vec<String>,
        programs: &Programs,
    ) -> Broker {
        let folder = folder.to_path_buf();
        let controller = (port + 1).to_string();
        let settings = settings
            .iter()
            .map(|setting| setting.replace("$PORT", &port.to_string()).replace("$CONTROLLER", &controller))
            .collect();
        Broker { flavor, port, folder, settings, programs: programs.clone(), process: None }
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.folder.join("kafka.log")
    }

    /// Starts it and returns when it listens.
    pub(crate) fn start(&mut self) -> Result<()> {
        match self.flavor {
            Flavor::Klamm => self.start_klamm(),
            Flavor::Kafka(version) => self.start_kafka(version),
        }
    }

    fn start_klamm(&mut self) -> Result<()> {
        std::fs::create_dir_all(&self.folder)?;
        let log = OpenOptions::new().create(true).append(true).open(self.log())?;
        let mut command = Command::new(&self.programs.klamm);
        for setting in [
            format!("listeners=PLAINTEXT://127.0.0.1:{}", self.port),
            format!("log.dirs={}", self.folder.join("data").display()),
            "num.partitions=4".to_owned(),
            "group.initial.rebalance.delay.ms=0".to_owned(),
        ]
        .iter()
        .chain(&self.settings)
        {
            command.args(["--override", setting]);
        }
        command.current_dir(&self.folder).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let mut group = Group::start(&mut command)?;
        let deadline = Instant::now() + START_LIMIT;
        while !listens(self.port) {
            if let Some(status) = group.child.try_wait()? {
                bail!("it ended with {status} before it listened on port {}", self.port);
            }
            if Instant::now() > deadline {
                bail!("nothing listens on port {} after {} s", self.port, START_LIMIT.as_secs());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.process = Some(group);
        Ok(())
    }

    /// The oracle's script starts the JVMs and ends; they stay in its process group.
    fn start_kafka(&mut self, version: &str) -> Result<()> {
        let mut command = Command::new("bash");
        command.arg(&self.programs.oracle).args(["start", version, &self.port.to_string()]).arg(&self.folder);
        command.args(["zookeeper.session.timeout.ms=6000"].iter().filter(|_| version.starts_with("2.")));
        command.args(&self.settings).env("HEAP", "320m").stdin(Stdio::null()).stdout(Stdio::null());
        std::fs::create_dir_all(&self.folder)?;
        command.stderr(OpenOptions::new().create(true).append(true).open(self.folder.join("start.log"))?);
        let mut group = Group::start(&mut command)?;
        match group.wait(START_LIMIT)? {
            Some(status) if status.success() => {}
            Some(status) => bail!(
                "starting Apache Kafka {version} ended with {status}: {}",
                std::fs::read_to_string(self.folder.join("start.log")).unwrap_or_default().trim()
            ),
            None => bail!("Apache Kafka {version} does not listen after {} s", START_LIMIT.as_secs()),
        }
        if version.starts_with("2.") {
            std::thread::sleep(WARM_UP);
        }
        self.process = Some(group);
        Ok(())
    }

    /// Stops it as an operator does (SIGTERM) and waits until it is gone.
    pub(crate) fn stop(&mut self) -> Result<()> {
        self.end(Signal::TERM)
    }

    /// Kills it as an out-of-memory killer does (SIGKILL).
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.end(Signal::KILL)
    }

    fn end(&mut self, signal: Signal) -> Result<()> {
        let Some(mut group) = self.process.take() else { return Ok(()) };
        match self.flavor {
            Flavor::Klamm => {
                group.signal(signal);
                if group.wait(STOP_LIMIT)?.is_none() {
                    bail!("it still runs {} s after {signal:?}", STOP_LIMIT.as_secs());
                }
            }
            Flavor::Kafka(version) => {
                if signal == Signal::KILL {
                    kill_process(self.kafka_pid()?, signal)?;
                    if version.starts_with("2.") {
                        std::thread::sleep(ZOOKEEPER_SESSION); // before it has expired, the broker may not come back
                    }
                }
                Command::new("bash").arg(&self.programs.oracle).arg("stop").arg(&self.folder).status()?;
            }
        }
        Ok(())
    }

    /// Sends it a signal that does not end it: SIGSTOP, SIGCONT.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.pid()?).context("it has no process id")?;
        Ok(kill_process(pid, signal)?)
    }

    /// The process of the broker itself.
    pub(crate) fn pid(&self) -> Result<i32> {
        match (self.flavor, &self.process) {
            (_, None) => bail!("it does not run"),
            (Flavor::Klamm, Some(group)) => Ok(i32::try_from(group.child.id())?),
            (Flavor::Kafka(_), Some(_)) => Ok(self.kafka_pid()?.as_raw_nonzero().get()),
        }
    }

    fn kafka_pid(&self) -> Result<Pid> {
        let text = std::fs::read_to_string(self.folder.join("kafka.pid"))?;
        Pid::from_raw(text.trim().parse()?).context("the pid file holds 0")
    }
}

fn listens(port: u16) -> bool {
    TcpStream::connect_timeout(&SocketAddr::from(([127, 0, 0, 1], port)), Duration::from_millis(500)).is_ok()
}

/// `count` ports that are free together with their successors.
pub(crate) fn free_ports(count: usize) -> Result<Vec<u16>> {
    let span = usize::from(PORTS.end - PORTS.start) / 2;
    let first = std::process::id() as usize * 7 % span;
    let free: Vec<u16> = (0..span)
        .map(|step| PORTS.start + 2 * u16::try_from((first + step) % span).unwrap_or(0))
        .filter(|port| {
            TcpListener::bind(("127.0.0.1", *port)).is_ok()
                && TcpListener::bind(("127.0.0.1", *port + 1)).is_ok()
        })
        .take(count)
        .collect();
    if free.len() < count {
        bail!("no {count} free ports in {PORTS:?}");
    }
    Ok(free)
}
