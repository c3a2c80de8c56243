//! Whole clusters of Klamm in one thread, and a checker of what their clients saw. See README.md.

mod checker;
mod client;
mod faults;
mod history;
mod host;
mod mistakes;
mod observer;
mod run;
mod settings;
mod thousands;
mod trace;
mod world;

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use klamm_io::{Clock, SystemClock};

use mistakes::Mistake;
use run::{Plan, Report, run};
use thousands::{LED_AGAIN_MAX, Moved, kill_two};
use trace::Trace;

/// Simulates clusters and checks what their clients saw.
#[derive(Parser, Debug)]
struct Arguments {
    /// The first seed. One seed is one run.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many seeds, one after another.
    #[arg(long, default_value_t = 1)]
    runs: u64,
    /// Goes on with further seeds for so many seconds of real time.
    #[arg(long)]
    for_seconds: Option<u64>,
    /// How many nodes a cluster has: three, and five with each fourth seed, if it is not told.
    #[arg(long)]
    nodes: Option<i32>,
    /// For how many simulated seconds the cluster of one run is mistreated.
    #[arg(long, default_value_t = 300)]
    trouble_seconds: u64,
    /// Has the nodes make a mistake, and succeeds only if it is found; `all` tries each one and prints a table.
    #[arg(long)]
    planted: Option<String>,
    /// Makes so many partitions instead, kills nodes that lead some, and tells how long until all are led again.
    #[arg(long)]
    partitions: Option<i32>,
    /// Prints each line of the trace as it comes.
    #[arg(long)]
    trace: bool,
    /// How many lines of the trace a failure shows.
    #[arg(long, default_value_t = 60)]
    lines: usize,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(name) = &arguments.planted {
        return find_mistakes(&arguments, name);
    }
    if let Some(partitions) = arguments.partitions {
        return move_partitions(&arguments, partitions);
    }
    let clock = SystemClock::new();
    let mut total = Total::default();
    for seed in arguments.seed.. {
        let trace = Trace::new(arguments.trace);
        let report = run(&arguments.plan(seed), &trace);
        total.add(&report);
        println!("{}", line(seed, &report));
        if !report.violations.is_empty() {
            tell(&arguments, seed, &report, &trace);
            return ExitCode::FAILURE;
        }
        let is_over = match arguments.for_seconds {
            Some(seconds) => clock.monotonic() > Duration::from_secs(seconds),
            None => total.runs >= arguments.runs,
        };
        if is_over {
            break;
        }
    }
    println!("{total:#?}");
    if !cfg!(tokio_unstable) {
        println!("this build does not repeat its runs: cargo simulate does (simulation/README.md)");
    }
    match total.missing() {
        missing if missing.is_empty() || total.runs < RUNS_OF_A_FULL_RUN => ExitCode::SUCCESS,
        missing => {
            println!("so many runs without {} show nothing", missing.join(", without "));
            ExitCode::FAILURE
        }
    }
}

impl Arguments {
    fn plan(&self, seed: u64) -> Plan {
        let nodes = self.nodes.unwrap_or(if seed.is_multiple_of(4) { 5 } else { 3 });
        Plan { seed, nodes, trouble: Duration::from_secs(self.trouble_seconds) }
    }
}

/// Kills nodes of a cluster that has many partitions.
fn move_partitions(arguments: &Arguments, partitions: i32) -> ExitCode {
    let (clock, trace) = (SystemClock::new(), Trace::new(arguments.trace));
    let moved = match kill_two(arguments.seed, partitions, &trace) {
        Ok(moved) => moved,
        Err(failure) => {
            trace.recent(arguments.lines).iter().for_each(|line| println!("{line}"));
            println!("seed {}, {partitions} partitions: {failure}", arguments.seed);
            return ExitCode::FAILURE;
        }
    };
    for Moved { was_controller, led, led_again, in_sync_again } in moved {
        let victim = if was_controller { "the active controller" } else { "a broker" };
        println!(
            "{partitions} partitions, {victim} is killed that leads {led}: all are led again after {} ms, and in sync {} ms \
             after it has started again (simulated time)",
            led_again.as_millis(),
            in_sync_again.as_millis(),
        );
    }
    println!("{} s of real time", clock.monotonic().as_secs());
    if moved.iter().any(|moved| moved.led_again > LED_AGAIN_MAX) {
        println!("that is longer than {LED_AGAIN_MAX:?}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// How many seeds a planted mistake has before it counts as not found.
const SEEDS_FOR_MISTAKE: u64 = 12;

/// Plants mistakes one after another and tells which check finds each, and when.
fn find_mistakes(arguments: &Arguments, name: &str) -> ExitCode {
    let wanted: Vec<Mistake> =
        mistakes::all().into_iter().filter(|mistake| name == "all" || mistake.name == name).collect();
    if wanted.is_empty() {
        let known: Vec<String> = mistakes::all().into_iter().map(|mistake| mistake.name).collect();
        println!("{name} is no mistake that this build can make; it knows: {}", known.join(", "));
        return ExitCode::from(2);
    }
    let mut missed = 0;
    println!("| Mistake | Where | Found by | Seed | After simulated |\n|---|---|---|---|---|");
    for mistake in wanted {
        mistake.plant();
        let mut simulated = Duration::ZERO;
        let found = (arguments.seed..arguments.seed + SEEDS_FOR_MISTAKE).find_map(|seed| {
            let report = run(&arguments.plan(seed), &Trace::new(arguments.trace));
            simulated += report.simulated;
            let checks: BTreeSet<String> =
                report.violations.iter().map(|violation| format!("`{:?}`", violation.check)).collect();
            (!checks.is_empty()).then_some((seed, checks))
        });
        mistake.heal();
        let (name, place, minutes) = (&mistake.name, mistake.place, simulated.as_secs_f64() / 60.0);
        match found {
            Some((seed, checks)) => {
                let checks: Vec<String> = checks.into_iter().collect();
                println!("| `{name}` | {place} | {} | {seed} | {minutes:.0} min |", checks.join(", "));
            }
            None => {
                missed += 1;
                println!("| `{name}` | {place} | not found | | {minutes:.0} min |");
            }
        }
    }
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn tell(arguments: &Arguments, seed: u64, report: &Report, trace: &Trace) {
    println!("\nseed {seed} FAILED; the last of what happened:");
    trace.recent(arguments.lines).iter().for_each(|line| println!("{line}"));
    println!("\nbroken promises ({}):", report.violations.len());
    for violation in report.violations.iter().take(10) {
        println!("  {:?}: {}", violation.check, violation.text);
    }
    let Plan { nodes, .. } = arguments.plan(seed);
    let trouble_seconds = arguments.trouble_seconds;
    println!("\nagain: cargo simulate --seed {seed} --nodes {nodes} --trouble-seconds {trouble_seconds}");
}

fn line(seed: u64, report: &Report) -> String {
    let Report { simulated, counts, faults, acknowledged, refused, unknown, read, .. } = report;
    let Report { commits, transactions, .. } = report;
    format!(
        "seed {seed} ({:016x}): {:.0} s simulated, {acknowledged} acknowledged, {refused} refused, {unknown} unknown, {read} \
         read, {} lost with acks=1, {commits} offset commits, {transactions} transactions, {counts:?}, {faults:?}",
        report.digest,
        simulated.as_secs_f64(),
        report.lost_with_acks_of_leader,
    )
}

/// What all runs came to.
#[derive(Debug, Default)]
struct Total {
    runs: u64,
    virtual_hours: f64,
    elections: u64,
    truncations: u64,
    isr_changes: u64,
    moves: u64,
    crashes: u64,
    lost_disks: u64,
    late_words: u64,
    acknowledged: u64,
    unknown_outcomes: u64,
    offset_commits: u64,
    transactions: u64,
}

/// From so many seeds on, everything that a simulation is for must have happened.
const RUNS_OF_A_FULL_RUN: u64 = 10;

impl Total {
    /// What has never happened.
    fn missing(&self) -> Vec<&'static str> {
        let happened = [
            ("elections", self.elections),
            ("truncations", self.truncations),
            ("changes of the ISR", self.isr_changes),
            ("moves of partitions", self.moves),
            ("crashes", self.crashes),
            ("lost disks", self.lost_disks),
            ("late words of leaders", self.late_words),
            ("unknown outcomes", self.unknown_outcomes),
            ("commits of offsets", self.offset_commits),
            ("transactions", self.transactions),
        ];
        happened.into_iter().filter(|(_, count)| *count == 0).map(|(name, _)| name).collect()
    }

    fn add(&mut self, report: &Report) {
        self.runs += 1;
        self.virtual_hours += report.simulated.as_secs_f64() / 3600.0;
        self.elections += report.counts.elections;
        self.truncations += report.counts.truncations;
        self.isr_changes += report.counts.isr_changes;
        self.moves += report.counts.moves;
        self.crashes += report.faults.crashes;
        self.lost_disks += report.faults.lost_disks;
        self.late_words += report.faults.late_words;
        self.acknowledged += report.acknowledged;
        self.unknown_outcomes += report.unknown;
        self.offset_commits += report.commits;
        self.transactions += report.transactions;
    }
}
