//! The file of the metadata log, `klamm-metadata/log`:
//!
//! ```text
//! header: magic "KLAMMLOG" | version u32 | purged 0 or 1 u32 | its term u64 | its index u64 | CRC32C u32
//! entry:  length u32 | CRC32C of length and payload u32 | payload (see `entry`)
//! ```
//!
//! Entries are appended and synced before anything is acknowledged. When old entries are purged, the rest is
//! copied into a new file that replaces this one. What a crash left torn at the end is cut off
//! after opening, once it is known not to be what was committed.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes};
use klamm_io::{Disk, File, OpenMode};

use super::entry::{self, ENTRY_LEN_MIN};
use super::{Entry, LogId};

const MAGIC: &[u8; 8] = b"KLAMMLOG";
/// The lowest version of the format that is known. A file of an unknown one is refused, not guessed at.
const VERSION: u32 = 2;
const HEADER_LEN: usize = 36;
const FRAME_LEN: usize = 8;
/// The longest entry that is written, and that is believed: a length beyond it is damage.
const ENTRY_LEN_MAX: usize = 256 << 20;

/// Where an entry stands in the file.
#[derive(Clone, Copy, Debug)]
struct Slot {
    id: LogId,
    position: u64,
    /// With the frame.
    len: u64,
}

/// The open file and what is in it.
pub(crate) struct LogFile {
    path: PathBuf,
    file: Arc<dyn File>,
    /// The version in which the file is made anew.
    version: u32,
    purged: Option<LogId>,
    slots: VecDeque<Slot>,
    end: u64,
}

/// What opening found.
pub(crate) struct Opened {
    pub log: LogFile,
    /// How many bytes follow the last whole entry. Nothing may be appended before `cut_tail` took them away.
    pub tail: u64,
    /// A whole entry in the tail that proves that entries which are missing before it were committed.
    pub witness: Option<u64>,
}

impl LogFile {
    /// Opens the log, or makes an empty one. A log that is there is not changed. `raised` is what a test adds to the
    /// version of the format.
    pub(crate) fn open(disk: &dyn Disk, path: &Path, raised: u8) -> io::Result<Opened> {
        let version = VERSION + u32::from(raised);
        if !disk.exists(path)? {
            let log = LogFile::create(disk, path, version, None, &[])?;
            return Ok(Opened { log, tail: 0, witness: None });
        }
        let file = disk.open(path, OpenMode::ReadWrite)?;
        let len = file.len()?;
        let mut content = vec![0; len as usize];
        file.read_exact_at(&mut content, 0)?;
        let purged = decode_header(version, &content).map_err(|why| invalid(path, &why))?;
        let (path, slots, end) = (path.to_owned(), VecDeque::new(), HEADER_LEN as u64);
        let mut log = LogFile { path, file, version, purged, slots, end };
        while let Some(slot) = whole_entry(&content, log.end) {
            if log.last().is_some_and(|last| last.index + 1 != slot.id.index) {
                return Err(invalid(
                    &log.path,
                    &format!("entry {} follows no entry before it", slot.id.index),
                ));
            }
            log.end += slot.len;
            log.slots.push_back(slot);
        }
        let missing = log.last().map_or(0, |last| last.index + 1);
        let witness = witness_of(&content[log.end as usize..], missing);
        Ok(Opened { tail: len - log.end, log, witness })
    }

    /// Takes away whatever follows the last whole entry.
    pub(crate) fn cut_tail(&self) -> io::Result<()> {
        self.file.set_len(self.end)?;
        self.file.sync_data()
    }

    /// Makes a file with these entries take the place of whatever is at `path`.
    fn create(
        disk: &dyn Disk,
        path: &Path,
        version: u32,
        purged: Option<LogId>,
        entries: &[(LogId, Bytes)],
    ) -> io::Result<LogFile> {
        let mut content = encode_header(version, purged);
        let mut slots = VecDeque::new();
        for (id, framed) in entries {
            slots.push_back(Slot { id: *id, position: content.len() as u64, len: framed.len() as u64 });
            content.extend_from_slice(framed);
        }
        disk.replace(path, &content)?;
        let file = disk.open(path, OpenMode::ReadWrite)?;
        Ok(LogFile { path: path.to_owned(), file, version, purged, slots, end: content.len() as u64 })
    }

    /// Makes the log of a new quorum. Whatever is at `path` is replaced.
    pub(crate) fn form(disk: &dyn Disk, path: &Path, entries: &[Entry]) -> io::Result<LogFile> {
        LogFile::create(disk, path, VERSION, None, &framed(entries)?)
    }

    /// Makes a log that goes on behind a snapshot. Whatever is at `path` is replaced.
    pub(crate) fn form_behind(
        disk: &dyn Disk,
        path: &Path,
        snapshot: LogId,
        entries: &[Entry],
    ) -> io::Result<()> {
        let framed = framed(entries)?;
        LogFile::create(disk, path, VERSION, Some(snapshot), &framed).map(drop)
    }

    pub(crate) fn file(&self) -> Arc<dyn File> {
        Arc::clone(&self.file)
    }

    pub(crate) fn purged(&self) -> Option<LogId> {
        self.purged
    }

    /// The last entry that is or, when all were purged, was here.
    pub(crate) fn last(&self) -> Option<LogId> {
        self.slots.back().map(|slot| slot.id).or(self.purged)
    }

    /// Writes entries behind the last one. They are not synced yet.
    pub(crate) fn append(&mut self, entries: &[Entry]) -> io::Result<u64> {
        let mut bytes = Vec::new();
        let mut slots = Vec::with_capacity(entries.len());
        for entry in entries {
            let framed = frame(&entry::encode(entry)?)?;
            let id = openraft::entry::RaftEntry::log_id(entry);
            slots.push(Slot { id, position: self.end + bytes.len() as u64, len: framed.len() as u64 });
            bytes.extend_from_slice(&framed);
        }
        self.file.write_all_at(&[&bytes], self.end)?;
        self.end += bytes.len() as u64;
        self.slots.extend(slots);
        Ok(bytes.len() as u64)
    }

    /// The entries of these indexes, as far as they are here.
    pub(crate) fn read(&self, from: u64, until: u64) -> io::Result<Vec<Entry>> {
        self.read_some(from, until, u64::MAX)
    }

    /// The first of them, up to this many bytes, and one at least.
    pub(crate) fn read_some(&self, from: u64, until: u64, bytes_max: u64) -> io::Result<Vec<Entry>> {
        let wanted = self.slots.iter().filter(|slot| (from..until).contains(&slot.id.index));
        let mut bytes = 0u64;
        let fits = |slot: &&Slot| {
            let is_first = bytes == 0;
            bytes = bytes.saturating_add(slot.len);
            is_first || bytes <= bytes_max
        };
        wanted
            .take_while(fits)
            .map(|slot| entry::decode(self.read_framed(slot)?.slice(FRAME_LEN..)))
            .collect()
    }

    fn read_framed(&self, slot: &Slot) -> io::Result<Bytes> {
        let mut framed = vec![0; slot.len as usize];
        self.file.read_exact_at(&mut framed, slot.position)?;
        // The disk may have changed what was written; nothing may be applied that is not what was agreed on.
        if whole_entry(&framed, 0).is_none() {
            return Err(invalid(&self.path, &format!("entry {} has a wrong checksum", slot.id.index)));
        }
        Ok(framed.into())
    }

    /// Takes away all entries after `last`, or all.
    pub(crate) fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        let keep = |slot: &Slot| last.is_some_and(|last| slot.id.index <= last.index);
        while self.slots.back().is_some_and(|slot| !keep(slot)) {
            self.slots.pop_back();
        }
        self.end = self.slots.back().map_or(HEADER_LEN as u64, |slot| slot.position + slot.len);
        self.cut_tail()
    }

    /// A copy of this log without the entries up to `purged`, in the file's place.
    pub(crate) fn without(&self, disk: &dyn Disk, purged: LogId) -> io::Result<LogFile> {
        let kept = self.slots.iter().filter(|slot| slot.id.index > purged.index);
        let entries: Vec<_> =
            kept.map(|slot| Ok((slot.id, self.read_framed(slot)?))).collect::<io::Result<_>>()?;
        LogFile::create(disk, &self.path, self.version, Some(purged), &entries)
    }
}

fn encode_header(version: u32, purged: Option<LogId>) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_LEN);
    out.put_slice(MAGIC);
    out.put_u32(version);
    out.put_u32(u32::from(purged.is_some()));
    out.put_u64(purged.map_or(0, |id| entry::term_of(&id)));
    out.put_u64(purged.map_or(0, |id| id.index));
    let checksum = crc32c::crc32c(&out);
    out.put_u32(checksum);
    out
}

fn decode_header(highest: u32, content: &[u8]) -> Result<Option<LogId>, String> {
    if content.len() < HEADER_LEN || &content[..8] != MAGIC {
        return Err("it is no metadata log of Klamm".to_owned());
    }
    let (head, mut checksum) = content[..HEADER_LEN].split_at(HEADER_LEN - 4);
    let mut fields = &head[8..];
    let version = fields.get_u32();
    if !(VERSION..=highest).contains(&version) {
        return Err(format!(
            "its format is version {version}, and this Klamm knows versions {VERSION} to {highest}"
        ));
    }
    if crc32c::crc32c(head) != checksum.get_u32() {
        return Err("the checksum of its header is wrong".to_owned());
    }
    let is_purged = fields.get_u32() == 1;
    let term = fields.get_u64();
    Ok(is_purged.then(|| entry::log_id(term, fields.get_u64())))
}

/// Entries as they stand in the file.
fn framed(entries: &[Entry]) -> io::Result<Vec<(LogId, Bytes)>> {
    let framed = entries.iter().map(|entry| {
        Ok((openraft::entry::RaftEntry::log_id(entry), Bytes::from(frame(&entry::encode(entry)?)?)))
    });
    framed.collect()
}

/// Refuses an entry that could not be read again.
fn frame(payload: &[u8]) -> io::Result<Vec<u8>> {
    if payload.len() > ENTRY_LEN_MAX {
        let why = format!(
            "an entry of {} bytes is too long for the metadata log, which takes {ENTRY_LEN_MAX}",
            payload.len()
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let mut out = Vec::with_capacity(FRAME_LEN + payload.len());
    let len = payload.len() as u32;
    out.put_u32(len);
    out.put_u32(checksum(len, payload));
    out.put_slice(payload);
    Ok(out)
}

fn checksum(len: u32, payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&len.to_be_bytes()), payload)
}

/// The entry at `position`, if it is there as a whole and undamaged.
fn whole_entry(content: &[u8], position: u64) -> Option<Slot> {
    let mut rest = content.get(position as usize..)?;
    if rest.len() < FRAME_LEN {
        return None;
    }
    let len = rest.get_u32();
    let expected = rest.get_u32();
    if !(ENTRY_LEN_MIN..=ENTRY_LEN_MAX).contains(&(len as usize)) {
        return None;
    }
    let payload = rest.get(..len as usize)?;
    if checksum(len, payload) != expected {
        return None;
    }
    Some(Slot { id: entry::peek_log_id(payload)?, position, len: FRAME_LEN as u64 + u64::from(len) })
}

/// An entry in what follows the last whole one that was decided upon the entry `missing` or a later one.
///
/// A torn write may leave a later entry whole and an earlier one not, when both were under way. But decisions
/// are made upon what is committed, so one that names what is missing says that it was acknowledged, and that
/// damage, not a crash, took it away.
fn witness_of(tail: &[u8], missing: u64) -> Option<u64> {
    let indexes = missing + 1..=missing + (tail.len() / (FRAME_LEN + ENTRY_LEN_MIN)) as u64;
    (1..tail.len()).find_map(|position| {
        let payload = tail.get(position + FRAME_LEN..)?;
        // The index rules out nearly every place, before any checksum is computed.
        let id = entry::peek_log_id(payload).filter(|id| indexes.contains(&id.index))?;
        let based_on = entry::peek_based_on(payload)?;
        let is_decided_upon = based_on >= 0 && (missing..id.index).contains(&(based_on as u64));
        (is_decided_upon && whole_entry(tail, position as u64).is_some()).then_some(id.index)
    })
}

fn invalid(path: &Path, why: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("the metadata log {} cannot be used: {why}", path.display()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An entry that opening takes for damage must never be written and acknowledged.
    #[test]
    fn an_entry_that_could_not_be_read_again_is_not_written() {
        assert!(frame(&vec![0; ENTRY_LEN_MAX + 1]).is_err());
        let written = frame(&[0; ENTRY_LEN_MIN]).unwrap();
        assert_eq!(whole_entry(&written, 0).map(|slot| slot.len), Some(written.len() as u64));
    }
}
