//! Copying the partitions that move into other log directories, as fast as it is allowed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use klamm_model::TopicPartition;
use klamm_partition::Partition;
use klamm_storage::{LogStore, StorageError};
use tokio::task::JoinSet;

use crate::context::Context;
use crate::stop::Stop;

/// How many bytes are copied in one step, unless the throttle asks for fewer.
const STEP_BYTES: u64 = 1 << 20;

/// How often somebody looks for moves that nobody has asked for.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// How long a move rests after a failure: a disk that is full may have room then.
const REST_AFTER_FAILURE: Duration = Duration::from_secs(1);

/// The rate of all moves together, in bytes a second. Kafka has it among the settings of its quotas, which are set
/// while brokers run.
const THROTTLE: &str = "replica.alter.log.dirs.io.max.bytes.per.second";

/// How many moves are worked on at once; by default one for each log directory.
const THREADS: &str = "num.replica.alter.log.dirs.threads";

/// What a step did.
enum Step {
    Copied(u64),
    Ended,
    Failed(String),
}

/// Works on the moves until `stop`.
pub(crate) async fn run(context: Arc<Context>, mut stop: Stop) {
    // What the log has heard of moves that do not get on.
    let mut failures: BTreeMap<TopicPartition, String> = BTreeMap::new();
    let mut next = 0;
    loop {
        let moving = moving(&context);
        failures.retain(|name, _| moving.iter().any(|partition| partition.topic_partition() == name));
        if moving.is_empty() {
            tokio::select! {
                biased;
                () = stop.requested() => return,
                () = context.moves.notified() => continue,
                // A recovery may have found a move that a stop has interrupted.
                () = tokio::time::sleep(LOOK_EVERY) => continue,
            }
        }
        let began = context.clock.monotonic();
        let rate = bytes_per_second(&context);
        let threads = threads(&context).min(moving.len());
        let chosen = (0..threads).map(|place| moving[(next + place) % moving.len()].clone());
        let (copied, is_stuck) = steps(&context, chosen, rate, &mut failures).await;
        next = (next + threads) % moving.len();
        let due = rate.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(copied as f64 / rate as f64));
        let taken = context.clock.monotonic().saturating_sub(began);
        let rest = if is_stuck { REST_AFTER_FAILURE } else { due.saturating_sub(taken) };
        tokio::select! {
            biased;
            () = stop.requested() => return,
            () = tokio::time::sleep(rest) => {}
        }
    }
}

fn moving(context: &Context) -> Vec<Arc<Partition>> {
    let by_name = |name: TopicPartition| {
        let partition = context.partitions.by_name(&name.topic, name.partition)?;
        partition.set_future(context.store.future(&name));
        Some(partition)
    };
    context.store.moving().into_iter().filter_map(by_name).collect()
}

/// One step of each of these moves, at the same time. Returns how many bytes were copied, and whether none of them
/// gets on.
async fn steps(
    context: &Arc<Context>,
    partitions: impl ExactSizeIterator<Item = Arc<Partition>>,
    rate: Option<u64>,
    failures: &mut BTreeMap<TopicPartition, String>,
) -> (u64, bool) {
    let count = partitions.len().max(1) as u64;
    let bytes = rate.map_or(STEP_BYTES, |rate| STEP_BYTES.min(rate / count).max(1));
    let mut running = JoinSet::new();
    for partition in partitions {
        let context = context.clone();
        running.spawn(context.threads.run(move || {
            let step = step(&context.store, &partition, bytes);
            (partition.topic_partition().clone(), step)
        }));
    }
    let (mut copied, mut is_stuck) = (0, true);
    while let Some(done) = running.join_next().await {
        match done.map_err(std::io::Error::from).flatten() {
            Ok((_, Step::Copied(bytes))) => (copied, is_stuck) = (copied + bytes, false),
            Ok((name, Step::Ended)) => {
                failures.remove(&name);
                is_stuck = false;
            }
            Ok((name, Step::Failed(failure))) => {
                if failures.get(&name) != Some(&failure) {
                    tracing::error!("the move of {name} does not get on, and is tried again: {failure}");
                    failures.insert(name, failure);
                }
            }
            Err(error) => tracing::error!("a step of a move was given up: {error}"),
        }
    }
    (copied, is_stuck)
}

fn step(store: &LogStore, partition: &Partition, bytes: u64) -> Step {
    let name = partition.topic_partition();
    let Some(future) = partition.future() else { return Step::Ended };
    if !future.is_directory_online() {
        // It said so in the log; its copy is of no use any more.
        if let Err(error) = store.cancel_move(name) {
            tracing::error!("the copy of {name} was not removed: {error}");
        }
        partition.set_future(None);
        tracing::error!("partition {name} stays where it is: its new log directory is offline");
        return Step::Ended;
    }
    if future.failure().is_some() {
        partition.set_future(store.reopen_future(name));
    }
    advance(store, partition, bytes).unwrap_or_else(|failure| {
        partition.set_future(store.future(name));
        Step::Failed(failure.to_string())
    })
}

fn advance(store: &LogStore, partition: &Partition, bytes: u64) -> Result<Step, StorageError> {
    let step_bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    let copied = partition.copy_to_future(step_bytes)?;
    // As long as a step finds all that it may take, more is behind it.
    if copied.lag > 0 && copied.bytes >= bytes / 2 {
        return Ok(Step::Copied(copied.bytes));
    }
    // Appends wait during the swap, so what can be synced and copied before is.
    if let Some(future) = partition.future() {
        future.flush()?;
    }
    let late = partition.copy_to_future(step_bytes)?;
    if late.lag > 0 && late.bytes >= bytes / 2 {
        return Ok(Step::Copied(copied.bytes + late.bytes));
    }
    let name = partition.topic_partition();
    match partition.finish_move(|high_watermark| store.finish_move(name, high_watermark))? {
        true => Ok(Step::Ended),
        false => Ok(Step::Copied(copied.bytes + late.bytes)),
    }
}

fn bytes_per_second(context: &Context) -> Option<u64> {
    let set = context.broker_setting(&context.image(), THROTTLE)?;
    set.trim().parse().ok().filter(|rate| *rate > 0)
}

fn threads(context: &Context) -> usize {
    let set = context.static_config.value(THREADS).and_then(|threads| threads.trim().parse().ok());
    set.filter(|threads| *threads > 0).unwrap_or(context.static_config.log_dirs.len())
}
