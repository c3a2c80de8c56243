//! Looking for a record of a batch by its offset and time, without building records.
//!
//! The batch is decompressed chunk by chunk and keys and values are passed over, so that the memory this takes
//! does not depend on what the batch expands to. For this reason there is no bound on that: what an append once
//! accepted can be looked through.

use klamm_model::{Offset, TimestampMs};

use crate::NO_TIMESTAMP;
use crate::batch::Batch;
use crate::compression::Decoder;
use crate::error::RecordsError;
use crate::header::HEAD_LEN;
use crate::stream::{Broken, DecoderSource, SliceSource, Source, outline};
use crate::wrapper::{Wrapper, pass_message};

impl Batch {
    /// Offset and time of the first record that fits; both are those that a consumer sees. What stands behind
    /// it is not looked at.
    pub fn find_record(
        &self,
        mut fits: impl FnMut(Offset, TimestampMs) -> bool,
    ) -> Result<Option<(Offset, TimestampMs)>, RecordsError> {
        let header = &self.header;
        let found = match (header.magic, header.is_compressed()) {
            (2, _) => self.find_in_v2(&mut fits),
            (_, true) => self.find_in_wrapper(&mut fits),
            (_, false) => {
                let (offset, timestamp) = (header.base_offset, header.max_timestamp);
                Ok(fits(offset, timestamp).then_some((offset, timestamp)))
            }
        };
        found.map_err(|broken| broken.at(header.base_offset))
    }

    fn find_in_v2(
        &self,
        fits: &mut impl FnMut(Offset, TimestampMs) -> bool,
    ) -> Result<Option<(Offset, TimestampMs)>, Broken> {
        let header = &self.header;
        let records = &self.bytes[HEAD_LEN..];
        match header.record_count {
            // A batch that the cleaner emptied has no bytes, whatever codec it names.
            0 => return Ok(None),
            ..0 => return Err(Broken::Record("a negative number of records")),
            _ => {}
        }
        if !header.is_compressed() {
            return self.find_in_records(&mut SliceSource { bytes: records, position: 0 }, fits);
        }
        let codec = header.compression().map_err(Broken::Codec)?;
        let decoder = Decoder::new(codec, 2, records, usize::MAX).map_err(Broken::Codec)?;
        self.find_in_records(&mut DecoderSource::new(decoder), fits)
    }

    fn find_in_records(
        &self,
        source: &mut impl Source,
        fits: &mut impl FnMut(Offset, TimestampMs) -> bool,
    ) -> Result<Option<(Offset, TimestampMs)>, Broken> {
        let header = &self.header;
        let append_time = header.append_time();
        for _ in 0..header.record_count {
            let record = outline(source)?;
            let offset = header.base_offset.wrapping_add(i64::from(record.offset_delta));
            let timestamp =
                append_time.unwrap_or_else(|| header.base_timestamp.wrapping_add(record.timestamp_delta));
            if fits(offset, timestamp) {
                return Ok(Some((offset, timestamp)));
            }
        }
        Ok(None)
    }

    /// The offsets of the inner messages follow from that of the last one, so they are walked through twice.
    fn find_in_wrapper(
        &self,
        fits: &mut impl FnMut(Offset, TimestampMs) -> bool,
    ) -> Result<Option<(Offset, TimestampMs)>, Broken> {
        let wrapper = Wrapper::of(self)?;
        let (base, append_time) = (wrapper.offset_base()?, self.header.append_time());
        let mut source = wrapper.open()?;
        while let Some(head) = pass_message(&mut source)? {
            let offset = base.wrapping_add(head.offset);
            let timestamp = head.timestamp.map_or(NO_TIMESTAMP, |own| append_time.unwrap_or(own));
            if fits(offset, timestamp) {
                return Ok(Some((offset, timestamp)));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compression::EXPANDED_BYTES_MAX;
    use crate::{BatchBuilder, BatchSettings, Compression};

    /// `max.decompressed.message.bytes` may allow more than what a list of the records may take. A time that is
    /// looked up in such a batch must be found all the same, or each look-up that meets it fails for ever.
    #[test]
    fn a_batch_that_expands_beyond_all_bounds_is_looked_through() {
        let large = vec![0; EXPANDED_BYTES_MAX + 1];
        let settings = BatchSettings { compression: Compression::Zstd, base_offset: 7, ..Default::default() };
        let mut builder = BatchBuilder::v2(settings);
        builder.append(1000, None, Some(&large), &[]);
        builder.append(2000, None, Some(b"small"), &[]);
        let batch = Batch::parse(builder.build()).unwrap();
        assert!(batch.bytes.len() < 1_000_000);
        assert!(batch.records().is_err(), "it is beyond the bound of a list");
        assert_eq!(batch.find_record(|_, time| time > 1000).unwrap(), Some((8, 2000)));
        assert_eq!(batch.find_record(|_, time| time > 2000).unwrap(), None);
    }
}
