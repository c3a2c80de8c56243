//! Many groups and many producer ids on one node: what they take of its memory, how fast it answers with them, and how
//! soon it serves them all after a restart; and how fast a coordinator loads a partition with many commits over few keys.
//!
//!     cargo build --release && cargo run --release -p klamm-benches --bin coordinators
//!
//! Each group has one member and one committed offset, each producer id one record in the one partition of a topic. The
//! brokers take turns. Loading counts from the first connection until a committed offset is answered, and stands beside a
//! plain read of the same file with its checksum (CRC-32C), on one thread out of a warm cache.
#![allow(clippy::disallowed_methods, reason = "it measures real processes in real time")]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use klamm_benches::broker::{Broker, Product, Programs};
use klamm_benches::client::Connection;
use klamm_benches::coordination::{Member, Producer};
use klamm_benches::process::machine;
use klamm_benches::table::{Series, markdown, number};

const MIB: f64 = (1_u64 << 20) as f64;
const TOPIC: &str = "work";

/// Connections that make groups and producers at once.
const CLIENTS: usize = 8;

/// Requests of each kind whose time to the answer is measured.
const SAMPLES: usize = 2000;

/// A broker that loads its coordinators is asked as often.
const POLL: Duration = Duration::from_millis(2);

/// Measures groups and producer ids of Klamm beside Apache Kafka.
#[derive(Parser)]
struct Arguments {
    /// How many groups.
    #[arg(long, default_value_t = 10_000)]
    groups: usize,
    /// How many producer ids.
    #[arg(long, default_value_t = 100_000)]
    producers: usize,
    /// How many commits the loaded partition holds, in millions.
    #[arg(long, default_value_t = 10)]
    million_commits: usize,
    /// Of how many partitions each commits of a group are. There are as many groups as make a hundred thousand live keys;
    /// each partition is one that has to be opened before, too.
    #[arg(long, default_value_t = 100)]
    partitions: i32,
    /// The first of two free ports.
    #[arg(long, default_value_t = 24030)]
    port: u16,
    /// Only this broker.
    #[arg(long)]
    only: Option<Product>,
}

/// The keys that live in the partition that is loaded: groups times partitions that they commit.
const LIVE_KEYS: usize = 100_000;

/// By the line of the table, then by product.
type Rows = BTreeMap<&'static str, BTreeMap<Product, Series>>;

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let products = arguments.only.map_or(vec![Product::Klamm, Product::Kafka], |only| vec![only]);
    let programs = Programs::find(&products)?;
    let mut rows = Rows::new();
    for product in &products {
        let mut seen = |line, value| {
            eprintln!("{product}: {line}: {}", number(value));
            rows.entry(line).or_default().entry(*product).or_default().push(value);
        };
        many(*product, &programs, &arguments, &mut seen)?;
        load(*product, &programs, &arguments, &mut seen)?;
    }
    println!("{}; {} groups, {} producer ids\n", machine(), arguments.groups, arguments.producers);
    println!("{}", table(&rows, &products));
    Ok(())
}

/// Groups and producers: memory, times, and a restart with all of them.
fn many(
    product: Product,
    programs: &Programs,
    arguments: &Arguments,
    seen: &mut dyn FnMut(&'static str, f64),
) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut broker = Broker::start(product, programs, folder.path(), arguments.port)?;
    let mut connection = broker.connect()?;
    wait_for_coordinators(&mut broker, &mut connection)?;
    connection.create_topic(TOPIC, 1, 1)?;
    let before = broker.usage()?.resident_bytes;
    let members = at_once(&broker, arguments.groups, |connection, number| {
        let group = format!("group-{number}");
        let member = connection.join_alone(&group)?.context("the coordinator went away")?;
        connection.commit(&member, TOPIC, number as i64)?;
        Ok(member)
    })?;
    let with_groups = broker.usage()?.resident_bytes;
    seen(
        "1. memory of a group, KiB",
        (with_groups as f64 - before as f64) / 1024.0 / arguments.groups as f64,
    );
    answers(&mut connection, &members, seen)?;
    let before = broker.usage()?.resident_bytes;
    let mut producers = at_once(&broker, arguments.producers, |connection, _| {
        let mut producer = connection.init_producer()?;
        connection.produce_next(&mut producer, TOPIC)?;
        Ok(producer)
    })?;
    let with_producers = broker.usage()?.resident_bytes;
    let each = (with_producers as f64 - before as f64) / arguments.producers as f64;
    seen("4. memory of a producer id, bytes", each);
    let sampled = spread(&mut producers);
    let times = timed(sampled, |producer| connection.produce_next(producer, TOPIC))?;
    seen("5. produce with them, ms, median", times.median());
    seen("5. produce with them, ms, worst of 2000", times.greatest());
    seen("6. memory with all, MiB", broker.usage()?.resident_bytes as f64 / MIB);
    drop(connection);
    broker.stop()?;

    let mut broker = Broker::start(product, programs, folder.path(), arguments.port)?;
    let mut connection = broker.connect()?;
    for number in 0..arguments.groups {
        let group = format!("group-{number}");
        while connection.committed(&group, TOPIC, 0)? != Some(number as i64 + 1) {
            broker.check_alive(&format!("{group} is not as it was committed"))?;
            std::thread::sleep(POLL);
        }
    }
    let producer = producers.last_mut().context("there are producers")?;
    connection.produce_next(producer, TOPIC)?;
    seen("7. restart until all are served, s", broker.started().elapsed().as_secs_f64());
    broker.stop()
}

/// How fast a broker with many groups answers; in the end each has committed its number and one more.
fn answers(
    connection: &mut Connection,
    members: &[Member],
    seen: &mut dyn FnMut(&'static str, f64),
) -> Result<()> {
    let times = timed(members.iter().take(SAMPLES), |member| connection.heartbeat(member))?;
    seen("2. heartbeat with them, ms, median", times.median());
    seen("2. heartbeat with them, ms, worst of 2000", times.greatest());
    let mut offset = 0;
    let times = timed(members.iter(), |member| {
        offset += 1;
        connection.commit(member, TOPIC, offset)
    })?;
    seen("3. commit with them, ms, median", times.median());
    seen("3. commit with them, ms, worst of all", times.greatest());
    Ok(())
}

/// How fast a coordinator loads what many commits have left.
fn load(
    product: Product,
    programs: &Programs,
    arguments: &Arguments,
    seen: &mut dyn FnMut(&'static str, f64),
) -> Result<()> {
    let one_log = "offsets.topic.num.partitions=1\nlog.cleaner.enable=false\n";
    let folder = tempfile::tempdir()?;
    let mut broker = Broker::start_set(product, programs, folder.path(), arguments.port, one_log)?;
    let mut connection = broker.connect()?;
    wait_for_coordinators(&mut broker, &mut connection)?;
    connection.create_topic(TOPIC, arguments.partitions, 1)?;
    let partitions = usize::try_from(arguments.partitions)?;
    let (groups, requests) = (LIVE_KEYS / partitions, arguments.million_commits * 1_000_000 / partitions);
    for number in 0..requests {
        let group = format!("group-{}", number % groups);
        connection.commit_simply(&group, TOPIC, arguments.partitions, number as i64)?;
    }
    drop(connection);
    broker.stop()?;

    let log = folder.path().join("data/__consumer_offsets-0");
    read_with_checksum(&log)?; // now the cache is warm
    let (bytes, reading) = read_with_checksum(&log)?;
    let mut broker = Broker::start_set(product, programs, folder.path(), arguments.port, one_log)?;
    let mut connection = broker.connect()?;
    let connected = Instant::now();
    let group = format!("group-{}", (requests - 1) % groups);
    while connection.committed(&group, TOPIC, arguments.partitions - 1)? != Some(requests as i64 - 1) {
        broker.check_alive(&"the commits are not loaded")?;
        std::thread::sleep(POLL);
    }
    let loading = connected.elapsed().as_secs_f64();
    let rate = |seconds: f64| bytes as f64 / MIB / seconds;
    seen("8. log with the commits, MiB", bytes as f64 / MIB);
    seen("8. it is loaded in, s", loading);
    seen("8. it is loaded at, MiB/s", rate(loading));
    seen("8. processor time of start and loading, s", broker.usage()?.cpu_seconds);
    seen("8. it is read with checksums at, MiB/s", rate(reading));
    seen("8. memory after loading, MiB", broker.usage()?.resident_bytes as f64 / MIB);
    seen("8. memory at most, MiB", broker.usage()?.resident_bytes_max as f64 / MIB);
    broker.stop()
}

fn wait_for_coordinators(broker: &mut Broker, connection: &mut Connection) -> Result<()> {
    while !connection.has_coordinator("first")? || connection.join_alone("first")?.is_none() {
        broker.check_alive(&"groups have no coordinators")?;
        std::thread::sleep(POLL);
    }
    Ok(())
}

/// Makes `count` of something over several connections, and returns them in order.
fn at_once<T: Send>(
    broker: &Broker,
    count: usize,
    make: impl Fn(&mut Connection, usize) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let share = |client| {
        let mut connection = Connection::open(broker.address())?;
        (client * count / CLIENTS..(client + 1) * count / CLIENTS)
            .map(|number| make(&mut connection, number))
            .collect::<Result<Vec<T>>>()
    };
    let shares = std::thread::scope(|threads| {
        let share = &share;
        let clients: Vec<_> = (0..CLIENTS).map(|client| threads.spawn(move || share(client))).collect();
        clients
            .into_iter()
            .map(|client| client.join().expect("a client does not panic"))
            .collect::<Result<Vec<Vec<T>>>>()
    })?;
    Ok(shares.into_iter().flatten().collect())
}

/// Some of many, evenly.
fn spread(producers: &mut [Producer]) -> impl Iterator<Item = &mut Producer> {
    let step = (producers.len() / SAMPLES).max(1);
    producers.iter_mut().step_by(step)
}

/// The time that each takes, in ms.
fn timed<T>(all: impl Iterator<Item = T>, mut work: impl FnMut(T) -> Result<()>) -> Result<Series> {
    let mut times = Series::default();
    for one in all {
        let begin = Instant::now();
        work(one)?;
        times.push(begin.elapsed().as_secs_f64() * 1000.0);
    }
    Ok(times)
}

/// The size of the segments of a folder, and how long it takes to read and sum them.
fn read_with_checksum(folder: &Path) -> Result<(u64, f64)> {
    let mut buffer = vec![0; 1 << 20];
    let (begin, mut bytes, mut checksum) = (Instant::now(), 0, 0);
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "log") {
            continue;
        }
        let mut file = File::open(&path)?;
        loop {
            let read = file.read(&mut buffer)?;
            if read == 0 {
                break;
            }
            bytes += read as u64;
            checksum = crc32c::crc32c_append(checksum, &buffer[..read]);
        }
    }
    std::hint::black_box(checksum);
    Ok((bytes, begin.elapsed().as_secs_f64()))
}

fn table(rows: &Rows, products: &[Product]) -> String {
    let names: Vec<String> = products.iter().map(Product::to_string).collect();
    let mut head = vec![""];
    head.extend(names.iter().map(String::as_str));
    head.push("Kafka ÷ Klamm");
    let line = |(label, by_product): (&&str, &BTreeMap<Product, Series>)| {
        let value = |product: &Product| by_product.get(product).map_or(f64::NAN, Series::median);
        let mut line = vec![(*label).to_owned()];
        line.extend(products.iter().map(|product| number(value(product))));
        line.push(number(value(&Product::Kafka) / value(&Product::Klamm)));
        line
    };
    let lines: Vec<Vec<String>> = rows.iter().map(line).collect();
    markdown(&head, &lines)
}
