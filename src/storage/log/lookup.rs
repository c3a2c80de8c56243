//! Looking records up by time, and the aborted transactions of a stretch of the log.

use std::sync::Arc;

use klamm_model::{Offset, ProducerId, TimestampMs};

use super::Log;
use super::read::ATTEMPTS;
use crate::error::StorageError;
use crate::segment::{FoundOffset, LogSegment};

/// A transaction that was aborted, as a Fetch of committed records lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbortedTransaction {
    /// Its producer.
    pub producer_id: ProducerId,
    /// Its first offset in this partition.
    pub first_offset: Offset,
}

impl Log {
    /// The first record, in offset order, whose timestamp is not below the one asked for. Timestamps need not
    /// rise with the offsets.
    pub fn offset_for_timestamp(&self, timestamp: TimestampMs) -> Result<Option<FoundOffset>, StorageError> {
        self.check_usable("look up a time in")?;
        self.look(|| self.try_offset_for_timestamp(timestamp))
    }

    fn try_offset_for_timestamp(&self, timestamp: TimestampMs) -> Result<Option<FoundOffset>, StorageError> {
        let start = self.log_start_offset();
        for (segment, end) in self.segments_with_ends() {
            if segment.largest_timestamp()?.timestamp < timestamp {
                continue;
            }
            // Apache Kafka looks only into the first segment whose largest timestamp is high enough. It finds
            // nothing where that record stands before the log start offset; here the search goes on.
            if let Some(found) = segment.find_timestamp(timestamp, start, end)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The first record that has the largest timestamp of the log (KIP-734).
    pub fn max_timestamp(&self) -> Result<Option<FoundOffset>, StorageError> {
        self.check_usable("look up a time in")?;
        self.look(|| self.try_max_timestamp())
    }

    fn try_max_timestamp(&self) -> Result<Option<FoundOffset>, StorageError> {
        let mut largest: Option<(TimestampMs, Arc<LogSegment>, u64)> = None;
        for (segment, end) in self.segments_with_ends() {
            let timestamp = segment.largest_timestamp()?.timestamp;
            if timestamp >= 0 && largest.as_ref().is_none_or(|(found, ..)| timestamp > *found) {
                largest = Some((timestamp, segment, end));
            }
        }
        largest.map_or(Ok(None), |(_, segment, end)| segment.find_largest_timestamp(end))
    }

    /// Where the segments begin whose records are not younger than a timestamp; all where it is negative.
    pub fn segment_offsets_before(&self, timestamp: TimestampMs) -> Result<Vec<Offset>, StorageError> {
        self.check_usable("look up a time in")?;
        self.look(|| self.try_segment_offsets_before(timestamp))
    }

    fn try_segment_offsets_before(&self, timestamp: TimestampMs) -> Result<Vec<Offset>, StorageError> {
        let mut offsets = Vec::new();
        for (segment, _) in self.segments_with_ends() {
            if timestamp < 0 || segment.largest_timestamp()?.timestamp <= timestamp {
                offsets.push(segment.base_offset());
            }
        }
        Ok(offsets)
    }

    /// The transactions that were aborted and have records between two offsets (the second exclusive); possibly
    /// some more whose marker lies in between.
    pub fn aborted_transactions(
        &self,
        from: Offset,
        to: Offset,
    ) -> Result<Vec<AbortedTransaction>, StorageError> {
        self.check_usable("read the transaction index of")?;
        self.look(|| self.try_aborted_transactions(from, to))
    }

    /// Looks again when segments were removed or replaced meanwhile: their files are not there any more. The last
    /// time nobody may: a reader that is held up again and again still gets its answer.
    fn look<T>(&self, look: impl Fn() -> Result<T, StorageError>) -> Result<T, StorageError> {
        for _ in 1..ATTEMPTS {
            let segments = self.segments.load_full();
            match look() {
                Err(error) if error.is_not_found() => {
                    let has_changed = !Arc::ptr_eq(&segments, &self.segments.load_full())
                        || segments.iter().any(|segment| segment.is_removed());
                    if !has_changed {
                        return Err(error);
                    }
                    // The new list is there as soon as who replaces them is done.
                    drop(self.writer.lock());
                }
                result => return result,
            }
        }
        let _writer = self.writer.lock();
        look()
    }

    fn try_aborted_transactions(
        &self,
        from: Offset,
        to: Offset,
    ) -> Result<Vec<AbortedTransaction>, StorageError> {
        let segments = self.segments.load_full();
        let first = segments.partition_point(|segment| segment.base_offset() <= from).saturating_sub(1);
        let mut found = Vec::new();
        for segment in &segments[first..] {
            if segment.aborted_transactions(from, to, &mut found)? {
                break;
            }
        }
        let transaction = |producer_id, first_offset| AbortedTransaction { producer_id, first_offset };
        Ok(found.iter().map(|entry| transaction(ProducerId(entry.producer_id), entry.first_offset)).collect())
    }

    /// The segments, each with the position up to where it may be read.
    fn segments_with_ends(&self) -> Vec<(Arc<LogSegment>, u64)> {
        let end = **self.end.load();
        let segments = self.segments.load_full();
        let readable = segments.iter().filter(|segment| segment.base_offset() <= end.segment);
        let with_end = |segment: &Arc<LogSegment>| {
            let is_last = segment.base_offset() == end.segment;
            (segment.clone(), if is_last { end.position } else { segment.size() })
        };
        readable.map(with_end).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use klamm_model::{NodeId, TopicPartition, Uuid};
    use klamm_testing::{SeededRandom, SimulatedClock, SimulatedDisk};

    use super::*;
    use crate::{LogConfig, LogStore, StoreSettings};

    /// Guards lookups on a busy machine: segments may be replaced each time that a reader looks.
    #[test]
    fn who_replaces_segments_cannot_keep_a_reader_from_its_answer() {
        let disk = Arc::new(SimulatedDisk::new(1));
        let (clock, random) = (Arc::new(SimulatedClock::new(0)), Arc::new(SeededRandom::new(1)));
        let settings = StoreSettings::new(vec![PathBuf::from("/logs")], NodeId(1), disk, clock, random);
        let store = LogStore::open(settings).unwrap();
        store.load(&|_| LogConfig::default()).unwrap();
        let log = store.create(&TopicPartition::new("t", 0), Uuid([7; 16]), LogConfig::default()).unwrap();
        let gone =
            || StorageError::io(&PathBuf::from("/logs/t-0"), "look", &std::io::ErrorKind::NotFound.into());
        let replace = || log.segments.store(Arc::new(log.segments.load().to_vec()));
        let found = log.look(|| match log.writer.try_lock() {
            Some(_writer) => {
                replace();
                Err(gone())
            }
            None => Ok("found"),
        });
        assert_eq!(found, Ok("found"));
        assert_eq!(log.look(|| Err::<(), _>(gone())), Err(gone()));
    }
}
