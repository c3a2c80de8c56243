//! Nodes that were formatted, on real sockets and simulated disks.

use std::sync::Arc;
use std::time::Duration;

use klamm_io::{SystemClock, SystemNetwork, Threads};
use klamm_testing::{SeededRandom, SimulatedDisk};

use super::*;
use crate::start::cluster_tests::free_ports;
use crate::start::{Server, start};

fn config(id: i32, ports: &[u16]) -> BrokerConfig {
    let servers: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let port = ports[id as usize - 1];
    let settings = [
        ("node.id", id.to_string()),
        ("controller.quorum.bootstrap.servers", servers.join(",")),
        ("controller.listener.names", "CONTROLLER".to_owned()),
        ("listeners", format!("PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{port}")),
        ("log.dirs", "/data".to_owned()),
    ];
    let overrides = settings.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    klamm_config::load(&klamm_config::Sources { overrides, ..Default::default() }).unwrap().0
}

fn machine(id: i32, disk: &SimulatedDisk) -> Machine {
    Machine {
        disk: Arc::new(disk.clone()),
        network: Arc::new(SystemNetwork),
        clock: Arc::new(SystemClock::new()),
        random: Arc::new(SeededRandom::new(id as u64)),
        threads: Threads::default(),
        loggers: Arc::default(),
    }
}

async fn voters_of(server: &Server) -> Vec<i32> {
    let described = server.context().metadata.describe_quorum().await;
    described.map(|state| state.voters.iter().map(|voter| voter.key.id.0).collect()).unwrap_or_default()
}

/// The cluster begins with the voters that it was formatted for, and they can be changed by commands.
#[tokio::test(flavor = "multi_thread")]
async fn initial_controllers_begin_a_cluster() {
    let ports = free_ports(2);
    let key = |id: i32| ReplicaKey::new(NodeId(id), Uuid([id as u8; 16]));
    let voters: BTreeMap<_, _> =
        (1..=2).map(|id| (key(id), ("127.0.0.1".to_owned(), ports[id as usize - 1]))).collect();
    let disks: Vec<SimulatedDisk> = (1..=2).map(SimulatedDisk::new).collect();
    for (id, disk) in (1..).zip(&disks) {
        let format = || {
            let asked = Format::InitialControllers(voters.clone());
            super::format(&config(id, &ports), asked, Some("cluster-of-two".to_owned()), &machine(id, disk))
        };
        let told = format().unwrap();
        assert!(
            told.contains(&key(id).directory_id.to_string()) && told.contains("cluster-of-two"),
            "{told}"
        );
        let again = format().unwrap_err().to_string();
        assert!(again.contains("is formatted already, for cluster cluster-of-two"), "{again}");
    }
    let (one, two) = tokio::join!(
        start(config(1, &ports), machine(1, &disks[0])),
        start(config(2, &ports), machine(2, &disks[1]))
    );
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_eq!(one.context().image().cluster_id, "cluster-of-two");
    assert_eq!(one.context().image().feature("kraft.version"), 1);
    let found = [voters_of(&one).await, voters_of(&two).await].concat();
    assert_eq!(found, [1, 2]);
    let request = klamm_protocol::messages::RemoveRaftVoterRequest {
        cluster_id: None,
        voter_id: 2,
        voter_directory_id: key(2).directory_id,
    };
    let answer = one.context().controller.ask(request, Duration::from_secs(20)).await;
    assert_eq!((answer.error_code, answer.error_message.as_deref()), (0, Some("")));
    let left = async {
        while [voters_of(&one).await, voters_of(&two).await].concat() != [1] {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), left).await.expect("one voter is left");
    two.stop().await;
    one.stop().await;
}

/// Where voters are configured, or the node cannot be one, a format would begin a second cluster beside theirs.
#[test]
fn what_contradicts_the_settings_is_refused() {
    let disk = SimulatedDisk::new(1);
    let mut with_voters = config(1, &[21_400]);
    with_voters.quorum_voters =
        vec![klamm_config::QuorumVoter { id: NodeId(1), host: "a".to_owned(), port: 1 }];
    let mut broker = config(1, &[21_400]);
    broker.roles.controller = false;
    let without_self = Format::InitialControllers(BTreeMap::new());
    for (config, asked, why) in [
        (config(1, &[21_400]), Format::NoInitialControllers, "argument --cluster-id/-t is required"),
        (config(1, &[21_400]), Format::InitialControllers(BTreeMap::new()), "--cluster-id/-t is required"),
        (with_voters, Format::Standalone, "controller.quorum.voters is set"),
        (broker, Format::Standalone, "only a controller can begin a cluster"),
        (config(1, &[21_400]), without_self, "have to name this node, 1 (node.id)"),
    ] {
        let id = (!why.contains("--cluster-id")).then(|| "c".to_owned());
        let error = super::format(&config, asked, id, &machine(1, &disk)).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}
