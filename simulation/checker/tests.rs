//! A checker that finds nothing is worth nothing: each test gives it a history with one broken promise.

use std::time::Duration;

use klamm_model::Uuid;

use super::*;
use crate::history::{End, OutOfRange, Read};

const PLACE: Place = Place { topic: Uuid([1; 16]), partition: 0 };
const ELSEWHERE: Place = Place { topic: Uuid([2; 16]), partition: 0 };

fn sent(value: Value, outcome: Outcome) -> Sent {
    let (began, ended) = (Duration::ZERO, Duration::from_secs(1));
    Sent { place: PLACE, value, idempotent: Some(1), acks: Acks::All, began, ended, outcome }
}

fn read(records: &[(Offset, Value)]) -> Read {
    Read { consumer: 1, place: PLACE, at: Duration::ZERO, from: 0, records: records.to_vec() }
}

/// Three records that went well, and a reader of them.
fn good() -> (History, Final) {
    let all = [(0, 10), (1, 11), (2, 12)];
    let sent = all.map(|(offset, value)| sent(value, Outcome::Appended(Some(offset)))).to_vec();
    let history = History { sent, reads: vec![read(&all)], ..History::default() };
    (history, Final::from([(PLACE, all.to_vec())]))
}

fn found(history: &History, finally: &Final) -> BTreeSet<Check> {
    check(history, finally).into_iter().map(|violation| violation.check).collect()
}

#[test]
fn a_history_without_fault_passes() {
    let (mut history, finally) = good();
    assert_eq!(check(&history, &finally), []);
    // What nobody can tell may be there or not.
    history.sent.push(sent(13, Outcome::Unknown));
    history.sent.push(sent(14, Outcome::Failed));
    assert_eq!(check(&history, &finally), []);
    let longer = Final::from([(PLACE, vec![(0, 10), (1, 11), (2, 12), (3, 13)])]);
    assert_eq!(check(&history, &longer), []);
}

#[test]
fn an_acknowledged_record_that_is_not_there_is_lost() {
    let (mut history, _) = good();
    history.reads.clear();
    let finally = Final::from([(PLACE, vec![(0, 10), (1, 11)])]);
    assert_eq!(found(&history, &finally), BTreeSet::from([Check::Lost]));
}

#[test]
fn what_only_the_leader_has_acknowledged_may_be_lost_and_is_counted() {
    let (mut history, _) = good();
    history.reads.clear();
    history.sent[2].acks = Acks::Leader;
    let finally = Final::from([(PLACE, vec![(0, 10), (1, 11)])]);
    assert_eq!(check(&history, &finally), []);
    assert_eq!(lost_with_acks_of_leader(&history, &finally), 1);
}

#[test]
fn a_record_at_another_offset_than_acknowledged_is_lost_there() {
    let (mut history, finally) = good();
    history.sent[2].outcome = Outcome::Appended(Some(7));
    assert_eq!(found(&history, &finally), BTreeSet::from([Check::Lost]));
}

#[test]
fn a_record_that_is_there_twice_is_doubled() {
    let (history, mut finally) = good();
    finally.get_mut(&PLACE).unwrap().push((3, 12));
    assert!(found(&history, &finally).contains(&Check::Doubled));
}

#[test]
fn records_that_changed_places_are_reordered() {
    let (mut history, _) = good();
    history.reads.clear();
    history.sent.iter_mut().for_each(|sent| sent.outcome = Outcome::Unknown);
    let finally = Final::from([(PLACE, vec![(0, 10), (1, 12), (2, 11)])]);
    assert_eq!(found(&history, &finally), BTreeSet::from([Check::Reordered]));
}

#[test]
fn a_record_that_is_left_out_between_two_is_out_of_order_too() {
    let (mut history, _) = good();
    history.reads.clear();
    history.sent.iter_mut().for_each(|sent| sent.outcome = Outcome::Unknown);
    let finally = Final::from([(PLACE, vec![(0, 10), (1, 12)])]);
    assert_eq!(found(&history, &finally), BTreeSet::from([Check::Reordered]));
    // Of one that is left out before the first, a partition cannot know (KIP-360).
    let finally = Final::from([(PLACE, vec![(0, 11), (1, 12)])]);
    assert_eq!(check(&history, &finally), []);
}

#[test]
fn two_readers_that_saw_different_records_at_one_offset_are_told() {
    let (mut history, finally) = good();
    history.reads.push(read(&[(1, 13)]));
    history.sent.push(sent(13, Outcome::Unknown));
    assert_eq!(found(&history, &finally), BTreeSet::from([Check::TwoValues]));
}

#[test]
fn a_record_that_was_read_and_is_gone_has_vanished() {
    let (mut history, finally) = good();
    history.reads.push(read(&[(3, 13)]));
    history.sent.push(sent(13, Outcome::Unknown));
    assert_eq!(found(&history, &finally), BTreeSet::from([Check::Vanished]));
}

#[test]
fn a_refused_record_must_not_be_read() {
    let (mut history, finally) = good();
    history.sent[2].outcome = Outcome::Failed;
    assert_eq!(found(&history, &finally), BTreeSet::from([Check::FailedVisible]));
}

#[test]
fn a_record_of_a_deleted_topic_must_not_be_in_the_next() {
    let (mut history, _) = good();
    history.sent.iter_mut().for_each(|sent| sent.place = ELSEWHERE);
    history.reads = vec![read(&[(0, 10)])];
    assert_eq!(found(&history, &Final::new()), BTreeSet::from([Check::Misplaced]));
}

#[test]
fn an_end_that_goes_back_for_one_consumer_is_told_and_for_two_it_is_not() {
    let (mut history, finally) = good();
    let end = |consumer, offset| End { consumer, place: PLACE, at: Duration::ZERO, is_stable: false, offset };
    history.ends = vec![end(1, 3), end(2, 2), end(1, 3)];
    assert_eq!(check(&history, &finally), []);
    history.ends.push(end(1, 2));
    assert_eq!(found(&history, &finally), BTreeSet::from([Check::EndWentBack]));
}

#[test]
fn an_offset_that_was_read_must_not_be_out_of_range() {
    let (mut history, finally) = good();
    history.out_of_range.push(OutOfRange { consumer: 1, place: PLACE, at: Duration::ZERO, offset: 3 });
    assert_eq!(found(&history, &finally), BTreeSet::from([Check::OutOfRange]));
}
