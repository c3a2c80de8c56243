//! The largest timestamp of a segment, as its time index and its batches tell it.

use super::{LargestTimestamp, LogSegment};
use crate::error::StorageError;
use crate::walk::Walk;

/// How many bytes lie at least between two entries of a time index that is made anew.
const ENTRY_INTERVAL_BYTES: u64 = 4096;

impl LogSegment {
    /// The largest timestamp so far; -1 if there is none.
    ///
    /// The last entry of the time index tells it, but segments are deleted by their age: one flipped bit there must
    /// not cost records. So the batch that the entry points to has to agree, or all batches are asked.
    pub(crate) fn largest_timestamp(&self) -> Result<LargestTimestamp, StorageError> {
        if let Some(largest) = self.progress.lock().largest {
            return Ok(largest);
        }
        let Some(entry) = self.times.last()? else {
            let none = LargestTimestamp::none(self.base_offset);
            return Ok(*self.progress.lock().largest.get_or_insert(none));
        };
        let offset = self.base_offset + i64::from(entry.relative_offset);
        let told = LargestTimestamp { timestamp: entry.timestamp, offset };
        let found = self.find(offset, self.size())?;
        if found.is_some_and(|found| found.header.max_timestamp == told.timestamp) {
            return Ok(*self.progress.lock().largest.get_or_insert(told));
        }
        let rising = self.rising_timestamps()?;
        let largest = rising.last().map_or(LargestTimestamp::none(self.base_offset), |(_, largest)| *largest);
        // An old Apache Kafka may point behind the record that has it.
        let is_right = largest.timestamp == told.timestamp && largest.offset <= told.offset;
        let mut progress = self.progress.lock();
        // Who appends asks first, so nothing is added to the index meanwhile.
        if let Some(largest) = progress.largest {
            return Ok(largest);
        }
        if is_right {
            progress.largest = Some(told);
            return Ok(told);
        }
        tracing::warn!(
            index = %self.times.slot().path().display(), told = told.timestamp, found = largest.timestamp,
            "the last entry of the time index is not what the batches say; the index is made anew"
        );
        self.times.reset()?;
        let mut next_entry = 0;
        for (position, rising) in &rising {
            if *position >= next_entry {
                self.add_time_entry(*rising)?;
                next_entry = position + ENTRY_INTERVAL_BYTES;
            }
        }
        self.add_time_entry(largest)?;
        self.times.finish()?;
        progress.largest = Some(largest);
        Ok(largest)
    }

    /// Each batch with a larger timestamp than all before it, with its position.
    fn rising_timestamps(&self) -> Result<Vec<(u64, LargestTimestamp)>, StorageError> {
        let (file, path) = (self.file()?, self.path());
        let mut walk = Walk::new(&*file, &path, 0, self.size());
        let (mut rising, mut largest) = (Vec::new(), -1);
        while let Some(found) = walk.next_head()? {
            let timestamp = found.header.max_timestamp;
            if timestamp > largest {
                largest = timestamp;
                rising.push((
                    found.position,
                    LargestTimestamp { timestamp, offset: found.header.last_offset() },
                ));
            }
        }
        Ok(rising)
    }
}
