//! Who belongs to the quorum: a node that lost its disk is another member and never votes in the name of the lost
//! one; nodes join, move and leave; and what was set up wrong is refused with words.

#[allow(dead_code, reason = "each test uses a part of it")]
mod joining;
mod wires;

use std::sync::Arc;
use std::time::Duration;

use klamm_io::{Clock, Disk, SystemClock};
use klamm_metadata::{MetadataNode, QuorumState, ReplicaKey, VoterChange, VoterChangeError};
use klamm_model::{NodeId, Uuid};

use wires::{Machine, Wires, host, leader_of, register_by_whoever_leads, wait_for};

const LIMIT: Duration = Duration::from_secs(20);

fn key(id: i32, directory: u8) -> ReplicaKey {
    ReplicaKey::new(NodeId(id), Uuid([directory; 16]))
}

/// Three machines with a cluster on them that has a leader.
async fn three() -> (Vec<Machine>, Vec<Arc<MetadataNode>>) {
    let wires = Wires::default();
    let machines: Vec<Machine> = (1..=3).map(|id| Machine::new(id, &[1, 2, 3], &wires)).collect();
    let nodes: Vec<_> = machines.iter().map(Machine::start).collect();
    for node in &nodes {
        wait_for(node, "a controller", |image| image.controller.is_some()).await;
    }
    (machines, nodes)
}

/// Waits until whoever leads describes the quorum as wanted, and returns it.
async fn described(
    nodes: &[Arc<MetadataNode>],
    what: &str,
    wanted: impl Fn(&QuorumState) -> bool,
) -> QuorumState {
    let found = async {
        loop {
            for node in nodes {
                if let Some(state) = node.describe_quorum().await.filter(|state| wanted(state)) {
                    return state;
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LIMIT, found).await.unwrap_or_else(|_| panic!("waiting for {what}"))
}

fn voters(state: &QuorumState) -> Vec<ReplicaKey> {
    state.voters.iter().map(|voter| voter.key).collect()
}

/// The leader that the nodes agree on.
async fn leader(nodes: &[Arc<MetadataNode>]) -> NodeId {
    described(nodes, "a leader", |_| true).await.leader.id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_lost_its_disk_is_voted_in_as_another_member() {
    let (machines, mut nodes) = three().await;
    register_by_whoever_leads(&nodes.iter().collect::<Vec<_>>(), 11).await;
    let lost = (0..3).find(|index| !nodes[*index].is_controller()).unwrap();
    machines[lost].end(&nodes[lost]);
    let replaced = machines[lost].with_new_disk();
    nodes[lost] = replaced.start();
    nodes[lost].joined().await.unwrap();
    let new = key(replaced.id, replaced.directory);
    described(&nodes, "the new directory to vote in place of the lost one", |state| {
        voters(state).contains(&new) && state.voters.len() == 3 && state.observers.is_empty()
    })
    .await;
    wait_for(&nodes[lost], "the broker", |image| image.brokers.contains_key(&NodeId(11))).await;
    assert_eq!(nodes[lost].image().cluster_id, nodes[(lost + 1) % 3].image().cluster_id);
}

/// A process that stood still, and in whose place another one votes by now, ends when it goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_whose_place_was_taken_ends() {
    let (machines, nodes) = three().await;
    let index = (0..3).find(|index| !nodes[*index].is_controller()).unwrap();
    // The new one is found at the address from now on, and the old one hears nothing more.
    let replaced = machines[index].with_new_disk();
    let new = replaced.start();
    new.joined().await.unwrap();
    let why = tokio::time::timeout(LIMIT, nodes[index].failure()).await.expect("it ends");
    assert!(why.contains("give each node an id and an address of its own"), "{why}");
}

/// Two of three that start with empty disks must not form a majority of a cluster that the third remembers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_lost_disks_elect_nobody() {
    let (machines, nodes) = three().await;
    register_by_whoever_leads(&nodes.iter().collect::<Vec<_>>(), 11).await;
    let cluster_id = nodes[0].image().cluster_id.clone();
    for (machine, node) in machines.iter().zip(&nodes) {
        machine.end(node);
    }
    let fresh = [machines[1].with_new_disk().start(), machines[2].with_new_disk().start()];
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(fresh.iter().all(|node| node.image().cluster_id.is_empty()), "formed without the third");
    let third = machines[0].start();
    for node in &fresh {
        wait_for(node, "the cluster", |image| image.cluster_id == cluster_id).await;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    for node in fresh.iter().chain([&third]) {
        assert_eq!(node.image().controller, None, "node {} follows a leader that has no majority", node.id());
    }
    let told = async {
        while third.lost_majority().is_none() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(LIMIT, told).await.expect("it says that there is no majority");
    let why = third.lost_majority().unwrap();
    assert!(why.contains("1 of 3 voters are there, 2 are needed"), "{why}");
    assert!(
        why.contains("node 2 with directory AgICAgICAgICAgICAgICAg at host2:9093 (node 2 with directory"),
        "{why}"
    );
}

/// A directory whose metadata is gone may have voted. It must not begin anew under the same id.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_without_its_metadata_is_refused() {
    let (machines, nodes) = three().await;
    machines[1].end(&nodes[1]);
    machines[1].disk.remove_dir_all("/klamm-metadata".as_ref()).unwrap();
    let error = machines[1].start_with(machines[1].settings()).err().unwrap().to_string();
    assert!(
        error.contains("/klamm-metadata") && error.contains("start it with an empty directory"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_process_with_the_same_id_is_refused() {
    let (machines, nodes) = three().await;
    leader(&nodes).await;
    let twin = Machine { host: "elsewhere".to_owned(), ..machines[1].with_new_disk() };
    let node = twin.start();
    let error = node.joined().await.unwrap_err().to_string();
    assert!(error.contains("another process with node.id=2 answers at host2:9093"), "{error}");
    let observer = Machine { voters: Vec::new(), servers: vec![host(1), host(3)], ..twin.with_new_disk() };
    let node = observer.start();
    let error = tokio::time::timeout(LIMIT, node.failure()).await.unwrap();
    assert!(error.contains("node.id=2 is taken: a process with directory AgICAgI"), "{error}");
    assert_eq!(voters(&described(&nodes, "the voters", |_| true).await).len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn voters_that_disagree_are_refused() {
    let (machines, nodes) = three().await;
    leader(&nodes).await;
    let other_list = Machine { voters: vec![1, 2, 4], ..Machine::new(4, &[], &machines[0].wires) };
    let error = other_list.start().joined().await.unwrap_err().to_string();
    assert!(error.contains("names nodes [1, 2, 4] at node 4, and nodes [1, 2, 3] at node 1"), "{error}");
}

/// A node of another cluster at a voter's address gets nothing and says nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_another_cluster_is_not_heard() {
    let (machines, nodes) = three().await;
    leader(&nodes).await;
    let machine = Machine::new(4, &[4], &machines[0].wires);
    let node = machine.start();
    node.joined().await.unwrap();
    machine.end(&node);
    let other = machine.cluster_id.lock().unwrap().clone().unwrap();
    let moved = Machine { voters: vec![1, 2, 3], ..machine };
    let error = tokio::time::timeout(LIMIT, moved.start().failure()).await.unwrap();
    let ours = nodes[0].image().cluster_id.clone();
    let told = format!(
        "node 1 at host1:9093 belongs to cluster {ours}, and the directory of this node to cluster {other}"
    );
    assert!(error.contains(&told), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_node_grows_to_three() {
    let wires = Wires::default();
    let alone = Machine::new(1, &[1], &wires);
    let node = alone.start();
    node.joined().await.unwrap();
    register_by_whoever_leads(&[&node], 11).await;
    alone.end(&node);
    let machines: Vec<Machine> = (1..=3)
        .map(|id| if id == 1 { alone.clone() } else { Machine::new(id, &[], &wires) })
        .map(|machine| Machine { voters: vec![1, 2, 3], ..machine })
        .collect();
    let nodes: Vec<_> = machines.iter().map(Machine::start).collect();
    described(&nodes, "three voters", |state| state.voters.len() == 3).await;
    machines[0].end(&nodes[0]);
    register_by_whoever_leads(&[&nodes[1], &nodes[2]], 12).await;
    wait_for(&nodes[1], "the first broker", |image| image.brokers.contains_key(&NodeId(11))).await;
}

/// A node that only reads becomes a voter and stops being one, by commands.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn voters_are_added_and_removed_by_commands() {
    let (machines, mut nodes) = three().await;
    let reader =
        Machine { servers: vec![host(1), host(2), host(3)], ..Machine::new(4, &[], &machines[0].wires) };
    nodes.push(reader.start());
    let state = described(&nodes, "an observer", |state| state.observers.len() == 1).await;
    assert_eq!((state.voters.len(), state.observers[0].key), (3, key(4, 4)));
    // On a busy machine the leadership may move at any time.
    let change = async |change: VoterChange| {
        for _ in 0..100 {
            match leader_of(&nodes).change_voters(change.clone(), LIMIT).await {
                Err(VoterChangeError::NotLeader) => tokio::time::sleep(Duration::from_millis(50)).await,
                decided => return decided,
            }
        }
        panic!("nobody leads")
    };

    let wrong = change(VoterChange::Add(key(4, 5), (host(4), 9093))).await;
    assert!(matches!(&wrong, Err(VoterChangeError::Invalid(why)) if why.contains("host4:9093")), "{wrong:?}");
    let address = (host(4), 9093);
    assert_eq!(change(VoterChange::Add(key(4, 4), address.clone())).await, Ok(()));
    let state = described(&nodes, "four voters", |state| state.voters.len() == 4).await;
    assert_eq!((state.observers, state.addresses[&NodeId(4)].clone()), (vec![], address.clone()));
    let again = change(VoterChange::Add(key(4, 4), address)).await;
    assert_eq!(again, Err(VoterChangeError::Duplicate(key(4, 4))));

    assert_eq!(change(VoterChange::Remove(key(4, 9))).await, Err(VoterChangeError::NotFound(key(4, 9))));
    assert_eq!(change(VoterChange::Remove(key(4, 4))).await, Ok(()));
    described(&nodes, "an observer again", |state| state.voters.len() == 3 && state.observers.len() == 1)
        .await;
}

/// A controlled stop must not cost an election time-out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_stops_hands_over() {
    let (_, nodes) = three().await;
    let old = leader(&nodes).await;
    let old_node = nodes.iter().find(|node| node.id() == old).unwrap();
    old_node.hand_over(LIMIT).await;
    for node in &nodes {
        wait_for(node, "another controller", |image| image.controller.is_some_and(|it| it != old)).await;
    }
    register_by_whoever_leads(&nodes.iter().collect::<Vec<_>>(), 13).await;
}

/// A leader with a majority must not seem lost to anybody only because nothing happens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_quorum_keeps_its_controller() {
    let (_, nodes) = three().await;
    leader(&nodes).await;
    let mut images: Vec<_> = nodes.iter().map(|node| node.watch()).collect();
    for images in &mut images {
        let lost = images.wait_for(|image| image.controller.is_none());
        let lost = tokio::time::timeout(Duration::from_secs(2), lost).await;
        assert!(lost.is_err(), "no controller for a moment");
    }
}

/// Who knows that the leader is dead need not wait until its time is over, which is a minute here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_leader_is_replaced_at_once_by_those_who_know() {
    let wires = Wires::default();
    let machines: Vec<Machine> = (1..=3).map(|id| Machine::new(id, &[1, 2, 3], &wires)).collect();
    let start = |machine: &Machine| {
        let mut settings = machine.settings();
        settings.quorum.election_timeout_min = Duration::from_secs(60);
        settings.quorum.election_timeout_max = Duration::from_secs(120);
        machine.start_with(settings).unwrap()
    };
    let nodes: Vec<_> = machines.iter().map(start).collect();
    for node in &nodes {
        wait_for(node, "a controller", |image| image.controller.is_some()).await;
    }
    let dead = leader(&nodes).await;
    let index = nodes.iter().position(|node| node.id() == dead).unwrap();
    machines[index].end(&nodes[index]);
    let rest: Vec<_> = nodes.iter().filter(|node| node.id() != dead).collect();
    let clock = SystemClock::new();
    let since = clock.monotonic();
    for node in &rest {
        node.leader_died(dead);
    }
    for node in &rest {
        wait_for(node, "another controller", |image| image.controller.is_some_and(|it| it != dead)).await;
    }
    assert!(clock.monotonic() - since < Duration::from_secs(30), "it was an election time-out");
    register_by_whoever_leads(&rest, 13).await;
}
