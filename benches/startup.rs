//! How long it takes from the start of the process on an empty directory to the first acknowledged record,
//! and what the broker holds in memory when it then has nothing to do.
//!
//!     cargo build --release && cargo run --release -p klamm-benches --bin startup
//!
//! Both brokers start with warm file caches, in turns. Apache Kafka's folder is formatted before its clock
//! runs. A record is acknowledged when a Produce with acks=all to a topic that came into being by being asked
//! for has been answered without error.
#![allow(clippy::disallowed_methods, reason = "it measures real processes in real time")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Parser;
use klamm_benches::broker::{Broker, Product, Programs};
use klamm_benches::process::machine;
use klamm_benches::table::{Series, markdown, number};

/// Measures start and idle memory of Klamm beside Apache Kafka.
#[derive(Parser)]
struct Arguments {
    /// How often each broker is started.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How long a broker is left alone before its memory is read.
    #[arg(long, default_value_t = 5)]
    idle_seconds: u64,
    /// The first of two free ports.
    #[arg(long, default_value_t = 24000)]
    port: u16,
    /// Only this broker.
    #[arg(long)]
    only: Option<Product>,
}

#[derive(Default)]
struct Measures {
    listening_ms: Series,
    acknowledged_ms: Series,
    idle_mib: Series,
    threads: Series,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let products = arguments.only.map_or(vec![Product::Klamm, Product::Kafka], |only| vec![only]);
    let programs = Programs::find(&products)?;
    let mut measures: BTreeMap<Product, Measures> = BTreeMap::new();
    for round in 1..=arguments.rounds {
        for product in &products {
            let seen = measures.entry(*product).or_default();
            measure(*product, &programs, &arguments, seen)?;
            eprintln!("round {round}: {product} done");
        }
    }
    println!("{}; {} rounds in turns, median (worst)\n", machine(), arguments.rounds);
    println!("{}", table(&measures));
    Ok(())
}

fn measure(product: Product, programs: &Programs, arguments: &Arguments, seen: &mut Measures) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut broker = Broker::start(product, programs, folder.path(), arguments.port)?;
    let mut connection = broker.connect()?;
    let listening = broker.started().elapsed();
    while !connection.topic_is_ready("first")? {
        broker.check_alive(&"the topic has no leader")?;
        std::thread::sleep(Duration::from_micros(500));
    }
    while let Some(code) = connection.produce("first", b"hello")? {
        broker.check_alive(&code)?;
        std::thread::sleep(Duration::from_micros(500));
    }
    let acknowledged = broker.started().elapsed();
    drop(connection);
    let idle_from = Instant::now();
    std::thread::sleep(Duration::from_secs(arguments.idle_seconds).saturating_sub(idle_from.elapsed()));
    let usage = broker.usage()?;
    broker.stop()?;
    seen.listening_ms.push(listening.as_secs_f64() * 1000.0);
    seen.acknowledged_ms.push(acknowledged.as_secs_f64() * 1000.0);
    seen.idle_mib.push(usage.resident_bytes as f64 / f64::from(1 << 20));
    seen.threads.push(usage.threads as f64);
    Ok(())
}

fn table(measures: &BTreeMap<Product, Measures>) -> String {
    type Pick = fn(&Measures) -> &Series;
    let picks: [(&str, Pick); 4] = [
        ("listening after, ms", |seen| &seen.listening_ms),
        ("first record acknowledged after, ms", |seen| &seen.acknowledged_ms),
        ("idle memory (VmRSS), MiB", |seen| &seen.idle_mib),
        ("threads", |seen| &seen.threads),
    ];
    let names: Vec<String> = measures.keys().map(Product::to_string).collect();
    let mut head = vec![""];
    head.extend(names.iter().map(String::as_str));
    let both = measures.len() == 2;
    if both {
        head.push("Kafka ÷ Klamm");
    }
    let rows: Vec<Vec<String>> = picks
        .iter()
        .map(|(label, pick)| {
            let mut row = vec![(*label).to_owned()];
            let series = || measures.values().map(pick);
            row.extend(series().map(|one| format!("{} ({})", number(one.median()), number(one.greatest()))));
            if let (true, Some(ours), Some(theirs)) = (both, series().next(), series().nth(1)) {
                row.push(number(theirs.median() / ours.median()));
            }
            row
        })
        .collect();
    markdown(&head, &rows)
}
