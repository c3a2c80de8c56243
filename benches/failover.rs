//! How long a partition and the metadata have no leader after a node of three is killed (SIGKILL) or stopped (SIGTERM).
//!
//!     cargo build --release && cargo run --release -p klamm-benches --bin failover
//!
//! Both products' clusters take turns; each has default time-outs. A client that knows all nodes asks who leads, produces a
//! record with acks=all and, where that fails, waits as long as clients do by default (retry.backoff.ms) and begins anew.
//! The pause is the time from the signal to the first acknowledgement. Of the quorum, it is the time until a topic can
//! be made. Before the next round the node is back and in sync.
#![allow(clippy::disallowed_methods, reason = "it measures real processes in real time")]

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;
use klamm_benches::broker::{Broker, Product, Programs};
use klamm_benches::client::Connection;
use klamm_benches::process::machine;
use klamm_benches::table::{Series, markdown, number};

/// Measures failover of Klamm beside Apache Kafka.
#[derive(Parser)]
struct Arguments {
    /// How often each kind of failure happens.
    #[arg(long, default_value_t = 20)]
    rounds: usize,
    /// The first of six free ports.
    #[arg(long, default_value_t = 24000)]
    port: u16,
    /// Only this product.
    #[arg(long)]
    only: Option<Product>,
}

const NODES: usize = 3;

/// `retry.backoff.ms`, as clients have it by default.
const RETRY_BACKOFF: Duration = Duration::from_millis(100);

/// Longer than any failover.
const PATIENCE: Duration = Duration::from_secs(60);

/// What happens to which node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Failure {
    KilledLeader,
    KilledController,
    KilledBoth,
    StoppedLeader,
}

impl Failure {
    const ALL: [Failure; 4] =
        [Failure::KilledLeader, Failure::KilledController, Failure::KilledBoth, Failure::StoppedLeader];
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Failure::KilledLeader => "killed, led partitions only: first record, ms",
            Failure::KilledController => "killed, led the quorum only: first new topic, ms",
            Failure::KilledBoth => "killed, led both: first record, ms",
            Failure::StoppedLeader => "stopped, led partitions only: first record, ms",
        })
    }
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let products = arguments.only.map_or(vec![Product::Klamm, Product::Kafka], |only| vec![only]);
    let programs = Programs::find(&products)?;
    let mut seen: BTreeMap<(Failure, Product), Series> = BTreeMap::new();
    for product in &products {
        let folder = tempfile::tempdir()?;
        let mut cluster = Cluster::start(*product, &programs, folder.path(), arguments.port)?;
        for round in 1..=arguments.rounds {
            for failure in Failure::ALL {
                let pause = cluster.fails(failure, &format!("{failure:?}-{round}"))?;
                seen.entry((failure, *product)).or_default().push(pause.as_secs_f64() * 1000.0);
                eprintln!("{product}, round {round}: {failure}: {:.0}", pause.as_secs_f64() * 1000.0);
            }
        }
    }
    println!("{}; {} rounds, median (worst)\n", machine(), arguments.rounds);
    println!("{}", table(&products, &seen));
    Ok(())
}

fn table(products: &[Product], seen: &BTreeMap<(Failure, Product), Series>) -> String {
    let names: Vec<String> = products.iter().map(Product::to_string).collect();
    let mut head = vec![""];
    head.extend(names.iter().map(String::as_str));
    if products.len() == 2 {
        head.push("Kafka ÷ Klamm");
    }
    let row = |failure: Failure| {
        let series: Vec<&Series> =
            products.iter().filter_map(|product| seen.get(&(failure, *product))).collect();
        let mut row = vec![failure.to_string()];
        row.extend(series.iter().map(|one| format!("{} ({})", number(one.median()), number(one.greatest()))));
        if let [ours, theirs] = series[..] {
            row.push(number(theirs.median() / ours.median()));
        }
        row
    };
    let rows: Vec<Vec<String>> = Failure::ALL.into_iter().map(row).collect();
    markdown(&head, &rows)
}

struct Cluster<'a> {
    product: Product,
    programs: &'a Programs,
    folder: &'a Path,
    ports: Vec<u16>,
    nodes: Vec<Option<Broker>>,
}

impl<'a> Cluster<'a> {
    fn start(product: Product, programs: &'a Programs, folder: &'a Path, port: u16) -> Result<Cluster<'a>> {
        let ports = (0..NODES as u16).map(|index| port + 2 * index).collect();
        let mut cluster = Cluster { product, programs, folder, ports, nodes: Vec::new() };
        for id in 1..=NODES {
            std::fs::create_dir_all(folder.join(id.to_string()))?;
            let node = cluster.start_node(id)?;
            cluster.nodes.push(Some(node));
        }
        for node in cluster.nodes.iter_mut().flatten() {
            node.connect()?;
        }
        Ok(cluster)
    }

    fn start_node(&self, id: usize) -> Result<Broker> {
        let folder = self.folder.join(id.to_string());
        Broker::start_in_cluster(self.product, self.programs, &folder, &self.ports, id)
    }

    /// Makes a topic, lets a node fail, and returns how long nothing went.
    fn fails(&mut self, failure: Failure, topic: &str) -> Result<Duration> {
        let controller = usize::try_from(self.until("a controller", Connection::controller)?)?;
        let other = controller % NODES + 1;
        let third = other % NODES + 1;
        let (victim, leader) = match failure {
            Failure::KilledLeader | Failure::StoppedLeader => (other, other),
            Failure::KilledController => (controller, other),
            Failure::KilledBoth => (controller, controller),
        };
        let mut replicas = vec![i32::try_from(leader)?];
        replicas
            .extend([controller, other, third].into_iter().filter(|id| *id != leader).map(|id| id as i32));
        self.until("the topic", |it| made(it.create_topic_on(topic, &replicas)?))?;
        self.until("all in sync", |it| in_sync(it, topic))?;
        self.produce(topic)?;
        let begin = Instant::now();
        let mut node = self.nodes[victim - 1].take().context("the node runs")?;
        match failure {
            Failure::StoppedLeader => node.terminate()?,
            _ => node.kill()?,
        }
        match failure {
            Failure::KilledController => {
                let name = format!("{topic}-after");
                self.until("a new topic", |it| made(it.create_topic_on(&name, &[leader as i32])?))?;
            }
            _ => self.produce(topic)?,
        }
        let pause = begin.elapsed();
        node.wait()?;
        self.nodes[victim - 1] = Some(self.start_node(victim)?);
        self.nodes[victim - 1].as_mut().context("it was started")?.connect()?;
        self.until("all in sync again", |it| in_sync(it, topic))?;
        Ok(pause)
    }

    /// Produces one record, as a client does that finds out who leads and begins anew when that node is gone.
    fn produce(&self, topic: &str) -> Result<()> {
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            if self.produces(topic).unwrap_or(false) {
                return Ok(());
            }
            std::thread::sleep(RETRY_BACKOFF);
        }
        bail!("{topic} takes no record within {} s", PATIENCE.as_secs())
    }

    fn produces(&self, topic: &str) -> Result<bool> {
        let (leader, _) = self.ask(|it| it.leader_of(topic))?.context("no leader")?;
        let address = self.address(usize::try_from(leader)?);
        Ok(Connection::open(address)?.produce(topic, b"a record")?.is_none())
    }

    /// Asks all nodes in turn until one answers.
    fn ask<T>(&self, question: impl Fn(&mut Connection) -> Result<T>) -> Result<T> {
        let mut failure = None;
        for id in (1..=NODES).filter(|id| self.nodes[id - 1].is_some()) {
            match Connection::open(self.address(id)).map_err(Into::into).and_then(|mut it| question(&mut it))
            {
                Ok(answer) => return Ok(answer),
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.context("no node runs")?)
    }

    fn until<T>(&self, what: &str, question: impl Fn(&mut Connection) -> Result<T>) -> Result<T> {
        let begin = Instant::now();
        loop {
            match self.ask(&question) {
                Ok(answer) => return Ok(answer),
                Err(error) if begin.elapsed() > PATIENCE => return Err(error.context(what.to_owned())),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    fn address(&self, id: usize) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.ports[id - 1]))
    }
}

const TOPIC_ALREADY_EXISTS: i16 = 36;

fn made(code: i16) -> Result<()> {
    match code {
        0 | TOPIC_ALREADY_EXISTS => Ok(()),
        code => bail!("CreateTopics answers with error {code}"),
    }
}

fn in_sync(connection: &mut Connection, topic: &str) -> Result<()> {
    match connection.leader_of(topic)? {
        Some((_, NODES)) => Ok(()),
        seen => bail!("leader and number in sync are {seen:?}"),
    }
}
