//! One round over one log: the map of its keys, and the segments without what the map supersedes.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use klamm_model::{Offset, TimestampMs};
use klamm_records::{BatchHeader, peek_batch};

use super::filter::{Filter, Left};
use super::offset_map::OffsetMap;
use super::selection::Candidate;
use super::source::Source;
use super::throttle::Throttle;
use super::transactions::Transactions;
use super::{CleanerSettings, Interruption};
use crate::config::LogConfig;
use crate::error::StorageError;
use crate::log::{CleaningView, Log, Replacement};
use crate::segment::{LogSegment, WriteFailure};

/// What a round has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CleanedLog {
    /// The log is compacted up to here.
    pub cleaned_offset: Offset,
    /// Bytes read, those for the map included.
    pub bytes_read: u64,
    /// Bytes written to new segments.
    pub bytes_written: u64,
    /// Records in the new segments.
    pub records_kept: u64,
    /// Records that are no more.
    pub records_dropped: u64,
}

/// A round that runs.
pub(super) struct Round<'a> {
    pub(super) candidate: &'a Candidate,
    pub(super) settings: &'a CleanerSettings,
    pub(super) throttle: &'a Throttle,
    pub(super) pause: &'a dyn Fn(Duration) -> ControlFlow<()>,
    pub(super) now_ms: TimestampMs,
    pub(super) hash_key: [u64; 2],
    pub(super) done: CleanedLog,
}

/// Segments that become one.
type Group<'a> = &'a [Arc<LogSegment>];

impl Round<'_> {
    /// Compacts the log as far as the map goes.
    pub(super) fn run(&mut self) -> Result<CleanedLog, Interruption> {
        let Candidate { log, view, first_dirty, first_uncleanable, .. } = self.candidate;
        let config = log.config();
        let map = self.build_map()?;
        let end = (map.latest_offset() + 1).max(*first_dirty);
        log.sync_before_cleaning(*first_uncleanable)?;
        let old_tombstones_from = self.old_tombstones_from(&config)?;
        let mut transactions = Transactions::default();
        let producers = log.last_records_of_producers();
        for group in groups(view, end, *first_uncleanable, &config)? {
            let mut filter = Filter {
                map: &map,
                now_ms: self.now_ms,
                delete_retention_ms: config.delete_retention_ms,
                keeps_old_tombstones: true,
                producers: &producers,
                round_end: *first_uncleanable,
            };
            let result =
                self.clean_group(group, &mut filter, &mut transactions, old_tombstones_from, &config);
            if let Err(error) = result {
                let _ = log.remove_cleaned_segment(group[0].base_offset());
                return Err(error);
            }
        }
        self.done.cleaned_offset = end;
        Ok(self.done)
    }

    /// Tombstones of V0 and V1 stay in segments that were written after this. It is `delete.retention.ms` before
    /// the last write to what was compacted last time.
    fn old_tombstones_from(&self, config: &LogConfig) -> Result<Option<TimestampMs>, StorageError> {
        let Candidate { view, first_dirty, .. } = self.candidate;
        let Some(last) = view.between(Offset::MIN, *first_dirty).last() else { return Ok(Some(0)) };
        Ok(last.modified_ms()?.map(|modified| modified.saturating_sub(config.delete_retention_ms)))
    }

    /// The last offset of each key between the first dirty offset and the end, or up to where there is room.
    fn build_map(&mut self) -> Result<OffsetMap, Interruption> {
        let Candidate { log: _, view, first_dirty, first_uncleanable, .. } = self.candidate;
        let (start, end) = (*first_dirty, *first_uncleanable);
        let offsets = u64::try_from(end.saturating_sub(start)).unwrap_or(0);
        let share = self.settings.dedupe_buffer_bytes / self.settings.threads.max(1) as u64;
        let mut map = OffsetMap::new(offsets, share, self.settings.load_factor, self.hash_key);
        let mut transactions = Transactions::default();
        transactions.add_aborted(Log::aborted_entries(view, start, end)?);
        let segments = view.between(start, end);
        for (index, segment) in segments.iter().enumerate() {
            let next = segments.get(index + 1).map_or(end, |next| next.base_offset());
            if !self.map_segment(segment, start, &mut map, &mut transactions)? {
                break;
            }
            // Behind its last batch a segment may have a gap.
            map.advance_to(next - 1);
        }
        Ok(map)
    }

    /// Returns whether there was room for all keys.
    fn map_segment(
        &mut self,
        segment: &LogSegment,
        start: Offset,
        map: &mut OffsetMap,
        transactions: &mut Transactions,
    ) -> Result<bool, Interruption> {
        let Some(first) = segment.find(start, segment.size())? else { return Ok(true) };
        let mut source = Source::new(segment, first.position, self.piece_bytes())?;
        while let Some(read) = source.next()? {
            self.account_read(read.bytes)?;
            let header = &read.batch.header;
            let invalid = |error| source.invalid(read.position, &error);
            let is_aborted = transactions.follow(&read.batch).map_err(invalid)?;
            if !header.is_control() && !is_aborted {
                for record in read.batch.record_iter().map_err(invalid)? {
                    let record = record.map_err(invalid)?;
                    let Some(key) = &record.key else { continue };
                    if record.offset >= start && !map.put(key, record.offset) {
                        return Ok(false);
                    }
                }
            }
            map.advance_to(header.last_offset());
        }
        Ok(true)
    }

    fn clean_group(
        &mut self,
        group: Group<'_>,
        filter: &mut Filter<'_>,
        transactions: &mut Transactions,
        old_tombstones_from: Option<TimestampMs>,
        config: &LogConfig,
    ) -> Result<(), Interruption> {
        let Candidate { log, view, .. } = self.candidate;
        let mut target = Target {
            segment: log.create_cleaned_segment(group[0].base_offset())?,
            buffer: Vec::new(),
            headers: Vec::new(),
            flush_bytes: self.piece_bytes(),
        };
        for (index, segment) in group.iter().enumerate() {
            let start = segment.base_offset();
            let end = match group.get(index + 1) {
                Some(next) => next.base_offset(),
                None => segment.read_next_offset()?,
            };
            transactions.add_aborted(Log::aborted_entries(view, start, end)?);
            let modified = segment.modified_ms()?;
            filter.keeps_old_tombstones =
                modified.zip(old_tombstones_from).is_none_or(|(modified, from)| modified > from);
            self.clean_segment(segment, filter, transactions, &mut target, config)?;
        }
        self.account_written(target.flush(config)?)?;
        for entry in transactions.kept.drain(..) {
            target.segment.add_aborted(entry)?;
        }
        target.segment.finish()?;
        target.segment.sync_log()?;
        target.segment.sync_indexes()?;
        // For the age of records without a time, and of tombstones without a horizon.
        if let Some(modified) = group[group.len() - 1].modified_ms()? {
            target.segment.set_modified_ms(modified)?;
        }
        let size = target.segment.size();
        target.segment.close_files();
        match log.replace_segments(view, group, size)? {
            Replacement::Done => Ok(()),
            Replacement::LogHasChanged => Err(Interruption::LogHasChanged),
        }
    }

    fn clean_segment(
        &mut self,
        segment: &LogSegment,
        filter: &Filter<'_>,
        transactions: &mut Transactions,
        target: &mut Target,
        config: &LogConfig,
    ) -> Result<(), Interruption> {
        let mut source = Source::new(segment, 0, self.piece_bytes())?;
        while let Some(read) = source.next()? {
            self.account_read(read.bytes)?;
            let left = filter.apply(&read.batch, transactions);
            let left = left.map_err(|error| source.invalid(read.position, &error))?;
            match left {
                Left::Nothing { dropped } => self.done.records_dropped += dropped,
                Left::Unchanged { records } => {
                    self.done.records_kept += records;
                    target.add(read.batch.header, &read.batch.bytes);
                }
                Left::Changed { bytes, records, dropped } => {
                    self.done.records_kept += records;
                    self.done.records_dropped += dropped;
                    let header = peek_batch(&bytes).ok().flatten().expect("a batch was just built");
                    target.add(header, &bytes);
                }
            }
            if target.is_full() {
                self.account_written(target.flush(config)?)?;
            }
        }
        Ok(())
    }

    fn piece_bytes(&self) -> usize {
        // Every thread has one buffer for reading and one for writing.
        let buffers = 2 * self.settings.threads.max(1);
        (self.settings.io_buffer_bytes / buffers).max(1)
    }

    fn account_read(&mut self, bytes: u64) -> Result<(), Interruption> {
        self.done.bytes_read += bytes;
        self.go_on(bytes)
    }

    fn account_written(&mut self, bytes: u64) -> Result<(), Interruption> {
        self.done.bytes_written += bytes;
        self.go_on(bytes)
    }

    /// Waits as long as the throttle says, and asks whether the cleaner is to stop.
    fn go_on(&self, bytes: u64) -> Result<(), Interruption> {
        let wait = if bytes == 0 { Duration::ZERO } else { self.throttle.wait_after(bytes) };
        match (self.pause)(wait) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Interruption::Stopped),
        }
    }
}

/// The segment that is made, and what is not written to it yet.
struct Target {
    segment: LogSegment,
    buffer: Vec<u8>,
    headers: Vec<BatchHeader>,
    flush_bytes: usize,
}

impl Target {
    fn add(&mut self, header: BatchHeader, bytes: &[u8]) {
        self.headers.push(header);
        self.buffer.extend_from_slice(bytes);
    }

    fn is_full(&self) -> bool {
        self.buffer.len() >= self.flush_bytes
    }

    /// Returns how many bytes were written.
    fn flush(&mut self, config: &LogConfig) -> Result<u64, StorageError> {
        if self.buffer.is_empty() {
            return Ok(0);
        }
        self.segment.write(&[&self.buffer]).map_err(|failure| match failure {
            WriteFailure::Undone(error) => error,
            WriteFailure::NotUndone(errors) => errors.0,
        })?;
        for header in self.headers.drain(..) {
            self.segment.add(&header, config)?;
        }
        let written = self.buffer.len() as u64;
        self.buffer.clear();
        Ok(written)
    }
}

/// The segments below an offset, so grouped that each group fits one segment: by the sizes that they have, since
/// what will be left of them is not known, and by the distance that an index can hold.
fn groups<'a>(
    view: &'a CleaningView,
    end: Offset,
    first_uncleanable: Offset,
    config: &LogConfig,
) -> Result<Vec<Group<'a>>, StorageError> {
    let segments = view.between(0, end);
    let mut groups = Vec::new();
    let mut first = 0;
    while first < segments.len() {
        let (mut bytes, (mut offsets, mut times)) = (segments[first].size(), segments[first].index_sizes()?);
        let mut next = first + 1;
        while let Some(segment) = segments.get(next) {
            let (segment_offsets, segment_times) = segment.index_sizes()?;
            bytes += segment.size();
            offsets += segment_offsets;
            times += segment_times;
            let last_offset =
                segments.get(next + 1).map_or(first_uncleanable, |behind| behind.base_offset()) - 1;
            let is_near =
                segment.size() == 0 || last_offset - segments[first].base_offset() <= i64::from(i32::MAX);
            let index_max = config.segment_index_bytes;
            if bytes > config.segment_bytes || offsets > index_max || times > index_max || !is_near {
                break;
            }
            next += 1;
        }
        groups.push(&segments[first..next]);
        first = next;
    }
    Ok(groups)
}
