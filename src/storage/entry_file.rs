//! A file of fixed-size entries in ascending order: what the three indexes of a segment have in common.
//!
//! New entries gather in memory and go to the file in blocks, so that an append to the log costs no write to an
//! index. That is safe because the segment that takes appends is scanned, and its indexes are made anew, after
//! any stop but a clean one. Entries that are in the file are searched there: an index of a large segment never
//! stands in memory as a whole, whatever its size claims.

use std::io;

use klamm_io::File;
use parking_lot::Mutex;

use crate::error::StorageError;
use crate::index_entry::Entry;
use crate::open_files::FileSlot;
use crate::walk::read_up_to;

/// Entries that gather before they are written.
const TAIL_ENTRIES: usize = 512;

/// Entries that a search reads at once in its end.
const BLOCK_ENTRIES: u64 = 128;

/// The file, and the entries not yet in it.
pub(crate) struct EntryFile<E> {
    slot: FileSlot,
    state: Mutex<State<E>>,
}

struct State<E> {
    is_loaded: bool,
    /// Entries in the file; the file may be longer.
    in_file: u64,
    tail: Vec<E>,
    last: Option<E>,
    /// Whether behind those there still is what stood in the file before a recount.
    is_recounted: bool,
}

impl<E> State<E> {
    fn loaded(in_file: u64, last: Option<E>) -> State<E> {
        State { is_loaded: true, in_file, tail: Vec::new(), last, is_recounted: false }
    }
}

impl<E: Entry> EntryFile<E> {
    /// An index that is read from its file on first use.
    pub(crate) fn open(slot: FileSlot) -> EntryFile<E> {
        EntryFile { slot, state: Mutex::new(State { is_loaded: false, ..State::loaded(0, None) }) }
    }

    pub(crate) fn slot(&self) -> &FileSlot {
        &self.slot
    }

    /// Forgets all entries, in memory and in the file.
    pub(crate) fn reset(&self) -> Result<(), StorageError> {
        match self.slot.existing(E::WRITE_CONTEXT) {
            Ok(file) => file.set_len(0).map_err(|error| self.write_error(&error))?,
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
        *self.state.lock() = State::loaded(0, None);
        Ok(())
    }

    /// Forgets all entries, but leaves the file alone as far as those that come are the same: a disk that is full
    /// takes no writes, and then needs none.
    pub(crate) fn recount(&self) {
        *self.state.lock() = State { is_recounted: true, ..State::loaded(0, None) };
    }

    /// What is wrong with the file, as far as its length and its last entry tell.
    pub(crate) fn problem(&self, is_possible: impl Fn(&E) -> bool) -> Result<Option<String>, StorageError> {
        let len = match self.slot.existing(E::READ_CONTEXT) {
            Ok(file) => {
                file.len().map_err(|error| StorageError::io(&self.slot.path(), E::READ_CONTEXT, &error))?
            }
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error),
        };
        let last = self.last()?;
        // Behind the last entry of a file that was allocated in advance are zeros, as many as there may be.
        let whole = self.len()? * E::SIZE as u64;
        if len != whole && len < whole + E::SIZE as u64 {
            return Ok(Some(format!("it has {len} bytes, but its entries have {} each", E::SIZE)));
        }
        let is_wrong = last.is_some_and(|last| !is_possible(&last));
        Ok(is_wrong.then(|| format!("its last entry, {last:?}, points out of the segment")))
    }

    /// The number of entries.
    pub(crate) fn len(&self) -> Result<u64, StorageError> {
        let state = self.loaded()?;
        Ok(state.in_file + state.tail.len() as u64)
    }

    pub(crate) fn last(&self) -> Result<Option<E>, StorageError> {
        Ok(self.loaded()?.last)
    }

    /// Adds an entry behind the last one. That it is in order is the caller's duty.
    pub(crate) fn push(&self, entry: E) {
        let mut state = self.state.lock();
        debug_assert!(state.is_loaded, "an index that takes entries has been read");
        state.tail.push(entry);
        state.last = Some(entry);
    }

    /// Writes what has gathered if it is a block.
    pub(crate) fn write_block(&self) -> Result<(), StorageError> {
        if self.state.lock().tail.len() < TAIL_ENTRIES { Ok(()) } else { self.write_tail() }
    }

    /// Writes all that has gathered and cuts what stands behind it. Makes the file.
    pub(crate) fn finish(&self) -> Result<(), StorageError> {
        self.write_tail()?;
        let len = self.state.lock().in_file * E::SIZE as u64;
        let file = self.slot.created(E::WRITE_CONTEXT)?;
        if file.len().map_err(|error| self.write_error(&error))? != len {
            file.set_len(len).map_err(|error| self.write_error(&error))?;
        }
        self.state.lock().is_recounted = false;
        Ok(())
    }

    /// As [`EntryFile::finish`], but without entries there is to be no file, or an empty one.
    pub(crate) fn finish_unless_empty(&self) -> Result<(), StorageError> {
        if self.len()? > 0 {
            return self.finish();
        }
        let is_recounted = self.state.lock().is_recounted;
        if is_recounted { self.reset() } else { Ok(()) }
    }

    /// Waits until the file is on the disk; one that was never made needs no waiting.
    pub(crate) fn sync(&self) -> Result<(), StorageError> {
        match self.slot.existing(E::WRITE_CONTEXT) {
            Ok(file) => file.sync_data().map_err(|error| self.write_error(&error)),
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Only the writer of the log calls this, so nothing is added meanwhile; readers go on.
    fn write_tail(&self) -> Result<(), StorageError> {
        let (bytes, count, position, is_recounted) = {
            let state = self.loaded()?;
            let mut bytes = Vec::with_capacity(state.tail.len() * E::SIZE);
            state.tail.iter().for_each(|entry| entry.encode(&mut bytes));
            (bytes, state.tail.len(), state.in_file * E::SIZE as u64, state.is_recounted)
        };
        if count == 0 {
            return Ok(());
        }
        let file = self.slot.created(E::WRITE_CONTEXT)?;
        if !is_recounted || !self.holds_already(&*file, &bytes, position)? {
            file.write_all_at(&[&bytes], position).map_err(|error| self.write_error(&error).at(position))?;
        }
        let mut state = self.state.lock();
        state.in_file += count as u64;
        state.tail.drain(..count);
        Ok(())
    }

    /// Whether what stood in the file before a recount is what comes now. If not it is cut off, so that old entries
    /// never follow new ones.
    fn holds_already(&self, file: &dyn File, bytes: &[u8], position: u64) -> Result<bool, StorageError> {
        let mut found = vec![0; bytes.len()];
        let filled = read_up_to(file, &mut found, position);
        let filled = filled.map_err(|error| self.write_error(&error).at(position))?;
        if found[..filled] == *bytes {
            return Ok(true);
        }
        file.set_len(position).map_err(|error| self.write_error(&error).at(position))?;
        self.state.lock().is_recounted = false;
        Ok(false)
    }

    /// Removes all entries from the first one on for which `keep` does not hold.
    pub(crate) fn truncate(&self, keep: impl Fn(&E) -> bool) -> Result<(), StorageError> {
        let count = self.partition_point(&keep)?;
        let in_file = self.state.lock().in_file;
        let last = match count {
            0 => None,
            _ if count > in_file => self.state.lock().tail.get((count - in_file) as usize - 1).copied(),
            _ => self.read(count - 1, 1)?.pop(),
        };
        if count < in_file {
            let len = count * E::SIZE as u64;
            let file = self.slot.existing(E::WRITE_CONTEXT)?;
            file.set_len(len).map_err(|error| self.write_error(&error).at(len))?;
        }
        let mut state = self.state.lock();
        state.tail.truncate(count.saturating_sub(in_file) as usize);
        state.in_file = count.min(in_file);
        state.last = last;
        Ok(())
    }

    /// The last entry for which `holds`, which must hold for some first entries and for none behind them.
    pub(crate) fn last_where(&self, holds: impl Fn(&E) -> bool) -> Result<Option<E>, StorageError> {
        match self.partition_point(&holds)? {
            0 => Ok(None),
            count => Ok(self.from(count - 1, 1)?.pop()),
        }
    }

    /// Up to `most` entries from the one with that number on.
    pub(crate) fn from(&self, index: u64, most: usize) -> Result<Vec<E>, StorageError> {
        let (in_file, tail) = {
            let state = self.loaded()?;
            let skipped = index.saturating_sub(state.in_file) as usize;
            let tail: Vec<E> = state.tail.iter().skip(skipped).take(most).copied().collect();
            (state.in_file, tail)
        };
        if index >= in_file {
            return Ok(tail);
        }
        let mut entries = self.read(index, (in_file - index).min(most as u64))?;
        entries.extend(tail.into_iter().take(most - entries.len()));
        Ok(entries)
    }

    /// How many first entries there are for which `holds`.
    pub(crate) fn partition_point(&self, holds: impl Fn(&E) -> bool) -> Result<u64, StorageError> {
        let in_file = {
            let state = self.loaded()?;
            if state.in_file == 0 || state.tail.first().is_some_and(&holds) {
                return Ok(state.in_file + state.tail.partition_point(&holds) as u64);
            }
            state.in_file
        };
        // What is in the file does not change, except by truncation, after which an entry may be missing: the
        // search then ends early, and its answer is a lower bound all the same.
        let (mut low, mut high) = (0, in_file);
        while high - low > BLOCK_ENTRIES {
            let middle = low + (high - low) / 2;
            match self.read(middle, 1)?.first() {
                Some(entry) if holds(entry) => low = middle + 1,
                _ => high = middle,
            }
        }
        let block = self.read(low, high - low)?;
        Ok(low + block.partition_point(&holds) as u64)
    }

    fn loaded(&self) -> Result<parking_lot::MutexGuard<'_, State<E>>, StorageError> {
        let state = self.state.lock();
        if state.is_loaded {
            return Ok(state);
        }
        drop(state);
        // Reading goes without the lock; two readers that load at once find the same.
        let in_file = self.count_entries()?;
        let last = if in_file == 0 { None } else { self.read(in_file - 1, 1)?.pop() };
        let mut state = self.state.lock();
        if !state.is_loaded {
            *state = State::loaded(in_file, last);
        }
        Ok(state)
    }

    /// Whole entries in the file, without the zeros at its end.
    fn count_entries(&self) -> Result<u64, StorageError> {
        let file = match self.slot.existing(E::READ_CONTEXT) {
            Ok(file) => file,
            Err(error) if error.is_not_found() => return Ok(0),
            Err(error) => return Err(error),
        };
        let len = file.len().map_err(|error| StorageError::io(&self.slot.path(), E::READ_CONTEXT, &error))?;
        let count = len / E::SIZE as u64;
        if count == 0 || !self.read(count - 1, 1)?.first().is_some_and(E::is_padding) {
            return Ok(count);
        }
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.read(middle, 1)?.first() {
                Some(entry) if !entry.is_padding() => low = middle + 1,
                _ => high = middle,
            }
        }
        Ok(low)
    }

    /// Entries from the file; fewer if it ends before.
    fn read(&self, index: u64, count: u64) -> Result<Vec<E>, StorageError> {
        let mut bytes = vec![0; count as usize * E::SIZE];
        let position = index * E::SIZE as u64;
        let file = self.slot.existing(E::READ_CONTEXT)?;
        let mut filled = 0;
        while filled < bytes.len() {
            match file.read_at(&mut bytes[filled..], position + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let error = StorageError::io(&self.slot.path(), E::READ_CONTEXT, &error);
                    return Err(error.at(position));
                }
            }
        }
        Ok(bytes[..filled].chunks_exact(E::SIZE).map(E::decode).collect())
    }

    fn write_error(&self, error: &io::Error) -> StorageError {
        StorageError::io(&self.slot.path(), E::WRITE_CONTEXT, error)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use klamm_io::{Disk, OpenMode};
    use klamm_testing::SimulatedDisk;
    use proptest::prelude::*;

    use super::*;
    use crate::index_entry::{OffsetEntry, TimeEntry};
    use crate::open_files::OpenFiles;

    fn slot(disk: &SimulatedDisk) -> FileSlot {
        disk.create_dir_all(Path::new("/d")).unwrap();
        OpenFiles::new(Arc::new(disk.clone()), 4).slot(&Path::new("/d").into(), 0, ".index")
    }

    fn entry(number: u32) -> OffsetEntry {
        OffsetEntry { relative_offset: number * 3 + 1, position: number * 100 + 100 }
    }

    /// An index of `count` entries, of which the first ones are in the file.
    fn filled(disk: &SimulatedDisk, count: u32, in_file: u32) -> EntryFile<OffsetEntry> {
        let index = EntryFile::open(slot(disk));
        index.reset().unwrap();
        for number in 0..count {
            if number == in_file {
                index.finish().unwrap();
            }
            index.push(entry(number));
        }
        index
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

        /// Wherever the border between file and memory is, and after a reopening, a search finds what a scan
        /// finds; so too after a truncation.
        #[test]
        fn searches_are_those_of_a_scan(count in 0..1500u32, share in 0..=100u32, kept in 0..1500u32) {
            let disk = SimulatedDisk::new(1);
            let index = filled(&disk, count, count * share / 100);
            let check = |index: &EntryFile<OffsetEntry>, count: u32| {
                assert_eq!(index.len().unwrap(), u64::from(count));
                assert_eq!(index.last().unwrap(), count.checked_sub(1).map(entry));
                for offset in (0..count * 3 + 5).step_by(7) {
                    let found = index.last_where(|entry| entry.relative_offset <= offset).unwrap();
                    let scanned = (0..count).map(entry).take_while(|e| e.relative_offset <= offset).last();
                    assert_eq!(found, scanned);
                }
                let all: Vec<OffsetEntry> = (0..count).map(entry).collect();
                assert_eq!(index.from(0, usize::MAX).unwrap(), all);
            };
            check(&index, count);
            let kept = kept.min(count);
            index.truncate(|entry| entry.relative_offset < kept * 3 + 1).unwrap();
            check(&index, kept);
            index.push(entry(kept));
            check(&index, kept + 1);
            index.finish().unwrap();
            check(&EntryFile::open(slot(&disk)), kept + 1);
        }
    }

    #[test]
    fn entries_go_to_the_file_in_blocks() {
        let disk = SimulatedDisk::new(1);
        let index = filled(&disk, 0, 0);
        for number in 0..TAIL_ENTRIES as u32 {
            index.write_block().unwrap();
            index.push(entry(number));
        }
        assert!(!disk.exists(Path::new("/d/00000000000000000000.index")).unwrap());
        index.write_block().unwrap();
        let content = disk.read(Path::new("/d/00000000000000000000.index")).unwrap();
        assert_eq!(content.len(), TAIL_ENTRIES * 8);
        assert_eq!(content[..8], [0, 0, 0, 1, 0, 0, 0, 100]);
    }

    /// A block that cannot be written stays in memory, and nothing is lost or doubled when it can.
    #[test]
    fn a_failed_write_is_repeated() {
        use klamm_testing::{Failure, Fault, OperationKind};
        let disk = SimulatedDisk::new(1);
        let index = filled(&disk, 700, 100);
        let fault = disk.inject(Fault::new(Failure::NoSpace).of(OperationKind::Write));
        assert!(index.write_block().is_err());
        assert_eq!(index.len().unwrap(), 700);
        disk.clear(fault);
        index.finish().unwrap();
        assert_eq!(disk.read(Path::new("/d/00000000000000000000.index")).unwrap().len(), 700 * 8);
    }

    /// A recovery counts the entries of an index again. Where it finds what is there the disk is left alone; what is
    /// wrong goes, with all that follows it.
    #[test]
    fn a_recount_writes_only_what_is_new() {
        let path = Path::new("/d/00000000000000000000.index");
        let changed = |damage: &dyn Fn(&mut Vec<u8>), count: u32| {
            let disk = SimulatedDisk::new(1);
            filled(&disk, 1200, 1200).finish().unwrap();
            let mut content = disk.read(path).unwrap();
            damage(&mut content);
            disk.replace(path, &content).unwrap();
            let index = EntryFile::open(slot(&disk));
            let changes = disk.counters().changes();
            index.recount();
            for number in 0..count {
                index.write_block().unwrap();
                index.push(entry(number));
            }
            index.finish_unless_empty().unwrap();
            let is_changed = disk.counters().changes() > changes;
            let expected: Vec<OffsetEntry> = (0..count).map(entry).collect();
            assert_eq!(index.from(0, usize::MAX).unwrap(), expected);
            let reopened: EntryFile<OffsetEntry> = EntryFile::open(slot(&disk));
            assert_eq!(reopened.from(0, usize::MAX).unwrap(), expected);
            assert_eq!(disk.read(path).unwrap().len(), count as usize * 8);
            is_changed
        };
        assert!(!changed(&|_| {}, 1200), "nothing is to be written");
        assert!(changed(&|_| {}, 1100), "the end is cut off");
        assert!(changed(&|_| {}, 0), "all of it is cut off");
        assert!(changed(&|_| {}, 1300), "there are more");
        assert!(changed(&|content| content[4000] ^= 1, 1200), "one is another");
        assert!(changed(&|content| content.truncate(801), 1200), "the end was lost");
        assert!(changed(&|content| content.extend([0; 4096]), 1200), "zeros follow");
    }

    /// Kafka allocates index files in advance; after a kill, and for its quorum's log always, zeros follow the
    /// last entry.
    #[test]
    fn zeros_at_the_end_are_no_entries() {
        for count in [0u32, 1, 2, 500] {
            let disk = SimulatedDisk::new(1);
            filled(&disk, count, count).finish().unwrap();
            let file = disk.open(Path::new("/d/00000000000000000000.index"), OpenMode::ReadWrite).unwrap();
            file.set_len(u64::from(count) * 8 + 10_000 + 3).unwrap();
            let index: EntryFile<OffsetEntry> = EntryFile::open(slot(&disk));
            assert_eq!(index.len().unwrap(), u64::from(count));
            assert_eq!(index.last().unwrap(), count.checked_sub(1).map(entry));
        }
    }

    /// What an entry of a time index looks like, and that time 0 is a time.
    #[test]
    fn a_time_entry_has_twelve_bytes() {
        let mut bytes = Vec::new();
        TimeEntry { timestamp: 0x0102_0304_0506_0708, relative_offset: 9 }.encode(&mut bytes);
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 9]);
        assert!(!TimeEntry { timestamp: 0, relative_offset: 1 }.is_padding());
    }
}
