//! The bytes of one log entry:
//!
//! ```text
//! index u64 | term u64 | kind u8 | body
//!   kind 0, blank:      no body
//!   kind 1, records:    based_on i64 | count u32 | count × (length u32 | metadata record in KRaft's frame)
//!   kind 2, membership: JSON
//! ```
//!
//! All numbers are big-endian. Around it, the file has a length and a checksum (`log_file`).

use std::io;

use bytes::{Buf, BufMut, Bytes};
use klamm_protocol::records::cluster_metadata::MetadataRecord;
use klamm_protocol::{EncodeError, decode_metadata_record, encode_metadata_record};
use openraft::EntryPayload;
use openraft::entry::RaftEntry;

use super::replica_key::ReplicaKey;
use super::{Batch, Entry, LogId};

const BLANK: u8 = 0;
const RECORDS: u8 = 1;
const MEMBERSHIP: u8 = 2;

/// The shortest entry: index, term and kind.
pub(crate) const ENTRY_LEN_MIN: usize = 17;

pub(crate) fn log_id(term: u64, index: u64) -> LogId {
    let leader = openraft::impls::leader_id_std::LeaderId::<u64, ReplicaKey> {
        term,
        voted_for: ReplicaKey::default(),
    };
    LogId::new(openraft::vote::RaftLeaderId::to_committed(&leader), index)
}

pub(crate) fn term_of(id: &LogId) -> u64 {
    id.leader_id.term
}

pub(crate) fn encode(entry: &Entry) -> io::Result<Vec<u8>> {
    let id = entry.log_id();
    let mut out = Vec::with_capacity(64);
    out.put_u64(id.index);
    out.put_u64(term_of(&id));
    match &entry.payload {
        EntryPayload::Blank => out.put_u8(BLANK),
        EntryPayload::Normal(batch) => {
            out.put_u8(RECORDS);
            out.extend_from_slice(&encode_batch(batch)?);
        }
        EntryPayload::Membership(membership) => {
            out.put_u8(MEMBERSHIP);
            serde_json::to_writer(&mut out, membership).map_err(io::Error::other)?;
        }
    }
    Ok(out)
}

/// Reads index and term without the rest.
pub(crate) fn peek_log_id(bytes: &[u8]) -> Option<LogId> {
    if bytes.len() < ENTRY_LEN_MIN {
        return None;
    }
    let mut head = bytes;
    let index = head.get_u64();
    Some(log_id(head.get_u64(), index))
}

/// Which image the records of an entry were decided upon, where it is one with records.
pub(crate) fn peek_based_on(bytes: &[u8]) -> Option<i64> {
    let mut body = bytes.get(ENTRY_LEN_MIN - 1..)?;
    (body.len() >= 9 && body.get_u8() == RECORDS).then(|| body.get_i64())
}

pub(crate) fn decode(mut bytes: Bytes) -> io::Result<Entry> {
    let id = peek_log_id(&bytes).ok_or_else(|| damaged("it is too short"))?;
    bytes.advance(16);
    let payload = match bytes.get_u8() {
        BLANK => EntryPayload::Blank,
        RECORDS => EntryPayload::Normal(decode_batch(bytes)?),
        MEMBERSHIP => EntryPayload::Membership(serde_json::from_slice(&bytes).map_err(io::Error::other)?),
        kind => return Err(damaged(&format!("its kind {kind} is not known"))),
    };
    Ok(Entry::new(id, payload))
}

pub(crate) fn encode_batch(batch: &Batch) -> io::Result<Vec<u8>> {
    let mut out = Vec::with_capacity(64 * batch.records.len() + 12);
    out.put_i64(batch.based_on);
    out.put_u32(batch.records.len() as u32);
    for record in &batch.records {
        let bytes = encode_metadata_record(record, *record.versions().end()).map_err(io::Error::other)?;
        out.put_u32(bytes.len() as u32);
        out.extend_from_slice(&bytes);
    }
    Ok(out)
}

/// How many bytes these records take in a batch.
pub(crate) fn records_len(records: &[MetadataRecord]) -> Result<usize, EncodeError> {
    let len = |record: &MetadataRecord| {
        encode_metadata_record(record, *record.versions().end()).map(|bytes| 4 + bytes.len())
    };
    records.iter().map(len).sum()
}

pub(crate) fn decode_batch(mut bytes: Bytes) -> io::Result<Batch> {
    if bytes.len() < 12 {
        return Err(damaged("its batch is too short"));
    }
    let based_on = bytes.get_i64();
    let count = bytes.get_u32();
    let mut records = Vec::new();
    for _ in 0..count {
        let len = if bytes.len() < 4 { usize::MAX } else { bytes.get_u32() as usize };
        if len > bytes.len() {
            return Err(damaged("a record in it is cut off"));
        }
        records.push(decode_metadata_record(bytes.split_to(len)).map_err(io::Error::other)?.0);
    }
    if bytes.is_empty() {
        Ok(Batch { based_on, records })
    } else {
        Err(damaged("bytes follow its last record"))
    }
}

fn damaged(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("an entry of the metadata log is damaged: {why}"))
}
