//! Runs real clients of every age against a real broker process and says, scenario by scenario, whether they saw what
//! they must see. The broker is Klamm or, to prove that the scenarios themselves are right, Apache Kafka.
//!
//! What this crate must never do: judge a client's output itself (each scenario does, in its own language), skip a
//! scenario because something is not installed, or leave a process behind.
#![allow(clippy::disallowed_methods, reason = "the runner drives real processes, files and sockets")]

mod broker;
mod cluster;
mod matrix;
mod process;
mod run;
mod scenario;
mod setup;
mod transcript;

use anyhow::{Context, Result, bail};
use broker::Flavor;
use clap::Parser;
use scenario::{Scenario, Tier};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Runs the compatibility scenarios and closes with the line "N passed, N failed".
#[derive(Parser)]
#[command(name = "klamm-compat-tests")]
struct Arguments {
    /// The broker to test: klamm, or a version of Apache Kafka (2.8.2, 3.9.1, 4.4.0)
    #[arg(long, default_value = "klamm")]
    against: Flavor,
    /// Also run the scenarios of the tier "all"
    #[arg(long)]
    all: bool,
    /// As --all, and what repeats itself does so for long
    #[arg(long)]
    soak: bool,
    /// Run only the scenarios of the tier "quick"
    #[arg(long, conflicts_with_all = ["all", "soak"])]
    quick: bool,
    /// Print the chosen scenarios and run none
    #[arg(long)]
    list: bool,
    /// Print every scenario as the report wants it, columns with tabs between: name, with, what it shows, brokers that it
    /// runs against, and what stands in the matrix
    #[arg(long)]
    table: bool,
    /// Fetch and build what the chosen scenarios need and run none
    #[arg(long)]
    setup_only: bool,
    /// Keep each scenario's folder (the broker's data and log) and print its path
    #[arg(long)]
    keep: bool,
    /// Print what client and broker said also where nothing failed
    #[arg(long, short)]
    verbose: bool,
    /// Parts of scenario names, or =NAME for one alone; a scenario that is named runs whatever its tier
    names: Vec<String>,
}

fn main() -> ExitCode {
    match work() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("klamm-compat-tests: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn work() -> Result<bool> {
    let arguments = Arguments::parse();
    let home = Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf();
    let matrix = matrix::Matrix::read(&home.join("matrix.tsv"))?;
    let all = scenario::read_all(&home.join("scenarios"), &matrix)?;
    if arguments.table {
        all.iter().for_each(|scenario| println!("{}", scenario.row()));
        return Ok(true);
    }
    let chosen = choose(all, &arguments)?;
    if arguments.list {
        for scenario in &chosen {
            println!("{:34} {:6} {}", scenario.name, scenario.tier, scenario.summary);
        }
        return Ok(true);
    }
    process::end_all_on_signal()?;
    let setup = setup::prepare(&home, &chosen)?;
    if arguments.setup_only {
        return Ok(true);
    }
    let klamm = klamm_binary(arguments.against)?;
    let bench = run::Bench {
        home,
        klamm,
        flavor: arguments.against,
        setup,
        keep: arguments.keep,
        soak: arguments.soak,
    };
    let (mut failed, mut removals) = (0, Vec::new());
    for scenario in &chosen {
        let outcome = run::run(&bench, scenario)?;
        println!(
            "{:34} {:6} {:6.1} s",
            scenario.name,
            if outcome.failure.is_none() { "ok" } else { "FAILED" },
            outcome.seconds
        );
        if let Some(failure) = &outcome.failure {
            failed += 1;
            println!("  {failure}");
        }
        if outcome.failure.is_some() || arguments.verbose {
            print!("{}", outcome.transcript);
        }
        if let Some(folder) = &outcome.kept {
            println!("  kept in {}", folder.display());
        }
        removals.extend(outcome.removal);
    }
    for removal in removals {
        let _ = removal.join(); // what could not be removed stays in the temporary folder
    }
    println!("{} passed, {failed} failed", chosen.len() - failed);
    Ok(failed == 0)
}

fn choose(all: Vec<Scenario>, arguments: &Arguments) -> Result<Vec<Scenario>> {
    let is_named = |scenario: &Scenario, word: &str| match word.strip_prefix('=') {
        Some(name) => scenario.name == name,
        None => scenario.name.contains(word),
    };
    let named = |scenario: &Scenario| arguments.names.iter().any(|word| is_named(scenario, word));
    let highest = match arguments {
        Arguments { all: true, .. } | Arguments { soak: true, .. } => Tier::All,
        Arguments { quick: true, .. } => Tier::Quick,
        _ => Tier::Normal,
    };
    for name in &arguments.names {
        if !all.iter().any(|scenario| is_named(scenario, name)) {
            bail!("no scenario has {name:?} in its name (--list --all shows them)");
        }
    }
    let wanted = |scenario: &Scenario| {
        if arguments.names.is_empty() { scenario.tier <= highest } else { named(scenario) }
    };
    let chosen: Vec<_> =
        all.into_iter().filter(|s| wanted(s) && s.against.contains(&arguments.against)).collect();
    if chosen.is_empty() {
        bail!("no chosen scenario runs against {}", arguments.against);
    }
    Ok(chosen)
}

/// Where the broker under test is; the oracle needs none.
fn klamm_binary(flavor: Flavor) -> Result<PathBuf> {
    if flavor != Flavor::Klamm {
        return Ok(PathBuf::new());
    }
    let path = match std::env::var_os("KLAMM_BIN") {
        Some(path) => PathBuf::from(path),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/release/klamm"),
    };
    path.canonicalize().with_context(|| {
        format!("no broker at {} (cargo build --release makes it; KLAMM_BIN names another)", path.display())
    })
}
