//! Decisions about brokers, placement and in-sync replicas, on images made by the same decisions.

use std::collections::BTreeMap;
use std::sync::Arc;

use klamm_config::BrokerConfig;
use klamm_metadata::controller::{self, ControllerContext};
use klamm_metadata::{Image, KafkaRules, PartitionState, Planted, TopicDefaults, apply};
use klamm_model::{ErrorCode, LeaderEpoch, NodeId, Uuid};
use klamm_protocol::messages::alter_partition::{
    AlterPartitionRequest, PartitionDataRequest, TopicDataRequest,
};
use klamm_protocol::messages::broker_heartbeat::{BrokerHeartbeatRequest, BrokerHeartbeatResponse};
use klamm_protocol::messages::broker_registration::BrokerRegistrationRequest;
use klamm_protocol::messages::create_topics::{
    CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest, CreateTopicsResponse,
};
use klamm_protocol::messages::incremental_alter_configs::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest,
};
use klamm_protocol::messages::unregister_broker::UnregisterBrokerRequest;
use klamm_protocol::records::cluster_metadata::MetadataRecord;
use klamm_testing::SeededRandom;

struct Cluster {
    image: Image,
    defaults: TopicDefaults,
    rules: KafkaRules,
    random: SeededRandom,
}

impl Cluster {
    fn new() -> Cluster {
        Cluster {
            image: Image::empty("cluster"),
            defaults: TopicDefaults::default(),
            rules: KafkaRules::new(Arc::new(BrokerConfig::defaults())),
            random: SeededRandom::new(1),
        }
    }

    /// Live brokers, each in the rack of this name; an empty name is no rack.
    fn with_brokers(racks: &[&str]) -> Cluster {
        let mut cluster = Cluster::new();
        for (id, rack) in (1..).zip(racks) {
            assert_eq!(cluster.register(id, id as u8, rack), 0);
            cluster.heartbeat(id, |_| {});
        }
        cluster
    }

    fn context(&self) -> ControllerContext<'_> {
        ControllerContext {
            now_ms: 0,
            random: &self.random,
            defaults: &self.defaults,
            rules: &self.rules,
            planted: Planted::default(),
        }
    }

    fn commit(&mut self, records: &[MetadataRecord]) {
        for record in records {
            self.image = apply(&self.image, record);
        }
        self.image.offset += 1;
    }

    fn register(&mut self, id: i32, run: u8, rack: &str) -> i16 {
        let request = BrokerRegistrationRequest {
            broker_id: id,
            cluster_id: "cluster".to_owned(),
            incarnation_id: Uuid([run; 16]),
            rack: (!rack.is_empty()).then(|| rack.to_owned()),
            log_dirs: vec![Uuid([id as u8; 16])],
            ..Default::default()
        };
        let (records, reply) = controller::register_broker(&self.image, &self.context(), &request, true);
        self.commit(&records);
        reply.error_code
    }

    fn heartbeat(
        &mut self,
        id: i32,
        change: impl FnOnce(&mut BrokerHeartbeatRequest),
    ) -> BrokerHeartbeatResponse {
        let mut request = BrokerHeartbeatRequest {
            broker_id: id,
            broker_epoch: self.image.brokers[&NodeId(id)].epoch,
            current_metadata_offset: self.image.offset,
            ..Default::default()
        };
        change(&mut request);
        let (records, reply) = controller::heartbeat_broker(&self.image, &self.context(), &request);
        self.commit(&records);
        reply
    }

    fn create(&mut self, topic: CreatableTopic) -> CreateTopicsResponse {
        self.create_all(CreateTopicsRequest { topics: vec![topic], ..Default::default() })
    }

    fn create_all(&mut self, request: CreateTopicsRequest) -> CreateTopicsResponse {
        let context = self.context();
        let (records, reply) = controller::create_topics(&self.image, &context, &request);
        self.commit(&records);
        reply
    }

    /// IncrementalAlterConfigs of one resource: its type and name, and for each key operation and value.
    fn alter(&mut self, resource: (i8, &str), changes: &[(&str, i8, &str)]) -> (i16, Option<String>) {
        let config = |(name, operation, value): &(&str, i8, &str)| AlterableConfig {
            name: (*name).to_owned(),
            config_operation: *operation,
            value: Some((*value).to_owned()),
        };
        let asked = AlterConfigsResource {
            resource_type: resource.0,
            resource_name: resource.1.to_owned(),
            configs: changes.iter().map(config).collect(),
        };
        let request = IncrementalAlterConfigsRequest { resources: vec![asked], ..Default::default() };
        let context = self.context();
        let (records, reply) = controller::incremental_alter_configs(&self.image, &context, &request);
        self.commit(&records);
        (reply.responses[0].error_code, reply.responses[0].error_message.clone())
    }

    fn partition(&self, topic: &str, index: i32) -> &PartitionState {
        self.image.topic_by_name(topic).unwrap().partition(index).unwrap()
    }

    fn propose(
        &self,
        leader: i32,
        change: impl FnOnce(&mut PartitionDataRequest),
    ) -> (Vec<MetadataRecord>, i16) {
        let topic = self.image.topic_by_name("t").unwrap();
        let state = topic.partition(0).unwrap();
        let mut partition = PartitionDataRequest {
            partition_index: 0,
            leader_epoch: state.leader_epoch.0,
            partition_epoch: state.partition_epoch,
            new_isr: vec![1],
            ..Default::default()
        };
        change(&mut partition);
        let request = AlterPartitionRequest {
            broker_id: leader,
            broker_epoch: self.image.brokers[&NodeId(leader)].epoch,
            topics: vec![TopicDataRequest {
                topic_id: topic.id,
                partitions: vec![partition],
                ..Default::default()
            }],
        };
        let (records, reply) = controller::alter_partition(&self.image, &self.context(), &request);
        let code = reply.topics.first().map_or(reply.error_code, |topic| topic.partitions[0].error_code);
        (records, code)
    }
}

fn assigned(name: &str, replicas: &[i32]) -> CreatableTopic {
    CreatableTopic {
        name: name.to_owned(),
        num_partitions: -1,
        replication_factor: -1,
        assignments: vec![CreatableReplicaAssignment { partition_index: 0, broker_ids: replicas.to_vec() }],
        ..Default::default()
    }
}

fn nodes(ids: &[i32]) -> Vec<NodeId> {
    ids.iter().copied().map(NodeId).collect()
}

/// Leaders and replicas spread evenly, and no rack holds two replicas of a partition while another has none.
#[test]
fn replicas_spread_over_brokers_and_racks() {
    for (racks, factor) in [
        (&["", "", ""][..], 2),
        (&["", "", "", "", ""], 3),
        (&["a", "a", "b", "b", "c", "c"], 3),
        (&["a", "a", "b", "b"], 2),
        (&["a", "a", "b", "b"], 3),
        (&["a", "b", "b", "b"], 2),
        (&["a", "a", "b"], 3),
    ] {
        let mut cluster = Cluster::with_brokers(racks);
        let topic = CreatableTopic {
            name: "t".to_owned(),
            num_partitions: 60,
            replication_factor: factor,
            ..Default::default()
        };
        assert_eq!(cluster.create(topic).topics[0].error_code, 0);
        let topic = cluster.image.topic_by_name("t").unwrap();
        let mut leads: BTreeMap<NodeId, usize> = BTreeMap::new();
        let rack_count = racks.iter().collect::<std::collections::BTreeSet<_>>().len();
        for partition in &topic.partitions {
            *leads.entry(partition.replicas[0]).or_default() += 1;
            let mut distinct = partition.replicas.clone();
            distinct.sort();
            distinct.dedup();
            assert_eq!(distinct.len(), factor as usize, "{racks:?}: {partition:?}");
            let mut used: Vec<&str> = distinct.iter().map(|id| racks[id.0 as usize - 1]).collect();
            used.sort();
            used.dedup();
            assert_eq!(used.len(), rack_count.min(factor as usize), "{racks:?}: {partition:?}");
            assert_eq!(
                (partition.leader, &partition.isr),
                (Some(partition.replicas[0]), &partition.replicas)
            );
        }
        let evenly = rack_count == 1 || racks.len().is_multiple_of(rack_count) && racks[0] == racks[1];
        if evenly {
            assert!(leads.values().all(|count| *count == 60 / racks.len()), "{racks:?}: {leads:?}");
        }
    }
}

/// If a broker's partitions had the same second replica, that one would take over all of them.
#[test]
fn what_a_broker_leads_goes_to_several_when_it_dies() {
    for racks in [&["", "", "", "", ""][..], &["a", "a", "b", "b", "c", "c"]] {
        let mut cluster = Cluster::with_brokers(racks);
        let topic = CreatableTopic {
            name: "t".to_owned(),
            num_partitions: 600,
            replication_factor: 3,
            ..Default::default()
        };
        cluster.create(topic);
        let was = cluster.image.topic_by_name("t").unwrap().clone();
        cluster.heartbeat(1, |request| request.want_fence = true);
        let mut taken_over: BTreeMap<NodeId, usize> = BTreeMap::new();
        for (index, _) in was.partitions.iter().enumerate().filter(|(_, was)| was.leader == Some(NodeId(1))) {
            let leader = cluster.partition("t", index as i32).leader.unwrap();
            *taken_over.entry(leader).or_default() += 1;
        }
        let (led, most) = (600 / racks.len(), taken_over.values().max().copied().unwrap());
        assert!(most * 10 <= led * 6, "{racks:?}: of {led} partitions, one took over {most}: {taken_over:?}");
    }
}

/// A broker that is registered but not alive gets replicas, since it may come back, but no leadership.
#[test]
fn a_fenced_broker_holds_replicas_and_leads_nothing() {
    let mut cluster = Cluster::with_brokers(&["", ""]);
    cluster.register(3, 3, "");
    for factor in [3, 4] {
        let topic = CreatableTopic {
            name: format!("t{factor}"),
            num_partitions: 12,
            replication_factor: factor,
            ..Default::default()
        };
        let code = cluster.create(topic).topics[0].error_code;
        assert_eq!(code, if factor == 3 { 0 } else { ErrorCode::InvalidReplicationFactor.code() });
    }
    for partition in &cluster.image.topic_by_name("t3").unwrap().partitions {
        assert!(partition.replicas.contains(&NodeId(3)) && !partition.isr.contains(&NodeId(3)));
        assert_ne!(partition.leader, Some(NodeId(3)));
    }
    let reply = cluster.create(assigned("only-fenced", &[3]));
    assert_eq!(reply.topics[0].error_code, ErrorCode::InvalidReplicaAssignment.code());
}

#[test]
fn an_isr_changes_only_upon_the_latest_state() {
    let mut cluster = Cluster::with_brokers(&["", "", ""]);
    cluster.create(assigned("t", &[1, 2, 3]));
    let code = |(records, code): (Vec<MetadataRecord>, i16)| {
        assert!(code == 0 || records.is_empty());
        ErrorCode::from_code(code).unwrap()
    };
    assert_eq!(code(cluster.propose(2, |_| {})), ErrorCode::InvalidRequest, "2 does not lead");
    assert_eq!(code(cluster.propose(1, |p| p.leader_epoch = -1)), ErrorCode::FencedLeaderEpoch);
    assert_eq!(code(cluster.propose(1, |p| p.new_isr = vec![1, 2, 2])), ErrorCode::InvalidRequest);
    assert_eq!(code(cluster.propose(1, |p| p.leader_recovery_state = 5)), ErrorCode::InvalidRequest);
    assert_eq!(code(cluster.propose(1, |p| p.leader_epoch = 5)), ErrorCode::NotController);
    assert_eq!(code(cluster.propose(1, |p| p.partition_epoch = 5)), ErrorCode::NotController);
    assert_eq!(code(cluster.propose(1, |p| p.new_isr = vec![2, 3])), ErrorCode::InvalidRequest);
    assert_eq!(code(cluster.propose(1, |p| p.new_isr = vec![1, 9])), ErrorCode::InvalidRequest);

    let (records, unchanged) = cluster.propose(1, |p| p.new_isr = vec![1, 2, 3]);
    assert_eq!((records, unchanged), (Vec::new(), 0), "what is so already is no change");
    let (records, _) = cluster.propose(1, |p| p.new_isr = vec![1, 2]);
    cluster.commit(&records);
    let state = cluster.partition("t", 0).clone();
    assert_eq!((&state.isr, state.partition_epoch), (&nodes(&[1, 2]), 1));
    assert_eq!(state.leader_epoch, LeaderEpoch(0), "an ISR change is no election");
    assert_eq!(code(cluster.propose(1, |p| p.partition_epoch = 0)), ErrorCode::InvalidUpdateVersion);

    // Broker 3 died: it must not get back into the ISR on the word of a leader that has not heard of it.
    cluster.heartbeat(3, |request| request.want_fence = true);
    assert_eq!(code(cluster.propose(1, |p| p.new_isr = vec![1, 2, 3])), ErrorCode::IneligibleReplica);
}

/// The broker goes on under the same number in another run; what the first run led must not stay with it.
#[test]
fn leaders_move_when_brokers_go_and_the_last_replica_waits() {
    let mut cluster = Cluster::with_brokers(&["", ""]);
    cluster.create(assigned("both", &[1, 2]));
    cluster.create(assigned("alone", &[1]));
    assert_eq!(cluster.register(1, 77, ""), ErrorCode::DuplicateBrokerRegistration.code(), "it lives");

    cluster.heartbeat(1, |request| request.want_fence = true);
    let both = cluster.partition("both", 0);
    assert_eq!((both.leader, &both.isr, both.leader_epoch), (Some(NodeId(2)), &nodes(&[2]), LeaderEpoch(1)));
    let alone = cluster.partition("alone", 0);
    assert_eq!((alone.leader, &alone.isr, alone.leader_epoch), (None, &nodes(&[]), LeaderEpoch(1)));
    assert_eq!(alone.eligible_leaders, nodes(&[1]));

    let before = cluster.image.brokers[&NodeId(1)].epoch;
    assert_eq!(cluster.register(1, 77, ""), 0);
    assert!(cluster.image.brokers[&NodeId(1)].epoch > before);
    assert_eq!(cluster.partition("alone", 0).leader, None, "it is not caught up yet");
    let late = cluster.heartbeat(1, |request| request.current_metadata_offset = 0);
    assert!(!late.is_caught_up && late.is_fenced);
    assert!(!cluster.heartbeat(1, |_| {}).is_fenced);
    let alone = cluster.partition("alone", 0);
    assert_eq!((alone.leader, alone.leader_epoch), (Some(NodeId(1)), LeaderEpoch(2)));
    assert_eq!(cluster.partition("both", 0).leader, Some(NodeId(2)));
}

/// An answer may be lost or late: then a process asks again, and is still the same.
#[test]
fn a_process_that_registers_again_keeps_its_epoch() {
    let mut cluster = Cluster::with_brokers(&["a", "b"]);
    let before = cluster.image.clone();
    assert_eq!(cluster.register(1, 1, "a"), 0);
    assert_eq!(cluster.image.brokers, before.brokers, "it serves, and goes on");
    assert_eq!(cluster.register(3, 3, ""), 0);
    let epoch = cluster.image.brokers[&NodeId(3)].epoch;
    assert_eq!(epoch, cluster.image.offset);
    assert_eq!(cluster.register(3, 3, ""), 0);
    assert_eq!(cluster.image.brokers[&NodeId(3)].epoch, epoch);
    assert_eq!(cluster.register(3, 3, "c"), 0, "it has something new to say");
    let broker = &cluster.image.brokers[&NodeId(3)];
    assert_eq!((broker.epoch, broker.rack.as_deref()), (cluster.image.offset, Some("c")));
    assert!(cluster.heartbeat(3, |_| {}).is_caught_up);
}

#[test]
fn a_controlled_shutdown_hands_over_first() {
    let mut cluster = Cluster::with_brokers(&["", ""]);
    cluster.create(assigned("both", &[1, 2]));
    assert!(!cluster.heartbeat(1, |request| request.want_shut_down = true).should_shut_down);
    assert_eq!(cluster.partition("both", 0).leader, Some(NodeId(2)));
    assert!(cluster.heartbeat(1, |request| request.want_shut_down = true).should_shut_down);
    assert!(cluster.image.brokers[&NodeId(1)].fenced);

    let request = UnregisterBrokerRequest { broker_id: 1 };
    let (records, reply) = controller::unregister_broker(&cluster.image, &cluster.context(), &request);
    cluster.commit(&records);
    assert_eq!((reply.error_code, cluster.image.brokers.len()), (0, 1));
    let (_, reply) = controller::unregister_broker(&cluster.image, &cluster.context(), &request);
    assert_eq!(reply.error_code, ErrorCode::BrokerIdNotRegistered.code());
}

#[test]
fn producer_ids_go_to_registered_brokers_of_this_epoch() {
    let mut cluster = Cluster::with_brokers(&[""]);
    let epoch = cluster.image.brokers[&NodeId(1)].epoch;
    for first in [0, 1000] {
        let (records, block) = controller::allocate_producer_ids(&cluster.image, NodeId(1), epoch);
        cluster.commit(&records);
        assert_eq!(block, Ok(first..first + 1000));
    }
    let asked = |broker, epoch| controller::allocate_producer_ids(&cluster.image, NodeId(broker), epoch);
    assert_eq!(asked(2, epoch), (vec![], Err(ErrorCode::BrokerIdNotRegistered)));
    assert_eq!(asked(1, epoch - 1), (vec![], Err(ErrorCode::StaleBrokerEpoch)));
}

#[test]
fn internal_topics_are_made_as_kafka_makes_them() {
    let mut cluster = Cluster::with_brokers(&["", "", ""]);
    let names = ["__consumer_offsets", "mine"];
    let request = controller::request_for_auto_creation(names, &cluster.defaults);
    let reply = cluster.create_all(request);
    let shape = |name: &str| {
        let topic = reply.topics.iter().find(|topic| topic.name == name).unwrap();
        (topic.error_code, topic.num_partitions, topic.replication_factor)
    };
    assert_eq!(shape("__consumer_offsets"), (0, 50, 3));
    assert_eq!(shape("mine"), (0, 1, 1));
    let configs = cluster.image.topic_config("__consumer_offsets");
    assert_eq!(configs["cleanup.policy"], "compact");
    assert_eq!(configs["segment.bytes"], "104857600");
    assert_eq!(configs["compression.type"], "producer");
}

/// Two values that a request can hold make one, appended, that no record can: the log would take it for a
/// fault of its own.
#[test]
fn appending_makes_no_value_that_a_record_cannot_hold() {
    const KEY: &str = "leader.replication.throttled.replicas";
    let (set, append) = (0, 2);
    let list = |from: usize, count: usize| -> String {
        (from..from + count).map(|index| format!("{index}:1")).collect::<Vec<_>>().join(",")
    };
    let mut cluster = Cluster::with_brokers(&[""]);
    cluster.create(assigned("t", &[1]));
    assert_eq!(cluster.alter((2, "t"), &[(KEY, set, &list(10_000, 4_000))]).0, 0);
    let (code, message) = cluster.alter((2, "t"), &[(KEY, append, &list(20_000, 4_000))]);
    assert_eq!(code, ErrorCode::InvalidConfig.code(), "{message:?}");
    assert!(message.unwrap().len() < 200, "the message must not hold the value");
    assert_eq!(cluster.alter((2, "t"), &[(KEY, append, "1:1")]).0, 0);
    assert_eq!(cluster.image.topic_config("t")[KEY], format!("{},1:1", list(10_000, 4_000)));
}

/// Keys that nobody knows are kept for brokers; without a limit one client could fill every node's memory.
#[test]
fn a_resource_has_a_limited_number_of_settings() {
    let (set, delete) = (0, 1);
    let mut cluster = Cluster::with_brokers(&[""]);
    let names: Vec<String> = (0..1001).map(|index| format!("my.key.{index}")).collect();
    let changes: Vec<_> = names.iter().map(|name| (name.as_str(), set, "1")).collect();
    let too_many = ErrorCode::PolicyViolation.code();
    assert_eq!(cluster.alter((4, "1"), &changes).0, too_many);
    assert_eq!(cluster.alter((4, "1"), &changes[1..]).0, 0);
    assert_eq!(cluster.alter((4, "1"), &changes[..1]).0, too_many, "also one by one");
    assert_eq!(cluster.alter((4, "1"), &[(&names[1], delete, ""), changes[0]]).0, 0);
    assert_eq!(cluster.alter((4, ""), &changes[2..]).0, 0, "others have their own");
}
