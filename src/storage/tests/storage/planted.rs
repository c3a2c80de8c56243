//! A crash test that finds nothing may be blind. Each mistake of `PlantedBug` is made by the store in turn, and
//! some run over all calls must find it; the table says which, and by which check.

use klamm_storage::PlantedBug;

use crate::every_call::{Caught, Passed, Scenario, crash_at_every_call, fail_at_every_call};
use crate::scenarios::{group_commit, moving, producing, recreating, removing, stopping, truncating};

/// How a mistake is looked for.
type Hunt = fn(&Scenario) -> Result<Passed, Caught>;

/// A mistake, where it is looked for, and the check that finds it.
type Bug = (PlantedBug, fn() -> Scenario, Hunt, &'static str);

const BUGS: &[Bug] = &[
    (PlantedBug::DropSegmentSync, producing, crash_at_every_call, "acknowledged records are there"),
    (PlantedBug::SkipNameSync, producing, crash_at_every_call, "acknowledged records are there"),
    (PlantedBug::RecoveryPointAhead, producing, crash_at_every_call, "acknowledged records are there"),
    (PlantedBug::IndexBeforeLog, producing, fail_at_every_call, "whole batches, one behind the other"),
    (PlantedBug::ReuseOffset, producing, crash_at_every_call, "no gaps"),
    (PlantedBug::SkipProducerSnapshot, removing, crash_at_every_call, "producers and their sequences"),
    (PlantedBug::SkipEpochSync, truncating, crash_at_every_call, "leader epochs"),
    (PlantedBug::TruncateWithoutSync, truncating, crash_at_every_call, "one offset, one value"),
    (PlantedBug::CleanMarkFirst, stopping, crash_at_every_call, "leader epochs"),
    (PlantedBug::ForgetLogStart, removing, crash_at_every_call, "the log start offset"),
    (PlantedBug::DeleteWithoutSync, recreating, crash_at_every_call, "deleted topics are gone"),
    (PlantedBug::AcknowledgeBeforeSync, group_commit, crash_at_every_call, "acknowledged records are there"),
    (PlantedBug::SwallowFailedSync, producing, fail_at_every_call, "no gaps"),
    (PlantedBug::SwapBeforeSync, moving, crash_at_every_call, "acknowledged records are there"),
    (PlantedBug::SwapWithoutMark, moving, crash_at_every_call, "every log opens"),
];

#[test]
fn each_planted_bug_is_caught() {
    let mut missed = Vec::new();
    for (bug, scenario, hunt, check) in BUGS.iter().copied() {
        let scenario = scenario().with_setting(move |settings| settings.planted_bug = Some(bug));
        match hunt(&scenario) {
            Ok(passed) => missed.push(format!("{bug:?} in {passed:?}")),
            Err(caught) if caught.violation.check == check => println!("{bug:?}: {check}, {}", caught.place),
            Err(caught) => missed.push(format!("{bug:?} not by {check} but by {caught}")),
        }
    }
    assert!(missed.is_empty(), "missed:\n{}", missed.join("\n"));
}
