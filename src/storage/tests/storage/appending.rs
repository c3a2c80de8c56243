//! Appending, rolling, and reading back while the log grows.

use std::sync::Arc;

use klamm_model::{LeaderEpoch, ProducerId};
use klamm_records::{BatchBuilder, BatchSettings, Compression, batches};
use klamm_storage::{FlushDue, LogConfig, ReadError, StorageErrorKind};
use klamm_testing::{OperationKind, SimulatedDisk};
use proptest::prelude::*;

use crate::support::*;

/// An append must cost one write and no sync, whatever the indexes do; else the disk decides the latency.
#[test]
fn an_append_is_one_write_and_no_sync() {
    let disk = SimulatedDisk::new(1);
    let (_store, log) = with_partition(&disk, &LogConfig { index_interval_bytes: 1, ..LogConfig::default() });
    append(&log).unwrap();
    let before = disk.counters();
    for _ in 0..100 {
        append(&log).unwrap();
    }
    let after = disk.counters();
    assert_eq!(after.calls(OperationKind::Write) - before.calls(OperationKind::Write), 100);
    assert_eq!(after.changes() - before.changes(), 100);
}

/// An append is called where nothing may wait for the disk, so it only says that `flush.messages` asks for a sync.
#[test]
fn flush_messages_makes_an_append_ask_for_a_sync() {
    let disk = SimulatedDisk::new(1);
    let (_store, log) = with_partition(&disk, &LogConfig { flush_messages: 4, ..small() });
    let syncs = disk.counters().calls(OperationKind::SyncData);
    let append = || {
        log.append_replicated(&[Draft::at(log.log_end_offset()).batch()]).unwrap().flush_due
            == FlushDue::Always
    };
    assert!(!append() && append() && append() && log.flush_due() == FlushDue::Always);
    assert_eq!((disk.counters().calls(OperationKind::SyncData), log.recovery_point()), (syncs, 0));
    log.flush().unwrap();
    assert!(log.flush_due() == FlushDue::No && !append());
    assert_eq!(log.recovery_point(), 9);
}

#[test]
fn segments_end_where_the_next_batch_does_not_fit() {
    let disk = SimulatedDisk::new(1);
    let (_store, log) = with_partition(&disk, &small());
    for _ in 0..40 {
        append(&log).unwrap();
    }
    assert!(log.segment_count() > 4);
    assert_eq!(offsets(&read_all(&log)), (0..120).collect::<Vec<_>>());
    for (name, content) in files(&disk, &folder(), ".log") {
        assert!(content.len() <= 1500, "{name} has {} bytes", content.len());
    }
    // A segment below the first has a snapshot, and all but the active one have their indexes.
    assert_eq!(files(&disk, &folder(), ".snapshot").len(), log.segment_count() - 1);
    assert_eq!(files(&disk, &folder(), ".timeindex").len(), log.segment_count() - 1);
}

/// A batch alone may be larger than a segment (the setting was lowered); the log must take it all the same.
#[test]
fn a_batch_above_the_segment_size_gets_a_segment_of_its_own() {
    let disk = SimulatedDisk::new(1);
    let (_store, log) = with_partition(&disk, &small());
    append(&log).unwrap();
    log.append_replicated(&[Draft { value_bytes: 2000, ..Draft::at(3) }.batch(), Draft::at(6).batch()])
        .unwrap();
    assert_eq!(log.segment_offsets(), [0, 3, 6]);
    assert_eq!(offsets(&read_all(&log)), (0..9).collect::<Vec<_>>());
}

#[test]
fn segments_end_by_the_time_of_the_records_or_when_an_index_is_full() {
    let disk = SimulatedDisk::new(1);
    let roomy = LogConfig { segment_ms: 10_000, ..LogConfig::default() };
    let (store, log) = with_partition(&disk, &roomy);
    let at = |offset, timestamp| Draft { timestamps: vec![timestamp], ..Draft::at(offset) }.batch();
    log.append_replicated(&[at(0, NOW)]).unwrap();
    log.append_replicated(&[at(1, NOW + 10_000)]).unwrap();
    assert_eq!(log.segment_offsets(), [0]);
    log.append_replicated(&[at(2, NOW + 10_001)]).unwrap();
    assert_eq!(log.segment_offsets(), [0, 2]);

    let tiny_index = LogConfig { segment_index_bytes: 32, index_interval_bytes: 1, ..LogConfig::default() };
    let other = klamm_model::TopicPartition::new("other", 0);
    let log = store.create(&other, TOPIC_ID, tiny_index).unwrap();
    // The first batch has no entry; after one more the time index has room only for the entry at the end.
    for offset in 0..6 {
        log.append_replicated(&[at(offset, NOW + offset)]).unwrap();
    }
    assert_eq!(log.segment_offsets(), [0, 2, 4]);
}

#[test]
fn offsets_too_far_apart_for_an_index_begin_a_segment() {
    let disk = SimulatedDisk::new(1);
    let (store, log) = with_partition(&disk, &small());
    let far = i64::from(i32::MAX) + 10;
    log.append_replicated(&[Draft::at(0).batch()]).unwrap();
    log.append_replicated(&[Draft::at(far).batch()]).unwrap();
    assert_eq!(log.segment_offsets(), [0, far]);
    assert_eq!(offsets(&read_from(&log, 5, 100)), [far, far + 1, far + 2]);
    drop((store, log));
    let store = open(&disk, &small());
    assert_eq!(store.log().log_end_offset(), far + 3);
}

#[test]
fn batches_out_of_order_are_refused() {
    let disk = SimulatedDisk::new(1);
    let (_store, log) = with_partition(&disk, &small());
    append(&log).unwrap();
    let error = log.append_replicated(&[Draft::at(2).batch()]).unwrap_err();
    assert_eq!(error.kind, StorageErrorKind::OutOfOrder { offset: 2, log_end_offset: 3 });
    let error = log.append_replicated(&[Draft::at(3).batch(), Draft::at(3).batch()]).unwrap_err();
    assert_eq!(error.kind, StorageErrorKind::OutOfOrder { offset: 3, log_end_offset: 6 });
    assert_eq!(log.log_end_offset(), 3);
}

/// Nothing at or behind the bound may be seen, to the byte: it may not be replicated.
#[test]
fn a_read_ends_below_its_bound() {
    let disk = SimulatedDisk::new(1);
    let (_store, log) = with_partition(&disk, &small());
    for _ in 0..40 {
        append(&log).unwrap();
    }
    for below in (3..=120).step_by(3) {
        for from in [0, below - 3, below - 1] {
            let slice = log.read(from, usize::MAX, below, true).unwrap().unwrap();
            let last = batches(slice.to_bytes().unwrap()).last().unwrap().unwrap();
            assert!(last.header.last_offset() < below, "from {from} below {below}");
        }
        assert!(log.read(below, 100, below, true).unwrap().is_none());
        assert!(log.read(below - 3, 100, below - 1, true).unwrap().is_none(), "a bound within a batch");
    }
}

#[test]
fn a_read_takes_what_it_may_and_the_first_batch_whole() {
    let disk = SimulatedDisk::new(1);
    let (_store, log) = with_partition(&disk, &LogConfig::default());
    for _ in 0..10 {
        append(&log).unwrap();
    }
    let size = log.size() / 10;
    let len = |max_bytes, at_least_one| {
        log.read(4, max_bytes, 30, at_least_one).unwrap().map_or(0, |slice| slice.len)
    };
    assert_eq!(len(0, true), size);
    assert_eq!(len(0, false), 0);
    assert_eq!(len(10, false), 10);
    assert_eq!(len(size as usize + 10, true), size + 10);
    assert_eq!(len(usize::MAX, true), 9 * size);
    let error = log.read(31, 1, 30, true).unwrap_err();
    assert_eq!(error, ReadError::OutOfRange { start: 0, end: 30 });
}

/// A consumer at the end must not search the index for each fetch.
#[test]
fn a_consumer_at_the_end_costs_one_small_read() {
    let disk = SimulatedDisk::new(1);
    let (_store, log) = with_partition(&disk, &LogConfig { index_interval_bytes: 1, ..LogConfig::default() });
    for _ in 0..2000 {
        append(&log).unwrap();
    }
    for _ in 0..10 {
        let offset = append(&log).unwrap();
        let before = disk.counters().calls(OperationKind::Read);
        log.read(offset, 1000, log.log_end_offset(), true).unwrap().unwrap();
        assert_eq!(disk.counters().calls(OperationKind::Read) - before, 1);
    }
}

/// The writer goes on while others read: they must only ever see whole batches, in order, without a gap.
#[test]
fn readers_beside_a_writer_see_a_log_without_gaps() {
    let disk = SimulatedDisk::new(1);
    let (_store, log) = with_partition(&disk, &small());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let log = Arc::clone(&log);
            scope.spawn(move || {
                let mut next = 0;
                while next < 1500 {
                    let Some(slice) = log.read(next, 700, log.log_end_offset(), true).unwrap() else {
                        continue;
                    };
                    for batch in batches(slice.to_bytes().unwrap()).lenient() {
                        let batch = batch.unwrap();
                        batch.check_crc().unwrap();
                        assert_eq!(batch.header.base_offset, next);
                        next = batch.header.next_offset();
                    }
                }
            });
        }
        append_many(&log, 500);
    });
}

#[test]
fn producers_transactions_and_epochs_are_followed() {
    let disk = SimulatedDisk::new(1);
    let (store, log) = with_partition(&disk, &small());
    let data = |offset, id, sequence| {
        Draft { producer: Some((id, 0, sequence)), is_transactional: true, ..Draft::at(offset) }.batch()
    };
    log.assign_epoch(LeaderEpoch(0), 0).unwrap();
    log.append_replicated(&[data(0, 1, 0), data(3, 2, 0), data(6, 1, 3)]).unwrap();
    assert_eq!(log.first_unstable_offset(), Some(0));
    log.append_replicated(&[marker(9, (1, 0), false)]).unwrap();
    log.append_replicated(&[marker(10, (2, 1), true), marker(11, (3, 0), false)]).unwrap();

    let one = log.producer(ProducerId(1)).unwrap();
    assert_eq!(one.batches.iter().map(|batch| batch.base_sequence).collect::<Vec<_>>(), [0, 3]);
    assert_eq!((one.coordinator_epoch, one.current_txn_first_offset), (3, None));
    // The marker raised the epoch (KIP-890): what came before says nothing about duplicates any more.
    assert_eq!(log.producer(ProducerId(2)).unwrap().batches, []);
    // Stable only when the markers are below the high watermark.
    assert_eq!(log.last_stable_offset(9), 0);
    assert_eq!(log.last_stable_offset(10), 3);
    assert_eq!(log.last_stable_offset(12), 12);
    let aborted = log.aborted_transactions(0, 12).unwrap();
    assert_eq!(aborted.iter().map(|a| (a.producer_id.0, a.first_offset)).collect::<Vec<_>>(), [(1, 0)]);
    assert_eq!(log.aborted_transactions(10, 12).unwrap(), []);
    log.on_high_watermark(12);
    assert_eq!(log.first_unstable_offset(), None);

    store.close(None).unwrap();
    drop((store, log));
    let store = open(&disk, &small());
    assert_eq!(store.log().aborted_transactions(0, 12).unwrap(), aborted);
    assert_eq!(store.log().producers().len(), 3);
    assert_eq!(store.log().latest_epoch(), Some(LeaderEpoch(0)));
}

#[test]
fn an_epoch_ends_where_the_next_begins_also_after_a_kill() {
    let disk = SimulatedDisk::new(1);
    let (_store, log) = with_partition(&disk, &small());
    for (offset, epoch) in [(0, 2), (3, 2), (6, 5)] {
        log.append_replicated(&[Draft { epoch, ..Draft::at(offset) }.batch()]).unwrap();
    }
    let store = open(&disk.kill(), &small());
    for log in [&log, &store.log()] {
        assert_eq!(log.end_offset_for(LeaderEpoch(2)), Some((LeaderEpoch(2), 6)));
        assert_eq!(log.end_offset_for(LeaderEpoch(4)), Some((LeaderEpoch(2), 6)));
        assert_eq!(log.end_offset_for(LeaderEpoch(5)), Some((LeaderEpoch(5), 9)));
        assert_eq!(log.end_offset_for(LeaderEpoch(6)), None);
    }
}

#[test]
fn producers_expire_unless_a_transaction_is_open() {
    let disk = SimulatedDisk::new(1);
    let (_store, log) = with_partition(&disk, &small());
    let data = |offset, id, is_transactional| {
        let timestamps = vec![NOW];
        Draft { producer: Some((id, 0, 0)), is_transactional, timestamps, ..Draft::at(offset) }.batch()
    };
    log.append_replicated(&[data(0, 1, false), data(1, 2, true)]).unwrap();
    let day = 24 * 60 * 60 * 1000;
    assert_eq!(log.expire_producers(NOW + day - 1), 0);
    assert_eq!(log.expire_producers(NOW + day), 1);
    assert!(log.producer(ProducerId(1)).is_none() && log.producer(ProducerId(2)).is_some());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Whatever the times, sizes, gaps and settings: look-ups by offset and by time are those of a scan, before
    /// and after a restart.
    #[test]
    fn look_ups_are_those_of_a_scan(
        drafts in prop::collection::vec((prop::collection::vec(0..5000i64, 1..4), 1..400usize, 0..3i64), 1..60),
        segment_bytes in 500..4000u64,
        index_interval_bytes in 1..600u64,
        asked in prop::collection::vec(0..5100i64, 20),
        is_clean in any::<bool>(),
    ) {
        let config = LogConfig { segment_bytes, index_interval_bytes, ..small() };
        let disk = SimulatedDisk::new(1);
        let (store, log) = with_partition(&disk, &config);
        let mut offset = 0;
        let mut scan = Vec::new();
        for (times, value_bytes, gap) in drafts {
            offset += gap;
            let timestamps: Vec<i64> = times.iter().map(|time| NOW + time).collect();
            let draft = Draft { timestamps, value_bytes, ..Draft::at(offset) };
            let batch = draft.batch();
            log.append_replicated(std::slice::from_ref(&batch)).unwrap();
            for (index, timestamp) in draft.timestamps.iter().enumerate() {
                scan.push((offset + index as i64, *timestamp, batch.header.last_offset()));
            }
            offset = batch.header.next_offset();
        }
        let check = |log: &klamm_storage::Log| {
            for asked in &asked {
                let found = log.offset_for_timestamp(NOW + asked).unwrap();
                let expected = scan.iter().find(|(_, time, _)| *time >= NOW + asked);
                assert_eq!(found.map(|f| (f.offset, f.timestamp)), expected.map(|(o, t, _)| (*o, *t)));
            }
            for from in 0..log.log_end_offset() {
                let slice = log.read(from, 1, log.log_end_offset(), true).unwrap();
                let expected = scan.iter().find(|(offset, ..)| *offset >= from).map(|(.., last)| *last);
                assert_eq!(slice.map(|slice| slice.first.last_offset()), expected);
            }
            let largest = scan.iter().map(|(_, time, _)| *time).max().unwrap();
            let first = scan.iter().find(|(_, time, _)| *time == largest).unwrap();
            assert_eq!(log.max_timestamp().unwrap().map(|found| found.offset), Some(first.0));
        };
        check(&log);
        if is_clean {
            store.close(None).unwrap();
        }
        drop((store, log));
        let store = open(&disk, &config);
        prop_assert_eq!(store.report.recovered_logs == 0, is_clean);
        prop_assert_eq!(store.log().log_end_offset(), offset);
        check(&store.log());
    }
}

/// A small batch may expand beyond what is ever held in memory, if `max.decompressed.message.bytes` allows it.
/// Times must be found in it and behind it, or each look-up that meets it fails for ever.
#[test]
fn times_are_found_in_a_batch_that_expands_very_far() {
    let disk = SimulatedDisk::new(1);
    let (_store, log) = with_partition(&disk, &LogConfig::default());
    let large = vec![0; klamm_records::compression::EXPANDED_BYTES_MAX + 1];
    let settings = BatchSettings { compression: Compression::Zstd, ..BatchSettings::default() };
    let mut builder = BatchBuilder::v2(settings);
    builder.append(NOW, None, Some(&large), &[]);
    builder.append(NOW + 1000, None, None, &[]);
    let batch = batches(builder.build()).next().unwrap().unwrap();
    log.append_replicated(&[batch, Draft::at(2).batch()]).unwrap();
    for (timestamp, offset) in [(NOW, 0), (NOW + 1, 1), (NOW + 1001, 2)] {
        let found = log.offset_for_timestamp(timestamp).unwrap();
        assert_eq!(found.map(|found| found.offset), Some(offset));
    }
    assert_eq!(log.max_timestamp().unwrap().map(|found| found.offset), Some(4));
}

/// The segments of all partitions of a topic that is made at once ended at once, and the disk had all its work in one
/// moment.
#[test]
fn jitter_makes_segments_of_one_age_end_at_different_times() {
    let disk = SimulatedDisk::new(1);
    let config = LogConfig { segment_ms: 20_000, segment_jitter_ms: 20_000, ..LogConfig::default() };
    let store = open(&disk, &config);
    let ages = (0..8).map(|index| {
        let tp = klamm_model::TopicPartition::new("many", index);
        let log = store.create(&tp, TOPIC_ID, config.clone()).unwrap();
        (0..).find(|second| {
            let offset = log.log_end_offset();
            let timestamps = vec![NOW + second * 1000];
            log.append_replicated(&[Draft { timestamps, ..Draft::at(offset) }.batch()]).unwrap();
            log.segment_count() == 2
        })
    });
    let ages: Vec<i64> = ages.map(Option::unwrap).collect();
    assert!(ages.iter().all(|age| (1..=21).contains(age)), "{ages:?}");
    let different: std::collections::BTreeSet<&i64> = ages.iter().collect();
    assert!(different.len() > 4, "{ages:?}");
}

/// A topic's settings are changed while it is used, and nobody restarts a broker for it.
#[test]
fn changed_settings_count_from_the_next_append_and_maintenance_on() {
    let disk = SimulatedDisk::new(1);
    let calm = LogConfig { retention_ms: None, ..LogConfig::default() };
    let (_store, log) = with_partition(&disk, &calm);
    append_many(&log, 4);
    let changes = [
        LogConfig { segment_bytes: 300, ..calm.clone() },
        LogConfig { segment_ms: 1000, ..calm.clone() },
        LogConfig { segment_index_bytes: 12, index_interval_bytes: 1, ..calm.clone() },
    ];
    for (change, segments) in changes.into_iter().zip(2..) {
        log.update_config(change);
        append(&log).unwrap();
        assert_eq!(log.segment_count(), segments);
        log.update_config(calm.clone());
        append_many(&log, 2);
        assert_eq!(log.segment_count(), segments, "and back again");
    }
    let end = log.log_end_offset();
    assert_eq!(log.apply_retention(NOW + 100_000_000, end).unwrap(), 0);
    log.update_config(LogConfig { retention_bytes: Some(log.size() - 1), ..calm.clone() });
    assert_eq!(log.apply_retention(NOW, end).unwrap(), 0, "a whole segment more than that is too little");
    log.update_config(LogConfig { retention_bytes: Some(0), ..calm.clone() });
    assert_eq!(log.apply_retention(NOW, end).unwrap(), 4);
    append(&log).unwrap();
    log.update_config(LogConfig { retention_ms: Some(1), ..calm });
    assert_eq!(log.apply_retention(NOW + 100_000_000, log.log_end_offset()).unwrap(), 1);
}
