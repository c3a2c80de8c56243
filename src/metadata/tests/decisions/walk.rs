//! A random walk: brokers stop and start in every way, leaders change their ISRs, and hands reassign, elect and set.
//! Beside the cluster goes what its replicas hold, so that an election is judged by what it is for: no record that was
//! acknowledged by all in sync is missing from the next leader, unless somebody allowed that.

use std::collections::BTreeMap;

use klamm_metadata::{ConfigResource, Image, PartitionState, PlantedBug};
use klamm_model::NodeId;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use klamm_testing::Play;

use crate::stage::Stage;

const BROKERS: i32 = 4;
const PARTITIONS: i32 = 3;

/// What happens next.
#[derive(Clone, Debug)]
enum Step {
    /// A command of the scripts.
    Do(String),
    /// A producer writes to a partition, and all in sync take it if they are enough.
    Write { partition: i32 },
    /// A leader proposes an ISR: those of this mask that are its replicas. Who joins has caught up.
    ProposeIsr { partition: i32, mask: u8 },
    /// A proposal that was under way while a member registered again. It has not caught up.
    StaleIsr { partition: i32, member: i32 },
    /// A process is killed and started again, with some of what it held lost.
    Kill { broker: i32 },
}

fn step() -> impl Strategy<Value = Step> {
    let broker = 1..=BROKERS;
    let partition = 0..PARTITIONS;
    let command = |text: String| Step::Do(text);
    let replicas = proptest::sample::subsequence((1..=BROKERS).collect::<Vec<_>>(), 1..=3).prop_shuffle();
    prop_oneof![
        8 => partition.clone().prop_map(|partition| Step::Write { partition }),
        8 => (partition.clone(), any::<u8>())
            .prop_map(|(partition, mask)| Step::ProposeIsr { partition, mask }),
        2 => (partition.clone(), broker.clone())
            .prop_map(|(partition, member)| Step::StaleIsr { partition, member }),
        6 => broker.clone().prop_map(move |id| command(format!("beat {id}"))),
        4 => broker.clone().prop_map(move |id| command(format!("fence {id}"))),
        1 => (broker.clone(), broker.clone()).prop_map(move |(one, two)| command(format!("fence {one} {two}"))),
        1 => broker.clone().prop_map(move |id| command(format!("fence {id} epoch=0"))),
        3 => broker.clone().prop_map(move |id| command(format!("beat {id} stop"))),
        1 => broker.clone().prop_map(move |id| command(format!("beat {id} fence"))),
        4 => broker.clone().prop_map(move |id| command(format!("register {id} clean"))),
        3 => broker.clone().prop_map(|broker| Step::Kill { broker }),
        3 => (partition.clone(), replicas).prop_map(move |(partition, replicas)| {
            let replicas: Vec<String> = replicas.iter().map(i32::to_string).collect();
            command(format!("reassign t-{partition} {}", replicas.join(",")))
        }),
        1 => partition.clone().prop_map(move |partition| command(format!("reassign t-{partition} cancel"))),
        2 => partition.clone().prop_map(move |partition| command(format!("elect preferred t-{partition}"))),
        1 => partition.prop_map(move |partition| command(format!("elect unclean t-{partition}"))),
        1 => Just(command("rebalance".to_owned())),
        2 => (1..=3).prop_map(move |count| command(format!("config t min.insync.replicas={count}"))),
        1 => any::<bool>().prop_map(move |on| command(format!("config t unclean.leader.election.enable={on}"))),
        1 => prop_oneof![
            1 => Just(command("feature eligible.leader.replicas.version 0 lower".to_owned())),
            3 => Just(command("feature eligible.leader.replicas.version 1".to_owned())),
        ],
    ]
}

/// What is in the logs of a partition, as the number of records from the first on.
#[derive(Default)]
struct Data {
    acknowledged: u64,
    held: BTreeMap<NodeId, u64>,
}

struct World {
    stage: Stage,
    data: Vec<Data>,
    /// How many records were lost because somebody allowed it.
    lost: u64,
    elections: u64,
}

impl World {
    fn new(bug: Option<PlantedBug>) -> World {
        let mut stage = Stage::new();
        stage.planted.bug = bug;
        for line in ["start 1 2 3 4", "create t 1:2:3,2:3:4,3:1:4 min.insync.replicas=2"] {
            stage.run(line);
        }
        let data = (0..PARTITIONS).map(|_| Data::default()).collect();
        World { stage, data, lost: 0, elections: 0 }
    }

    fn partition(&self, index: i32) -> PartitionState {
        partition(&self.stage.image, index)
    }

    fn walk(&mut self, step: &Step) -> Result<(), String> {
        let before = self.stage.image.clone();
        match step {
            Step::Do(line) => drop(self.stage.attempt(line)?),
            Step::Write { partition } => self.write(*partition),
            Step::ProposeIsr { partition, mask } => self.propose(*partition, *mask)?,
            Step::StaleIsr { partition, member } => self.propose_stale(*partition, *member)?,
            Step::Kill { broker } => {
                // Without eligible leaders the last member of an ISR is trusted whatever became of it, as in Kafka:
                // then nothing is lost here.
                if before.feature("eligible.leader.replicas.version") > 0 {
                    for data in &mut self.data {
                        data.held.insert(NodeId(*broker), 0);
                    }
                }
                self.stage.attempt(&format!("register {broker} unclean"))?;
            }
        }
        (0..PARTITIONS).try_for_each(|index| self.judge(&before, index, step))
    }

    fn write(&mut self, index: i32) {
        let state = self.partition(index);
        let own = self.stage.image.topic_config("t");
        let cluster = self.stage.image.config_of(&ConfigResource::Broker(None));
        let key = "min.insync.replicas";
        let needed =
            own.get(key).or_else(|| cluster.get(key)).map_or(1, |text| text.parse().expect("a number"));
        if state.leader.is_none() || state.isr.len() < state.replicas.len().min(needed) {
            return;
        }
        let data = &mut self.data[index as usize];
        data.acknowledged += 1;
        for id in state.isr {
            data.held.insert(id, data.acknowledged);
        }
    }

    fn propose(&mut self, index: i32, mask: u8) -> Result<(), String> {
        let state = self.partition(index);
        let Some(leader) = state.leader else { return Ok(()) };
        let is_meant = |id: &NodeId| *id == leader || mask & (1 << id.0) != 0;
        let isr: Vec<String> =
            state.replicas.iter().filter(|id| is_meant(id)).map(|id| id.to_string()).collect();
        self.stage.attempt(&format!("isr t-{index} {}", isr.join(",")))?;
        let data = &mut self.data[index as usize];
        let all = data.held.get(&leader).copied().unwrap_or(0);
        for id in partition(&self.stage.image, index).isr {
            data.held.insert(id, all);
        }
        Ok(())
    }

    fn propose_stale(&mut self, index: i32, member: i32) -> Result<(), String> {
        let state = self.partition(index);
        let member = NodeId(member);
        if state.isr.contains(&member) || state.leader.is_none() || !state.replicas.contains(&member) {
            return Ok(());
        }
        let isr: Vec<String> = state.isr.iter().chain([&member]).map(|id| id.to_string()).collect();
        self.stage.attempt(&format!("isr t-{index} {} stale={member}", isr.join(",")))?;
        Ok(())
    }

    /// Whether a new leader has what was acknowledged.
    fn judge(&mut self, before: &Image, index: i32, step: &Step) -> Result<(), String> {
        let (was, state) = (partition(before, index), self.partition(index));
        let allows = |image: &Image| {
            image.topic_config("t").get("unclean.leader.election.enable").is_some_and(|value| value == "true")
        };
        let allows_unclean = allows(before) || allows(&self.stage.image);
        // One step may elect somebody and fence it too. And when eligible leaders go out of use, the last leader is
        // trusted, of whom nothing better is known.
        let is_known = |id: &&NodeId| was.isr.contains(id) || was.eligible_leaders.contains(id);
        let is_retired = was.isr.is_empty() && was.eligible_leaders.is_empty();
        if state.leader.is_none() && (allows_unclean || is_retired) {
            let data = &mut self.data[index as usize];
            for trusted in state.isr.iter().chain(&state.eligible_leaders).filter(|id| !is_known(id)) {
                data.acknowledged = data.acknowledged.min(data.held.get(trusted).copied().unwrap_or(0));
            }
        }
        let Some(leader) = state.leader.filter(|_| state.leader_epoch != was.leader_epoch) else {
            return Ok(());
        };
        self.elections += 1;
        let data = &mut self.data[index as usize];
        let held = data.held.get(&leader).copied().unwrap_or(0);
        let missing = data.acknowledged.saturating_sub(held);
        let is_asked = matches!(step, Step::Do(line) if line.starts_with("elect unclean"));
        let is_killed = |id: &NodeId| matches!(step, Step::Kill { broker } if *broker == id.0);
        let is_last =
            was.last_known_eligible_leaders == [leader] && was.eligible_leaders.iter().all(is_killed);
        if missing > 0 && !is_asked && !is_last && !allows_unclean {
            return Err(format!(
                "{missing} acknowledged record(s) are lost: t-{index} {was:?} became {state:?}"
            ));
        }
        self.lost += missing;
        data.acknowledged = data.acknowledged.min(held);
        for other in data.held.values_mut() {
            *other = held.min(*other);
        }
        Ok(())
    }
}

fn partition(image: &Image, index: i32) -> PartitionState {
    image.topic_by_name("t").and_then(|topic| topic.partition(index)).expect("a partition").clone()
}

fn walk(steps: &[Step], bug: Option<PlantedBug>) -> Result<World, String> {
    let mut world = World::new(bug);
    for (number, step) in steps.iter().enumerate() {
        world.walk(step).map_err(|wrong| format!("step {number}, {step:?}: {wrong}"))?;
    }
    Ok(world)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    proptest::collection::vec(step(), 1..120)
}

proptest! {
    #![proptest_config(Config { cases: 300, failure_persistence: None, ..Config::default() })]

    #[test]
    fn no_election_loses_what_was_acknowledged(steps in steps()) {
        if let Err(wrong) = walk(&steps, None) {
            prop_assert!(false, "{wrong}");
        }
    }
}

/// Walks from fixed seeds until one of them finds something wrong.
fn find(bug: PlantedBug) -> Option<String> {
    (0..2000_u32).find_map(|seed| walk(&seeded(seed), Some(bug)).err())
}

fn seeded(seed: u32) -> Vec<Step> {
    let mut bytes = [0; 32];
    bytes[..4].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    steps().new_tree(&mut runner).expect("steps").current()
}

/// A check that never fails proves nothing: each of these mistakes must be found, and by the check that is meant.
#[test]
fn planted_mistakes_are_found() {
    for (bug, finding) in [
        (PlantedBug::ElectFenced, "the leader is fenced"),
        (PlantedBug::ElectOutsideIsr, "the leader is not in the ISR"),
        (PlantedBug::KeepUncleanEligible, "still counts as one that has everything"),
        (PlantedBug::AcceptStaleBrokerEpoch, "acknowledged record(s) are lost"),
    ] {
        let found = find(bug).unwrap_or_else(|| panic!("nobody notices {bug:?}"));
        assert!(found.contains(finding), "{bug:?}: {found}");
    }
}

/// What the walk does is worth its name: leaders change, and losses that are allowed do happen.
#[test]
fn the_walk_elects_and_loses() {
    let worlds: Vec<World> = (0..100).map(|seed| walk(&seeded(seed), None).expect("all is well")).collect();
    let elections: u64 = worlds.iter().map(|world| world.elections).sum();
    let lost: u64 = worlds.iter().map(|world| world.lost).sum();
    assert!(elections > 500 && lost > 20, "{elections} elections lost {lost} records");
}
