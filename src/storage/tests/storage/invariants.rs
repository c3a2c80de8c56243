//! What must hold of a store whatever happened to it, held against what its users were told. Each check has a
//! name, so that a planted mistake can say which of them has found it.

use std::collections::BTreeMap;

use klamm_model::{Offset, ProducerId, TopicPartition};
use klamm_records::batches;
use klamm_storage::Log;

use crate::world::{Held, Row, World};

/// A check that did not hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Violation {
    /// The name of the check.
    pub(crate) check: &'static str,
    /// What was found.
    pub(crate) found: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.check, self.found)
    }
}

/// What the faults so far have left for certain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Survives {
    /// All that was acknowledged: the process was killed at most.
    Acknowledged,
    /// What was flushed: the power went.
    Flushed,
}

fn violation<T>(check: &'static str, found: impl Into<String>) -> Result<T, Violation> {
    Err(Violation { check, found: found.into() })
}

/// Opens the store and checks all of it; then that it goes on, and that it can be closed in order.
pub(crate) fn check_reopened(world: &mut World, survives: Survives) -> Result<(), Violation> {
    if let Err(error) = world.open() {
        return violation("every log opens", error.to_string());
    }
    check_open(world, survives)?;
    check_that_it_goes_on(world)
}

/// Checks an open store, and takes over what was found of records of which nobody knew.
pub(crate) fn check_open(world: &mut World, survives: Survives) -> Result<(), Violation> {
    for log in world.store().logs() {
        check_is_known(world, &log)?;
    }
    let partitions: Vec<TopicPartition> = world.model.partitions.keys().cloned().collect();
    for tp in partitions {
        let held = world.model.partitions[&tp].clone();
        let Some(log) = world.store().get(&tp) else {
            let must_be_there =
                survives == Survives::Acknowledged && !held.rows.is_empty() || held.flushed > 0;
            if must_be_there && !held.is_deletion_wished {
                return violation("acknowledged records are there", format!("the log of {tp} is gone"));
            }
            world.model.partitions.remove(&tp);
            continue;
        };
        let found = read_all(&log)?;
        check_records(&log, &held, &found, survives, world.config.cleanup.compact)?;
        check_reads(&log, &found)?;
        check_times(&log, &found)?;
        check_producers(&log, &held, &found, survives)?;
        check_transactions(&log, &found)?;
        check_epochs(&log, &held, &found)?;
        if world.config.cleanup.compact {
            continue;
        }
        // What was there for a while and was never promised may be gone now.
        let end = log.log_end_offset();
        let held = world.held(&tp);
        held.rows.retain(|offset, _| *offset < end && found.contains_key(offset));
        let flushed = held.flushed;
        let is_left = |offset: &Offset| match survives {
            Survives::Acknowledged => *offset < end,
            Survives::Flushed => *offset < flushed || found.contains_key(offset),
        };
        held.producers.values_mut().for_each(|batches| batches.retain(|offset, _| is_left(offset)));
        world.settle(&tp, end);
    }
    Ok(())
}

/// A log that nobody was told of, or of a topic whose deletion was acknowledged.
fn check_is_known(world: &World, log: &Log) -> Result<(), Violation> {
    const CHECK: &str = "deleted topics are gone";
    let tp = log.topic_partition();
    if let Some(id) = log.topic_id().filter(|id| world.model.deleted.contains(id)) {
        return violation(CHECK, format!("{tp} with id {id} is back"));
    }
    match world.model.partitions.get(tp) {
        None => violation(CHECK, format!("{tp} is there, and was deleted or never made")),
        Some(held) if log.topic_id().is_some_and(|id| id != held.topic_id) => {
            violation(CHECK, format!("{tp} is of another topic"))
        }
        Some(_) => Ok(()),
    }
}

/// The rows of a log by offset, as a reader gets them.
pub(crate) fn read_all(log: &Log) -> Result<BTreeMap<Offset, Row>, Violation> {
    const CHECK: &str = "whole batches, one behind the other";
    let mut rows = BTreeMap::new();
    let end = log.log_end_offset();
    let start = log.log_start_offset();
    let mut next = start;
    while next < end {
        let slice = log.read(next, 1000, end, true);
        let slice = slice.map_err(|error| Violation { check: CHECK, found: error.to_string() })?;
        let Some(bytes) = slice.and_then(|slice| slice.to_bytes().ok()) else { break };
        let before = next;
        for batch in batches(bytes).lenient() {
            let batch = batch.and_then(|batch| batch.check_crc().map(|()| batch));
            let batch = batch.map_err(|error| Violation {
                check: CHECK,
                found: format!("behind offset {next}: {error}"),
            })?;
            let header = batch.header;
            if header.base_offset < next && before != next {
                return violation(CHECK, format!("offset {} comes twice", header.base_offset));
            }
            let records =
                batch.records().map_err(|error| Violation { check: CHECK, found: error.to_string() })?;
            for record in records {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let commits = batch.control_record().ok().filter(|_| header.is_control());
                let row = Row {
                    key: if header.is_control() { String::new() } else { text(record.key.as_deref().unwrap_or(b"")) },
                    value: record.value.as_deref().filter(|_| !header.is_control()).map(text),
                    timestamp: record.timestamp,
                    producer: header.has_producer_id().then_some((header.producer_id.0, record.sequence)),
                    is_transactional: header.is_transactional(),
                    commits: commits.map(|record| {
                        matches!(record, klamm_records::control::ControlRecord::EndTxn(marker) if marker.commit)
                    }),
                    epoch: header.partition_leader_epoch.0,
                };
                if record.offset >= start && rows.insert(record.offset, row).is_some() {
                    return violation(CHECK, format!("offset {} comes twice", record.offset));
                }
            }
            next = header.next_offset();
        }
        if next == before {
            return violation(CHECK, format!("a read at {before} gives nothing, and the log ends at {end}"));
        }
    }
    Ok(rows)
}

/// Invariants 1, 2 and 4: what was acknowledged is there, nothing else is, and each offset has its one value.
fn check_records(
    log: &Log,
    held: &Held,
    found: &BTreeMap<Offset, Row>,
    survives: Survives,
    is_compacted: bool,
) -> Result<(), Violation> {
    let (start, end) = (log.log_start_offset(), log.log_end_offset());
    if start < held.start || start > held.start_wished.max(held.start) {
        let (low, high) = (held.start, held.start_wished.max(held.start));
        return violation("the log start offset", format!("{start} is not between {low} and {high}"));
    }
    for (offset, row) in found {
        let known = held.rows.get(offset).into_iter().chain(held.uncertain.get(offset).into_iter().flatten());
        // What retention or a deletion of records has taken may be there again after a crash.
        let is_of_old = *offset < held.start_wished;
        if !is_of_old && !known.clone().any(|known| known == row) {
            let expected: Vec<&Row> = known.collect();
            return violation(
                "one offset, one value",
                format!("{row:?} at {offset} instead of {expected:?}"),
            );
        }
        if row.value.as_ref().is_some_and(|value| held.refused.contains(value)) {
            return violation("what was refused never shows", format!("{row:?} at {offset}"));
        }
    }
    if is_compacted {
        return check_latest_values(held, found, survives);
    }
    if found.len() as i64 != end - start {
        return violation("no gaps", format!("{} records between {start} and {end}", found.len()));
    }
    let promised = held.rows.iter().filter(|(offset, _)| is_promised(held, **offset, survives));
    for (offset, row) in promised {
        if found.get(offset) != Some(row) {
            let found = found.get(offset);
            return violation(
                "acknowledged records are there",
                format!("{row:?} at {offset} is lost; there is {found:?}"),
            );
        }
    }
    Ok(())
}

fn is_promised(held: &Held, offset: Offset, survives: Survives) -> bool {
    offset >= held.start_wished && (survives == Survives::Acknowledged || offset < held.flushed)
}

/// Of each key the latest value, or a later one.
fn check_latest_values(
    held: &Held,
    found: &BTreeMap<Offset, Row>,
    survives: Survives,
) -> Result<(), Violation> {
    let mut latest: BTreeMap<&str, (Offset, &Row)> = BTreeMap::new();
    let is_data = |row: &Row| row.commits.is_none() && !row.is_transactional;
    for (offset, row) in
        held.rows.iter().filter(|(offset, row)| is_data(row) && is_promised(held, **offset, survives))
    {
        latest.insert(&row.key, (*offset, row));
    }
    for (key, (offset, row)) in latest {
        let has_later = found.range(offset..).any(|(_, other)| other.key == key);
        if row.value.is_some() && !has_later {
            return violation("the latest value of each key", format!("{row:?} at {offset} is lost"));
        }
        let earlier = found.range(..offset).any(|(_, other)| other.key == key);
        if row.value.is_none() && !has_later && earlier {
            return violation(
                "the latest value of each key",
                format!("{key} was deleted at {offset} and is back"),
            );
        }
    }
    Ok(())
}

/// A read from any offset gives the batch that holds it.
fn check_reads(log: &Log, found: &BTreeMap<Offset, Row>) -> Result<(), Violation> {
    // The end of each batch, and what is around it, is enough.
    for offset in found.keys().step_by(2) {
        let slice = log.read(*offset, 1, log.log_end_offset(), true).ok().flatten();
        let batch = slice.and_then(|slice| batches(slice.to_bytes().ok()?).next()?.ok());
        let holds = batch.is_some_and(|batch| {
            batch.header.base_offset <= *offset && *offset <= batch.header.last_offset()
        });
        if !holds {
            return violation("a read from any offset", format!("{offset} is not found"));
        }
    }
    Ok(())
}

/// Look-ups by time say what a plain scan says.
fn check_times(log: &Log, found: &BTreeMap<Offset, Row>) -> Result<(), Violation> {
    for wanted in found.values().map(|row| row.timestamp).step_by(4) {
        let scanned = found.iter().find(|(_, row)| row.timestamp >= wanted).map(|(offset, _)| *offset);
        let looked_up = log.offset_for_timestamp(wanted);
        let looked_up =
            looked_up.map_err(|error| Violation { check: "look-ups by time", found: error.to_string() })?;
        let looked_up = looked_up.map(|found| found.offset);
        if looked_up != scanned {
            return violation(
                "look-ups by time",
                format!("{wanted}: {looked_up:?}, a scan says {scanned:?}"),
            );
        }
    }
    Ok(())
}

/// Invariants 3 and 10: of each producer the last batch is known, so that a retry is told from a new one.
fn check_producers(
    log: &Log,
    held: &Held,
    found: &BTreeMap<Offset, Row>,
    survives: Survives,
) -> Result<(), Violation> {
    const CHECK: &str = "producers and their sequences";
    let mut expected: BTreeMap<i64, i32> = BTreeMap::new();
    // Where the records are gone, the producer is remembered.
    for (producer, batches) in &held.producers {
        let safe = |offset: &Offset| survives == Survives::Acknowledged || *offset < held.flushed;
        if let Some((_, sequence)) = batches.iter().rfind(|(offset, _)| safe(offset)) {
            expected.insert(*producer, *sequence);
        }
    }
    for row in found.values().filter(|row| row.commits.is_none()) {
        if let Some((producer, sequence)) = row.producer {
            let known = expected.entry(producer).or_insert(sequence);
            *known = sequence.max(*known);
        }
    }
    for (producer, sequence) in &expected {
        let state = log.producer(ProducerId(*producer));
        let last = state.and_then(|state| state.batches.back().map(|batch| batch.last_sequence));
        if last != Some(*sequence) {
            return violation(CHECK, format!("producer {producer} has {last:?}, not {sequence}"));
        }
    }
    Ok(())
}

/// Invariants 4 and 9: open transactions hold readers back, and aborted ones are listed.
fn check_transactions(log: &Log, found: &BTreeMap<Offset, Row>) -> Result<(), Violation> {
    let mut open: BTreeMap<i64, Offset> = BTreeMap::new();
    for (offset, row) in found.iter().filter(|(_, row)| row.is_transactional) {
        let (producer, _) = row.producer.expect("a transaction has a producer");
        match row.commits {
            None => _ = open.entry(producer).or_insert(*offset),
            Some(commits) => {
                let Some(first) = open.remove(&producer) else { continue };
                let listed = log.aborted_transactions(first, *offset + 1).unwrap_or_default();
                let is_listed =
                    listed.iter().any(|txn| txn.producer_id.0 == producer && txn.first_offset == first);
                // The beginning of a transaction may have been deleted, so that only a later record of it is here.
                let is_whole = first > log.log_start_offset();
                if is_whole && is_listed == commits {
                    let what = format!("producer {producer}, {first} to {offset}, committed: {commits}");
                    return violation("aborted transactions", what);
                }
            }
        }
    }
    let known: BTreeMap<i64, Offset> =
        log.open_transactions().into_iter().map(|(producer, first, _)| (producer.0, first)).collect();
    if known != open && log.log_start_offset() == 0 {
        return violation("open transactions", format!("{known:?} instead of {open:?}"));
    }
    Ok(())
}

/// Each record belongs to the epoch of the leader that appended it.
fn check_epochs(log: &Log, held: &Held, found: &BTreeMap<Offset, Row>) -> Result<(), Violation> {
    // What retention was taking is there again after a crash, without its epochs, and goes with the next run.
    for (offset, row) in found.range(held.start_wished..) {
        let epoch = log.epoch_of(*offset).map(|epoch| epoch.0);
        if epoch != Some(row.epoch) {
            return violation("leader epochs", format!("{offset} is of epoch {epoch:?}, not {}", row.epoch));
        }
    }
    Ok(())
}

/// The store takes new records behind the old ones, and a stop in order needs no recovery afterwards.
fn check_that_it_goes_on(world: &mut World) -> Result<(), Violation> {
    const CHECK: &str = "it goes on, and stops in order";
    let failed = |error: klamm_storage::StorageError| Violation { check: CHECK, found: error.to_string() };
    let partitions: Vec<TopicPartition> = world.model.partitions.keys().cloned().collect();
    for tp in &partitions {
        let held = world.held(tp);
        held.is_deletion_wished = false;
        let id = held.topic_id;
        world.create(tp, id).map_err(failed)?;
        world.append(tp).map_err(failed)?;
        world.append_from(tp, 900).map_err(failed)?;
    }
    world.close().map_err(failed)?;
    world.disk = world.disk.crash_leaving(klamm_testing::Unsynced::Lost);
    world.settings.disk = std::sync::Arc::new(world.disk.clone());
    world.open().map_err(failed)?;
    check_open(world, Survives::Flushed)
}
