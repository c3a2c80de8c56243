//! A random walk of producers, their coordinator and two partitions: requests and answers are lost, markers come
//! late and twice, coordinators restart, time passes. In the end every transaction is there as a whole or not at
//! all, exactly as its producer was told, and nothing holds consumers back.

mod walk;

use proptest::prelude::*;
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn transactions_are_whole_and_end(steps in prop::collection::vec(step(), 1..160)) {
        let mut world = World::new();
        for step in steps {
            world.take(step);
        }
        world.settle();
        world.check();
    }
}
