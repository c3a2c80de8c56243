//! Brokers at a controller that has much to do: their registrations, and their sessions.

#[allow(dead_code, reason = "each test uses a part of it")]
mod joining;
mod wires;

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::join_all;
use klamm_metadata::MetadataNode;
use klamm_model::{ErrorCode, NodeId, Uuid};
use klamm_protocol::messages::BrokerHeartbeatRequest;

use wires::{Machine, Wires, leader_of, register_by_whoever_leads, wait_for};

/// Ten brokers' heartbeats ask a controller more often than it looks for expired sessions. It has to look all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_controller_that_is_asked_all_the_time_fences_a_silent_broker() {
    let wires = Wires::default();
    let machine = Machine::new(1, &[1], &wires);
    let mut settings = machine.settings();
    settings.quorum.broker_session_timeout = Duration::from_secs(2);
    let node = machine.start_with(settings).unwrap();
    node.joined().await.unwrap();
    let (silent, busy) = (NodeId(11), NodeId(12));
    let mut epochs = Vec::new();
    for broker in [silent, busy] {
        let epoch = joining::register(&node, broker, 1, Uuid([broker.0 as u8; 16])).await.unwrap();
        joining::unfence(&node, broker, epoch).await.unwrap();
        epochs.push(epoch);
    }
    let asking = async {
        loop {
            joining::unfence(&node, busy, epochs[1]).await.unwrap();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let fenced = wait_for(&node, "the fencing of the silent one", |image| image.brokers[&silent].fenced);
    tokio::select! {
        biased;
        () = fenced => {}
        () = asking => {}
    }
    assert!(!node.image().brokers[&busy].fenced);
}

/// Runs of a broker that come after each other may be decided together. Each epoch is the offset of the entry that has
/// the registration: a broker of which more is asked than there is in the log is never unfenced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_that_register_at_the_same_time_get_epochs_of_the_log() {
    let wires = Wires::default();
    let node = Machine::new(1, &[1], &wires).start();
    node.joined().await.unwrap();
    let broker = NodeId(11);
    let register = |run| joining::register(&node, broker, run, Uuid([11; 16]));
    let epochs = join_all((1..=12).map(register)).await;
    let epochs: BTreeSet<i64> = epochs.into_iter().map(Result::unwrap).collect();
    assert_eq!(epochs.len(), 12, "{epochs:?}");
    let newest = *epochs.last().unwrap();
    let image = node.image();
    assert_eq!((image.brokers[&broker].epoch, image.offset), (newest, newest));
    joining::unfence(&node, broker, newest).await.unwrap();
}

/// A broker's process ends when it hears that another run has its place. A controller that lost its majority, and may
/// not know the newest registration, does not say so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_controller_with_a_majority_says_that_a_registration_is_gone() {
    let wires = Wires::default();
    let machines: Vec<Machine> = (1..=3).map(|id| Machine::new(id, &[1, 2, 3], &wires)).collect();
    let nodes: Vec<_> = machines.iter().map(Machine::start).collect();
    for node in &nodes {
        wait_for(node, "a controller", |image| image.controller.is_some()).await;
    }
    register_by_whoever_leads(&nodes.iter().collect::<Vec<_>>(), 11).await;
    let stale = async |node: &MetadataNode, broker_id| {
        let request = BrokerHeartbeatRequest { broker_id, broker_epoch: 99, ..Default::default() };
        ErrorCode::from_code(node.within(Duration::from_secs(5)).heartbeat_broker(request).await.error_code)
    };
    let leads = async || {
        for _ in 0..100 {
            let leader = leader_of(&nodes);
            match stale(&leader, 11).await {
                Some(ErrorCode::NotController) => tokio::time::sleep(Duration::from_millis(50)).await,
                code => return (leader, code),
            }
        }
        panic!("nobody leads")
    };
    let (leader, code) = leads().await;
    assert_eq!(code, Some(ErrorCode::StaleBrokerEpoch));
    for (machine, node) in machines.iter().zip(&nodes).filter(|(_, node)| node.id() != leader.id()) {
        machine.end(node);
    }
    for broker in [11, 12] {
        assert_eq!(stale(&leader, broker).await, Some(ErrorCode::NotController));
    }
}
