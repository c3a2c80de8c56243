//! A broker's place in the cluster: who loses it leads nothing and ends, and who leaves it does not wait for nobody.

use klamm_io::SystemClock;
use klamm_model::{ErrorCode, NodeId};
use klamm_protocol::messages::UnregisterBrokerRequest;
use klamm_protocol::messages::create_topics::{CreatableTopic, CreateTopicsRequest};

use super::cluster_tests::{Cluster, until};
use super::*;

const PATIENCE: Duration = Duration::from_secs(20);

/// Makes a topic of which each node leads one partition, which has no other replica.
async fn one_for_each(servers: &[Server]) {
    let topic = CreatableTopic {
        name: "one-for-each".to_owned(),
        num_partitions: 3,
        replication_factor: 1,
        ..Default::default()
    };
    let request = CreateTopicsRequest { topics: vec![topic], timeout_ms: 10_000, ..Default::default() };
    let answer = servers[0].context.controller.ask(request, PATIENCE).await;
    assert_eq!(answer.topics[0].error_code, 0, "{:?}", answer.topics[0].error_message);
    for server in servers {
        until(server, "the topic", |image| image.topics.len() == 1).await;
        server.context.await_applied(10_000).await;
        assert_eq!(led_by(server), 1, "node {}", server.context.node_id);
    }
}

fn led_by(server: &Server) -> usize {
    server.context.partitions.load().partitions().filter(|partition| partition.is_leader()).count()
}

/// Waits until a node has failed, and returns why. It leads nothing by then.
async fn failure_of(server: &Server) -> String {
    let why = tokio::time::timeout(PATIENCE, server.failed()).await;
    assert_eq!(led_by(server), 0, "node {} leads on", server.context.node_id);
    why.unwrap_or_else(|_| panic!("node {} goes on", server.context.node_id))
}

/// A process that stood still while another one registered with its id led on and acknowledged what was lost.
#[tokio::test(flavor = "multi_thread")]
async fn who_loses_the_registration_leads_nothing_and_ends() {
    let Cluster { servers, .. } = &Cluster::start().await;
    one_for_each(servers).await;
    let [one, two, three] = &servers[..] else { panic!("three nodes") };

    // It hears of it by the metadata.
    let image = one.context.image();
    let place = &image.brokers[&one.context.node_id];
    let second = BrokerRegistrationRequest {
        broker_id: place.id.0,
        cluster_id: image.cluster_id.clone(),
        incarnation_id: Uuid([9; 16]),
        log_dirs: place.directories.clone(),
        previous_broker_epoch: place.epoch,
        ..Default::default()
    };
    assert_eq!(two.context.controller.ask(second, PATIENCE).await.error_code, ErrorCode::None.code());
    let why = failure_of(one).await;
    let told = format!("another process has registered as broker {}", one.context.node_id);
    assert!(why.starts_with(&told), "{why}");

    // The metadata does not come here any more, and the controller knows another epoch.
    two.context.broker_epoch.store(i64::MAX, Ordering::Release);
    let why = failure_of(two).await;
    assert!(why.contains("give each broker a node.id of its own"), "{why}");

    let NodeId(broker_id) = three.context.node_id;
    let answer = two.context.controller.ask(UnregisterBrokerRequest { broker_id }, PATIENCE).await;
    assert_eq!(answer.error_code, 0);
    let why = failure_of(three).await;
    assert!(why.starts_with(&format!("broker {broker_id} was unregistered while it ran")), "{why}");
}

/// The last ones have no controller any more that would let them go.
#[tokio::test(flavor = "multi_thread")]
async fn all_nodes_stop_at_the_same_time() {
    let Cluster { mut servers, .. } = Cluster::start().await;
    one_for_each(&servers).await;
    let clock = SystemClock::new();
    let since = clock.monotonic();
    let mut stops = JoinSet::new();
    servers.drain(..).for_each(|server| drop(stops.spawn(server.stop())));
    stops.join_all().await;
    let took = clock.monotonic().saturating_sub(since);
    assert!(took < Duration::from_secs(8), "{took:?}");
}
