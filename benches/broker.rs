//! The two brokers, as processes on a port of this machine with their data in a folder of their own.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::client::Connection;
use crate::process::Usage;

/// The version of Apache Kafka that Klamm stands beside.
pub const KAFKA_VERSION: &str = "4.4.0";

/// What Apache Kafka's own start scripts give its broker.
const KAFKA_JVM: [&str; 8] = [
    "-Xms1G",
    "-Xmx1G",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
];

/// Longer than any start on a busy machine, and than a coordinator takes to load ten million commits.
const START_TIMEOUT: Duration = Duration::from_secs(600);
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// Which broker.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, clap::ValueEnum)]
pub enum Product {
    /// Klamm.
    Klamm,
    /// Apache Kafka.
    Kafka,
}

impl fmt::Display for Product {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Product::Klamm => f.pad("Klamm"),
            Product::Kafka => write!(f, "Apache Kafka {KAFKA_VERSION}"),
        }
    }
}

/// Where the brokers' programs are.
pub struct Programs {
    klamm: PathBuf,
    oracle: PathBuf,
    kafka_libs: PathBuf,
}

impl Programs {
    /// Finds Klamm's binary (`KLAMM_BIN`, or the release build of this tree) and fetches Apache Kafka's jars.
    pub fn find(products: &[Product]) -> Result<Programs> {
        let root =
            Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the crate stands in a workspace")?;
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
        let klamm = std::env::var_os("KLAMM_BIN").map_or_else(|| target.join("release/klamm"), PathBuf::from);
        if products.contains(&Product::Klamm) && !klamm.is_file() {
            bail!("{} is not there: cargo build --release, or set KLAMM_BIN", klamm.display());
        }
        let oracle = root.join("compat-tests/oracle/kafka");
        let got = Command::new(&oracle)
            .args(["get", KAFKA_VERSION])
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| oracle.display().to_string())?;
        if !got.status.success() {
            bail!("{} get {KAFKA_VERSION}: {}; it needs java and mvn", oracle.display(), got.status);
        }
        let kafka_libs = PathBuf::from(String::from_utf8(got.stdout)?.trim());
        Ok(Programs { klamm, oracle, kafka_libs })
    }

    /// A tool of Apache Kafka, by its class.
    pub fn tool(&self, class: &str) -> Command {
        let mut command = Command::new(&self.oracle);
        command.args(["tool", KAFKA_VERSION, class]);
        command
    }

    fn java(&self, class: &str, options: &[&str]) -> Command {
        let mut class_path = OsString::from(&self.kafka_libs);
        class_path.push("/*");
        let mut logging = OsString::from("-Dlog4j2.configurationFile=");
        logging.push(self.kafka_libs.with_file_name("log4j2.properties"));
        let mut command = Command::new("java");
        command.args(options).arg(logging).arg("-cp").arg(class_path).arg(class);
        command
    }
}

/// A broker that runs. It is killed when it is dropped.
pub struct Broker {
    child: Child,
    address: SocketAddr,
    log: PathBuf,
    started: Instant,
}

impl Broker {
    /// Starts a broker on an empty folder; `port` and the one behind it must be free. What Apache Kafka needs
    /// before its broker can start at all, the formatting of its folder, is done before the clock runs.
    pub fn start(product: Product, programs: &Programs, folder: &Path, port: u16) -> Result<Broker> {
        Broker::start_with(product, programs, folder, port, settings(product, folder, port)?)
    }

    /// The same with more settings, a line each.
    pub fn start_set(
        product: Product,
        programs: &Programs,
        folder: &Path,
        port: u16,
        more: &str,
    ) -> Result<Broker> {
        Broker::start_with(product, programs, folder, port, settings(product, folder, port)? + more)
    }

    /// Starts node `id`, from 1 up, of a cluster whose nodes have these ports and each the one behind it; on an empty folder, or on
    /// what it has left there.
    pub fn start_in_cluster(
        product: Product,
        programs: &Programs,
        folder: &Path,
        ports: &[u16],
        id: usize,
    ) -> Result<Broker> {
        let settings = settings_in_cluster(folder, ports, id)?;
        Broker::start_with(product, programs, folder, ports[id - 1], settings)
    }

    fn start_with(
        product: Product,
        programs: &Programs,
        folder: &Path,
        port: u16,
        settings: String,
    ) -> Result<Broker> {
        let properties = folder.join("server.properties");
        std::fs::write(&properties, settings)?;
        let mut command = match product {
            Product::Klamm => Command::new(&programs.klamm),
            Product::Kafka => {
                if !folder.join("data/meta.properties").is_file() {
                    format(programs, &properties)?;
                }
                programs.java("kafka.Kafka", &KAFKA_JVM)
            }
        };
        let log = folder.join("broker.log");
        let output = File::create(&log)?;
        command.arg(&properties).current_dir(folder).stdin(Stdio::null());
        command.stdout(output.try_clone()?).stderr(output);
        let started = Instant::now();
        let child = command.spawn().with_context(|| format!("{:?}", command.get_program()))?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Ok(Broker { child, address, log, started })
    }

    /// When the process was started.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connects as soon as it listens.
    pub fn connect(&mut self) -> Result<Connection> {
        loop {
            match Connection::open(self.address) {
                Ok(connection) => return Ok(connection),
                Err(error) => self.check_alive(&error)?,
            }
            // Long enough not to take the processor from a broker that starts, short beside any start.
            std::thread::sleep(Duration::from_micros(500));
        }
    }

    /// An error if it has ended or has had more time than any start needs.
    pub fn check_alive(&mut self, seen: &dyn fmt::Debug) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the broker ended with {status}; its log:\n{}", self.last_log_lines());
        }
        if self.started.elapsed() > START_TIMEOUT {
            bail!("the broker is not ready: {seen:?}; its log:\n{}", self.last_log_lines());
        }
        Ok(())
    }

    /// What it has used so far.
    pub fn usage(&self) -> Result<Usage> {
        Usage::of(self.child.id())
    }

    /// Asks it to stop, with SIGTERM, and does not wait.
    pub fn terminate(&self) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).context("a process id")?;
        Ok(kill_process(pid, Signal::TERM)?)
    }

    /// Ends it with SIGKILL.
    pub fn kill(&mut self) -> Result<()> {
        Ok(self.child.kill()?)
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> Result<()> {
        let asked = Instant::now();
        while self.child.try_wait()?.is_none() {
            if asked.elapsed() > STOP_TIMEOUT {
                bail!("the broker does not end within {} s", STOP_TIMEOUT.as_secs());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Stops it with SIGTERM and waits for its end.
    pub fn stop(mut self) -> Result<()> {
        self.terminate()?;
        self.wait()
    }

    /// What it has said so far.
    pub fn log(&self) -> Result<String> {
        Ok(std::fs::read_to_string(&self.log)?)
    }

    fn last_log_lines(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // It fails only if the process has ended, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The same for both, beside what Apache Kafka cannot start without.
fn settings(product: Product, folder: &Path, port: u16) -> Result<String> {
    let data = folder.join("data");
    let mut settings = format!("node.id=1\nlog.dirs={}\n", data.to_str().context("a UTF-8 path")?);
    settings += &match product {
        Product::Klamm => format!("listeners=PLAINTEXT://127.0.0.1:{port}\n"),
        Product::Kafka => format!(
            "process.roles=broker,controller\n\
            controller.quorum.voters=1@127.0.0.1:{controller}\n\
            controller.listener.names=CONTROLLER\n\
            listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n\
            advertised.listeners=PLAINTEXT://127.0.0.1:{port}\n\
            offsets.topic.replication.factor=1\n\
            transaction.state.log.replication.factor=1\n\
            transaction.state.log.min.isr=1\n\
            share.coordinator.state.topic.replication.factor=1\n\
            share.coordinator.state.topic.min.isr=1\n",
            controller = port + 1
        ),
    };
    settings += "group.initial.rebalance.delay.ms=0\n";
    Ok(settings)
}

/// The same for both.
fn settings_in_cluster(folder: &Path, ports: &[u16], id: usize) -> Result<String> {
    let data = folder.join("data");
    let voters: Vec<String> =
        ports.iter().zip(1..).map(|(port, id)| format!("{id}@127.0.0.1:{}", port + 1)).collect();
    let port = ports[id - 1];
    Ok(format!(
        "node.id={id}\n\
        log.dirs={data}\n\
        process.roles=broker,controller\n\
        controller.quorum.voters={voters}\n\
        controller.listener.names=CONTROLLER\n\
        listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n\
        min.insync.replicas=2\n",
        data = data.to_str().context("a UTF-8 path")?,
        voters = voters.join(","),
        controller = port + 1,
    ))
}

fn format(programs: &Programs, properties: &Path) -> Result<()> {
    let mut command = programs.java("kafka.tools.StorageTool", &[]);
    command.args(["format", "-t", "a2xhbW0tYmVuY2hlcy0xMg", "-c"]).arg(properties);
    let output = command.output()?;
    if !output.status.success() {
        bail!("formatting Apache Kafka's folder: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}
