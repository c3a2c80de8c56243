//! The power goes, the process is killed, or the disk fails at any call of a compaction. Nothing goes that a later
//! record of its key does not supersede, no offset is used twice, and the next round ends what this one began.

use std::collections::BTreeMap;
use std::time::Duration;

use klamm_model::Offset;
use klamm_records::Record;
use klamm_storage::{CleanerSettings, LogConfig, Outcome, StorageError, StoreSettings};
use klamm_testing::{Failure, Fault, SimulatedDisk};

use crate::compaction_world::*;
use crate::support::*;

const ABORTING: i64 = 7;

/// Three segments and more of a few keys, with an aborted transaction, all on the disk.
fn fill(world: &CleanedWorld) -> Result<(), StorageError> {
    let log = &world.log;
    for round in 0..14 {
        let values: Vec<String> = (0..4).map(|n| format!("value-{}", log.log_end_offset() + n)).collect();
        let keys: Vec<String> = (0..4).map(|n| format!("key-{}", (round * 3 + n) % 9)).collect();
        let pairs: Vec<Pair<'_>> =
            keys.iter().zip(&values).map(|(key, value)| (Some(key.as_str()), Some(value.as_str()))).collect();
        if round == 3 || round == 7 {
            let offset = log.log_end_offset();
            log.append_replicated(&[transactional(offset, ABORTING, round, &pairs)])?;
            log.append_replicated(&[marker(log.log_end_offset(), (ABORTING, 0), false)])?;
        } else {
            world.append(&pairs)?;
        }
    }
    log.roll()?;
    log.flush()?;
    world.store.checkpoint(&[])
}

/// What [`fill`] appends, by offset: key, and whether it is of an aborted transaction.
fn filled() -> (BTreeMap<Offset, String>, Vec<Offset>, Offset) {
    let (mut keys, mut aborted, mut offset) = (BTreeMap::new(), Vec::new(), 0);
    for round in 0..14 {
        for n in 0..4 {
            keys.insert(offset, format!("key-{}", (round * 3 + n) % 9));
            if round == 3 || round == 7 {
                aborted.push(offset);
            }
            offset += 1;
        }
        offset += i64::from(round == 3 || round == 7);
    }
    (keys, aborted, offset)
}

fn last_of_each_key() -> Vec<Offset> {
    let (keys, aborted, _) = filled();
    let mut last = BTreeMap::new();
    last.extend(keys.iter().filter(|(offset, _)| !aborted.contains(offset)).map(|(o, key)| (key, *o)));
    let mut offsets: Vec<Offset> = last.into_values().collect();
    offsets.sort_unstable();
    offsets
}

/// A map for half of the keys, so that it takes several rounds.
fn cleaner() -> CleanerSettings {
    CleanerSettings { dedupe_buffer_bytes: 24 * 6, io_buffer_bytes: 400, ..CleanerSettings::default() }
}

fn try_open(disk: &SimulatedDisk, config: &LogConfig) -> Result<CleanedWorld, StorageError> {
    CleanedWorld::try_open(disk, config, cleaner())
}

/// A disk with a filled log, whose process has ended.
fn filled_disk() -> SimulatedDisk {
    let disk = SimulatedDisk::new(1);
    let world = try_open(&disk, &compacted()).unwrap();
    fill(&world).unwrap();
    drop(world);
    disk.kill()
}

fn check(world: &CleanedWorld, context: &str) {
    if let Some(problem) = problem(world) {
        panic!("{context}: {problem}");
    }
}

/// The records are a state between the old and the new: those that nothing supersedes are all there, each as it
/// was written. What is wrong with them otherwise.
fn problem(world: &CleanedWorld) -> Option<String> {
    let (keys, aborted, end) = filled();
    let records = data(&world.log);
    let is_changed = |record: &&Record| {
        let value = format!("value-{}", record.offset);
        let key = keys.get(&record.offset).map(String::as_bytes);
        record.key.as_deref() != key || record.value.as_deref() != Some(value.as_bytes())
    };
    if let Some(record) = records.iter().find(is_changed) {
        return Some(format!("{record:?} is not as it was written"));
    }
    let found = offsets(&records);
    if let Some(offset) = last_of_each_key().iter().find(|offset| !found.contains(offset)) {
        return Some(format!("the record at {offset} is lost, and nothing supersedes it"));
    }
    let ends = (world.log.log_start_offset(), world.log.log_end_offset());
    if ends != (0, end) {
        return Some(format!("the log holds {ends:?} and not all up to {end}"));
    }
    let committed = crate::fixtures::committed_offsets(&world.log);
    let shown = committed.iter().find(|offset| aborted.contains(offset));
    shown.map(|offset| format!("the record at {offset} shows, which was aborted"))
}

/// And the next rounds come to the same end as if nothing had happened.
fn check_next_rounds(disk: &SimulatedDisk, world: CleanedWorld, context: &str) {
    world.clock.advance(Duration::from_secs(3600));
    world.clean();
    assert_eq!(offsets(&data(&world.log)), last_of_each_key(), "{context}");
    world.store.run_maintenance(i64::MAX, &|_| None);
    let offset = world.append(&[(Some("new"), Some("value"))]).unwrap();
    assert_eq!(offset, filled().2, "{context}: an offset is used twice, or left out");
    world.store.close(None).unwrap();
    drop(world);
    let left = names(disk, &folder());
    let is_left = |name: &&String| [".cleaned", ".swap", ".deleted"].iter().any(|end| name.ends_with(end));
    assert_eq!(left.iter().find(is_left), None, "{context}");
    let world = try_open(&disk.kill(), &compacted()).unwrap();
    let mut expected = last_of_each_key();
    expected.push(offset);
    assert_eq!(offsets(&data(&world.log)), expected, "{context}");
}

fn compact(world: &CleanedWorld) -> Result<usize, StorageError> {
    for round in 0.. {
        match world.step() {
            Outcome::Idle => return Ok(round),
            Outcome::Failed(_, error) => return Err(error),
            _ => {}
        }
    }
    unreachable!("compaction comes to an end")
}

#[test]
fn a_crash_at_any_call_leaves_the_old_or_the_new() {
    crash_at_any_call(settings).unwrap_or_else(|problem| panic!("{problem}"));
}

/// A compaction that puts the old segments away before the new one is finished loses them when it crashes there.
#[cfg(debug_assertions)]
#[test]
fn a_swap_before_the_clean_is_complete_is_noticed() {
    let planted_bug = Some(klamm_storage::PlantedBug::SwapBeforeClean);
    let caught = crash_at_any_call(|disk| StoreSettings { planted_bug, ..settings(disk) }).unwrap_err();
    assert!(caught.contains("the log holds (17, 58) and not all"), "{caught}");
}

fn crash_at_any_call(settings: impl Fn(&SimulatedDisk) -> StoreSettings) -> Result<(), String> {
    let try_open =
        |disk: &SimulatedDisk| CleanedWorld::try_open_with(settings(disk), &compacted(), cleaner());
    let filled = filled_disk();
    let whole = filled.kill();
    let world = try_open(&whole).unwrap();
    let before = whole.counters().changes();
    assert!(compact(&world).unwrap() > 1, "several rounds");
    let changes = whole.counters().changes() - before;
    assert!(changes > 100, "{changes} changes of the disk");
    for change in 0..changes {
        let crashed = filled.kill();
        let world = try_open(&crashed).unwrap();
        crashed.crash_after(change);
        compact(&world).unwrap_err();
        drop(world);
        for (index, ending) in ENDINGS.into_iter().enumerate() {
            let context = format!("{ending:?} after {change} changes");
            let disk = found_after(ending, &crashed);
            let world = try_open(&disk).map_err(|error| format!("{context}: {error}"))?;
            if let Some(problem) = problem(&world) {
                return Err(format!("{context}: {problem}"));
            }
            // Each change has its turn with two endings, each ending with every third change.
            if (change as usize + index).is_multiple_of(3) {
                check_next_rounds(&disk, world, &context);
            }
        }
    }
    Ok(())
}

/// A call that fails once is no harm at all: the old segments serve on, after a restart if the device has failed,
/// and the next round does it.
#[test]
fn a_failure_of_any_call_leaves_the_old_segments_in_service() {
    let filled = filled_disk();
    for failure in [Failure::Device, Failure::NoSpace] {
        for call in 1.. {
            let context = format!("{failure:?} at call {call}");
            let disk = filled.kill();
            let world = try_open(&disk, &compacted()).unwrap();
            let fault = disk.inject(Fault::new(failure).from_call(call).times(1));
            let result = compact(&world);
            disk.clear(fault);
            if let Err(error) = &result {
                let text = error.to_string();
                assert!(text.contains("/logs/"), "{context}: the file is named: {text}");
            }
            // What a device has failed at may be anything, so only a restart brings the log back.
            let is_offline = !world.log.is_directory_online();
            assert_eq!(is_offline, failure == Failure::Device && result.is_err(), "{context}");
            let (disk, world) = if is_offline {
                drop(world);
                let disk = disk.kill();
                let world = try_open(&disk, &compacted()).unwrap();
                (disk, world)
            } else {
                (disk, world)
            };
            assert_eq!(world.log.failure(), None, "{context}");
            check(&world, &context);
            check_next_rounds(&disk, world, &context);
            if result.is_ok() && call > 150 {
                break;
            }
        }
    }
}

/// Nothing works any more from some call on. The log may go offline, but a restart finds all of it.
#[test]
fn a_disk_that_dies_at_any_call_costs_no_record() {
    let filled = filled_disk();
    for call in (1..).step_by(3) {
        let context = format!("dead from call {call} on");
        let disk = filled.kill();
        let world = try_open(&disk, &compacted()).unwrap();
        disk.inject(Fault::new(Failure::Device).from_call(call));
        let result = compact(&world);
        drop(world);
        disk.clear_faults();
        let disk = disk.kill();
        let world = try_open(&disk, &compacted()).unwrap();
        check(&world, &context);
        check_next_rounds(&disk, world, &context);
        if result.is_ok() {
            break;
        }
    }
}

/// A full disk: compaction needs room before it makes any. It says so, and goes on when there is some.
#[test]
fn a_full_disk_only_delays_compaction() {
    let filled = filled_disk();
    let used: u64 =
        files(&filled_disk(), &folder(), "").iter().map(|(_, content)| content.len() as u64).sum();
    let mut failed = 0;
    for room in (0..2000).step_by(80) {
        let disk = filled.kill();
        let world = try_open(&disk, &compacted()).unwrap();
        disk.set_capacity(Some(used + room));
        let result = compact(&world);
        failed += usize::from(result.is_err());
        check(&world, &format!("{room} bytes of room"));
        assert_eq!(world.log.failure(), None);
        if let Err(error) = result {
            assert_eq!(error.kind, klamm_storage::StorageErrorKind::DiskFull);
            assert_eq!(world.cleaner.status().uncleanable.len(), 1);
        }
        disk.set_capacity(None);
        check_next_rounds(&disk, world, &format!("{room} bytes of room"));
    }
    assert!(failed > 5, "{failed} times the disk was full");
}
