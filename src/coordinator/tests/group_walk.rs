//! A random walk of a group's members, their coordinator and its log: members join, commit and leave, requests are
//! late, answers are lost, coordinators die with what was not committed, time passes. Whatever happens, a commit that was
//! answered can be read again while the group lives, and a generation that is over commits nothing.

mod members;

use klamm_coordinator::{PlantedBug, plant};
use members::{Step, Tally, World};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

fn step() -> impl Strategy<Value = Step> {
    let client = 0..3_usize;
    prop_oneof![
        1 => client.clone().prop_map(Step::Join),
        24 => client.clone().prop_map(Step::GoOn),
        10 => (client.clone(), prop::bool::weighted(0.2))
            .prop_map(|(client, is_late)| Step::Commit { client, is_late }),
        3 => (0..4_usize).prop_map(Step::Arrive),
        1 => client.prop_map(Step::Leave),
        16 => Just(Step::Settle),
        3 => Just(Step::Fetch),
        1 => Just(Step::Restart),
        1 => Just(Step::Delete),
        6 => Just(Step::Wait(3_000)),
        3 => prop::sample::select(vec![20_000, 130_000]).prop_map(Step::Wait),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 1..300)
}

fn walk(steps: &[Step]) -> Result<Tally, String> {
    let mut world = World::new();
    for (number, step) in steps.iter().enumerate() {
        world.take(step).map_err(|wrong| format!("step {number}, {step:?}: {wrong}"))?;
    }
    world.take(&Step::Fetch)?;
    Ok(world.tally)
}

proptest! {
    #![proptest_config(Config { cases: 1024, failure_persistence: None, ..Config::default() })]

    #[test]
    fn commits_last_while_their_group_lives(steps in steps()) {
        if let Err(wrong) = walk(&steps) {
            prop_assert!(false, "{wrong}");
        }
    }
}

fn seeded(seed: u32) -> Vec<Step> {
    let mut bytes = [0; 32];
    bytes[..4].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    steps().new_tree(&mut TestRunner::new_with_rng(Config::default(), rng)).expect("steps").current()
}

/// A check that never fails proves nothing: each of these mistakes must be found, and by the check that is meant.
#[test]
fn planted_mistakes_are_found() {
    for (bug, finding) in [
        (PlantedBug::AcceptOldGeneration, "that generation was over"),
        (PlantedBug::ExpireLiveOffsets, "is gone, though the group lives"),
    ] {
        plant(Some(bug));
        let found = (0..2000).find_map(|seed| walk(&seeded(seed)).err());
        plant(None);
        let found = found.unwrap_or_else(|| panic!("nobody notices {bug:?}"));
        assert!(found.contains(finding), "{bug:?}: {found}");
    }
}

/// What the walk does is worth its name.
#[test]
fn the_walk_comes_to_what_it_is_for() {
    let mut all = Tally::default();
    for seed in 0..200 {
        all.add(&walk(&seeded(seed)).expect("all is well"));
    }
    let Tally { commits, refused, generations, expired, deleted, lost } = all;
    let least = [commits, refused, generations, expired, deleted, lost].into_iter().min();
    assert!(least > Some(20), "{all:?}");
}
