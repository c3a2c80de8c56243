//! Klamm beside Apache Kafka under Kafka's own perf tools, in turns on one machine: throughput, the broker's
//! processor time per GiB and its peak memory, as ratios round by round, and what the machine itself can do with the bytes.
//!
//!     cargo build --release && cargo run --release -p klamm-benches --bin compare
//!
//! With `--replicas 3`, each is three nodes, and every record is on all of them; processor time and memory are those of
//! the three together.
//!
//! The tools run with their defaults (acks=all, idempotent, 16 KiB batches) beside the broker on the same
//! cores, so throughput is what broker and client reach together; the processor time is the broker's alone.
#![allow(clippy::disallowed_methods, reason = "it measures real processes in real time")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;
use klamm_benches::broker::{Broker, KAFKA_VERSION, Product, Programs};
use klamm_benches::process::{Usage, load, machine};
use klamm_benches::raw_limit;
use klamm_benches::table::{Series, markdown, number};

const GIB: f64 = (1_u64 << 30) as f64;
const MIB: f64 = (1_u64 << 20) as f64;
/// Longer than the nodes of a cluster need to find each other.
const PATIENCE: Duration = Duration::from_secs(60);
const TOPIC: &str = "compare";
const TOPIC_OF_WARM_UP: &str = "warm-up";

/// What a producer batch holds by default.
const BATCH_BYTES: usize = 16 << 10;

/// Measures throughput, processor time and memory of Klamm beside Apache Kafka.
#[derive(Parser)]
struct Arguments {
    /// How often each broker takes its turn in each workload.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// How much is produced and consumed in each turn.
    #[arg(long, default_value_t = 1024)]
    mebibytes: u64,
    /// How much is produced and consumed before that, for a JVM to compile what is hot.
    #[arg(long, default_value_t = 128)]
    warm_up_mebibytes: u64,
    /// The partitions of the topic.
    #[arg(long, default_value_t = 6)]
    partitions: i32,
    /// Only this workload: a record size in bytes and a codec, as in 1024,none.
    #[arg(long)]
    workload: Option<Workload>,
    /// How many nodes a broker has, and replicas each partition.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(i16).range(1..=9))]
    replicas: i16,
    /// The first of two free ports for each node.
    #[arg(long, default_value_t = 24010)]
    port: u16,
    /// Only this broker.
    #[arg(long)]
    only: Option<Product>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Workload {
    record_bytes: u64,
    codec: String,
}

impl std::str::FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Workload, String> {
        let (size, codec) = text.split_once(',').ok_or("a record size, a comma and a codec")?;
        let record_bytes = size.parse().map_err(|_| format!("{size:?} is not a number of bytes"))?;
        Ok(Workload { record_bytes, codec: codec.to_owned() })
    }
}

/// The nodes of one broker.
struct Nodes(Vec<Broker>);

impl Nodes {
    fn start(
        product: Product,
        programs: &Programs,
        folder: &Path,
        port: u16,
        replicas: i16,
    ) -> Result<Nodes> {
        if replicas == 1 {
            return Ok(Nodes(vec![Broker::start(product, programs, folder, port)?]));
        }
        let count = u16::try_from(replicas)?;
        let ports: Vec<u16> = (0..count).map(|index| port + 2 * index).collect();
        let node = |id: usize| {
            let folder = folder.join(id.to_string());
            std::fs::create_dir_all(&folder)?;
            Broker::start_in_cluster(product, programs, &folder, &ports, id)
        };
        Ok(Nodes((1..=ports.len()).map(node).collect::<Result<_>>()?))
    }

    /// Makes a topic, as soon as there are as many nodes as it is to have replicas.
    fn create_topic(&mut self, topic: &str, arguments: &Arguments) -> Result<()> {
        let begin = Instant::now();
        loop {
            let mut connection = self.0[0].connect()?;
            match connection.create_topic(topic, arguments.partitions, arguments.replicas) {
                Err(_) if begin.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(100)),
                made => return made,
            }
        }
    }

    /// `host:port` of all, as tools take it.
    fn bootstrap(&self) -> String {
        self.0.iter().map(|node| node.address().to_string()).collect::<Vec<_>>().join(",")
    }

    /// Processor seconds until now, and the most MiB ever held, of all together.
    fn usage(&self) -> Result<(f64, f64)> {
        let all: Vec<Usage> = self.0.iter().map(Broker::usage).collect::<Result<_>>()?;
        let peak: u64 = all.iter().map(|usage| usage.resident_bytes_max).sum();
        Ok((all.iter().map(|usage| usage.cpu_seconds).sum(), peak as f64 / MIB))
    }

    /// Asks all to stop at once: the last one of a quorum would wait for the others.
    fn stop(self) -> Result<()> {
        self.0.iter().try_for_each(Broker::terminate)?;
        self.0.into_iter().try_for_each(|mut node| node.wait())
    }
}

/// The measures of one broker under one workload, in the order of the table.
#[derive(Default)]
struct Measures {
    produce_mib_s: Series,
    produce_cpu: Series,
    consume_mib_s: Series,
    consume_cpu: Series,
    peak_mib: Series,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let products = arguments.only.map_or(vec![Product::Klamm, Product::Kafka], |only| vec![only]);
    let programs = Programs::find(&products)?;
    let workloads = arguments.workload.clone().map_or_else(default_workloads, |only| vec![only]);
    println!(
        "{}; Kafka's tools of {KAFKA_VERSION}; {} MiB after {} MiB to warm up, {} partitions of {} replicas, {} rounds in \
        turns, median (least to greatest)",
        machine(),
        arguments.mebibytes,
        arguments.warm_up_mebibytes,
        arguments.partitions,
        arguments.replicas,
        arguments.rounds
    );
    for workload in &workloads {
        let mut measures: BTreeMap<Product, Measures> = BTreeMap::new();
        let mut limit = Measures::default();
        for round in 1..=arguments.rounds {
            // Whoever comes first meets a cooler machine, so the order changes with each round.
            let mut order = products.clone();
            if round % 2 == 0 {
                order.reverse();
            }
            for product in order {
                turn(product, &programs, &arguments, workload, measures.entry(product).or_default())?;
                eprintln!(
                    "{} bytes, {}, round {round}: {product} done, load {:.1}",
                    workload.record_bytes,
                    workload.codec,
                    load()?
                );
            }
            measure_limit(&arguments, &mut limit)?;
        }
        println!("\nRecords of {} bytes, codec {}\n", workload.record_bytes, workload.codec);
        println!("{}", table(&measures, &limit));
    }
    Ok(())
}

fn default_workloads() -> Vec<Workload> {
    let workload = |record_bytes, codec: &str| Workload { record_bytes, codec: codec.to_owned() };
    vec![workload(1024, "none"), workload(100, "lz4")]
}

fn turn(
    product: Product,
    programs: &Programs,
    arguments: &Arguments,
    workload: &Workload,
    seen: &mut Measures,
) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut nodes = Nodes::start(product, programs, folder.path(), arguments.port, arguments.replicas)?;
    nodes.create_topic(TOPIC, arguments)?;
    nodes.create_topic(TOPIC_OF_WARM_UP, arguments)?;
    let bootstrap = nodes.bootstrap();
    let records_of = |mebibytes: u64| (mebibytes << 20) / workload.record_bytes;
    let warm_up = records_of(arguments.warm_up_mebibytes);
    if warm_up > 0 {
        produce(programs, &bootstrap, workload, TOPIC_OF_WARM_UP, warm_up)?;
        consume(programs, &bootstrap, TOPIC_OF_WARM_UP, warm_up)?;
    }
    let records = records_of(arguments.mebibytes);
    let gib = (records * workload.record_bytes) as f64 / GIB;

    let (before, _) = nodes.usage()?;
    let throughput = produce(programs, &bootstrap, workload, TOPIC, records)?;
    let (between, _) = nodes.usage()?;
    seen.produce_mib_s.push(throughput);
    seen.produce_cpu.push((between - before) / gib);

    let throughput = consume(programs, &bootstrap, TOPIC, records)?;
    let (after, peak_mib) = nodes.usage()?;
    seen.consume_mib_s.push(throughput);
    seen.consume_cpu.push((after - between) / gib);
    seen.peak_mib.push(peak_mib);
    nodes.stop()
}

/// Runs the producer's perf tool; its throughput in MiB/s.
fn produce(
    programs: &Programs,
    bootstrap: &str,
    workload: &Workload,
    topic: &str,
    records: u64,
) -> Result<f64> {
    let mut tool = programs.tool("org.apache.kafka.tools.ProducerPerformance");
    tool.args(["--bootstrap-server", bootstrap, "--topic", topic, "--throughput", "-1"]);
    tool.args(["--num-records", &records.to_string(), "--record-size", &workload.record_bytes.to_string()]);
    tool.args(["--command-property", &format!("compression.type={}", workload.codec)]);
    let output = output_of(&mut tool)?;
    produced(&output, records).with_context(|| format!("the producer's perf tool says:\n{output}"))
}

/// Reads `N records sent, R records/sec (M MB/sec), …`; the last such line is the sum.
fn produced(output: &str, records: u64) -> Option<f64> {
    let line = output.lines().rev().find(|line| line.contains("records sent"))?;
    if line.split_whitespace().next()?.parse::<u64>().ok()? != records {
        return None;
    }
    line.split_once('(')?.1.split_whitespace().next()?.parse().ok()
}

/// Runs the consumer's perf tool; its throughput in MiB/s while it fetched.
fn consume(programs: &Programs, bootstrap: &str, topic: &str, records: u64) -> Result<f64> {
    let mut tool = programs.tool("org.apache.kafka.tools.ConsumerPerformance");
    tool.args(["--bootstrap-server", bootstrap, "--topic", topic]);
    tool.args(["--num-records", &records.to_string(), "--timeout", "60000"]);
    let output = output_of(&mut tool)?;
    consumed(&output, records).with_context(|| format!("the consumer's perf tool says:\n{output}"))
}

/// Reads the line of figures by the names in the line of heads.
fn consumed(output: &str, records: u64) -> Option<f64> {
    let mut lines = output.lines().skip_while(|line| !line.starts_with("start.time"));
    let heads: Vec<&str> = lines.next()?.split(',').map(str::trim).collect();
    let figures: Vec<&str> = lines.next()?.split(',').map(str::trim).collect();
    let figure = |name: &str| figures.get(heads.iter().position(|head| *head == name)?).copied();
    // The tool takes whole polls, so it may count a few more than it was asked for.
    if figure("data.consumed.in.nMsg")?.parse::<u64>().ok()? < records {
        return None;
    }
    figure("fetch.MB.sec")?.parse().ok()
}

fn output_of(tool: &mut std::process::Command) -> Result<String> {
    let output = tool.stdin(Stdio::null()).output()?;
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        bail!("{tool:?} ends with {}:\n{text}", output.status);
    }
    Ok(text)
}

fn measure_limit(arguments: &Arguments, limit: &mut Measures) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let bytes = arguments.mebibytes << 20;
    let (way_in, way_out) = raw_limit::measure(folder.path(), bytes, BATCH_BYTES)?;
    let (mib, gib) = (arguments.mebibytes as f64, bytes as f64 / GIB);
    limit.produce_mib_s.push(mib / way_in.seconds);
    limit.produce_cpu.push(way_in.cpu_seconds / gib);
    limit.consume_mib_s.push(mib / way_out.seconds);
    limit.consume_cpu.push(way_out.cpu_seconds / gib);
    Ok(())
}

fn table(measures: &BTreeMap<Product, Measures>, limit: &Measures) -> String {
    type Pick = fn(&Measures) -> &Series;
    let picks: [(&str, Pick); 5] = [
        ("produce, MiB/s", |seen| &seen.produce_mib_s),
        ("produce, broker's CPU s/GiB", |seen| &seen.produce_cpu),
        ("consume, MiB/s", |seen| &seen.consume_mib_s),
        ("consume, broker's CPU s/GiB", |seen| &seen.consume_cpu),
        ("peak memory (VmHWM), MiB", |seen| &seen.peak_mib),
    ];
    let names: Vec<String> = measures.keys().map(Product::to_string).collect();
    let mut head = vec![""];
    head.extend(names.iter().map(String::as_str));
    let both = measures.len() == 2;
    if both {
        head.push("Klamm ÷ Kafka");
    }
    head.push("raw limit");
    let rows: Vec<Vec<String>> = picks
        .iter()
        .map(|(label, pick)| {
            let mut row = vec![(*label).to_owned()];
            let series = || measures.values().map(pick);
            row.extend(series().map(|one| {
                let spread = [one.least(), one.greatest()].map(number).join(" to ");
                format!("{} ({spread})", number(one.median()))
            }));
            if let (true, Some(ours), Some(theirs)) = (both, series().next(), series().nth(1)) {
                row.push(number(ours.ratios_to(theirs).median()));
            }
            row.push(number(pick(limit).median()));
            row
        })
        .collect();
    markdown(&head, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tools' output changed over the versions; a figure read from the wrong place would go unseen.
    #[test]
    fn the_tools_figures_are_read_by_name_and_only_when_complete() {
        let output = "24013 records sent, 4802.6 records/sec (4.69 MB/sec), 1.0 ms avg latency.\n\
            50000 records sent, 49019.6 records/sec (47.87 MB/sec), 2.31 ms avg latency, 247.00 ms max latency.\n";
        assert_eq!(produced(output, 50_000), Some(47.87));
        assert_eq!(produced(output, 60_000), None);

        let output = "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, \
            rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec\n\
            2026-01-01 00:00:00:000, 2026-01-01 00:00:01:000, 48.8, 48.8, 50000, 50000.0, 500, 500, 97.6, 100000.0\n";
        assert_eq!(consumed(output, 50_000), Some(97.6));
        assert_eq!(consumed(output, 50_001), None);
    }
}
