//! Compaction: of each key of a compacted log only the last record stays.
//!
//! One call of [`Cleaner::clean_next`] takes the log with the largest share of new bytes and goes over it once. It
//! first notes at which offset each key of the new part stands last, in a map of bounded size, and then writes
//! the segments anew without the records that the map supersedes, a group of segments into one. What does not
//! fit the map is left for the next round. The rules are those of Apache Kafka's LogCleaner (KIP-58, KIP-98,
//! KIP-354, KIP-534).
//!
//! A log is read and served as ever while it is compacted. Whatever else happens to it meanwhile wins, and the
//! round is given up.

mod filter;
mod hash;
mod offset_map;
mod rewrite;
mod selection;
mod source;
mod status;
mod throttle;
mod transactions;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use klamm_model::{Offset, TimestampMs, TopicPartition};
use parking_lot::Mutex;

use crate::error::{StorageError, StorageErrorKind};
use crate::log::Log;
use crate::store::LogStore;
use rewrite::Round;
use selection::Candidate;
use throttle::Throttle;

pub(crate) use filter::LastRecord;
pub use rewrite::CleanedLog;
pub use status::CleanerStatus;

/// What the cleaner may take of the machine (`log.cleaner.*`).
#[derive(Clone, Debug, PartialEq)]
pub struct CleanerSettings {
    /// `log.cleaner.threads`: how many callers share the memory.
    pub threads: usize,
    /// `log.cleaner.dedupe.buffer.size`: the memory of the maps of all threads. A key takes 24 bytes.
    pub dedupe_buffer_bytes: u64,
    /// `log.cleaner.io.buffer.load.factor`: up to which share a map is filled.
    pub load_factor: f64,
    /// `log.cleaner.io.buffer.size`: the memory for reading and writing of all threads, except that a larger
    /// batch is held as a whole.
    pub io_buffer_bytes: usize,
    /// `log.cleaner.io.max.bytes.per.second`: of all threads together, read and written.
    pub bytes_per_second_max: f64,
    /// `log.cleaner.backoff.ms`: for so long, at first, a log that failed is left alone.
    pub backoff_ms: i64,
}

impl Default for CleanerSettings {
    fn default() -> CleanerSettings {
        CleanerSettings {
            threads: 1,
            dedupe_buffer_bytes: 128 << 20,
            load_factor: 0.9,
            io_buffer_bytes: 512 << 10,
            bytes_per_second_max: f64::MAX,
            backoff_ms: 15_000,
        }
    }
}

/// What a call has done.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// No log needs it.
    Idle,
    /// One log was compacted, perhaps not to its end; others may wait.
    Cleaned(TopicPartition, CleanedLog),
    /// The log changed meanwhile, and is as it was before but for that.
    Abandoned(TopicPartition),
    /// It did not work; the log is as it was before. It is tried again later if that may help.
    Failed(TopicPartition, StorageError),
    /// The caller wanted to stop.
    Stopped,
}

/// Why a round ends before its time.
enum Interruption {
    Stopped,
    LogHasChanged,
    Failed(StorageError),
}

impl From<StorageError> for Interruption {
    fn from(error: StorageError) -> Interruption {
        match error.kind {
            StorageErrorKind::Closed | StorageErrorKind::Deleted | StorageErrorKind::Offline(_) => {
                Interruption::LogHasChanged
            }
            _ => Interruption::Failed(error),
        }
    }
}

/// Compacts the logs of a store. It may be called from several threads; each takes another log.
pub struct Cleaner {
    store: Arc<LogStore>,
    settings: ArcSwap<CleanerSettings>,
    throttle: Throttle,
    hash_key: [u64; 2],
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    busy: BTreeSet<TopicPartition>,
    failures: BTreeMap<TopicPartition, Failure>,
    status: CleanerStatus,
}

/// A log that could not be compacted.
struct Failure {
    log: Weak<Log>,
    reason: String,
    /// By the monotonic clock; `None` is never.
    next_try: Option<Duration>,
    tries: u32,
}

/// How much longer a log that fails again and again is left alone than after its first failure.
const BACKOFF_FACTOR_MAX: u32 = 32;

impl Cleaner {
    /// A cleaner of a store's logs.
    pub fn new(store: Arc<LogStore>, settings: CleanerSettings) -> Cleaner {
        let random = store.random();
        let cleaner = Cleaner {
            hash_key: [random.next_u64(), random.next_u64()],
            throttle: Throttle::new(store.clock()),
            store,
            settings: ArcSwap::from_pointee(settings.clone()),
            state: Mutex::default(),
        };
        cleaner.update_settings(settings);
        cleaner
    }

    /// Changes the settings; those of memory count from the next round on, the bound on speed at once.
    pub fn update_settings(&self, settings: CleanerSettings) {
        self.throttle.set_bytes_per_second_max(settings.bytes_per_second_max);
        self.settings.store(Arc::new(settings));
    }

    /// How the cleaner is doing.
    pub fn status(&self) -> CleanerStatus {
        let state = self.state.lock();
        let failed = state.failures.iter();
        CleanerStatus {
            cleaning: state.busy.iter().cloned().collect(),
            uncleanable: failed.map(|(tp, failure)| (tp.clone(), failure.reason.clone())).collect(),
            ..state.status.clone()
        }
    }

    /// Compacts the log that needs it most, if any does. Logs without a high watermark are left alone.
    ///
    /// `pause` is called between pieces of work with how long to wait, mostly not at all; it may end the round.
    pub fn clean_next(
        &self,
        now_ms: TimestampMs,
        high_watermark: &dyn Fn(&TopicPartition) -> Option<Offset>,
        pause: &dyn Fn(Duration) -> ControlFlow<()>,
    ) -> Outcome {
        let clock = self.store.clock();
        let started = clock.monotonic();
        let Some(candidate) = self.select(now_ms, high_watermark) else { return Outcome::Idle };
        let log = candidate.log.clone();
        let mut round = Round {
            candidate: &candidate,
            settings: &self.settings.load_full(),
            throttle: &self.throttle,
            pause,
            now_ms,
            hash_key: self.hash_key,
            done: CleanedLog::default(),
        };
        let result = round.run();
        let work = round.done;
        let result = result.and_then(|cleaned| self.note_cleaned(&candidate, cleaned));
        let tp = log.topic_partition().clone();
        let mut state = self.state.lock();
        state.busy.remove(&tp);
        state.status.add(&work, clock.monotonic().saturating_sub(started), now_ms);
        match result {
            Ok(cleaned) => {
                state.failures.remove(&tp);
                tracing::debug!(partition = %tp, ?cleaned, "compacted a log");
                Outcome::Cleaned(tp, cleaned)
            }
            Err(Interruption::Stopped) => Outcome::Stopped,
            Err(Interruption::LogHasChanged) => Outcome::Abandoned(tp),
            // Files that went with a segment, by retention or deletion.
            Err(Interruption::Failed(error)) if error.is_not_found() => Outcome::Abandoned(tp),
            Err(Interruption::Failed(error)) => {
                self.note_failure(&mut state, &log, &error, clock.monotonic());
                Outcome::Failed(tp, error)
            }
        }
    }

    fn note_cleaned(&self, candidate: &Candidate, cleaned: CleanedLog) -> Result<CleanedLog, Interruption> {
        let Candidate { log, view, .. } = candidate;
        if !log.set_cleaned_offset(view, cleaned.cleaned_offset) {
            return Err(Interruption::LogHasChanged);
        }
        self.store.checkpoint_cleaned(log.directory_id())?;
        Ok(cleaned)
    }

    /// Takes the log with the largest share of new bytes among those that are due.
    fn select(
        &self,
        now_ms: TimestampMs,
        high_watermark: &dyn Fn(&TopicPartition) -> Option<Offset>,
    ) -> Option<Candidate> {
        let now = self.store.clock().monotonic();
        let mut state = self.state.lock();
        let store = &self.store;
        state.failures.retain(|tp, failure| {
            store.get(tp).is_some_and(|log| Weak::as_ptr(&failure.log) == Arc::as_ptr(&log))
        });
        let (mut dirtiest, mut ratio_max): (Option<Candidate>, f64) = (None, 0.0);
        for log in store.logs() {
            let tp = log.topic_partition();
            let waits =
                state.failures.get(tp).is_some_and(|failure| failure.next_try.is_none_or(|next| next > now));
            let is_out =
                !log.config().cleanup.compact || log.is_moving() || log.check_usable("compact").is_err();
            if is_out || waits || state.busy.contains(tp) {
                continue;
            }
            let Some(high_watermark) = high_watermark(tp) else { continue };
            let candidate = match Candidate::new(log.clone(), now_ms, high_watermark) {
                Ok(candidate) => candidate,
                // Retention was faster.
                Err(error) if error.is_not_found() => continue,
                Err(error) => {
                    self.note_failure(&mut state, &log, &error, now);
                    continue;
                }
            };
            ratio_max = ratio_max.max(candidate.dirty_ratio());
            let is_dirtier = |other: &Candidate| candidate.dirty_ratio() > other.dirty_ratio();
            if candidate.is_due() && dirtiest.as_ref().is_none_or(is_dirtier) {
                dirtiest = Some(candidate);
            }
        }
        state.status.dirty_percent_max = ratio_max * 100.0;
        if let Some(candidate) = &dirtiest {
            state.busy.insert(candidate.log.topic_partition().clone());
        }
        dirtiest
    }

    /// Leaves a log alone for a while, or for good if its bytes make no sense. The others go on.
    fn note_failure(&self, state: &mut State, log: &Arc<Log>, error: &StorageError, now: Duration) {
        let tp = log.topic_partition();
        let before = state.failures.remove(tp);
        let tries = before.as_ref().map_or(0, |failure| failure.tries.saturating_add(1));
        let factor = 1u32.checked_shl(tries).unwrap_or(BACKOFF_FACTOR_MAX).min(BACKOFF_FACTOR_MAX);
        let backoff = u64::try_from(self.settings.load().backoff_ms).unwrap_or(0).max(1);
        let may_pass = matches!(error.kind, StorageErrorKind::DiskFull | StorageErrorKind::Io(..));
        let next_try = may_pass.then(|| now + Duration::from_millis(backoff) * factor);
        let reason = error.to_string();
        if before.is_none_or(|failure| failure.reason != reason) {
            let fate = if may_pass { "it is tried again" } else { "it is left as it is, the others go on" };
            tracing::error!(partition = %tp, %error, "the log cannot be compacted; {fate}");
        }
        state.failures.insert(tp.clone(), Failure { log: Arc::downgrade(log), reason, next_try, tries });
    }
}
