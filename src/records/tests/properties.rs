//! Round trips over arbitrary records, and bytes with damage: reading what was written gives it back in every
//! format and codec, and no damage makes a reader panic or take memory out of proportion.

use bytes::Bytes;
use klamm_model::{LeaderEpoch, ProducerEpoch, ProducerId, TimestampType, TopicPartition};
use klamm_records::{
    AppendRules, Batch, BatchBuilder, BatchSettings, Compression, ConversionLimit, Header, Origin, Record,
    RecordsError, batches, down_convert, up_convert_to_v2, validate_for_append,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

const UNLIMITED: ConversionLimit = ConversionLimit { bytes_max: usize::MAX };

/// What damaged bytes may expand to in these tests.
const EXPANDED_BYTES_MAX: usize = 1 << 20;

#[derive(Clone, Debug)]
struct Content {
    gap: i64,
    timestamp: i64,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<Header>,
}

fn header() -> impl Strategy<Value = Header> {
    ("[a-zé]{0,9}", option::of(vec(any::<u8>(), 0..20)))
        .prop_map(|(key, value)| Header { key: key.into(), value: value.map(Bytes::from) })
}

fn content() -> impl Strategy<Value = Content> {
    let bytes = || option::of(vec(any::<u8>(), 0..200));
    let gap = prop_oneof![5 => Just(1i64), 1 => 1..100i64];
    let timestamp =
        prop_oneof![8 => 1_600_000_000_000..1_800_000_000_000i64, 1 => Just(-1), 1 => 0..i64::MAX];
    (gap, timestamp, bytes(), bytes(), vec(header(), 0..3))
        .prop_map(|(gap, timestamp, key, value, headers)| Content { gap, timestamp, key, value, headers })
}

fn codec() -> impl Strategy<Value = Compression> {
    prop_oneof![
        Just(Compression::None),
        Just(Compression::Gzip),
        Just(Compression::Snappy),
        Just(Compression::Lz4),
        Just(Compression::Zstd),
    ]
}

fn old_codec() -> impl Strategy<Value = Compression> {
    prop_oneof![
        Just(Compression::None),
        Just(Compression::Gzip),
        Just(Compression::Snappy),
        Just(Compression::Lz4)
    ]
}

/// A format and a codec that it knows.
fn format() -> impl Strategy<Value = (i8, Compression)> {
    prop_oneof![(0..2i8, old_codec()), (Just(2), codec())]
}

fn build(magic: i8, settings: BatchSettings, contents: &[Content]) -> Bytes {
    let mut offset = settings.base_offset - 1;
    let mut builder = BatchBuilder::new(magic, settings);
    for content in contents {
        // The first record stands at the base offset, as in every batch that compaction has not touched.
        offset += if builder.is_empty() { 1 } else { content.gap };
        let (key, value) = (content.key.as_deref(), content.value.as_deref());
        builder.append_at(offset, content.timestamp, key, value, &content.headers);
    }
    builder.build()
}

fn read(bytes: Bytes) -> Vec<Record> {
    let mut records = Vec::new();
    for batch in batches(bytes) {
        let batch = batch.unwrap();
        batch.check_crc().unwrap();
        records.extend(batch.records().unwrap());
    }
    records
}

fn wanted(magic: i8, settings: &BatchSettings, contents: &[Content]) -> Vec<Record> {
    let mut offset = settings.base_offset - 1;
    let mut records = Vec::new();
    for content in contents {
        offset += if records.is_empty() { 1 } else { content.gap };
        let delta = (offset - settings.base_offset) as i32;
        records.push(Record {
            offset,
            timestamp: match (magic, settings.timestamp_type) {
                (0, _) => -1,
                (_, TimestampType::CreateTime) => content.timestamp,
                (_, TimestampType::LogAppendTime) => settings.log_append_time,
            },
            key: content.key.clone().map(Bytes::from),
            value: content.value.clone().map(Bytes::from),
            headers: if magic == 2 { content.headers.clone() } else { Vec::new() },
            sequence: if magic == 2 && settings.base_sequence >= 0 {
                settings.base_sequence + delta
            } else {
                -1
            },
        });
    }
    records
}

fn timestamp_type() -> impl Strategy<Value = TimestampType> {
    prop_oneof![Just(TimestampType::CreateTime), Just(TimestampType::LogAppendTime)]
}

fn settings(compression: Compression, timestamp_type: TimestampType, base_offset: i64) -> BatchSettings {
    BatchSettings {
        compression,
        timestamp_type,
        log_append_time: 1_700_000_000_123,
        base_offset,
        ..Default::default()
    }
}

fn rules() -> AppendRules {
    AppendRules {
        produce_version: 2,
        target_magic: 2,
        timestamp_type: TimestampType::CreateTime,
        now_ms: 1_700_000_000_000,
        timestamp_before_max_ms: i64::MAX,
        timestamp_after_max_ms: i64::MAX,
        max_batch_bytes: 10 << 20,
        is_compacted: false,
        compression_type: None,
        level: None,
        expanded_bytes_max: EXPANDED_BYTES_MAX,
        first_offset: 1000,
        leader_epoch: LeaderEpoch(3),
        origin: Origin::Client,
        topic_partition: TopicPartition::new("t", 0),
    }
}

proptest! {
    #[test]
    fn v2_reads_back(
        contents in vec(content(), 1..40), codec in codec(), time in timestamp_type(),
        base in 0..1i64 << 40, producer in option::of((0..1i64 << 40, 0..100i16, 0..1000i32)),
    ) {
        let mut settings = settings(codec, time, base);
        if let Some((id, epoch, sequence)) = producer {
            settings.producer_id = ProducerId(id);
            settings.producer_epoch = ProducerEpoch(epoch);
            settings.base_sequence = sequence;
            settings.transactional = true;
        }
        let bytes = build(2, settings.clone(), &contents);
        prop_assert_eq!(read(bytes), wanted(2, &settings, &contents));
    }

    #[test]
    fn old_formats_read_back(
        magic in 0..2i8, contents in vec(content(), 1..40), codec in old_codec(), time in timestamp_type(),
        // A V1 wrapper whose last offset is 0 counts as one that never got an offset; here it is the truth too.
        base in 0..1i64 << 40,
    ) {
        let settings = settings(codec, time, base);
        let bytes = build(magic, settings.clone(), &contents);
        prop_assert_eq!(read(bytes), wanted(magic, &settings, &contents));
    }

    /// What an old client fetches from a new log is what is in it, less what its format cannot say; and what
    /// goes up again is no less.
    #[test]
    fn conversion_keeps_the_records(
        from in 0..3i8, contents in vec(content(), 1..40), codec in old_codec(), time in timestamp_type(),
        base in 0..1i64 << 40, target in 0..2i8,
    ) {
        let settings = settings(codec, time, base);
        let bytes = build(from, settings.clone(), &contents);
        let down = down_convert(bytes.clone(), target, 0, UNLIMITED).unwrap();
        for batch in batches(down.clone()) {
            prop_assert!(batch.unwrap().header.magic <= target);
        }
        let lowest = from.min(target);
        let mut expected = wanted(lowest, &settings, &contents);
        prop_assert_eq!(&read(down.clone()), &expected);
        let up = up_convert_to_v2(down, UNLIMITED).unwrap();
        for batch in batches(up.clone()) {
            prop_assert_eq!(batch.unwrap().header.magic, 2);
        }
        prop_assert_eq!(read(up), expected);
        expected = wanted(from, &settings, &contents);
        prop_assert_eq!(read(up_convert_to_v2(bytes, UNLIMITED).unwrap()), expected);
    }

    /// What is converted in parts, as one fetch after the other asks for it, is what is converted at once; and no
    /// part is larger than it may be, unless its first batch is.
    #[test]
    fn conversion_in_parts_gives_the_whole(
        sets in vec((format(), vec(content(), 1..6)), 1..8), target in 0..3i8, limit in 1..3000usize,
    ) {
        let mut bytes = Vec::new();
        let mut base = 0;
        for ((magic, codec), contents) in &sets {
            // zstd ends a conversion down.
            let codec = if *codec == Compression::Zstd { Compression::Gzip } else { *codec };
            let set = build(*magic, settings(codec, TimestampType::CreateTime, base), contents);
            base = batches(set.clone()).map(|batch| batch.unwrap().header.next_offset()).max().unwrap();
            bytes.extend_from_slice(&set);
        }
        let bytes = Bytes::from(bytes);
        let convert = |bytes: Bytes, from: i64, limit: usize| {
            let limit = ConversionLimit { bytes_max: limit };
            if target == 2 {
                up_convert_to_v2(bytes, limit).unwrap()
            } else {
                down_convert(bytes, target, from, limit).unwrap()
            }
        };
        let (mut next, mut records) = (0, Vec::new());
        while next < base {
            let mut from = 0;
            for batch in batches(bytes.clone()) {
                let batch = batch.unwrap();
                if batch.header.next_offset() > next {
                    break;
                }
                from += batch.bytes.len();
            }
            let part = convert(bytes.slice(from..), next, limit);
            let was_unchanged = part == bytes.slice(from..);
            let first = batches(part.clone()).next().unwrap().unwrap();
            // A batch of V2 becomes a run of messages, which count as one.
            let is_run = first.header.magic < 2 && !first.header.is_compressed();
            prop_assert!(part.len() <= limit || was_unchanged || is_run || part.len() == first.bytes.len());
            let part = read(part);
            next = part.last().unwrap().offset + 1;
            records.extend(part);
        }
        // What stands before the asked offset in a compressed batch comes again, and its reader leaves it out.
        records.dedup_by_key(|record| record.offset);
        prop_assert_eq!(records, read(convert(bytes, 0, usize::MAX)));
    }

    /// A topic in an old format takes what any client sends, in that format, but for headers, which it has not.
    #[test]
    fn accepted_records_are_stored_in_the_topics_format(
        (from, codec) in format(), contents in vec(content(), 1..40), target_magic in 0..2i8,
        compression_type in option::of(old_codec()),
    ) {
        let contents: Vec<Content> =
            contents.into_iter().map(|content| Content { gap: 1, headers: Vec::new(), ..content }).collect();
        let codec = if codec == Compression::Zstd { Compression::Lz4 } else { codec };
        let settings = settings(codec, TimestampType::CreateTime, 0);
        let rules = AppendRules { target_magic, compression_type, produce_version: 2, ..rules() };
        let rules = if from == 2 { AppendRules { produce_version: 9, ..rules } } else { rules };
        let valid = validate_for_append(build(from, settings.clone(), &contents), &rules).unwrap();
        let mut expected = wanted(from.min(target_magic), &settings, &contents);
        for record in &mut expected {
            record.offset += 1000;
        }
        let written: Vec<u8> = valid.iter().flat_map(|batch| batch.to_bytes()).collect();
        for batch in batches(written.clone().into()) {
            let batch = batch.unwrap();
            prop_assert_eq!(batch.check_crc(), Ok(()));
            prop_assert_eq!(batch.header.magic, target_magic);
            prop_assert_eq!(batch.header.compression().unwrap(), compression_type.unwrap_or(codec));
        }
        prop_assert_eq!(read(written.into()), expected);
    }

    /// What the validator accepts from any client reads back at the offsets that it gave out.
    #[test]
    fn accepted_records_are_the_sent_ones(
        (from, codec) in format(), contents in vec(content(), 1..40), wanted_codec in option::of(codec()),
    ) {
        let contents: Vec<Content> = contents.into_iter().map(|content| Content { gap: 1, ..content }).collect();
        let settings = settings(codec, TimestampType::CreateTime, 0);
        let bytes = build(from, settings.clone(), &contents);
        let rules = AppendRules { compression_type: wanted_codec, ..rules() };
        let valid = validate_for_append(bytes, &rules).unwrap();
        let mut expected = wanted(from, &settings, &contents);
        for record in &mut expected {
            record.offset += 1000;
        }
        let mut next = 1000;
        for batch in &valid {
            prop_assert_eq!(batch.first_offset, next);
            next += i64::from(batch.record_count);
            let records = read(batch.to_bytes());
            let max = records.iter().map(|record| record.timestamp).max().unwrap();
            let holder = records.iter().find(|record| record.offset == batch.offset_of_max_timestamp);
            prop_assert_eq!(holder.unwrap().timestamp, max);
            prop_assert_eq!(batch.header.max_timestamp, max);
        }
        let written: Vec<u8> = valid.iter().flat_map(|batch| batch.to_bytes()).collect();
        prop_assert_eq!(read(written.into()), expected);
    }

    /// Damage anywhere, with a checksum that a hostile client makes right: readers return errors.
    #[test]
    fn damage_is_an_error_and_no_panic(
        (magic, codec) in format(), contents in vec(content(), 1..10),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4), cut in any::<prop::sample::Index>(),
        heal in any::<bool>(), target in 0..2i8,
    ) {
        let mut bytes = build(magic, settings(codec, TimestampType::CreateTime, 0), &contents).to_vec();
        for (index, byte) in damage {
            let at = index.index(bytes.len());
            bytes[at] = byte;
        }
        if cut.index(8) == 0 {
            bytes.truncate(cut.index(bytes.len()));
        }
        if heal {
            heal_checksum(&mut bytes);
        }
        let bytes = Bytes::from(bytes);
        for batch in batches(bytes.clone()).flatten() {
            let _ = batch.check_crc();
            let _ = batch.control_record();
            prop_assert_eq!(entries(&batch), entries_of_records(&batch));
            if let Ok(records) = batch.record_iter_within(EXPANDED_BYTES_MAX) {
                let mut times = Vec::new();
                let looked_through = batch.find_record(|offset, time| {
                    times.push((offset, time));
                    false
                });
                let records: Result<Vec<Record>, _> = records.collect();
                prop_assert!(records.as_ref().map_or(0, Vec::len) <= EXPANDED_BYTES_MAX);
                // Both ways of reading see the same.
                if let Ok(records) = records {
                    prop_assert_eq!(looked_through, Ok(None));
                    let read: Vec<_> = records.iter().map(|record| (record.offset, record.timestamp)).collect();
                    prop_assert_eq!(times, read);
                }
            }
        }
        let _ = down_convert(bytes.clone(), target, 0, UNLIMITED);
        let _ = up_convert_to_v2(bytes.clone(), UNLIMITED);
        for target_magic in 0..3 {
            let rules = AppendRules { target_magic, ..rules() };
            if let Ok(valid) = validate_for_append(bytes.clone(), &rules) {
                for batch in valid {
                    // What was accepted must be readable, or a consumer would get stuck on it.
                    prop_assert_eq!(read(batch.to_bytes()).len(), batch.record_count as usize);
                }
            }
        }
    }

    #[test]
    fn noise_is_no_batch_and_no_panic(noise in vec(any::<u8>(), 0..300)) {
        let bytes = Bytes::from(noise);
        for codec in [Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd] {
            for magic in 0..3 {
                let _ = klamm_records::compression::decompress(codec, magic, &bytes, EXPANDED_BYTES_MAX);
            }
        }
        for batch in batches(bytes.clone()).flatten() {
            let _ = batch.records();
        }
        let _ = validate_for_append(bytes, &rules());
    }
}

/// Offset, timestamp, key and value of each record, and the error that ended the list.
type Entries = (Vec<(i64, i64, Option<Vec<u8>>, Option<Vec<u8>>)>, Option<RecordsError>);

fn entries(batch: &Batch) -> Entries {
    let mut entries = Vec::new();
    let owned = |bytes: Option<&[u8]>| bytes.map(<[u8]>::to_vec);
    let visited = batch.visit_entries_within(EXPANDED_BYTES_MAX, |entry| {
        entries.push((entry.offset, entry.timestamp, owned(entry.key), owned(entry.value)));
    });
    (entries, visited.err())
}

fn entries_of_records(batch: &Batch) -> Entries {
    let mut entries = Vec::new();
    let owned = |bytes: Option<Bytes>| bytes.map(|bytes| bytes.to_vec());
    let records = match batch.record_iter_within(EXPANDED_BYTES_MAX) {
        Ok(records) => records,
        Err(error) => return (entries, Some(error)),
    };
    for record in records {
        match record {
            Ok(record) => {
                entries.push((record.offset, record.timestamp, owned(record.key), owned(record.value)))
            }
            Err(error) => return (entries, Some(error)),
        }
    }
    (entries, None)
}

/// Makes the checksum of the first batch right.
fn heal_checksum(bytes: &mut [u8]) {
    let Ok(Some(header)) = klamm_records::peek_batch(bytes) else { return };
    let Some(batch) = bytes.get_mut(..header.size) else { return };
    if header.magic == 2 {
        let crc = crc32c::crc32c(&batch[21..]);
        batch[17..21].copy_from_slice(&crc.to_be_bytes());
    } else {
        let mut crc = flate2::Crc::new();
        crc.update(&batch[16..]);
        let sum = crc.sum();
        batch[12..16].copy_from_slice(&sum.to_be_bytes());
    }
}
