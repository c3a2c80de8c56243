//! What compaction leaves of a batch: some of its records, or none.
//!
//! A batch of V2 keeps the range of its offsets and the sequence numbers of its producer, whatever goes: the log
//! must not forget how far they had come.

use bytes::Bytes;
use klamm_model::TimestampMs;

use crate::NO_TIMESTAMP;
use crate::batch::Batch;
use crate::builder::{BatchBuilder, BatchSettings};
use crate::compression::Compression;
use crate::error::RecordsError;
use crate::record::Record;

impl Batch {
    /// The batch with those records that `keep` chooses, compressed again as it was. A horizon becomes what the
    /// records' times are relative to (KIP-534); V0 and V1 have none. Without any record it is as
    /// [`Batch::emptied`].
    ///
    /// Of the records only one at a time is held, beside the decompressed bytes of the old batch and the new.
    pub fn with_records(
        &self,
        mut keep: impl FnMut(&Record) -> bool,
        delete_horizon: Option<TimestampMs>,
    ) -> Result<Bytes, RecordsError> {
        let header = &self.header;
        let settings = BatchSettings {
            compression: header.compression()?,
            delete_horizon: delete_horizon.filter(|_| header.magic >= 2),
            ..self.settings()
        };
        let mut builder: Option<BatchBuilder> = None;
        for record in self.record_iter()? {
            let record = record?;
            if !keep(&record) {
                continue;
            }
            let builder = builder.get_or_insert_with(|| {
                // A compressed message of an old format counts from its first record.
                let base_offset = if header.magic >= 2 { header.base_offset } else { record.offset };
                BatchBuilder::new(header.magic, BatchSettings { base_offset, ..settings.clone() })
            });
            builder.append_stored(header, &record)?;
        }
        Ok(builder.map_or_else(|| self.emptied(), BatchBuilder::build))
    }

    /// The batch without its records, uncompressed and without a horizon. In V0 and V1 nothing is left.
    pub fn emptied(&self) -> Bytes {
        if self.header.magic < 2 {
            return Bytes::new();
        }
        BatchBuilder::v2(BatchSettings { compression: Compression::None, ..self.settings() })
            .with_max_timestamp(self.header.max_timestamp)
            .build()
    }

    fn settings(&self) -> BatchSettings {
        let header = &self.header;
        BatchSettings {
            timestamp_type: header.timestamp_type(),
            log_append_time: header.append_time().unwrap_or(NO_TIMESTAMP),
            producer_id: header.producer_id,
            producer_epoch: header.producer_epoch,
            base_sequence: header.base_sequence,
            transactional: header.is_transactional(),
            control: header.is_control(),
            partition_leader_epoch: header.partition_leader_epoch,
            base_offset: header.base_offset,
            last_offset: (header.magic >= 2).then(|| header.last_offset()),
            ..BatchSettings::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use klamm_model::{LeaderEpoch, ProducerEpoch, ProducerId, TimestampType};

    use super::*;
    use crate::batches;

    fn batch(magic: i8, compression: Compression, timestamp_type: TimestampType) -> Batch {
        let settings = BatchSettings {
            compression,
            timestamp_type,
            log_append_time: 5000,
            base_offset: 40,
            last_offset: (magic == 2).then_some(47),
            producer_id: ProducerId(if magic == 2 { 9 } else { -1 }),
            producer_epoch: ProducerEpoch(if magic == 2 { 1 } else { -1 }),
            base_sequence: if magic == 2 { 100 } else { -1 },
            partition_leader_epoch: LeaderEpoch(if magic == 2 { 3 } else { -1 }),
            ..BatchSettings::default()
        };
        let mut builder = BatchBuilder::new(magic, settings);
        for (offset, key) in [(40, "a"), (42, "b"), (43, "c"), (46, "d")] {
            builder.append_at(offset, 1000 + offset, Some(key.as_bytes()), Some(b"value"), &[]);
        }
        batches(builder.build()).next().unwrap().unwrap()
    }

    /// In every format, codec and kind of time, the records that are left are those that were, in a batch that
    /// says all else that the old one said.
    #[test]
    fn what_is_left_is_as_it_was() {
        let codecs =
            [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd];
        for magic in 0..=2 {
            for codec in codecs {
                for timestamp_type in [TimestampType::CreateTime, TimestampType::LogAppendTime] {
                    // Uncompressed messages of the old formats are batches of one.
                    if magic < 2 && [Compression::None, Compression::Zstd].contains(&codec) {
                        continue;
                    }
                    let old = batch(magic, codec, timestamp_type);
                    let wanted: Vec<Record> = old.records().unwrap().into_iter().skip(1).step_by(2).collect();
                    let keep = |record: &Record| record.offset == 42 || record.offset == 46;
                    let new = Batch::parse(old.with_records(keep, None).unwrap()).unwrap();
                    new.check_crc().unwrap();
                    assert_eq!(new.records().unwrap(), wanted, "V{magic} {codec:?} {timestamp_type:?}");
                    let (was, is) = (&old.header, &new.header);
                    assert_eq!((is.attributes, is.last_offset()), (was.attributes, was.last_offset()));
                    assert_eq!((is.producer_id, is.base_sequence), (was.producer_id, was.base_sequence));
                    assert_eq!(is.base_offset, was.base_offset);
                    assert_eq!(is.partition_leader_epoch, was.partition_leader_epoch);
                }
            }
        }
    }

    /// A horizon changes what times are relative to, never the times; and a second rebuilding keeps it.
    #[test]
    fn a_horizon_leaves_the_times_alone() {
        let old = batch(2, Compression::Zstd, TimestampType::CreateTime);
        let new = Batch::parse(old.with_records(|_| true, Some(9_000_000)).unwrap()).unwrap();
        assert_eq!(new.header.delete_horizon(), Some(9_000_000));
        assert_eq!(new.records().unwrap(), old.records().unwrap());
        assert_eq!(new.header.max_timestamp, old.header.max_timestamp);
    }

    /// Kafka keeps the largest time of a batch that it empties; its producer is as old as that.
    #[test]
    fn an_empty_batch_keeps_its_range_and_its_producer() {
        for timestamp_type in [TimestampType::CreateTime, TimestampType::LogAppendTime] {
            let old = batch(2, Compression::Gzip, timestamp_type);
            let new = Batch::parse(old.emptied()).unwrap();
            new.check_crc().unwrap();
            assert_eq!(new.header.record_count, 0);
            assert_eq!(new.records().unwrap(), []);
            assert_eq!(new.header.last_offset(), 47);
            assert_eq!(new.header.last_sequence(), 107);
            assert_eq!(new.header.max_timestamp, old.header.max_timestamp);
            assert_eq!(new.header.base_timestamp, NO_TIMESTAMP);
            assert_eq!(new.header.timestamp_type(), timestamp_type);
            assert!(!new.header.is_compressed());
        }
        assert!(batch(1, Compression::Gzip, TimestampType::CreateTime).emptied().is_empty());
    }
}
