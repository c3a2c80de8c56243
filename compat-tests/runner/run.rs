//! Runs one scenario: starts the broker, starts the client, does what the client asks of the broker, takes the
//! client's exit code as the verdict, and ends everything that was started.
//!
//! A client asks by a line on its standard output that begins with `@`, and reads one line of answer, `ok …` or
//! `failed …`: `@restart` (SIGTERM and start), `@kill` (SIGKILL and start), `@stop`, `@crash` (SIGKILL only), `@start`,
//! `@pause` (SIGSTOP), `@continue`, `@pid`; where there are several nodes, with the number of one: `@crash 2`.

use crate::broker::{Flavor, Programs};
use crate::cluster::Cluster;
use crate::process::Group;
use crate::scenario::Scenario;
use crate::setup::Setup;
use crate::transcript::{Speaker, Transcript};
use anyhow::{Context, Result};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What all scenarios of one run share.
pub(crate) struct Bench {
    pub(crate) home: PathBuf,
    pub(crate) klamm: PathBuf,
    pub(crate) flavor: Flavor,
    pub(crate) setup: Setup,
    pub(crate) keep: bool,
    pub(crate) soak: bool,
}

pub(crate) struct Outcome {
    pub(crate) failure: Option<String>,
    pub(crate) seconds: f64,
    pub(crate) transcript: Arc<Transcript>,
    pub(crate) kept: Option<PathBuf>,
    pub(crate) removal: Option<JoinHandle<()>>,
}

pub(crate) fn run(bench: &Bench, scenario: &Scenario) -> Result<Outcome> {
    let begin = Instant::now();
    let folder = tempfile::Builder::new().prefix("klamm-compat-").tempdir()?;
    let programs = Programs { klamm: bench.klamm.clone(), oracle: bench.home.join("oracle/kafka") };
    let mut cluster = Cluster::new(bench.flavor, &folder.path().join("broker"), scenario, &programs)?;
    let transcript = Transcript::new();
    let followers: Vec<_> = cluster
        .nodes
        .iter()
        .zip(1..)
        .map(|(node, number)| {
            let speaker = if cluster.nodes.len() == 1 { Speaker::Broker } else { Speaker::Node(number) };
            transcript.follow(node.log(), speaker)
        })
        .collect();
    let started = if scenario.starts_its_own_broker { Ok(()) } else { cluster.start() };
    let failure = match started {
        Err(error) => Some(format!("the broker did not start: {error:#}")),
        Ok(()) => match drive(bench, scenario, &mut cluster, folder.path(), &transcript) {
            Ok(failure) => failure,
            Err(error) => Some(format!("{error:#}")),
        },
    };
    drop(followers);
    drop(cluster); // its groups are killed; a scenario that needs a clean stop asks for it
    let seconds = begin.elapsed().as_secs_f64();
    let (kept, removal) = if bench.keep {
        (Some(folder.keep()), None)
    } else {
        // thousands of files take a disk a while: the next scenario need not wait
        (None, Some(std::thread::spawn(move || drop(folder))))
    };
    Ok(Outcome { failure, seconds, transcript, kept, removal })
}

enum Event {
    Said(String),
    Closed,
}

/// Runs the client to its end; Some is why the scenario failed.
fn drive(
    bench: &Bench,
    scenario: &Scenario,
    cluster: &mut Cluster,
    folder: &std::path::Path,
    transcript: &Arc<Transcript>,
) -> Result<Option<String>> {
    let mut command = bench.setup.command(scenario)?;
    command
        .current_dir(folder)
        .env("BOOTSTRAP", cluster.bootstrap())
        .env("PORT", cluster.nodes[0].port.to_string())
        .env("AGAINST", bench.flavor.to_string())
        .env("WITH", &scenario.with)
        .env("SOAK", if bench.soak { "1" } else { "" })
        .env("WORK", folder)
        .env("BROKER_DIR", &cluster.nodes[0].folder)
        .env("KLAMM_BIN", &bench.klamm)
        .env("KAFKA", bench.home.join("oracle/kafka"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut client = Group::start(&mut command)?;
    let mut answers = client.child.stdin.take().context("the client has no standard input")?;
    let (sender, events) = mpsc::channel();
    listen(client.child.stdout.take().context("no standard output")?, sender.clone(), "");
    listen(client.child.stderr.take().context("no standard error")?, sender, " ");
    let limit = scenario.soak_limit.filter(|_| bench.soak).unwrap_or(scenario.limit);
    let deadline = Instant::now() + limit;
    let mut open = 2;
    let mut ended: Option<Instant> = None;
    while open > 0 {
        match events.recv_timeout(Duration::from_millis(20)) {
            Ok(Event::Said(line)) if line.starts_with('@') => {
                transcript.say(Speaker::Runner, &line);
                let answer = match cluster.obey(line[1..].trim()) {
                    Ok(word) => format!("ok {word}"),
                    Err(error) => format!("failed {error:#}").replace('\n', " "),
                };
                transcript.say(Speaker::Runner, &answer);
                let _ = writeln!(answers, "{answer}"); // a client that does not wait for it may have ended
                let _ = answers.flush();
            }
            Ok(Event::Said(line)) => transcript.say(Speaker::Client, &line),
            Ok(Event::Closed) => open -= 1,
            Err(_) if Instant::now() > deadline => break,
            Err(_) if client.child.try_wait()?.is_some() => {
                // what the client left running may hold its output open: it gets no more than a moment
                if ended.get_or_insert_with(Instant::now).elapsed() > Duration::from_millis(300) {
                    break;
                }
            }
            Err(_) => {}
        }
    }
    let status = client.wait(deadline.saturating_duration_since(Instant::now()))?;
    Ok(match status {
        Some(status) if status.success() => None,
        Some(status) => Some(format!("the client ended with {status}")),
        None => Some(format!("its time limit of {} s is over", limit.as_secs())),
    })
}

/// Sends each line that arrives; standard error's lines get a blank first, so that they are never taken for requests.
fn listen(stream: impl Read + Send + 'static, events: mpsc::Sender<Event>, prefix: &'static str) {
    std::thread::spawn(move || {
        let mut reader = BufReader::new(stream);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            let text = String::from_utf8_lossy(&line);
            if events.send(Event::Said(format!("{prefix}{}", text.trim_end()))).is_err() {
                return;
            }
            line.clear();
        }
        let _ = events.send(Event::Closed);
    });
}
