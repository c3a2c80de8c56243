//! What a history must hold, whatever was done to the cluster. Pure: histories go in, violations come out.
//!
//! The numbers of invariants are those of ARCHITECTURE.md. The topics of a simulation have no retention, no
//! compaction and no unclean elections, so a record that was committed stays for ever.

mod groups;
#[cfg(test)]
mod tests;
mod transactions;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use klamm_model::Offset;

use crate::history::{Acks, Fate, History, Outcome, Place, Sent, Value};

/// What a partition holds in the end, as its leader gives it to a consumer.
pub(crate) type Final = BTreeMap<Place, Vec<(Offset, Value)>>;

/// A promise that was not kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Violation {
    /// Which check has found it.
    pub(crate) check: Check,
    /// What was found where.
    pub(crate) text: String,
}

/// The checks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Check {
    /// A record that was acknowledged with acks=all is not there, or elsewhere (1, 2, 13, 21).
    Lost,
    /// A record is there more than once (3).
    Doubled,
    /// The records of an idempotent producer are not in their order, or one between them is missing (3, 10).
    Reordered,
    /// One offset has shown two records (2, 11, 14).
    TwoValues,
    /// A record that a consumer has read is not there any more (1, 7, 13).
    Vanished,
    /// A record that was refused for good is there (4).
    FailedVisible,
    /// A record is in another topic than it was sent to, or in another partition (15).
    Misplaced,
    /// The end of a partition went back for a consumer (7).
    EndWentBack,
    /// A consumer was told that an offset does not exist up to which it had read (7).
    OutOfRange,
    /// Two nodes led a partition in one epoch (14).
    TwoLeaders,
    /// A high watermark rose while fewer replicas were in sync than `min.insync.replicas` asks (13).
    BelowMinIsr,
    /// A broker that is fenced leads (12).
    FencedLeader,
    /// A committed offset went back, or nobody had committed it (16).
    CommitWentBack,
    /// A member of a generation that is over has committed (19).
    OldGeneration,
    /// Two members were given one partition in one generation (19).
    TwoOwners,
    /// A read-committed consumer saw a record of a transaction that was not committed (4).
    UncommittedVisible,
    /// A part of a transaction is missing for a read-committed consumer (5).
    TornTransaction,
    /// A replica in sync lacks what was committed (1, 12, 13).
    MissingInSync,
    /// Committed metadata differs between nodes (14).
    ImagesDiffer,
    /// Replicas that are in sync hold different bytes (2, 11).
    ReplicasDiffer,
    /// Replicas do not get in sync again, or clients get nothing done, after all faults have ended (6).
    NotHealed,
    /// A task has panicked, or a node has ended by itself without a reason in its disk.
    Died,
}

/// Holds a history against the promises. `finally` has all partitions that could be read when all had healed, `committed`
/// what of them a read-committed consumer could read.
pub(crate) fn check(history: &History, finally: &Final, committed: &Final) -> Vec<Violation> {
    let sent: BTreeMap<Value, &Sent> = history.sent.iter().map(|sent| (sent.value, sent)).collect();
    let mut violations = Vec::new();
    check_acknowledged(history, finally, &mut violations);
    check_doubles(finally, &mut violations);
    check_order(history, finally, &mut violations);
    check_values(history, finally, &mut violations);
    check_places(history, finally, &sent, &mut violations);
    check_ends(history, &mut violations);
    groups::check(history, &mut violations);
    transactions::check(history, committed, &mut violations);
    violations
}

/// How many records that only the leader has acknowledged are not there: Kafka's documented price of acks=1.
pub(crate) fn lost_with_acks_of_leader(history: &History, finally: &Final) -> u64 {
    let there: BTreeMap<&Place, BTreeSet<Value>> = values_of(finally);
    let is_lost = |sent: &&Sent| {
        sent.acks == Acks::Leader
            && matches!(sent.outcome, Outcome::Appended(_))
            && there.get(&sent.place).is_some_and(|values| !values.contains(&sent.value))
    };
    history.sent.iter().filter(is_lost).count() as u64
}

/// Who has got nothing done since a time: producers of a partition, members of a group, producers of a transactional
/// id. In a cluster without faults there is nobody.
pub(crate) fn idle_since(history: &History, from: Duration) -> BTreeSet<String> {
    let kinds = ["producers", "members of groups", "transactional producers"];
    let (mut all, mut busy) = (BTreeSet::from(kinds.map(str::to_owned)), BTreeSet::new());
    let mut see = |kind: usize, who: String, is_done: bool, at: Duration| {
        if is_done && at >= from {
            busy.extend([kinds[kind].to_owned(), who.clone()]);
        }
        all.insert(who);
    };
    for sent in history.sent.iter().filter(|sent| !history.deleted.contains(&sent.place.topic)) {
        let who = format!("producers with acks={:?} to {:?}", sent.acks, sent.place);
        see(0, who, matches!(sent.outcome, Outcome::Appended(_)), sent.ended);
    }
    for commit in &history.commits {
        see(1, format!("{:?}", commit.group), commit.fate == Fate::Done, commit.ended);
    }
    for transaction in &history.transactions {
        see(2, format!("transactional id {}", transaction.id), transaction.is_committed(), transaction.ended);
    }
    &all - &busy
}

fn values_of(finally: &Final) -> BTreeMap<&Place, BTreeSet<Value>> {
    finally
        .iter()
        .map(|(place, records)| (place, records.iter().map(|(_, value)| *value).collect()))
        .collect()
}

fn check_acknowledged(history: &History, finally: &Final, violations: &mut Vec<Violation>) {
    let by_value: BTreeMap<&Place, BTreeMap<Value, Offset>> = finally
        .iter()
        .map(|(place, records)| (place, records.iter().map(|(offset, value)| (*value, *offset)).collect()))
        .collect();
    for sent in history.sent.iter().filter(|sent| sent.acks == Acks::All) {
        let (Outcome::Appended(told), Some(there)) = (sent.outcome, by_value.get(&sent.place)) else {
            continue;
        };
        match (there.get(&sent.value), told) {
            (None, _) => violations.push(Violation {
                check: Check::Lost,
                text: format!("acknowledged with acks=all and not there: {sent:?}"),
            }),
            (Some(offset), Some(told)) if *offset != told => violations.push(Violation {
                check: Check::Lost,
                text: format!("acknowledged at another offset than {offset}, where it is: {sent:?}"),
            }),
            _ => {}
        }
    }
}

fn check_doubles(finally: &Final, violations: &mut Vec<Violation>) {
    let mut seen: BTreeMap<Value, (Place, Offset)> = BTreeMap::new();
    for (place, records) in finally {
        for (offset, value) in records {
            if let Some(first) = seen.insert(*value, (*place, *offset)) {
                let text = format!("record {value} is at {first:?} and at {:?}", (place, offset));
                violations.push(Violation { check: Check::Doubled, text });
            }
        }
    }
}

/// The values of an idempotent producer rise, and none is left out between two. Those before the first may be: a
/// partition that knows nothing of a producer takes any of its batches (KIP-360), as when the first was refused for want
/// of replicas in sync and the next was not.
fn check_order(history: &History, finally: &Final, violations: &mut Vec<Violation>) {
    let mut lives: BTreeMap<(u32, Place), BTreeSet<Value>> = BTreeMap::new();
    let mut life_of: BTreeMap<Value, u32> = BTreeMap::new();
    for sent in &history.sent {
        if let Some(life) = sent.idempotent {
            lives.entry((life, sent.place)).or_default().insert(sent.value);
            life_of.insert(sent.value, life);
        }
    }
    let mut there: BTreeMap<(u32, Place), Vec<Value>> = BTreeMap::new();
    for (place, records) in finally {
        for (_, value) in records {
            if let Some(life) = life_of.get(value) {
                there.entry((*life, *place)).or_default().push(*value);
            }
        }
    }
    for (life, found) in &there {
        let Some(all) = lives.get(life) else { continue };
        let first = found.first().copied().unwrap_or_default();
        let expected: Vec<Value> = all.range(first..).copied().take(found.len()).collect();
        let mut sorted = found.clone();
        sorted.dedup();
        if expected != *found && sorted.len() == found.len() {
            let differs = expected.iter().zip(found).find(|(expected, found)| expected != found);
            let text =
                format!("of producer {life:?} the log has {differs:?} (what should be there, what is)");
            violations.push(Violation { check: Check::Reordered, text });
        }
    }
}

fn check_values(history: &History, finally: &Final, violations: &mut Vec<Violation>) {
    let mut known: BTreeMap<(Place, Offset), Value> = BTreeMap::new();
    let mut note =
        |place: Place, offset: Offset, value: Value, who: &str, violations: &mut Vec<Violation>| {
            let first = *known.entry((place, offset)).or_insert(value);
            if first != value {
                let text = format!("{place:?} at {offset}: {who} read {value}, and another read had {first}");
                violations.push(Violation { check: Check::TwoValues, text });
            }
        };
    for read in &history.reads {
        for (offset, value) in &read.records {
            note(
                read.place,
                *offset,
                *value,
                &format!("consumer {} at {:?}", read.consumer, read.at),
                violations,
            );
        }
    }
    for (place, records) in finally {
        for (offset, value) in records {
            note(*place, *offset, *value, "the last read", violations);
        }
    }
    for (place, records) in finally {
        let there: BTreeSet<Offset> = records.iter().map(|(offset, _)| *offset).collect();
        let range = (*place, Offset::MIN)..=(*place, Offset::MAX);
        for ((_, offset), value) in known.range(range).filter(|((_, offset), _)| !there.contains(offset)) {
            let text =
                format!("{place:?} at {offset}: a consumer has read {value}, and it is not there any more");
            violations.push(Violation { check: Check::Vanished, text });
        }
    }
    for event in &history.out_of_range {
        violations.push(Violation { check: Check::OutOfRange, text: format!("{event:?}") });
    }
}

fn check_places(
    history: &History,
    finally: &Final,
    sent: &BTreeMap<Value, &Sent>,
    violations: &mut Vec<Violation>,
) {
    let mut told = BTreeSet::new();
    let reads = history.reads.iter().flat_map(|read| read.records.iter().map(|record| (read.place, *record)));
    let last = finally.iter().flat_map(|(place, records)| records.iter().map(|record| (*place, *record)));
    for (place, (offset, value)) in reads.chain(last) {
        let Some(sent) = sent.get(&value) else { continue };
        if sent.outcome == Outcome::Failed && told.insert(value) {
            let text = format!("{place:?} at {offset}: this was refused for good: {sent:?}");
            violations.push(Violation { check: Check::FailedVisible, text });
        }
        if sent.place != place && told.insert(value) {
            let text = format!("{place:?} at {offset}: this was sent elsewhere: {sent:?}");
            violations.push(Violation { check: Check::Misplaced, text });
        }
    }
}

fn check_ends(history: &History, violations: &mut Vec<Violation>) {
    let mut highest: BTreeMap<(u32, Place, bool), Offset> = BTreeMap::new();
    for end in &history.ends {
        let highest = highest.entry((end.consumer, end.place, end.is_stable)).or_insert(end.offset);
        if end.offset < *highest {
            let text = format!("it was {highest} before: {end:?}");
            violations.push(Violation { check: Check::EndWentBack, text });
        }
        *highest = end.offset.max(*highest);
    }
}
