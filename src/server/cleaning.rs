//! The threads that compact: as many as `log.cleaner.threads` says, each over one log at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use klamm_config::BrokerConfig;
use klamm_io::Threads;
use klamm_model::{Offset, TopicPartition};
use klamm_storage::{CleanerSettings, Outcome};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::background::high_watermarks;
use crate::context::Context;
use crate::stop::Stop;

/// How soon a change of the settings is seen.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What the broker's keys mean to the cleaner.
pub(crate) fn cleaner_settings(config: &BrokerConfig) -> CleanerSettings {
    CleanerSettings {
        threads: usize::try_from(config.log_cleaner_threads).unwrap_or(0),
        dedupe_buffer_bytes: u64::try_from(config.log_cleaner_dedupe_buffer_size).unwrap_or(0),
        load_factor: config.log_cleaner_io_buffer_load_factor,
        io_buffer_bytes: usize::try_from(config.log_cleaner_io_buffer_size).unwrap_or(0),
        bytes_per_second_max: config.log_cleaner_io_max_bytes_per_second,
        backoff_ms: config.log_cleaner_backoff_ms,
    }
}

/// Compacts logs until `stop`, unless `log.cleaner.enable` is false. The settings are followed.
pub(crate) async fn clean(context: Arc<Context>, mut stop: Stop) {
    if !context.static_config.log_cleaner_enable {
        tracing::info!("log.cleaner.enable is false: compacted topics are not compacted");
        return;
    }
    let mut workers: JoinSet<usize> = JoinSet::new();
    let mut working = BTreeSet::new();
    let mut settings = cleaner_settings(&context.config());
    loop {
        while let Some(ended) = workers.try_join_next() {
            if let Ok(index) = ended {
                working.remove(&index);
            }
        }
        for index in 0..settings.threads {
            if working.insert(index) {
                workers.spawn(work(index, context.clone(), stop.clone()));
            }
        }
        tokio::select! {
            biased;
            () = stop.requested() => break,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        let new = cleaner_settings(&context.config());
        if new != settings {
            context.cleaner.update_settings(new.clone());
            settings = new;
        }
    }
    while workers.join_next().await.is_some() {}
}

/// One thread's work, as long as there are to be more than `index` of them. Returns the index.
async fn work(index: usize, context: Arc<Context>, mut stop: Stop) -> usize {
    let is_wanted = |context: &Context| index < cleaner_settings(&context.config()).threads;
    while is_wanted(&context) && !stop.is_requested() {
        let (cleaning, stopping) = (context.clone(), stop.clone());
        // Where there is one thread, nothing else could go on while a round pauses.
        let runtime = (context.threads == Threads::Own).then(Handle::current);
        let round = context.threads.run(move || clean_next(&cleaning, &stopping, runtime.as_ref()));
        match round.await {
            Ok(Outcome::Cleaned(..)) => continue,
            Ok(Outcome::Stopped) => break,
            Ok(Outcome::Idle | Outcome::Abandoned(_) | Outcome::Failed(..)) => {}
            Err(error) => tracing::error!("a round of the cleaner has failed: {error}"),
        }
        let slept = context.clock.monotonic();
        loop {
            let backoff = Duration::from_millis(context.config().log_cleaner_backoff_ms.max(1) as u64);
            let left = backoff.saturating_sub(context.clock.monotonic().saturating_sub(slept));
            if left.is_zero() || !is_wanted(&context) {
                break;
            }
            tokio::select! {
                biased;
                () = stop.requested() => return index,
                () = tokio::time::sleep(left.min(LOOK_EVERY)) => {}
            }
        }
    }
    index
}

fn clean_next(context: &Context, stop: &Stop, runtime: Option<&Handle>) -> Outcome {
    let high_watermarks: BTreeMap<TopicPartition, Offset> = high_watermarks(&context.partitions).collect();
    let pause = |wait: Duration| {
        if let Some(runtime) = runtime.filter(|_| !wait.is_zero()) {
            let mut stop = stop.clone();
            runtime.block_on(async move {
                tokio::select! {
                    biased;
                    () = stop.requested() => {}
                    () = tokio::time::sleep(wait) => {}
                }
            });
        }
        if stop.is_requested() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    context.cleaner.clean_next(context.clock.now_ms(), &|tp| high_watermarks.get(tp).copied(), &pause)
}
