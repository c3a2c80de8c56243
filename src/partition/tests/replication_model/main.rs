//! Three replicas, a controller and a network that loses and delays answers, in a random walk. What an election or a
//! lost answer can break is found here, in the partition alone: acknowledged records that vanish, an offset with two
//! values, a log that parts from its leader's unseen.

mod checks;
mod world;

use klamm_partition::{PlantedBug, plant};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use world::{Step, World};

fn step() -> impl Strategy<Value = Step> {
    let node = 0..3usize;
    prop_oneof![
        10 => node.clone().prop_map(Step::Append),
        20 => node.clone().prop_map(Step::Fetch),
        24 => node.clone().prop_map(Step::Deliver),
        1 => node.clone().prop_map(Step::Lose),
        10 => node.clone().prop_map(Step::Propose),
        10 => (node.clone(), any::<bool>()).prop_map(|(node, is_lost)| Step::Decide { node, is_lost }),
        8 => node.clone().prop_map(Step::Learn),
        1 => node.clone().prop_map(Step::Elect),
        1 => node.clone().prop_map(Step::Fence),
        8 => node.clone().prop_map(Step::Unfence),
        1 => node.clone().prop_map(Step::Kill),
        6 => node.prop_map(Step::Start),
        1 => (1..40_000u64).prop_map(Step::Wait),
    ]
}

/// The check that fails in one of so many walks, if any does.
fn walk(cases: u32, target_magic: i8, shrink: bool) -> Result<World, String> {
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: if shrink { 2_000 } else { 0 },
        ..Config::default()
    };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let seen = std::cell::RefCell::new(World::default());
    let result = runner.run(&prop::collection::vec(step(), 100..300), |steps| {
        let mut world = World::storing(target_magic);
        for step in steps {
            world.step(step);
            checks::check(&mut world).map_err(TestCaseError::fail)?;
        }
        seen.borrow_mut().tally.add(&world.tally);
        Ok(())
    });
    match result {
        Ok(()) => Ok(seen.into_inner()),
        Err(TestError::Fail(check, steps)) if shrink => Err(format!("{check}, after {steps:#?}")),
        Err(TestError::Fail(check, _)) => Err(check.message().to_owned()),
        Err(TestError::Abort(reason)) => Err(reason.message().to_owned()),
    }
}

#[test]
fn nothing_acknowledged_or_seen_is_lost() {
    let tally = walk(150, 2, true).unwrap_or_else(|failure| panic!("{failure}")).tally;
    println!("{tally:?}");
    assert!(tally.is_rich(), "the walk never came to what it is for: {tally:?}");
}

/// Their batches do not say of which epoch they are.
#[test]
fn nothing_acknowledged_or_seen_is_lost_in_old_formats() {
    for magic in [0, 1] {
        let tally = walk(100, magic, true).unwrap_or_else(|failure| panic!("{failure}")).tally;
        assert!(tally.is_rich(), "the walk never came to what it is for: {tally:?}");
    }
}

#[test]
fn each_planted_bug_is_caught() {
    let bugs = [
        (PlantedBug::TruncateToHighWatermark, "the leader has all that was acknowledged or read"),
        (PlantedBug::AcknowledgeBelowMinIsr, "what is acknowledged is on min.insync.replicas"),
        (PlantedBug::SkipEpochCheck, "a follower asks for what its leader may have"),
        (PlantedBug::ServeAboveHighWatermark, "the leader has all that was acknowledged or read"),
        (PlantedBug::CountUnknownFollower, "what is acknowledged is on min.insync.replicas"),
    ];
    let mut missed = Vec::new();
    for (bug, check) in bugs {
        plant(Some(bug));
        match walk(2_000, 2, false) {
            Ok(_) => missed.push(format!("{bug:?}: nothing fails")),
            Err(found) if found.starts_with(check) => println!("{bug:?}: {found}"),
            Err(found) => missed.push(format!("{bug:?} not by {check:?} but by {found:?}")),
        }
        plant(None);
    }
    assert!(missed.is_empty(), "missed:\n{}", missed.join("\n"));
}
