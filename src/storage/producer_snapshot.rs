//! Kafka's `.snapshot` files: all producers of a log at an offset.
//!
//! int16 version (1), uint32 CRC-32C of all that follows it, int32 count, and an entry of 46 bytes each: int64
//! producer id, int16 epoch, int32 last sequence, int64 last offset, int32 offset delta, int64 timestamp, int32
//! coordinator epoch, int64 first offset of the open transaction (-1 for none). Of a producer's batches only
//! the last one is kept.

use klamm_model::{ProducerEpoch, ProducerId};

use crate::producers::{ProducerBatch, ProducerState, Producers};

/// The end of the file's name; before it stands the offset.
pub(crate) const SUFFIX: &str = ".snapshot";

const VERSION: i16 = 1;
const ENTRIES_AT: usize = 6;
const ENTRY_LEN: usize = 46;

pub(crate) fn encode(producers: &Producers) -> Vec<u8> {
    let mut bytes = vec![0; ENTRIES_AT];
    bytes.extend((producers.iter().len() as i32).to_be_bytes());
    for state in producers.iter() {
        let last = state.batches.back();
        bytes.extend(state.id.0.to_be_bytes());
        bytes.extend(state.epoch.0.to_be_bytes());
        bytes.extend(last.map_or(-1, |batch| batch.last_sequence).to_be_bytes());
        bytes.extend(last.map_or(-1, |batch| batch.last_offset).to_be_bytes());
        let delta = last.map_or(0, |batch| (batch.last_offset - batch.base_offset) as i32);
        bytes.extend(delta.to_be_bytes());
        bytes.extend(state.last_timestamp.to_be_bytes());
        bytes.extend(state.coordinator_epoch.to_be_bytes());
        bytes.extend(state.current_txn_first_offset.unwrap_or(-1).to_be_bytes());
    }
    bytes[..2].copy_from_slice(&VERSION.to_be_bytes());
    let checksum = crc32c::crc32c(&bytes[ENTRIES_AT..]);
    bytes[2..ENTRIES_AT].copy_from_slice(&checksum.to_be_bytes());
    bytes
}

/// Reads the states, or says what is wrong with the bytes.
pub(crate) fn decode(bytes: &[u8]) -> Result<Vec<ProducerState>, String> {
    let mut fields = Fields(bytes);
    let version = fields.i16().ok_or("the file is empty")?;
    if version != VERSION {
        return Err(format!("version {version} is unknown"));
    }
    let stored = fields.i32().ok_or("the file ends within its checksum")? as u32;
    let computed = crc32c::crc32c(fields.0);
    if stored != computed {
        return Err(format!("stored crc = {stored}, computed crc = {computed}"));
    }
    let count = fields.i32().ok_or("the file ends before the number of entries")?;
    if usize::try_from(count).ok() != Some(fields.0.len() / ENTRY_LEN) || fields.0.len() % ENTRY_LEN != 0 {
        return Err(format!("{count} entries are claimed, {} bytes are there", fields.0.len()));
    }
    let entry = |fields: &mut Fields<'_>| fields.state().ok_or_else(|| "an entry is cut off".to_owned());
    (0..count).map(|_| entry(&mut fields)).collect()
}

struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*field)
    }

    fn i16(&mut self) -> Option<i16> {
        self.take().map(i16::from_be_bytes)
    }

    fn i32(&mut self) -> Option<i32> {
        self.take().map(i32::from_be_bytes)
    }

    fn i64(&mut self) -> Option<i64> {
        self.take().map(i64::from_be_bytes)
    }

    fn state(&mut self) -> Option<ProducerState> {
        let (id, epoch) = (ProducerId(self.i64()?), ProducerEpoch(self.i16()?));
        let (last_sequence, last_offset, delta) = (self.i32()?, self.i64()?, self.i32()?);
        let (timestamp, coordinator_epoch, first_offset) = (self.i64()?, self.i32()?, self.i64()?);
        let batch = ProducerBatch {
            base_sequence: sequence_before(last_sequence, delta),
            last_sequence,
            base_offset: last_offset.saturating_sub(i64::from(delta)),
            last_offset,
            timestamp,
        };
        Some(ProducerState {
            id,
            epoch,
            // A producer that only ever had markers, or whose epoch a marker has raised, has no batch.
            batches: (last_offset >= 0).then_some(batch).into_iter().collect(),
            coordinator_epoch,
            last_timestamp: timestamp,
            current_txn_first_offset: (first_offset >= 0).then_some(first_offset),
        })
    }
}

/// Sequence numbers wrap from the largest `i32` to 0.
fn sequence_before(sequence: i32, by: i32) -> i32 {
    if sequence >= by { sequence - by } else { (i64::from(i32::MAX) - i64::from(by - sequence) + 1) as i32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(id: i64, last_sequence: i32, delta: i32) -> ProducerState {
        let batch = ProducerBatch {
            base_sequence: sequence_before(last_sequence, delta),
            last_sequence,
            base_offset: 100 - i64::from(delta),
            last_offset: 100,
            timestamp: 1_700_000_000_000,
        };
        ProducerState {
            id: ProducerId(id),
            epoch: ProducerEpoch(3),
            batches: [batch].into(),
            coordinator_epoch: 2,
            last_timestamp: 1_700_000_000_000,
            current_txn_first_offset: Some(90),
        }
    }

    #[test]
    fn producers_read_back() {
        let mut producers = Producers::starting_at(101);
        let mut without_batch = state(9, 0, 0);
        without_batch.batches.clear();
        without_batch.current_txn_first_offset = None;
        let states = [state(1, 7, 2), state(2, 1, 3), without_batch];
        states.iter().cloned().for_each(|state| producers.insert(state));
        assert_eq!(decode(&encode(&producers)).unwrap(), states);
        assert_eq!(states[1].batches[0].base_sequence, i32::MAX - 1);
    }

    /// A snapshot that a crash left half written, or that decayed, must never be believed.
    #[test]
    fn every_cut_and_every_flipped_bit_is_noticed() {
        let mut producers = Producers::starting_at(101);
        producers.insert(state(1, 7, 2));
        let bytes = encode(&producers);
        for cut in 0..bytes.len() {
            assert!(decode(&bytes[..cut]).is_err(), "{cut}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&bytes).is_err(), "{bit}");
        }
    }

    #[test]
    fn no_producers_are_ten_bytes() {
        assert_eq!(encode(&Producers::default()).len(), 10);
    }
}
