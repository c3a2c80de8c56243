//! How fast Klamm recovers after a kill, against what the disk and the checksums allow.
//!
//!     cargo build --release && cargo run --release -p klamm-benches --bin recovery
//!
//! A broker writes some GiB and is killed, and its recovery points are taken away, so that every byte has to be
//! checked. Then, in turns: the log files are read by plain sequential reads out of a cold cache, and recovered
//! out of a cold cache; they are read and summed (CRC-32C) out of a warm cache, and recovered out of a warm one.
//! The limits have as many threads as the recovery, one file each at a time. A recovery counts from the start of
//! the process until its log says that it is done.
#![allow(clippy::disallowed_methods, reason = "it measures real processes and files in real time")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;
use klamm_benches::broker::{Broker, Product, Programs};
use klamm_benches::process::machine;
use klamm_benches::table::{Series, markdown, number};
use rustix::fs::{Advice, fadvise};

const MIB: f64 = (1_u64 << 20) as f64;
const TOPIC: &str = "recovery";

/// The default of `num.recovery.threads.per.data.dir`.
const THREADS: usize = 2;

const BUFFER_BYTES: usize = 1 << 20;

/// What Klamm's log says when a recovery has ended.
const DONE: &str = "recovery is done";

/// Measures the recovery after a kill.
#[derive(Parser)]
struct Arguments {
    /// How often each is measured.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// How much is written.
    #[arg(long, default_value_t = 4096)]
    mebibytes: u64,
    /// The bytes of a batch.
    #[arg(long, default_value_t = 16 << 10)]
    batch_bytes: usize,
    /// The partitions of the topic.
    #[arg(long, default_value_t = 4)]
    partitions: i32,
    /// A free port.
    #[arg(long, default_value_t = 24020)]
    port: u16,
}

#[derive(Default)]
struct Measures {
    raw_cold: Series,
    recovery_cold: Series,
    checksum_warm: Series,
    recovery_warm: Series,
}

/// Whether the bytes that are read are summed too.
#[derive(Clone, Copy, PartialEq)]
enum Work {
    Read,
    Sum,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let programs = Programs::find(&[Product::Klamm])?;
    let folder = tempfile::tempdir()?;
    fill(&programs, folder.path(), &arguments)?;
    let files = log_files(&folder.path().join("data"))?;
    let bytes: u64 = files.iter().map(|file| Ok(file.metadata()?.len())).sum::<std::io::Result<u64>>()?;
    eprintln!("{} MiB in {} segments are written", bytes >> 20, files.len());
    let rate = |seconds: f64| bytes as f64 / MIB / seconds;
    let mut seen = Measures::default();
    for round in 1..=arguments.rounds {
        forget(&files)?;
        seen.raw_cold.push(rate(read_all(&files, Work::Read)?));
        forget(&files)?;
        seen.recovery_cold.push(rate(recover(&programs, folder.path(), arguments.port)?));
        read_all(&files, Work::Read)?;
        seen.checksum_warm.push(rate(read_all(&files, Work::Sum)?));
        seen.recovery_warm.push(rate(recover(&programs, folder.path(), arguments.port)?));
        eprintln!("round {round} done");
    }
    println!(
        "{}; {} MiB in {} partitions, batches of {} bytes, {} rounds, median (worst)\n",
        machine(),
        bytes >> 20,
        arguments.partitions,
        arguments.batch_bytes,
        arguments.rounds
    );
    println!("{}", table(&seen));
    Ok(())
}

/// Has a broker write the logs, and kills it.
fn fill(programs: &Programs, folder: &Path, arguments: &Arguments) -> Result<()> {
    let mut broker = Broker::start(Product::Klamm, programs, folder, arguments.port)?;
    let mut connection = broker.connect()?;
    connection.create_topic(TOPIC, arguments.partitions, 1)?;
    let per_round = arguments.batch_bytes as u64 * u64::try_from(arguments.partitions)?;
    for _ in 0..(arguments.mebibytes << 20) / per_round {
        connection.produce_to_all(TOPIC, arguments.partitions, arguments.batch_bytes)?;
    }
    Ok(())
}

/// Starts a broker on logs of which every byte has to be checked, and kills it when that is done.
fn recover(programs: &Programs, folder: &Path, port: u16) -> Result<f64> {
    let points = folder.join("data/recovery-point-offset-checkpoint");
    if points.exists() {
        std::fs::remove_file(&points)?;
    }
    let mut broker = Broker::start(Product::Klamm, programs, folder, port)?;
    loop {
        if broker.log()?.contains(DONE) {
            return Ok(broker.started().elapsed().as_secs_f64());
        }
        broker.check_alive(&"the recovery has not ended")?;
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The segments of the topic, opened.
fn log_files(data: &Path) -> Result<Vec<File>> {
    let mut paths: Vec<PathBuf> = Vec::new();
    for folder in std::fs::read_dir(data)? {
        let folder = folder?;
        // A checkpoint's name begins so too.
        if !folder.file_type()?.is_dir() || !folder.file_name().to_string_lossy().starts_with(TOPIC) {
            continue;
        }
        for file in std::fs::read_dir(folder.path())? {
            paths.push(file?.path());
        }
    }
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
    paths.sort();
    if paths.is_empty() {
        bail!("{} holds no segment", data.display());
    }
    paths.iter().map(|path| File::open(path).with_context(|| path.display().to_string())).collect()
}

/// Takes the files out of the page cache.
fn forget(files: &[File]) -> Result<()> {
    for file in files {
        file.sync_all()?;
        fadvise(file, 0, None, Advice::DontNeed)?;
    }
    Ok(())
}

/// Reads all files from their beginning to their end. Returns the seconds that it took.
fn read_all(files: &[File], work: Work) -> Result<f64> {
    let began = Instant::now();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let reader = || -> Result<()> {
            let mut buffer = vec![0; BUFFER_BYTES];
            while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                fadvise(file, 0, None, Advice::Sequential)?;
                read_one(file, &mut buffer, work)?;
            }
            Ok(())
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(reader)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a reader does not panic"))
    })?;
    Ok(began.elapsed().as_secs_f64())
}

fn read_one(file: &File, buffer: &mut [u8], work: Work) -> Result<()> {
    let mut position = 0;
    loop {
        let count = file.read_at(buffer, position)?;
        if count == 0 {
            return Ok(());
        }
        position += count as u64;
        if work == Work::Sum {
            std::hint::black_box(crc32c::crc32c(&buffer[..count]));
        }
    }
}

fn table(seen: &Measures) -> String {
    let row = |label: &str, ours: &Series, limit: &Series| {
        let both =
            [limit, ours].map(|series| format!("{} ({})", number(series.median()), number(series.least())));
        let [limit_text, ours_text] = both;
        vec![label.to_owned(), limit_text, ours_text, number(ours.median() / limit.median())]
    };
    let rows = [
        row("cold: plain reads", &seen.recovery_cold, &seen.raw_cold),
        row("warm: plain reads and CRC-32C", &seen.recovery_warm, &seen.checksum_warm),
    ];
    markdown(&["limit", "limit, MiB/s", "recovery, MiB/s", "recovery ÷ limit"], &rows)
}
