//! What transactions hold: each is visible as a whole or not at all to who reads committed data, its offsets too, and
//! nothing of it before it was asked to commit.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use klamm_model::Offset;

use super::{Check, Final, Violation};
use crate::history::{Committer, Fate, History, Transaction, Value};

impl Transaction {
    /// Whether it may be visible at a time.
    fn may_be_visible(&self, at: Duration) -> bool {
        self.fate != Fate::Refused && self.commit_began.is_some_and(|began| began <= at)
    }
}

/// Holds transactions against the promises. `committed` is what a read-committed consumer could read of all partitions
/// when all had healed.
pub(super) fn check(history: &History, committed: &Final, violations: &mut Vec<Violation>) {
    check_reads(history, committed, violations);
    if !committed.is_empty() {
        check_wholeness(history, committed, violations);
    }
    check_offsets(history, violations);
}

fn check_reads(history: &History, committed: &Final, violations: &mut Vec<Violation>) {
    let of_value: BTreeMap<Value, &Transaction> = history
        .transactions
        .iter()
        .flat_map(|transaction| transaction.values.iter().map(move |value| (*value, transaction)))
        .collect();
    let reads = history.reads.iter().filter(|read| read.is_committed);
    let reads = reads.flat_map(|read| read.records.iter().map(|(_, value)| (*value, read.at)));
    let last = committed.values().flatten().map(|(_, value)| (*value, Duration::MAX));
    let mut told = BTreeSet::new();
    for (value, at) in reads.chain(last) {
        let Some(transaction) = of_value.get(&value) else { continue };
        if !transaction.may_be_visible(at) && told.insert(value) {
            let text =
                format!("record {value} was read as committed at {at:?}, and was not: {transaction:?}");
            violations.push(Violation { check: Check::UncommittedVisible, text });
        }
    }
}

fn check_wholeness(history: &History, committed: &Final, violations: &mut Vec<Violation>) {
    let there: BTreeSet<Value> = committed.values().flatten().map(|(_, value)| *value).collect();
    for transaction in history.transactions.iter().filter(|known| known.commit_began.is_some()) {
        let visible = transaction.values.iter().filter(|value| there.contains(value)).count();
        let is_whole = visible == transaction.values.len();
        let may_be_missing = transaction.fate != Fate::Done && visible == 0;
        if !is_whole && !may_be_missing {
            let text = format!("{visible} of its records are there: {transaction:?}");
            violations.push(Violation { check: Check::TornTransaction, text });
        }
    }
}

/// Each transaction commits its own number, and the numbers of an id rise.
fn check_offsets(history: &History, violations: &mut Vec<Violation>) {
    let mut by_id: BTreeMap<u32, BTreeMap<Offset, &Transaction>> = BTreeMap::new();
    for transaction in history.transactions.iter().filter(|transaction| transaction.has_offset) {
        by_id.entry(transaction.id).or_default().insert(transaction.number, transaction);
    }
    for read in &history.committed {
        let Committer::Transactions(id) = read.group else { continue };
        let known = by_id.get(&id);
        let is_known = |number| known.and_then(|known| known.get(&number));
        if read.offset != -1 && !is_known(read.offset).is_some_and(|known| known.may_be_visible(read.ended)) {
            let text = format!("no committed transaction has this: {read:?}");
            violations.push(Violation { check: Check::UncommittedVisible, text });
        }
        let done = known.into_iter().flat_map(|known| known.range(read.offset + 1..));
        let missing = done.map(|(_, transaction)| transaction).find(|missing| {
            missing.fate == Fate::Done && missing.may_be_visible(read.began) && missing.ended <= read.began
        });
        if let Some(missing) = missing {
            let text = format!("{missing:?} had committed a higher offset: {read:?}");
            violations.push(Violation { check: Check::CommitWentBack, text });
        }
    }
}
