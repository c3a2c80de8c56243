//! Members that are not where they were, and some that take nothing.

#[allow(dead_code, reason = "each test uses a part of it")]
mod joining;
mod wires;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use klamm_io::BoxFuture;
use klamm_metadata::{
    InitialVoters, PeerError, QuorumMessage, QuorumNetwork, Settings, VoterChange, VoterChangeError, format,
};
use klamm_model::{NodeId, Uuid};
use klamm_protocol::messages::UpdateRaftVoterRequest;

use wires::{
    LIMIT, Machine, Wires, described, host, key, leader_of, patient, register_by_whoever_leads, wait_for,
};

/// The leader that took it in has spoken to it at the old address before, and nobody else is elected meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_has_moved_hears_the_same_leader() {
    let wires = Wires::default();
    let machines: Vec<Machine> = (1..=3).map(|id| Machine::new(id, &[1, 2, 3], &wires)).collect();
    let mut nodes: Vec<_> =
        machines.iter().map(|machine| machine.start_with(patient(machine)).unwrap()).collect();
    for node in &nodes {
        wait_for(node, "a controller", |image| image.controller.is_some()).await;
    }
    let before = described(&nodes, "a leader", |_| true).await;
    let at = nodes.iter().position(|node| node.id() != before.leader.id).unwrap();
    machines[at].end(&nodes[at]);
    let moved = Machine { host: "elsewhere".to_owned(), ..machines[at].clone() };
    let mut settings = patient(&moved);
    // It soon asks to be taken in at its new address, but for an election it lacks the others' consent.
    settings.quorum.election_timeout_min = Duration::from_millis(500);
    settings.quorum.election_timeout_max = Duration::from_millis(1000);
    nodes[at] = moved.start_with(settings).unwrap();
    described(&nodes, "its new address", |state| {
        state.addresses.get(&nodes[at].id()).is_some_and(|(host, _)| host == "elsewhere")
    })
    .await;
    let rest: Vec<_> = nodes.iter().filter(|node| node.id() != NodeId(moved.id)).collect();
    register_by_whoever_leads(&rest, 11).await;
    wait_for(&nodes[at], "the broker", |image| image.brokers.contains_key(&NodeId(11))).await;
    let after = described(&nodes, "the leader", |_| true).await;
    assert_eq!((after.leader, after.leader_epoch), (before.leader, before.leader_epoch));
}

/// As observed on Kafka 4.4.0: the cluster comes first, then the epoch, then the voter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_update_of_a_voter_is_for_the_leader_of_one_epoch() {
    let wires = Wires::default();
    let machine = Machine::new(1, &[1], &wires);
    let nodes = [machine.start()];
    let epoch = described(&nodes, "a leader", |_| true).await.leader_epoch;
    for (cluster_id, current_leader_epoch, voter_id, code) in [
        (Some("no-such".to_owned()), epoch - 1, 1, 104),
        (None, epoch - 1, -1, 74),
        (None, epoch + 1, -1, 75),
        (None, epoch, -1, 42),
    ] {
        let request = UpdateRaftVoterRequest {
            cluster_id,
            current_leader_epoch,
            voter_id,
            voter_directory_id: Uuid([1; 16]),
            ..Default::default()
        };
        let answer = leader_of(&nodes).within(LIMIT).update_raft_voter(request).await;
        assert_eq!(answer.error_code, code);
        assert_eq!((answer.current_leader.leader_id, answer.current_leader.leader_epoch), (1, epoch));
    }
}

/// Who asks for a voter that does not take the log in time has changed nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_voter_that_cannot_be_added_leaves_nothing_behind() {
    let wires = Wires::default();
    let network = Arc::new(WithoutLog { wires: wires.clone(), to: host(4) });
    let machines: Vec<Machine> = (1..=3).map(|id| Machine::new(id, &[1, 2, 3], &wires)).collect();
    let start = |machine: &Machine| {
        machine.start_with(Settings { network: network.clone(), ..patient(machine) }).unwrap()
    };
    let nodes: Vec<_> = machines.iter().map(start).collect();
    for node in &nodes {
        wait_for(node, "a controller", |image| image.controller.is_some()).await;
    }
    // It belongs to the cluster and does not know whom to ask.
    let added = Machine { servers: vec!["nowhere".to_owned()], ..Machine::new(4, &[], &wires) };
    *added.cluster_id.lock().unwrap() = Some(nodes[0].image().cluster_id.clone());
    format(&added.disk, "/klamm-metadata".as_ref(), InitialVoters::Unknown).unwrap();
    let node = added.start();
    let add = VoterChange::Add(key(4, 4), (host(4), 9093));
    let late = leader_of(&nodes).change_voters(add, Duration::from_secs(2)).await;
    assert!(matches!(late, Err(VoterChangeError::TimedOut(_))), "{late:?}");
    described(&nodes, "no observer", |state| state.voters.len() == 3 && state.observers.is_empty()).await;
    added.end(&node);
}

/// One that only reads and is gone without a registered broker is forgotten, and one that is there is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_observer_that_is_gone_is_forgotten() {
    let wires = Wires::default();
    let machines: Vec<Machine> = (1..=5)
        .map(|id| match id {
            1..=3 => Machine::new(id, &[1, 2, 3], &wires),
            _ => Machine { servers: (1..=3).map(host).collect(), ..Machine::new(id, &[], &wires) },
        })
        .collect();
    let nodes: Vec<_> = machines.iter().map(Machine::start).collect();
    described(&nodes, "two observers", |state| state.observers.len() == 2).await;
    machines[4].end(&nodes[4]);
    let state = described(&nodes, "one observer", |state| state.observers.len() == 1).await;
    assert_eq!(state.observers[0].key, key(4, 4));
    let other = described(&nodes, "another", |state| !state.observers.iter().any(|it| it.key == key(4, 4)));
    assert!(tokio::time::timeout(Duration::from_secs(6), other).await.is_err(), "it is there");
}

/// The wires, on which nothing of the log comes to one host.
struct WithoutLog {
    wires: Wires,
    to: String,
}

impl QuorumNetwork for WithoutLog {
    fn call(
        &self,
        target: NodeId,
        address: (String, u16),
        message: QuorumMessage,
    ) -> BoxFuture<'_, Result<Bytes, PeerError>> {
        let is_log = ["Append", "Snapshot"].iter().any(|kind| {
            let kind = std::format!("{{\"{kind}\":");
            message.0.windows(kind.len()).any(|found| found == kind.as_bytes())
        });
        if address.0 == self.to && is_log {
            return Box::pin(async move { Err(PeerError::Unreachable(target, "it is deaf".to_owned())) });
        }
        self.wires.call(target, address, message)
    }
}
