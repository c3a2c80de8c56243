//! When a log is compacted, how far, and what may happen to it meanwhile.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use klamm_io::{Clock, Disk, SystemDisk};
use klamm_model::{NodeId, Offset, TopicPartition};
use klamm_records::Compression;
use klamm_storage::{
    Cleaner, CleanerSettings, CleanupPolicy, LogConfig, LogStore, Outcome, StorageErrorKind, StoreSettings,
};
use klamm_testing::{SeededRandom, SimulatedClock, SimulatedDisk};

use crate::compaction_world::*;
use crate::support::*;

fn append_keys(world: &CleanedWorld, keys: impl Iterator<Item = usize>) {
    for key in keys {
        let (key, value) = (format!("key-{key}"), format!("value-{}", world.log.log_end_offset()));
        world.append(&[(Some(&key), Some(&value))]).unwrap();
    }
}

/// Memory is bounded by the buffer and not by the log: with ten times as many keys as fit, each round does a
/// part, in the end all of it, also where a single segment holds more keys than the buffer.
#[test]
fn ten_times_more_keys_than_the_buffer_holds() {
    for segment_bytes in [700, 1 << 20] {
        let disk = SimulatedDisk::new(1);
        let config = LogConfig { segment_bytes, ..compacted() };
        let settings = CleanerSettings { dedupe_buffer_bytes: 24 * 112, ..CleanerSettings::default() };
        let world = CleanedWorld::try_open(&disk, &config, settings).unwrap();
        append_keys(&world, (0..1000).chain(0..1000));
        world.roll();
        let rounds = world.clean();
        assert!(rounds >= 20, "a map of 100 keys, 2000 records, {rounds} rounds");
        assert_eq!(offsets(&data(&world.log)), (1000..2000).collect::<Vec<_>>());
    }
}

/// A record that is larger than all buffers of the cleaner.
#[test]
fn records_larger_than_the_buffers_survive() {
    let disk = SimulatedDisk::new(1);
    let settings = CleanerSettings { io_buffer_bytes: 64, ..CleanerSettings::default() };
    let config = LogConfig { segment_bytes: 1 << 20, ..compacted() };
    let world = CleanedWorld::try_open(&disk, &config, settings).unwrap();
    let large = "x".repeat(200_000);
    for key in ["a", "b", "a"] {
        world.append(&[(Some(key), Some(&large)), (Some("small"), Some("y"))]).unwrap();
    }
    world.roll();
    world.clean();
    let records = data(&world.log);
    assert_eq!(offsets(&records), [2, 4, 5]);
    assert!(records[0].value.as_ref().is_some_and(|value| value.len() == large.len()));
}

/// Below the ratio nothing happens, unless a record waits for longer than `max.compaction.lag.ms`.
#[test]
fn the_dirty_ratio_and_the_largest_lag_decide_when() {
    let disk = SimulatedDisk::new(1);
    let config = LogConfig { min_cleanable_dirty_ratio: 0.5, ..compacted() };
    let world = CleanedWorld::open(&disk, &config);
    append_keys(&world, (0..60).map(|n| n % 60));
    world.roll();
    assert_eq!(world.clean(), 1);
    append_keys(&world, 0..10);
    world.roll();
    assert_eq!(world.step(), Outcome::Idle);
    assert!((1.0..50.0).contains(&world.cleaner.status().dirty_percent_max));
    world.log.update_config(LogConfig { max_compaction_lag_ms: 5000, ..config.clone() });
    assert_eq!(world.step(), Outcome::Idle);
    world.clock.advance(Duration::from_secs(6));
    assert!(matches!(world.step(), Outcome::Cleaned(..)));
    assert_eq!(world.step(), Outcome::Idle);
    world.log.update_config(LogConfig { cleanup: CleanupPolicy { delete: true, compact: false }, ..config });
    append_keys(&world, 0..100);
    world.roll();
    assert_eq!(world.step(), Outcome::Idle, "without compact nothing is compacted, from the change on");
}

/// Records younger than `min.compaction.lag.ms`, above the high watermark, or of an open transaction stay as
/// they are, with the rest of their segment.
#[test]
fn what_is_young_unreplicated_or_undecided_is_left_alone() {
    let disk = SimulatedDisk::new(1);
    let config = LogConfig { min_compaction_lag_ms: 60_000, ..compacted() };
    let world = CleanedWorld::open(&disk, &config);
    append_keys(&world, (0..40).map(|_| 1));
    world.roll();
    assert_eq!(world.step(), Outcome::Idle);
    world.clock.advance(Duration::from_secs(61));
    let second = world.log.segment_offsets()[1];
    let go_on = |_: Duration| ControlFlow::Continue(());
    let half = world.cleaner.clean_next(world.clock.now_ms(), &|_| Some(second + 1), &go_on);
    assert!(matches!(half, Outcome::Cleaned(_, cleaned) if cleaned.cleaned_offset == second), "{half:?}");
    let offset = world.log.log_end_offset();
    world.log.append_replicated(&[transactional(offset, 1, 0, &[(Some("1"), Some("open"))])]).unwrap();
    world.roll();
    append_keys(&world, (0..40).map(|_| 1));
    world.roll();
    world.clock.advance(Duration::from_secs(61));
    world.clean();
    assert_eq!(world.log.cleaned_offset(), Some(offset), "the transaction's segment is not touched");
    assert_eq!(data(&world.log).len(), 1 + 1 + 40);
}

/// `cleanup.policy=compact,delete`: both happen, and the start of the log counts for both.
#[test]
fn a_log_can_be_compacted_and_deleted() {
    let disk = SimulatedDisk::new(1);
    let config = LogConfig {
        cleanup: CleanupPolicy { delete: true, compact: true },
        retention_ms: Some(3_600_000),
        ..compacted()
    };
    let world = CleanedWorld::open(&disk, &config);
    append_keys(&world, (0..60).map(|n| if n % 2 == 0 { n } else { 1 }));
    world.roll();
    world.log.delete_records_before(5).unwrap();
    world.clean();
    assert_eq!(world.log.log_start_offset(), 5);
    assert_eq!(offsets(&data(&world.log)), (6..60).step_by(2).chain([59]).collect::<Vec<_>>());
    let removed = world.log.apply_retention(NOW + 3_700_000, 60).unwrap();
    assert!(removed > 0);
    assert_eq!(data(&world.log).len(), 0);
    assert_eq!((world.log.log_start_offset(), world.log.log_end_offset()), (60, 60));
    append_keys(&world, 0..5);
    world.roll();
    world.clean();
    assert_eq!(offsets(&data(&world.log)), (60..65).collect::<Vec<_>>());
}

/// What was compacted is dirty again when it was cut off and something else came in its place; and nothing of it
/// outlives the topic.
#[test]
fn a_truncation_and_a_deletion_take_the_checkpoint_back() {
    let checkpoint = |disk: &SimulatedDisk| {
        String::from_utf8(disk.read(&Path::new(LOGS).join("cleaner-offset-checkpoint")).unwrap()).unwrap()
    };
    let disk = SimulatedDisk::new(1);
    let world = CleanedWorld::open(&disk, &compacted());
    append_keys(&world, (0..40).map(|n| n % 30));
    world.roll();
    world.clean();
    assert_eq!(checkpoint(&disk), "0\n1\nt 0 40\n");
    world.log.truncate_to(35).unwrap();
    assert_eq!(checkpoint(&disk), "0\n1\nt 0 35\n");
    append_keys(&world, 30..60);
    world.roll();
    world.clean();
    let (store, log) = (&world.store, &world.log);
    assert_eq!(checkpoint(&disk), format!("0\n1\nt 0 {}\n", log.log_end_offset()));
    store.delete(&partition()).unwrap();
    let again = store.create(&partition(), TOPIC_ID, compacted()).unwrap();
    assert_eq!((again.cleaned_offset(), checkpoint(&disk)), (None, "0\n0\n".to_owned()));
}

/// While a round runs, the log is truncated, cut at its beginning, deleted or closed: that wins, the round is
/// given up, and nothing of it is left.
#[test]
fn whatever_happens_meanwhile_wins() {
    type Change = fn(&CleanedWorld);
    let changes: [(&str, Change); 4] = [
        ("truncated", |world| assert!(world.log.truncate_to(30).unwrap())),
        ("retention", |world| {
            world.log.delete_records_before(25).unwrap();
            world.store.run_maintenance(NOW, &|_| Some(60));
        }),
        ("deleted", |world| assert!(world.store.delete(&partition()).unwrap())),
        ("closed", |world| world.store.close(None).unwrap()),
    ];
    for (name, change) in changes {
        for call in 0..12 {
            let disk = SimulatedDisk::new(1);
            let settings = CleanerSettings { io_buffer_bytes: 400, ..CleanerSettings::default() };
            let config = LogConfig { segment_bytes: 2000, ..compacted() };
            let world = CleanedWorld::try_open(&disk, &config, settings).unwrap();
            append_keys(&world, (0..60).map(|n| n % 7));
            world.roll();
            let before = offsets(&data(&world.log));
            let calls = AtomicU64::new(0);
            let pause = |_: Duration| {
                if calls.fetch_add(1, Ordering::Relaxed) == call {
                    change(&world);
                }
                ControlFlow::Continue(())
            };
            let outcome = world.cleaner.clean_next(NOW, &|_| Some(60), &pause);
            let context = format!("{name} at call {call}: {outcome:?}");
            assert!(matches!(outcome, Outcome::Abandoned(_) | Outcome::Cleaned(..)), "{context}");
            if name == "deleted" {
                continue;
            }
            assert!(names(&disk, &folder()).iter().all(|n| !n.ends_with(".swap")), "{context}");
            let world = if name == "closed" {
                drop(world);
                CleanedWorld::open(&disk.kill(), &config)
            } else {
                world
            };
            let (start, end) = (world.log.log_start_offset(), world.log.log_end_offset());
            let after = offsets(&data(&world.log));
            assert!(after.iter().all(|offset| before.contains(offset)), "{context}");
            // The last record of each key that is left of the log is there.
            for key in 0..7 {
                let last = before.iter().rev().find(|offset| **offset < end && **offset % 7 == key);
                let last = last.filter(|offset| **offset >= start);
                assert!(last.is_none_or(|last| after.contains(last)), "{context}: {last:?} {after:?}");
            }
            assert_eq!(end, if name == "truncated" { 30 } else { 60 }, "{context}");
        }
    }
}

/// A batch that decayed on the disk must not be copied with a new checksum. That log is left as it is, and told;
/// the others go on.
#[test]
fn a_corrupt_log_is_left_alone_and_the_others_go_on() {
    let disk = SimulatedDisk::new(1);
    let world = CleanedWorld::open(&disk, &compacted());
    append_keys(&world, (0..60).map(|n| n % 5));
    world.roll();
    let other = world.store.create(&TopicPartition::new("other", 0), TOPIC_ID, compacted()).unwrap();
    for offset in 0..20 {
        other.append_replicated(&[batch_of(offset, &[(Some("k"), Some("v"))])]).unwrap();
    }
    other.roll().unwrap();
    disk.flip_bits(folder().join(format!("{:020}.log", 0)), 100, 1).unwrap();
    let go_on = |_: Duration| ControlFlow::Continue(());
    let ends = |tp: &TopicPartition| world.store.get(tp).map(|log| log.log_end_offset());
    let (mut failed, mut cleaned) = (Vec::new(), 0);
    loop {
        match world.cleaner.clean_next(NOW, &ends, &go_on) {
            Outcome::Failed(tp, error) => failed.push((tp, error)),
            Outcome::Cleaned(tp, _) => cleaned += u32::from(tp == *other.topic_partition()),
            Outcome::Idle => break,
            outcome => panic!("{outcome:?}"),
        }
    }
    assert_eq!((failed.len(), cleaned), (1, 1));
    assert!(matches!(failed[0].1.kind, StorageErrorKind::Corrupt(_)));
    let text = failed[0].1.to_string();
    assert!(text.starts_with("compact /logs/t-0/00000000000000000000.log at "), "{text}");
    assert_eq!(world.cleaner.status().uncleanable, [(partition(), text)]);
    assert_eq!(data(&other).len(), 1);
    // Not even later, until the topic is deleted and made anew.
    world.clock.advance(Duration::from_secs(1_000_000));
    assert_eq!(world.cleaner.clean_next(NOW, &ends, &go_on), Outcome::Idle);
    world.store.delete(&partition()).unwrap();
    assert_eq!(world.cleaner.clean_next(NOW, &ends, &go_on), Outcome::Idle);
    assert_eq!(world.cleaner.status().uncleanable, []);
}

/// Readers go on all the while, without a lock: each sees a legal state of the log at any moment.
#[test]
fn readers_are_served_while_segments_are_replaced() {
    let disk = SimulatedDisk::new(1);
    let mut settings = settings(&disk);
    settings.open_files_max = 2;
    let store = Arc::new(LogStore::open(settings).unwrap());
    store.load(&|_| compacted()).unwrap();
    let log = store.create(&partition(), TOPIC_ID, compacted()).unwrap();
    let cleaner = Cleaner::new(store.clone(), CleanerSettings::default());
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for reader in 0..2 {
            let (log, is_over) = (&log, &is_over);
            scope.spawn(move || {
                let mut reads = 0;
                while !is_over.load(Ordering::Acquire) || reads == 0 {
                    // All records say their own offset; between two reads some may go, never come.
                    for record in data(log) {
                        let value = format!("value-{}", record.offset);
                        assert_eq!(record.value.as_deref(), Some(value.as_bytes()));
                    }
                    log.offset_for_timestamp(NOW + reader).unwrap();
                    log.max_timestamp().unwrap();
                    reads += 1;
                }
            });
        }
        for round in 0..40 {
            for n in 0..10 {
                let offset = log.log_end_offset();
                let (key, value) = (format!("key-{}", (round + n) % 13), format!("value-{offset}"));
                log.append_replicated(&[batch_of(offset, &[(Some(&key), Some(&value))])]).unwrap();
            }
            log.roll().unwrap();
            let end = log.log_end_offset();
            cleaner.clean_next(NOW, &|_| Some(end), &|_| ControlFlow::Continue(()));
            store.run_maintenance(i64::MAX, &|_| None);
        }
        is_over.store(true, Ordering::Release);
    });
    assert!(data(&log).len() <= 13 + 10);
}

/// Two threads never take the same log.
#[test]
fn each_thread_takes_another_log() {
    let disk = SimulatedDisk::new(1);
    let world = CleanedWorld::open(&disk, &compacted());
    append_keys(&world, (0..60).map(|n| n % 5));
    world.roll();
    let seen = AtomicBool::new(false);
    let pause = |_: Duration| {
        if !seen.swap(true, Ordering::Relaxed) {
            assert_eq!(world.cleaner.status().cleaning, [partition()]);
            assert_eq!(world.step(), Outcome::Idle);
        }
        ControlFlow::Continue(())
    };
    assert!(matches!(world.cleaner.clean_next(NOW, &|_| Some(60), &pause), Outcome::Cleaned(..)));
    assert!(seen.load(Ordering::Relaxed));
    let status = world.cleaner.status();
    assert_eq!((status.rounds, status.records_kept, status.records_dropped), (1, 5, 55));
    assert_eq!((status.cleaning, status.last_run_ms), (Vec::new(), Some(NOW)));
    assert!(status.bytes_read > status.bytes_written && status.bytes_written > 0);
}

/// Whoever stops the node does not wait for a round, and what the round has made goes.
#[test]
fn a_round_stops_when_it_is_told() {
    for call in 0..20 {
        let disk = SimulatedDisk::new(1);
        let settings = CleanerSettings { io_buffer_bytes: 400, ..CleanerSettings::default() };
        let world = CleanedWorld::try_open(&disk, &compacted(), settings).unwrap();
        append_keys(&world, (0..60).map(|n| n % 5));
        world.roll();
        let calls = AtomicU64::new(0);
        let pause = |_: Duration| match calls.fetch_add(1, Ordering::Relaxed) >= call {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        };
        assert_eq!(world.cleaner.clean_next(NOW, &|_| Some(60), &pause), Outcome::Stopped);
        assert_eq!(calls.into_inner(), call + 1);
        let left = names(&disk, &folder());
        assert!(left.iter().all(|name| !name.ends_with(".cleaned") && !name.ends_with(".swap")), "{left:?}");
        assert_eq!(world.clean(), 1);
    }
}

/// V0 and V1 know no horizon: a tombstone goes when its segment was written so long before the last compacted
/// one, and a new segment is as old as those that it replaces.
#[test]
fn tombstones_of_old_formats_go_by_the_age_of_their_file() {
    let root = tempfile::tempdir().unwrap();
    let (clock, random) = (Arc::new(SimulatedClock::new(NOW)), Arc::new(SeededRandom::new(1)));
    let dirs = vec![root.path().to_path_buf()];
    let settings = StoreSettings::new(dirs, NodeId(1), Arc::new(SystemDisk), clock, random);
    let store = Arc::new(LogStore::open(settings).unwrap());
    // No two segments become one.
    let config = LogConfig { delete_retention_ms: 10_000, segment_bytes: 100, ..compacted() };
    store.load(&|_| config.clone()).unwrap();
    let log = store.create(&partition(), TOPIC_ID, config).unwrap();
    let cleaner = Cleaner::new(store, CleanerSettings::default());
    let append = |offset: Offset, pairs: &[Pair<'_>]| {
        log.append_replicated(&legacy_batch(1, Compression::Gzip, offset, pairs)).unwrap();
    };
    let clean = || {
        let end = log.log_end_offset();
        cleaner.clean_next(NOW, &|_| Some(end), &|_| ControlFlow::Continue(()))
    };
    let set_age = |base: Offset, seconds: u64| {
        let file =
            std::fs::File::options().write(true).open(log.dir().join(format!("{base:020}.log"))).unwrap();
        let written = std::time::UNIX_EPOCH + Duration::from_secs(1_600_000_000 + seconds);
        file.set_modified(written).unwrap();
        written
    };
    append(0, &[(Some("a"), Some("1")), (Some("b"), Some("2")), (Some("a"), None)]);
    log.roll().unwrap();
    let written = set_age(0, 0);
    assert!(matches!(clean(), Outcome::Cleaned(..)));
    assert_eq!(offsets(&data(&log)), [1, 2], "the first round keeps the tombstone");
    let modified = std::fs::metadata(log.dir().join(format!("{:020}.log", 0))).unwrap().modified().unwrap();
    assert_eq!(modified, written);
    append(3, &[(Some("c"), Some("3")), (Some("d"), None)]);
    log.roll().unwrap();
    set_age(3, 100);
    assert!(matches!(clean(), Outcome::Cleaned(..)));
    assert_eq!(offsets(&data(&log)), [1, 2, 3, 4], "not older than 10 s before what was compacted");
    append(5, &[(Some("e"), Some("4"))]);
    log.roll().unwrap();
    set_age(5, 200);
    assert!(matches!(clean(), Outcome::Cleaned(..)));
    assert_eq!(offsets(&data(&log)), [1, 3, 4, 5], "100 s before the last one that was compacted");
}
