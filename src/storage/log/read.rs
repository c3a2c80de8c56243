//! Reading: from an offset to a part of a file.

use std::sync::Arc;

use bytes::Bytes;
use klamm_io::File;
use klamm_model::Offset;
use klamm_records::{BatchHeader, HEAD_LEN, peek_batch};

use super::{Log, LogEnd};
use crate::error::{ReadError, StorageError};
use crate::positions::Place;
use crate::segment::LogSegment;
use crate::walk::{Found, read_up_to};

/// A part of a segment's file. It begins with a batch and may end anywhere in one, except that the first is
/// whole if the read asked for at least one.
#[derive(Clone)]
pub struct LogSlice {
    /// The file.
    pub file: Arc<dyn File>,
    /// Where the part begins.
    pub position: u64,
    /// How many bytes it has; never 0.
    pub len: u64,
    /// The head of the first batch. Its format is not that of all others for certain: a segment may hold
    /// several.
    pub first: BatchHeader,
    segment: Arc<LogSegment>,
}

impl LogSlice {
    /// The format of the first batch.
    pub fn first_magic(&self) -> i8 {
        self.first.magic
    }

    /// Whether a batch of V0 or V1 stands in it, also as one that is cut off at its end.
    pub fn holds_old_formats(&self) -> Result<bool, StorageError> {
        if self.first.magic < 2 {
            return Ok(true);
        }
        self.segment.holds_old_formats(&*self.file, self.position..self.position + self.len)
    }

    /// Reads the bytes. Fewer than `len` if the file was cut meanwhile.
    pub fn to_bytes(&self) -> std::io::Result<Bytes> {
        let mut bytes = vec![0; usize::try_from(self.len).unwrap_or(usize::MAX)];
        let filled = read_up_to(&*self.file, &mut bytes, self.position)?;
        bytes.truncate(filled);
        Ok(Bytes::from(bytes))
    }
}

impl std::fmt::Debug for LogSlice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let LogSlice { position, len, first, .. } = self;
        write!(f, "LogSlice({position} + {len}, from offset {})", first.base_offset)
    }
}

/// How often a reader looks again when a segment was taken from under it.
pub(super) const ATTEMPTS: usize = 3;

/// How much a read may take.
struct Bounds {
    max_bytes: u64,
    at_least_one: bool,
    below: Offset,
    generation: u64,
}

impl Log {
    /// Reads from the batch that holds `from` on: whole batches that end below `below`, and the part of the next
    /// one that still is within `max_bytes`. With `at_least_one` the first batch comes whole, however large.
    ///
    /// `None` if there is nothing, or if the first batch would not end below `below`.
    pub fn read(
        &self,
        from: Offset,
        max_bytes: usize,
        below: Offset,
        at_least_one: bool,
    ) -> Result<Option<LogSlice>, ReadError> {
        // A segment can vanish between two looks, by retention, truncation or compaction; then the answer is made
        // anew, as soon as the new list is there. The last time nothing can vanish.
        for _ in 1..ATTEMPTS {
            match self.try_read(from, max_bytes, below, at_least_one)? {
                Attempt::Done(slice) => return Ok(slice),
                Attempt::Again => drop(self.writer.lock()),
            }
        }
        let _writer = self.writer.lock();
        match self.try_read(from, max_bytes, below, at_least_one)? {
            Attempt::Done(slice) => Ok(slice),
            Attempt::Again => Ok(None),
        }
    }

    fn try_read(
        &self,
        from: Offset,
        max_bytes: usize,
        below: Offset,
        at_least_one: bool,
    ) -> Result<Attempt, ReadError> {
        self.check_usable("read")?;
        // In this order: the segments may be newer than the end, but never the other way round.
        let generation = self.positions.generation();
        let end = **self.end.load();
        let segments = self.segments.load_full();
        let start = self.log_start_offset();
        if from < start || from > end.offset {
            return Err(ReadError::OutOfRange { start, end: end.offset });
        }
        let below = below.min(end.offset);
        let bounds = Bounds { max_bytes: max_bytes as u64, at_least_one, below, generation };
        let first = segments.partition_point(|segment| segment.base_offset() <= from).saturating_sub(1);
        for (index, segment) in segments.iter().enumerate().skip(first) {
            if from >= below || segment.base_offset() >= below {
                return Ok(Attempt::Done(None));
            }
            let next_base = segments.get(index + 1).map_or(Offset::MAX, |next| next.base_offset());
            match self.read_segment(segment, next_base, from, &end, &bounds) {
                Ok(Some(slice)) => return Ok(Attempt::Done(slice)),
                // All batches of this segment end before the offset: the next one may hold it.
                Ok(None) => {}
                Err(_) if segment.is_removed() => return Ok(Attempt::Again),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Attempt::Done(None))
    }

    /// `None` if the segment holds no batch at or behind `from`; `Some(None)` if it does but none may be read.
    fn read_segment(
        &self,
        segment: &Arc<LogSegment>,
        next_base: Offset,
        from: Offset,
        end: &LogEnd,
        bounds: &Bounds,
    ) -> Result<Option<Option<LogSlice>>, StorageError> {
        let readable = if segment.base_offset() == end.segment { end.position } else { segment.size() };
        let Some(first) = self.locate(segment, from, readable)? else { return Ok(None) };
        if first.header.last_offset() >= bounds.below {
            return Ok(Some(None));
        }
        let is_all_below =
            bounds.below >= next_base || (bounds.below == end.offset && segment.base_offset() == end.segment);
        let stop = if is_all_below {
            readable
        } else {
            let stop = self.locate_end(segment, &first, bounds, readable)?;
            let offset = bounds.below;
            let place = Place { offset, segment: segment.base_offset(), position: stop };
            // What is learned of a segment that was replaced meanwhile says nothing of the new one.
            if !segment.is_removed() {
                self.positions.add_read(place, bounds.generation);
            }
            stop
        };
        let available = stop.saturating_sub(first.position);
        let whole_first = if bounds.at_least_one { first.header.size as u64 } else { 0 };
        let len = available.min(bounds.max_bytes.max(whole_first));
        if len == 0 {
            return Ok(Some(None));
        }
        let file = segment.file()?;
        let segment = segment.clone();
        Ok(Some(Some(LogSlice { file, position: first.position, len, first: first.header, segment })))
    }

    /// The first batch that ends at or behind `from`.
    fn locate(
        &self,
        segment: &LogSegment,
        from: Offset,
        readable: u64,
    ) -> Result<Option<Found>, StorageError> {
        if let Some(position) = self.positions.find(from, segment.base_offset())
            && let Some(found) = batch_at(segment, position, readable)?
            && found.header.last_offset() >= from
            && found.header.base_offset <= from
        {
            return Ok(Some(found));
        }
        segment.find(from, readable)
    }

    /// Where the first batch begins that does not end below `bounds.below`.
    fn locate_end(
        &self,
        segment: &LogSegment,
        first: &Found,
        bounds: &Bounds,
        readable: u64,
    ) -> Result<u64, StorageError> {
        if let Some(position) = self.positions.find(bounds.below, segment.base_offset())
            && position > first.position
            && position <= readable
        {
            return Ok(position);
        }
        Ok(segment.find(bounds.below, readable)?.map_or(readable, |found| found.position))
    }
}

enum Attempt {
    Done(Option<LogSlice>),
    Again,
}

/// The head at a position where a batch begins, if all of the batch is there.
fn batch_at(segment: &LogSegment, position: u64, end: u64) -> Result<Option<Found>, StorageError> {
    if position >= end {
        return Ok(None);
    }
    let mut head = [0; HEAD_LEN];
    let wanted = (end - position).min(HEAD_LEN as u64) as usize;
    let filled = read_up_to(&*segment.file()?, &mut head[..wanted], position)
        .map_err(|error| StorageError::io(&segment.path(), "read the log", &error).at(position))?;
    let header = peek_batch(&head[..filled]).ok().flatten();
    Ok(header.filter(|h| h.size as u64 <= end - position).map(|header| Found { position, header }))
}
