//! Nodes that are only controller or only broker, on real sockets and simulated disks.
#![allow(clippy::disallowed_methods)]

use klamm_io::{SystemClock, SystemNetwork};
use klamm_model::NodeId;
use klamm_testing::{SeededRandom, SimulatedDisk};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::cluster_tests::{free_ports, until};
use super::*;

async fn start_with(id: u64, settings: &[(&str, String)]) -> Result<Server, StartError> {
    let common = [
        ("node.id", id.to_string()),
        ("controller.listener.names", "CONTROLLER".to_owned()),
        ("log.dirs", "/data".to_owned()),
        ("broker.heartbeat.interval.ms", "100".to_owned()),
        ("broker.session.timeout.ms", "1500".to_owned()),
    ];
    let overrides = common.iter().chain(settings).map(|(key, value)| ((*key).to_owned(), value.clone()));
    let sources = klamm_config::Sources { overrides: overrides.collect(), ..Default::default() };
    let machine = Machine {
        disk: Arc::new(SimulatedDisk::new(id)),
        network: Arc::new(SystemNetwork),
        clock: Arc::new(SystemClock::new()),
        random: Arc::new(SeededRandom::new(id)),
        threads: Threads::default(),
        loggers: Arc::default(),
    };
    start(klamm_config::load(&sources).unwrap().0, machine).await
}

fn controller(port: u16) -> Vec<(&'static str, String)> {
    vec![
        ("process.roles", "controller".to_owned()),
        ("listeners", format!("CONTROLLER://127.0.0.1:{port}")),
        ("controller.quorum.voters", format!("1@127.0.0.1:{port}")),
    ]
}

fn broker(port: u16, of_controller: &'static str) -> Vec<(&'static str, String)> {
    let server = if of_controller == "controller.quorum.voters" { "1@" } else { "" };
    vec![
        ("process.roles", "broker".to_owned()),
        ("listeners", "PLAINTEXT://127.0.0.1:0".to_owned()),
        (of_controller, format!("{server}127.0.0.1:{port}")),
    ]
}

/// A broker without a vote gets the metadata, holds partitions, and is forgotten when it is unregistered. The node
/// that only decides holds none and is no broker.
#[tokio::test(flavor = "multi_thread")]
async fn a_controller_and_two_brokers_without_a_vote() {
    let port = free_ports(1)[0];
    let by_voters = broker(port, "controller.quorum.voters");
    let by_servers = broker(port, "controller.quorum.bootstrap.servers");
    // The brokers wait for the controller, which comes last.
    let (one, two, decider) = tokio::join!(start_with(4, &by_voters), start_with(5, &by_servers), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        start_with(1, &controller(port)).await
    });
    let (one, two, decider) = (one.unwrap(), two.unwrap(), decider.unwrap());
    assert_eq!(decider.listeners.len(), 1);
    let failed = crate::topic_creation::create(&one.context, &["held-by-brokers"]).await;
    assert!(failed.is_empty(), "{failed:?}");
    for server in [&one, &two, &decider] {
        until(server, "the topic", |image| image.topics.len() == 1 && image.brokers.len() == 2).await;
    }
    assert!(decider.context.partitions.load().partitions().next().is_none());
    let state = decider.context.metadata.describe_quorum().await.unwrap();
    let ids = |members: &[klamm_metadata::ReplicaProgress]| {
        members.iter().map(|it| it.key.id.0).collect::<Vec<_>>()
    };
    assert_eq!((ids(&state.voters), ids(&state.observers)), (vec![1], vec![4, 5]));

    two.stop().await;
    let request = klamm_protocol::messages::UnregisterBrokerRequest { broker_id: 5 };
    let limit = Duration::from_secs(20);
    let answer = decider.context.metadata.within(limit).unregister_broker(request).await;
    assert_eq!(answer.error_code, 0);
    let forgotten = async {
        while ids(&decider.context.metadata.describe_quorum().await.unwrap().observers) != [4] {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(limit, forgotten).await.expect("the broker is no observer any more");
    assert!(one.context.image().brokers.contains_key(&NodeId(4)));
    one.stop().await;
    decider.stop().await;
}

/// A GET over HTTP: the status line and the body. Nothing as long as nobody listens.
async fn get(port: u16, path: &str) -> Option<(String, String)> {
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.ok()?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n").as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.lines().next()?.to_owned(), body.to_owned()))
}

/// The port was open while a node waited for its cluster, and nothing answered: a probe could not tell what it waits for.
#[tokio::test(flavor = "multi_thread")]
async fn health_is_served_while_a_node_waits_for_its_cluster() {
    let [voter, http] = free_ports(2)[..] else { unreachable!() };
    let waiting = [
        broker(voter, "controller.quorum.voters"),
        vec![("klamm.http.listener", format!("127.0.0.1:{http}"))],
    ];
    let starting = tokio::spawn(async move { start_with(4, &waiting.concat()).await });
    let told = async {
        loop {
            if let Some((status, body)) = get(http, "/health").await
                && body.contains(&format!("missing: node 1 at 127.0.0.1:{voter} ("))
            {
                return (status, body);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let told = tokio::time::timeout(Duration::from_secs(20), told).await;
    let (status, body) = told.expect("it says whom it waits for");
    assert_eq!(status, "HTTP/1.1 503 Service Unavailable");
    assert!(body.contains("this node belongs to no cluster yet"), "{body}");
    assert_eq!(get(http, "/metrics").await.unwrap().0, "HTTP/1.1 200 OK");

    let decider = start_with(1, &controller(voter)).await.unwrap();
    let server = tokio::time::timeout(Duration::from_secs(20), starting).await.unwrap().unwrap().unwrap();
    assert_eq!(get(http, "/health").await.unwrap().1, "ok\n");
    server.stop().await;
    decider.stop().await;
}

/// Sends a frame with this key and a body of so many bytes; whether it is answered, and the connection not closed.
async fn is_answered(port: u16, api_key: i16, body_len: usize) -> bool {
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let mut frame = u32::try_from(10 + body_len).unwrap().to_be_bytes().to_vec();
    frame.extend_from_slice(&api_key.to_be_bytes());
    frame.extend_from_slice(&[0, 0, 0, 0, 0, 9, 0xff, 0xff]);
    frame.resize(frame.len() + body_len, 0);
    // The other side may close the connection before it has read all.
    let _ = stream.write_all(&frame).await;
    stream.read_u32().await.is_ok()
}

/// An entry of the metadata log that is longer than what clients may send must reach the voters all the same: nothing
/// behind it can before.
#[tokio::test(flavor = "multi_thread")]
async fn the_quorum_sends_more_than_clients_may() {
    let port = free_ports(1)[0];
    let limited = [controller(port), vec![("socket.request.max.bytes", "1000".to_owned())]].concat();
    let server = start_with(1, &limited).await.unwrap();
    assert!(is_answered(port, crate::peers::QUORUM_KEY, 5_000).await);
    assert!(is_answered(port, crate::peers::QUORUM_KEY, 5_000_000).await);
    assert!(!is_answered(port, 18, 5_000).await, "a client's request is held to the limit");
    server.stop().await;
}

/// Who reaches the port of a node that has no others must not get into its metadata.
#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_alone_serves_no_quorum() {
    let server = super::tests::node(Arc::new(SimulatedDisk::new(1))).await;
    let port = server.listeners[0].1.port();
    assert!(!is_answered(port, crate::peers::QUORUM_KEY, 100).await);
    server.stop().await;
}
