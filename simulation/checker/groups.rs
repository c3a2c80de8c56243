//! What consumer groups hold: a commit that was answered never goes back, and a generation that is over commits nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use klamm_model::Offset;

use super::{Check, Violation};
use crate::history::{Committed, Committer, Fate, History};

/// One partition of one group.
type Place = (Committer, i32);

/// Holds what the members of groups were told against the promises. What transactions commit is for
/// [`super::transactions`].
pub(super) fn check(history: &History, violations: &mut Vec<Violation>) {
    check_owners(history, violations);
    check_generations(history, violations);
    check_offsets(history, violations);
}

/// A partition belongs to one member in a generation.
fn check_owners(history: &History, violations: &mut Vec<Violation>) {
    let mut owners = BTreeMap::new();
    for begun in &history.generations {
        for partition in &begun.owned {
            let key = (begun.group, begun.generation, *partition);
            let first = *owners.entry(key).or_insert(begun.member);
            if first != begun.member {
                let text = format!("partition {partition} is member {first}'s too: {begun:?}");
                violations.push(Violation { check: Check::TwoOwners, text });
            }
        }
    }
}

/// Nothing is committed for a generation after a member was told of a later one.
fn check_generations(history: &History, violations: &mut Vec<Violation>) {
    let mut begun: BTreeMap<(Committer, i32), Duration> = BTreeMap::new();
    for generation in &history.generations {
        let at = begun.entry((generation.group, generation.generation)).or_insert(generation.at);
        *at = generation.at.min(*at);
    }
    for commit in history.commits.iter().filter(|commit| commit.fate == Fate::Done) {
        let later = (commit.group, commit.generation + 1)..=(commit.group, i32::MAX);
        if let Some(((_, generation), at)) = begun.range(later).find(|(_, at)| **at <= commit.began) {
            let text = format!("generation {generation} had begun at {at:?}: {commit:?}");
            violations.push(Violation { check: Check::OldGeneration, text });
        }
    }
}

/// Something that was known of a committed offset from a time on.
struct Known {
    from: Duration,
    place: Place,
    offset: Offset,
}

/// Members commit rising offsets, each owner from what the one before had committed, so what is committed only rises.
fn check_offsets(history: &History, violations: &mut Vec<Violation>) {
    let of_members = |read: &&Committed| matches!(read.group, Committer::Members(_)) && read.offset >= 0;
    let commits = history.commits.iter().filter(|commit| commit.fate == Fate::Done).map(|commit| Known {
        from: commit.ended,
        place: (commit.group, commit.partition),
        offset: commit.offset,
    });
    let reads = history.committed.iter().filter(of_members).map(|read| Known {
        from: read.ended,
        place: (read.group, read.partition),
        offset: read.offset,
    });
    let mut known: Vec<Known> = commits.chain(reads).collect();
    known.sort_by_key(|known| known.from);
    let mut known = known.into_iter().peekable();
    let mut asked: BTreeSet<(Place, Offset)> = BTreeSet::new();
    asked.extend(history.commits.iter().map(|commit| ((commit.group, commit.partition), commit.offset)));
    let mut highest: BTreeMap<Place, Offset> = BTreeMap::new();
    let mut reads: Vec<&Committed> = history.committed.iter().collect();
    reads.retain(|read| matches!(read.group, Committer::Members(_)));
    reads.sort_by_key(|read| read.began);
    for read in reads {
        while let Some(Known { place, offset, .. }) = known.next_if(|known| known.from <= read.began) {
            let highest = highest.entry(place).or_insert(offset);
            *highest = offset.max(*highest);
        }
        let place = (read.group, read.partition);
        if let Some(highest) = highest.get(&place).filter(|highest| read.offset < **highest) {
            let text = format!("{highest} was committed before: {read:?}");
            violations.push(Violation { check: Check::CommitWentBack, text });
        }
        if read.offset != -1 && !asked.contains(&(place, read.offset)) {
            let text = format!("nobody has committed this: {read:?}");
            violations.push(Violation { check: Check::CommitWentBack, text });
        }
    }
}
