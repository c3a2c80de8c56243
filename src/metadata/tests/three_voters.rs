//! Three voters over a network in memory: they agree on one leader, all get what it decides, and the two that
//! are left go on without it. The seam for a real network is the trait that this network implements.

mod joining;
mod wires;

use std::sync::Arc;
use std::time::Duration;

use klamm_metadata::MetadataNode;
use klamm_model::{NodeId, Uuid};

use wires::{Machine, Wires, create_by_whoever_leads, leader_of, wait_for};

/// Asks a node to take another one into the cluster.
async fn join(leader: &MetadataNode, id: NodeId) -> Result<(), i16> {
    let epoch = joining::register(leader, id, id.0 as u8, Uuid([id.0 as u8; 16])).await?;
    joining::unfence(leader, id, epoch).await
}

/// Has whoever leads take in each node as a broker.
async fn all_join(nodes: &[Arc<MetadataNode>]) {
    for node in nodes {
        let joined = async {
            while join(&leader_of(nodes), node.id()).await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), joined).await.expect("somebody leads and takes it in");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_voters_agree_and_two_go_on() {
    let wires = Wires::default();
    let machines: Vec<Machine> = (1..=3).map(|id| Machine::new(id, &[1, 2, 3], &wires)).collect();
    let nodes: Vec<Arc<MetadataNode>> = machines.iter().map(Machine::start).collect();
    for node in &nodes {
        wait_for(node, "a controller", |image| image.controller.is_some()).await;
    }
    all_join(&nodes).await;
    create_by_whoever_leads(&nodes.iter().collect::<Vec<_>>(), "first").await;
    for node in &nodes {
        wait_for(node, "the topic", |image| image.topic_by_name("first").is_some()).await;
        assert_eq!(node.image().brokers.len(), 3);
    }

    let leader = leader_of(&nodes);
    let dead = leader.id();
    machines[dead.0 as usize - 1].end(&leader);
    let rest: Vec<_> = nodes.iter().filter(|node| node.id() != dead).collect();
    for node in &rest {
        wait_for(node, "another controller", |image| {
            image.controller.is_some_and(|controller| controller != dead)
        })
        .await;
    }
    create_by_whoever_leads(&rest, "second").await;
    for node in &rest {
        wait_for(node, "the second topic", |image| image.topic_by_name("second").is_some()).await;
        assert!(node.image().topic_by_name("first").is_some());
    }
}

/// A leader that nobody hears may have a successor that has decided otherwise, without knowing it yet. What needs no record
/// is answered from its image alone, as that a topic is there already, and that may be so no longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_nobody_hears_answers_nothing_from_what_it_knew() {
    let (machines, nodes) = wires::three().await;
    all_join(&nodes).await;
    create_by_whoever_leads(&nodes.iter().collect::<Vec<_>>(), "first").await;
    let leader = leader_of(&nodes);
    let again = || async {
        let answer = leader.within(Duration::from_secs(1)).auto_create_topics(vec!["first".to_owned()]).await;
        answer.topics[0].error_code
    };
    assert_eq!(again().await, 36, "it is there already");
    for (machine, node) in machines.iter().zip(&nodes).filter(|(_, node)| node.id() != leader.id()) {
        machine.end(node);
    }
    // As long as nobody stands for election, and what was on its way.
    let silent = machines[0].settings().quorum.election_timeout_min + Duration::from_millis(250);
    tokio::time::sleep(silent).await;
    for _ in 0..30 {
        let code = again().await;
        assert!(matches!(code, 41 | 7), "it sends us away, or knows nothing in time: {code}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
