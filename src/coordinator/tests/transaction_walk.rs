//! A random walk of producers, their coordinator and two partitions: requests and answers are lost, markers come
//! late and twice, coordinators restart, time passes. In the end every transaction is there as a whole or not at
//! all, exactly as its producer was told, and nothing holds consumers back.

mod walk;

use klamm_coordinator::PlantedBug as CoordinatorBug;
use klamm_partition::PlantedBug as PartitionBug;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use walk::{Step, World};

fn step() -> impl Strategy<Value = Step> {
    let producer = 0..3_usize;
    prop_oneof![
        1 => (producer.clone(), any::<bool>()).prop_map(|(producer, is_heard)| Step::Init { producer, is_heard }),
        6 => (producer.clone(), 0..2_usize, prop::bool::weighted(0.2))
            .prop_map(|(producer, partition, is_late)| Step::Produce { producer, partition, is_late }),
        2 => (0..4_usize).prop_map(|which| Step::Arrive { which }),
        4 => (producer, any::<bool>(), prop::bool::weighted(0.8))
            .prop_map(|(producer, is_commit, is_heard)| Step::End { producer, is_commit, is_heard }),
        8 => (0..8_usize, prop::bool::weighted(0.4)).prop_map(|(which, again)| Step::Mark { which, again }),
        4 => (0..4_usize).prop_map(|which| Step::Stray { which }),
        1 => Just(Step::Restart),
        1 => Just(Step::Wait),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 1..160)
}

/// Panics where a promise is broken.
fn walk(steps: Vec<Step>) {
    let mut world = World::new();
    for step in steps {
        world.take(step);
        world.check_visible();
    }
    world.settle();
    world.check();
}

fn config() -> Config {
    Config { cases: 1024, failure_persistence: None, ..Config::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn transactions_are_whole_and_end(steps in steps()) {
        walk(steps);
    }
}

/// What the first of many walks says that finds something wrong, always the same ones.
fn find() -> Option<String> {
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(Config { max_shrink_iters: 0, ..config() }, rng);
    let found = runner.run(&steps(), |steps| {
        walk(steps);
        Ok(())
    });
    match found {
        Err(TestError::Fail(reason, _)) => Some(reason.message().to_owned()),
        _ => None,
    }
}

/// A check that never fails proves nothing: each of these mistakes must be found, and by the check that is meant.
#[test]
fn planted_mistakes_are_found() {
    const EARLY: &str = "is visible before it was asked to commit";
    const HANGING: &str = "a transaction is open for ever";
    let in_partitions = [
        (PartitionBug::AcceptEarlierMarker, EARLY),
        (PartitionBug::SkipVerification, HANGING),
        (PartitionBug::ForgetOpenTransactions, EARLY),
        (PartitionBug::ForgetAbortedTransactions, EARLY),
    ];
    let in_coordinators =
        [(CoordinatorBug::ForgetMarker, HANGING), (CoordinatorBug::KeepProducerEpoch, "was committed")];
    let mut missed = Vec::new();
    let mut judge = |bug: String, finding: &str| match find() {
        None => missed.push(format!("{bug}: nobody notices")),
        Some(found) if found.contains(finding) => println!("{bug}: {found}"),
        Some(found) => missed.push(format!("{bug}: not by {finding:?} but by {found:?}")),
    };
    for (bug, finding) in in_partitions {
        klamm_partition::plant(Some(bug));
        judge(format!("{bug:?}"), finding);
        klamm_partition::plant(None);
    }
    for (bug, finding) in in_coordinators {
        klamm_coordinator::plant(Some(bug));
        judge(format!("{bug:?}"), finding);
        klamm_coordinator::plant(None);
    }
    assert!(missed.is_empty(), "missed:\n{}", missed.join("\n"));
}
