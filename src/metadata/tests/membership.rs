//! Who belongs to the quorum: a node that lost its disk is another member and never votes in the name of the lost
//! one; nodes join, move and leave; and what was set up wrong is refused with words.

#[allow(dead_code, reason = "each test uses a part of it")]
mod joining;
mod wires;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use klamm_io::{Clock, Disk, SystemClock};
use klamm_metadata::{
    InitialVoters, MetadataNode, QuorumState, ReplicaKey, VoterChange, VoterChangeError, format,
};
use klamm_model::{ErrorCode, NodeId, Uuid};
use klamm_protocol::messages::create_topics::{CreatableTopic, CreatableTopicResult, CreateTopicsRequest};
use klamm_testing::SeededRandom;

use wires::{
    LIMIT, Machine, Wires, described, host, key, leader_of, patient, register_by_whoever_leads, three,
    wait_for,
};

/// A start after which nobody stands for election by itself for a minute.
fn start_patiently(machine: &Machine) -> Arc<MetadataNode> {
    machine.start_with(patient(machine)).unwrap()
}

/// As [`three`], with machines on which the leadership does not move by itself.
async fn patient_three() -> (Vec<Machine>, Vec<Arc<MetadataNode>>) {
    let wires = Wires::default();
    let machines: Vec<Machine> = (1..=3).map(|id| Machine::new(id, &[1, 2, 3], &wires)).collect();
    let nodes: Vec<_> = machines.iter().map(start_patiently).collect();
    for node in &nodes {
        wait_for(node, "a controller", |image| image.controller.is_some()).await;
    }
    (machines, nodes)
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
    // A client would try again without a word after NOT_CONTROLLER.
    let topic = CreatableTopic { name: "new".to_owned(), num_partitions: 1, ..Default::default() };
    let request = CreateTopicsRequest { topics: vec![topic], ..Default::default() };
    let answer = third.within(LIMIT).telling_why().create_topics(request).await;
    let CreatableTopicResult { error_code, error_message, .. } = &answer.topics[0];
    assert_eq!((*error_code, error_message.as_ref()), (ErrorCode::RequestTimedOut.code(), Some(&why)));
}

/// A leader that lost its majority goes on sending to who is left. Those must say what it says: nothing can be decided.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_still_hears_a_leader_without_a_majority_says_that_there_is_none() {
    let wires = Wires::default();
    let voters = [1, 2, 3, 4, 5];
    let machines: Vec<Machine> = voters.iter().map(|id| Machine::new(*id, &voters, &wires)).collect();
    let nodes: Vec<_> = machines.iter().map(Machine::start).collect();
    let observer = Machine { servers: (1..=5).map(host).collect(), ..Machine::new(6, &[], &wires) }.start();
    for node in nodes.iter().chain([&observer]) {
        wait_for(node, "a controller", |image| image.controller.is_some()).await;
    }
    let leads = leader(&nodes).await;
    let (leading, following): (Vec<usize>, Vec<usize>) = (0..5).partition(|it| nodes[*it].id() == leads);
    following[..3].iter().for_each(|dead| machines[*dead].end(&nodes[*dead]));
    let left = [&nodes[leading[0]], &nodes[following[3]], &observer];
    for node in left {
        let told = async {
            while node.lost_majority().is_none() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let told = tokio::time::timeout(LIMIT, told).await;
        told.unwrap_or_else(|_| panic!("node {}, where {leads} leads, says nothing", node.id()));
        let why = node.lost_majority().unwrap();
        assert!(why.contains("2 of 5 voters are there, 3 are needed"), "node {}: {why}", node.id());
        assert_eq!(node.image().controller, None, "node {}", node.id());
    }
    let back = machines[following[0]].start();
    for node in left.into_iter().chain([&back]) {
        wait_for(node, "a controller again", |image| image.controller.is_some()).await;
    }
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
    assert_eq!(error.matches("does not become a member").count(), 1, "{error}");
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
    // Kafka's tool reads here whom it is to add.
    let file = reader.disk.read("/klamm-metadata/meta.properties".as_ref()).unwrap();
    let cluster_id = nodes[0].image().cluster_id.clone();
    let wanted = format!("\nversion=1\ncluster.id={cluster_id}\nnode.id=4\ndirectory.id={}\n", Uuid([4; 16]));
    assert!(String::from_utf8(file).unwrap().ends_with(&wanted));
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
    let moved = change(VoterChange::Move(key(4, 4), (host(3), 9093))).await;
    assert!(matches!(&moved, Err(VoterChangeError::Invalid(why)) if why.contains("host3:9093")), "{moved:?}");
    let moved = change(VoterChange::Move(key(4, 4), ("nowhere".to_owned(), 9093))).await;
    assert!(
        matches!(&moved, Err(VoterChangeError::TimedOut(why)) if why.contains("nowhere:9093")),
        "{moved:?}"
    );
    let again = change(VoterChange::Add(key(4, 4), address)).await;
    assert_eq!(again, Err(VoterChangeError::Duplicate(key(4, 4))));

    assert_eq!(change(VoterChange::Remove(key(4, 9))).await, Err(VoterChangeError::NotFound(key(4, 9))));
    assert_eq!(change(VoterChange::Remove(key(4, 4))).await, Ok(()));
    described(&nodes, "an observer again", |state| state.voters.len() == 3 && state.observers.len() == 1)
        .await;
}

/// A node of another cluster would never have the log: it is refused, and leaves nothing behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_another_cluster_becomes_no_voter() {
    let (machines, nodes) = three().await;
    let stranger = Machine::new(7, &[7], &machines[0].wires);
    stranger.start().joined().await.unwrap();
    let add = VoterChange::Add(key(7, 7), (host(7), 9093));
    let told = async {
        loop {
            match leader_of(&nodes).change_voters(add.clone(), LIMIT).await {
                Err(VoterChangeError::NotLeader) => tokio::time::sleep(Duration::from_millis(50)).await,
                decided => return decided,
            }
        }
    };
    let refused = tokio::time::timeout(LIMIT, told).await.expect("somebody leads");
    let theirs = stranger.cluster_id.lock().unwrap().clone().unwrap();
    let why = format!("node 7 at host7:9093 belongs to cluster {theirs}");
    assert!(matches!(&refused, Err(VoterChangeError::Invalid(told)) if told.contains(&why)), "{refused:?}");
    let state = described(&nodes, "the voters", |_| true).await;
    assert_eq!((state.voters.len(), state.observers.len()), (3, 0));
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

/// A quorum grows with the list and never shrinks with it: who had made it shorter thought that fewer deaths would count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn voters_that_the_list_does_not_name_are_told() {
    let (machines, nodes) = three().await;
    assert_eq!(nodes[0].unlisted_voters(), None);
    machines.iter().zip(&nodes).for_each(|(machine, node)| machine.end(node));
    let shorter = machines[..2].iter().map(|machine| Machine { voters: vec![1, 2], ..machine.clone() });
    for node in &shorter.map(|machine| machine.start()).collect::<Vec<_>>() {
        wait_for(node, "a controller", |image| image.controller.is_some()).await;
        // The image may be that of the last stop, before the quorum has said who is in it.
        let told = async {
            loop {
                match node.unlisted_voters() {
                    Some(told) => return told,
                    None => tokio::time::sleep(Duration::from_millis(10)).await,
                }
            }
        };
        let told = tokio::time::timeout(LIMIT, told).await.expect("it is told");
        assert!(told.starts_with("voter 3 is in the quorum and not in controller.quorum.voters"), "{told}");
    }
}

/// Who knows that the leader is dead need not wait until its time is over, which is a minute here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_leader_is_replaced_at_once_by_those_who_know() {
    let (machines, nodes) = patient_three().await;
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

/// Two majorities are needed while the voters change. That must end, although nobody waits for it any more, and also
/// when the leader that began it dies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_voters_that_was_begun_is_finished() {
    for dies in [false, true] {
        let (machines, mut nodes) = patient_three().await;
        let leader = leader(&nodes).await;
        let at = nodes.iter().position(|node| node.id() == leader).unwrap();
        let others = [(at + 1) % 3, (at + 2) % 3];
        others.iter().for_each(|other| machines[*other].cut());
        let removed = key(machines[others[0]].id, machines[others[0]].directory);
        let change = VoterChange::Remove(removed);
        let late = nodes[at].change_voters(change, Duration::from_millis(500)).await;
        assert!(matches!(late, Err(VoterChangeError::TimedOut(_))), "{late:?}");
        if dies {
            machines[at].end(&nodes[at]);
            nodes[at] = start_patiently(&machines[at]);
        }
        others.iter().for_each(|other| machines[*other].mend(&nodes[*other]));
        // In case it does not go on leading by itself.
        nodes[at].leader_died(NodeId(99));
        let state = described(&nodes, "two voters", |state| state.voters.len() == 2).await;
        assert!(!voters(&state).contains(&removed), "{state:?}");
    }
}

/// Two processes that vote as one could elect two leaders.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_a_directory_is_refused_while_the_original_runs() {
    let (machines, mut nodes) = patient_three().await;
    let at = nodes.iter().position(|node| !node.is_controller()).unwrap();
    // This one is to ask soon when it hears nothing more.
    machines[at].end(&nodes[at]);
    nodes[at] = machines[at].start();
    wait_for(&nodes[at], "a controller", |image| image.controller.is_some()).await;
    let original = &machines[at];
    let copy = Machine { host: "elsewhere".to_owned(), disk: original.copy_of_disk(), ..original.clone() };
    let start = |machine: &Machine| {
        let mut settings = machine.settings();
        settings.random = Arc::new(SeededRandom::new(77));
        machine.start_with(settings).unwrap()
    };
    let error = tokio::time::timeout(LIMIT, start(&copy).failure()).await.unwrap();
    assert!(error.contains(&format!("another process with node.id={} answers at", original.id)), "{error}");
    copy.cut();

    let servers = (1..=3).filter(|id| *id != original.id).map(host).collect();
    let copy = Machine { voters: Vec::new(), servers, disk: original.copy_of_disk(), ..copy };
    let error = tokio::time::timeout(LIMIT, start(&copy).failure()).await.unwrap();
    assert!(error.contains(&format!("node.id={} is taken", original.id)), "{error}");
    copy.cut();

    // Nobody knows better than that the original is gone; when it comes back, its place is taken.
    original.cut();
    let copy = Machine { disk: original.copy_of_disk(), ..copy };
    let moved = start(&copy);
    let all = [nodes.clone(), vec![moved.clone()]].concat();
    described(&all, "the copy in its place", |state| {
        state.addresses.get(&moved.id()).is_some_and(|(host, _)| host == "elsewhere")
    })
    .await;
    original.mend(&nodes[at]);
    let error = tokio::time::timeout(LIMIT, nodes[at].failure()).await.unwrap();
    assert!(error.contains(&format!("node.id={} is taken", original.id)), "{error}");
}

/// A voter whose directory was put back from a copy has lost what it had acknowledged: it must not vote, and the
/// leader must not fall over it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_voter_with_an_older_copy_of_its_directory_ends() {
    let (machines, nodes) = patient_three().await;
    let at = nodes.iter().position(|node| !node.is_controller()).unwrap();
    let older = machines[at].copy_of_disk();
    for broker in 11..14 {
        register_by_whoever_leads(&nodes.iter().collect::<Vec<_>>(), broker).await;
    }
    wait_for(&nodes[at], "the brokers", |image| image.brokers.len() == 3).await;
    machines[at].end(&nodes[at]);
    let restored = start_patiently(&Machine { disk: older, ..machines[at].clone() });
    let error = tokio::time::timeout(LIMIT, restored.failure()).await.unwrap();
    assert!(error.contains("start this node with an empty directory"), "{error}");
    let rest: Vec<_> = nodes.iter().filter(|node| node.id() != restored.id()).collect();
    register_by_whoever_leads(&rest, 14).await;
}

/// Three machines of a cluster whose quorum itself knows its voters.
fn formatted_three() -> Vec<Machine> {
    let wires = Wires::default();
    let machine = |id: i32| Machine {
        voters: Vec::new(),
        servers: (1..=3).map(host).collect(),
        cluster_id: Arc::new(Mutex::new(Some("formatted".to_owned()))),
        ..Machine::new(id, &[], &wires)
    };
    let voters: BTreeMap<_, _> = (1..=3).map(|id| (key(id, id as u8), (host(id), 9093))).collect();
    let machines: Vec<Machine> = (1..=3).map(machine).collect();
    for machine in &machines {
        let voters = InitialVoters::All(voters.clone());
        format(&machine.disk, Path::new("/klamm-metadata"), voters).unwrap();
    }
    machines
}

/// A leader whose vote a command takes asks the others to take it in as one that only reads, and not itself, for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_removed_goes_on_as_an_observer() {
    let machines = formatted_three();
    let nodes: Vec<_> = machines.iter().map(Machine::start).collect();
    let mut leader = described(&nodes, "three voters", |state| state.voters.len() == 3).await.leader;
    loop {
        let at = nodes.iter().position(|node| node.id() == leader.id).unwrap();
        let removed = nodes[at].change_voters(VoterChange::Remove(leader), LIMIT).await;
        let state = described(&nodes, "a leader", |_| true).await;
        // On a busy machine the leadership may have moved, before or after.
        if removed != Err(VoterChangeError::NotLeader) || state.voters.len() == 2 {
            assert_eq!(nodes[at].describe_quorum().await, None, "it has no vote any more");
            wait_for(&nodes[at], "another controller", |image| {
                image.controller.is_some_and(|it| it != leader.id)
            })
            .await;
            break;
        }
        leader = state.leader;
    }
    described(&nodes, "two voters and an observer", |after| {
        after.leader != leader
            && after.voters.len() == 2
            && after.observers.iter().any(|observer| observer.key == leader)
    })
    .await;
    register_by_whoever_leads(&nodes.iter().collect::<Vec<_>>(), 11).await;
    for node in &nodes {
        wait_for(node, "the broker", |image| image.brokers.contains_key(&NodeId(11))).await;
    }
}

/// Nodes are upgraded one after another: at each step those that know a later version of the messages speak the earlier one
/// with the others, and those that were upgraded read the files that they had before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_and_new_nodes_form_one_cluster() {
    let wires = Wires::default();
    let machines: Vec<Machine> = (1..=3).map(|id| Machine::new(id, &[1, 2, 3], &wires)).collect();
    let mut nodes = vec![machines[0].start_raised(1), machines[1].start(), machines[2].start()];
    for (step, index) in [(11, 1), (12, 2)] {
        register_by_whoever_leads(&nodes.iter().collect::<Vec<_>>(), step).await;
        for node in &nodes {
            wait_for(node, "the broker", |image| image.brokers.contains_key(&NodeId(step))).await;
        }
        machines[index].end(&nodes[index]);
        nodes[index] = machines[index].start_raised(1);
    }
    register_by_whoever_leads(&nodes.iter().collect::<Vec<_>>(), 20).await;
    for node in &nodes {
        wait_for(node, "the last broker", |image| image.brokers.contains_key(&NodeId(20))).await;
    }
}

/// A node that is to be upgraded last was away for so long that it gets a snapshot, and those who have one are new.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_node_takes_the_snapshot_of_a_new_one() {
    let wires = Wires::default();
    let machines: Vec<Machine> = (1..=3).map(|id| Machine::new(id, &[1, 2, 3], &wires)).collect();
    let mut nodes = vec![machines[0].start_raised(1), machines[1].start_raised(1), machines[2].start()];
    for node in &nodes {
        wait_for(node, "a controller", |image| image.controller.is_some()).await;
    }
    let version = |at: usize, file: &str| {
        let path = Path::new("/klamm-metadata").join(file);
        machines[at].disk.read(&path).ok().map(|content| content[11])
    };
    machines[2].end(&nodes[2]);
    // The others purge what they have in a snapshot when it suits them: the log's header says up to where.
    let is_purged = |at: &usize| {
        let log = machines[*at].disk.read(Path::new("/klamm-metadata/log")).unwrap();
        log[15] == 1 && log[24..32] > 15u64.to_be_bytes()[..]
    };
    let mut count = 0;
    while ![0, 1].iter().all(is_purged) {
        assert!(count < 200, "nothing is purged");
        register_by_whoever_leads(&nodes[..2].iter().collect::<Vec<_>>(), 11 + count).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        count += 1;
    }
    nodes[2] = machines[2].start();
    wait_for(&nodes[2], "all brokers", |image| image.brokers.len() == count as usize).await;
    assert_eq!(version(2, "snapshot"), Some(2));
    assert!([0, 1].iter().any(|at| version(*at, "snapshot") == Some(3)), "a new one sent it");
    assert_eq!([0, 1, 2].map(|at| version(at, "vote")), [3, 3, 2].map(Some));

    // It reads again what it took.
    machines[2].end(&nodes[2]);
    nodes[2] = machines[2].start();
    wait_for(&nodes[2], "all brokers again", |image| image.brokers.len() == count as usize).await;

    // There is no way back with files that the older version does not know, and it says so.
    machines[0].end(&nodes[0]);
    let error = machines[0].start_with(machines[0].settings()).err().map(|error| error.to_string());
    let error = error.unwrap_or_default();
    assert!(error.contains("its format is version 3, and this Klamm knows versions 2 to 2"), "{error}");
}
