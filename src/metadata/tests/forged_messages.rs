//! What a node does with messages of the quorum that somebody else made up: nothing.

#[allow(dead_code, reason = "each test uses a part of it")]
mod joining;
mod wires;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Buf, Bytes};
use klamm_io::BoxFuture;
use klamm_metadata::{PeerError, QuorumMessage, QuorumNetwork, ReplicaKey, Settings};
use klamm_model::{NodeId, Uuid};

use wires::{
    LIMIT, Machine, Wires, described, key, leader_of, message, patient, register_by_whoever_leads, three,
    wait_for,
};

/// One frame with the last of all terms would be kept, spread, and leave no term for the next election.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_cannot_be_true_changes_nothing() {
    let (_, nodes) = three().await;
    described(&nodes, "a leader", |_| true).await;
    let cluster_id = nodes[0].image().cluster_id.clone();
    let append = |by: ReplicaKey, term: u64| {
        format!(
            r#"{{"Append":{{"vote":{{"leader_id":{{"term":{term},"voted_for":"{by}"}},"committed":true}},
            "prev_log_id":null,"leader_commit":null}}}}"#
        )
    };
    for (from, to, by, term, why) in [
        (key(5, 5), None, key(5, 5), u64::MAX, "must say whom it is meant for"),
        (key(5, 5), Some(key(1, 1)), key(5, 5), 9, "knows no member 5-"),
        (key(2, 2), Some(key(1, 1)), key(3, 3), 9, "speaks for node 3"),
        (key(2, 2), Some(key(1, 1)), key(2, 2), u64::MAX, "far beyond this node's"),
        (key(2, 2), Some(key(1, 1)), key(2, 2), 9, "another process with the directory of node 2"),
        (key(1, 1), Some(key(1, 1)), key(1, 1), 9, "the sender has a copy"),
    ] {
        let answer =
            nodes[0].answer_peer(message(&cluster_id, (from, 1), to, &append(by, term))).await.unwrap();
        let text = String::from_utf8_lossy(&answer).into_owned();
        assert!(text.contains(why), "{text}");
    }
    register_by_whoever_leads(&nodes.iter().collect::<Vec<_>>(), 11).await;
    let state = described(&nodes, "a leader", |_| true).await;
    assert!(state.leader_epoch < 1000, "{}", state.leader_epoch);
}

/// A node ends when its leader says that it lost entries. Nobody else may say so, nor somebody in the leader's name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loss_is_believed_only_of_the_leader() {
    let wires = Wires::default();
    let machines: Vec<Machine> = (1..=3).map(|id| Machine::new(id, &[1, 2, 3], &wires)).collect();
    let listened = Eavesdropper { wires, runs: Arc::default() };
    let start = |machine: &Machine| {
        let network = Arc::new(listened.clone());
        machine.start_with(Settings { network, ..patient(machine) }).unwrap()
    };
    let nodes: Vec<_> = machines.iter().map(start).collect();
    for node in &nodes {
        wait_for(node, "a controller", |image| image.controller.is_some()).await;
    }
    // There is to be a term before the present one.
    let first = described(&nodes, "a leader", |_| true).await.leader;
    leader_of(&nodes).hand_over(LIMIT).await;
    let state = described(&nodes, "another leader", |state| state.leader != first).await;
    let (leader, term) = (state.leader, state.leader_epoch);
    let at = nodes.iter().position(|node| node.id() == leader.id).unwrap();
    let (other, target) = ((at + 1) % 3, (at + 2) % 3);
    let key_at = |at: usize| key(machines[at].id, machines[at].directory);
    let cluster_id = nodes[0].image().cluster_id.clone();
    let heard = listened.runs.lock().unwrap()[&leader];

    // The number of a process is told to nobody who does not know it.
    let stranger =
        format!(r#"{{"Introduce":{{"key":"{}","run":1,"cluster_id":null,"configured":[]}}}}"#, key(9, 9));
    let answer = nodes[at].answer_peer(message("", (key(9, 9), 1), None, &stranger)).await.unwrap();
    assert!(String::from_utf8_lossy(&answer).contains(r#""run":0,"#), "{answer:?}");

    machines[other].cut();
    machines[at].cut();
    for (from, run, term, why) in [
        (key_at(other), 42, term, "does not follow node"),
        (key_at(other), 42, term - 1, "does not follow node"),
        (leader, heard, term - 1, "does not follow node"),
        (leader, 42, term, "it is not known whether this process is node"),
    ] {
        let lost = format!(
            r#"{{"Lost":{{"vote":{{"leader_id":{{"term":{term},"voted_for":"{from}"}},"committed":true}},
            "acknowledged":{{"leader_id":0,"index":1000}}}}}}"#
        );
        let message = message(&cluster_id, (from, run), Some(key_at(target)), &lost);
        let answer = nodes[target].answer_peer(message).await.unwrap();
        let text = String::from_utf8_lossy(&answer).into_owned();
        assert!(text.contains(why), "{text}");
    }
    machines[at].mend(&nodes[at]);
    machines[other].mend(&nodes[other]);
    let ended = tokio::time::timeout(Duration::from_millis(200), nodes[target].failure()).await;
    assert!(ended.is_err(), "{ended:?}");
    register_by_whoever_leads(&nodes.iter().collect::<Vec<_>>(), 11).await;
    wait_for(&nodes[target], "the broker", |image| image.brokers.contains_key(&NodeId(11))).await;
}

/// The wires, and what the processes say on them of themselves.
#[derive(Clone)]
struct Eavesdropper {
    wires: Wires,
    runs: Arc<Mutex<BTreeMap<ReplicaKey, u64>>>,
}

impl QuorumNetwork for Eavesdropper {
    fn call(
        &self,
        target: NodeId,
        address: (String, u16),
        message: QuorumMessage,
    ) -> BoxFuture<'_, Result<Bytes, PeerError>> {
        let mut rest = message.0.clone();
        rest.advance(1);
        let cluster_id_len = usize::from(rest.get_u8());
        rest.advance(cluster_id_len);
        let id = NodeId(rest.get_i32());
        let mut directory = [0; 16];
        rest.copy_to_slice(&mut directory);
        let from = ReplicaKey::new(id, Uuid(directory));
        match rest.get_u64() {
            0 => {}
            run => drop(self.runs.lock().unwrap().insert(from, run)),
        }
        self.wires.call(target, address, message)
    }
}
