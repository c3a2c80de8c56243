//! A checker that finds nothing is worth nothing: each test gives it a history with one broken promise.

use std::time::Duration;

use klamm_model::Uuid;

use super::*;
use crate::history::{Commit, Committed, Committer, End, Fate, Generation, OutOfRange, Read, Transaction};

const PLACE: Place = Place { topic: Uuid([1; 16]), partition: 0 };
const ELSEWHERE: Place = Place { topic: Uuid([2; 16]), partition: 0 };

fn sent(value: Value, outcome: Outcome) -> Sent {
    let (began, ended) = (Duration::ZERO, Duration::from_secs(1));
    Sent { place: PLACE, value, idempotent: Some(1), acks: Acks::All, began, ended, outcome }
}

fn read(records: &[(Offset, Value)]) -> Read {
    Read {
        consumer: 1,
        place: PLACE,
        at: Duration::ZERO,
        from: 0,
        is_committed: false,
        records: records.to_vec(),
    }
}

/// Three records that went well, and a reader of them.
fn good() -> (History, Final) {
    let all = [(0, 10), (1, 11), (2, 12)];
    let sent = all.map(|(offset, value)| sent(value, Outcome::Appended(Some(offset)))).to_vec();
    let history = History { sent, reads: vec![read(&all)], ..History::default() };
    (history, Final::from([(PLACE, all.to_vec())]))
}

/// Without anything that is read in the end as committed.
fn check_all(history: &History, finally: &Final) -> Vec<Violation> {
    check(history, finally, &Final::new())
}

fn found(history: &History, finally: &Final) -> BTreeSet<Check> {
    check_all(history, finally).into_iter().map(|violation| violation.check).collect()
}

#[test]
fn a_history_without_fault_passes() {
    let (mut history, finally) = good();
    assert_eq!(check_all(&history, &finally), []);
    // What nobody can tell may be there or not.
    history.sent.push(sent(13, Outcome::Unknown));
    history.sent.push(sent(14, Outcome::Failed));
    assert_eq!(check_all(&history, &finally), []);
    let longer = Final::from([(PLACE, vec![(0, 10), (1, 11), (2, 12), (3, 13)])]);
    assert_eq!(check_all(&history, &longer), []);
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
    assert_eq!(check_all(&history, &finally), []);
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
    assert_eq!(check_all(&history, &finally), []);
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
    assert_eq!(check_all(&history, &finally), []);
    history.ends.push(end(1, 2));
    assert_eq!(found(&history, &finally), BTreeSet::from([Check::EndWentBack]));
}

#[test]
fn an_offset_that_was_read_must_not_be_out_of_range() {
    let (mut history, finally) = good();
    history.out_of_range.push(OutOfRange { consumer: 1, place: PLACE, at: Duration::ZERO, offset: 3 });
    assert_eq!(found(&history, &finally), BTreeSet::from([Check::OutOfRange]));
}

const GROUP: Committer = Committer::Members(1);

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn begun(generation: i32, member: u32, seconds: u64) -> Generation {
    Generation { group: GROUP, generation, member, at: at(seconds), owned: vec![0] }
}

fn commit(generation: i32, seconds: u64, offset: Offset, fate: Fate) -> Commit {
    let (began, ended) = (at(seconds), at(seconds + 1));
    Commit { group: GROUP, partition: 0, generation, member: 1, began, ended, offset, fate }
}

fn committed(group: Committer, seconds: u64, offset: Offset) -> Committed {
    Committed { group, partition: 0, began: at(seconds), ended: at(seconds + 1), offset }
}

#[test]
fn what_a_group_has_committed_never_goes_back() {
    let (mut history, finally) = good();
    history.generations = vec![begun(1, 1, 1), begun(2, 2, 10)];
    history.commits = vec![
        commit(1, 2, 5, Fate::Done),
        // Its answer was lost: it may count or not.
        commit(1, 4, 7, Fate::Unknown),
        commit(1, 11, 9, Fate::Refused),
    ];
    history.committed = vec![committed(GROUP, 1, -1), committed(GROUP, 12, 5)];
    assert_eq!(check_all(&history, &finally), []);
    history.committed = vec![committed(GROUP, 12, 7)];
    assert_eq!(check_all(&history, &finally), []);
    for too_low in [-1, 0, 4, 6] {
        history.committed = vec![committed(GROUP, 12, too_low)];
        assert_eq!(found(&history, &finally), BTreeSet::from([Check::CommitWentBack]), "{too_low}");
    }
    // What was read once counts too.
    history.committed = vec![committed(GROUP, 12, 7), committed(GROUP, 14, 5)];
    assert_eq!(found(&history, &finally), BTreeSet::from([Check::CommitWentBack]));
}

#[test]
fn a_generation_that_is_over_commits_nothing() {
    let (mut history, finally) = good();
    history.generations = vec![begun(1, 1, 1), begun(2, 2, 10)];
    // On its way when the next generation began.
    history.commits = vec![commit(1, 9, 5, Fate::Done)];
    assert_eq!(check_all(&history, &finally), []);
    history.commits = vec![commit(1, 10, 5, Fate::Done)];
    assert_eq!(found(&history, &finally), BTreeSet::from([Check::OldGeneration]));
}

#[test]
fn a_partition_has_one_owner_in_a_generation() {
    let (mut history, finally) = good();
    history.generations = vec![begun(1, 1, 1), begun(2, 2, 10)];
    assert_eq!(check_all(&history, &finally), []);
    history.generations.push(begun(2, 3, 10));
    assert_eq!(found(&history, &finally), BTreeSet::from([Check::TwoOwners]));
}

/// One transaction with the records 10 and 12 and an offset, that was asked to commit at second 5.
fn transaction(fate: Fate) -> Transaction {
    let commit_began = Some(at(5));
    Transaction { id: 1, number: 3, values: vec![10, 12], has_offset: true, commit_began, ended: at(6), fate }
}

#[test]
fn a_transaction_is_visible_as_a_whole_or_not_at_all() {
    let (mut history, finally) = good();
    let (all, some) =
        (Final::from([(PLACE, vec![(0, 10), (1, 11), (2, 12)])]), Final::from([(PLACE, vec![(0, 10)])]));
    let none = Final::from([(PLACE, vec![(1, 11)])]);
    let outcome = |history: &History, committed: &Final| -> BTreeSet<Check> {
        check(history, &finally, committed).into_iter().map(|violation| violation.check).collect()
    };
    let torn = BTreeSet::from([Check::TornTransaction]);
    history.transactions = vec![transaction(Fate::Unknown)];
    assert_eq!(outcome(&history, &all), BTreeSet::new());
    assert_eq!(outcome(&history, &none), BTreeSet::new());
    assert_eq!(outcome(&history, &some), torn);
    history.transactions = vec![transaction(Fate::Done)];
    assert_eq!(outcome(&history, &all), BTreeSet::new());
    assert_eq!(outcome(&history, &none), torn);
    history.transactions = vec![Transaction { commit_began: None, ..transaction(Fate::Done) }];
    assert_eq!(outcome(&history, &none), BTreeSet::new());
    assert_eq!(outcome(&history, &all), BTreeSet::from([Check::UncommittedVisible]));
}

#[test]
fn nothing_of_a_transaction_is_visible_before_it_was_asked_to_commit() {
    let (mut history, finally) = good();
    history.transactions = vec![transaction(Fate::Done)];
    history.reads.push(Read { is_committed: true, at: at(5), ..read(&[(0, 10)]) });
    assert_eq!(check_all(&history, &finally), []);
    history.reads.push(Read { is_committed: true, at: at(4), ..read(&[(0, 10)]) });
    assert_eq!(found(&history, &finally), BTreeSet::from([Check::UncommittedVisible]));
}

#[test]
fn an_offset_counts_when_its_transaction_does() {
    let (mut history, finally) = good();
    let group = Committer::Transactions(1);
    history.transactions = vec![transaction(Fate::Done)];
    history.committed = vec![committed(group, 1, -1), committed(group, 7, 3)];
    assert_eq!(check_all(&history, &finally), []);
    history.committed = vec![committed(group, 7, -1)];
    assert_eq!(found(&history, &finally), BTreeSet::from([Check::CommitWentBack]));
    history.committed = vec![committed(group, 1, 3)];
    assert_eq!(found(&history, &finally), BTreeSet::from([Check::UncommittedVisible]));
}

#[test]
fn who_gets_nothing_done_when_all_has_healed_is_told() {
    let (mut history, _) = good();
    history.sent.iter_mut().for_each(|sent| sent.ended = at(10));
    history.commits = vec![commit(1, 9, 5, Fate::Done)];
    history.transactions = vec![Transaction { ended: at(10), ..transaction(Fate::Done) }];
    assert_eq!(idle_since(&history, at(10)), BTreeSet::new());
    assert_eq!(idle_since(&history, at(11)).len(), 6);
    history.commits[0].fate = Fate::Refused;
    assert_eq!(idle_since(&history, at(10)).len(), 2);
    // Those who never began are idle too.
    assert_eq!(idle_since(&History::default(), at(10)).len(), 3);
}
