//! A cluster of which only the controller's decisions exist.

use std::collections::BTreeMap;
use std::sync::Arc;

use klamm_config::BrokerConfig;
use klamm_metadata::controller::{self, ControllerContext};
use klamm_metadata::{
    DIRECTORY_LOST, Image, KafkaRules, PartitionState, Planted, RecoveryState, TopicDefaults, apply_to,
};
use klamm_model::{ErrorCode, NodeId, Uuid};
use klamm_protocol::messages::alter_partition::{
    AlterPartitionRequest, BrokerState, PartitionDataRequest, TopicDataRequest,
};
use klamm_protocol::messages::alter_partition_reassignments::{
    AlterPartitionReassignmentsRequest, ReassignablePartition, ReassignableTopic,
};
use klamm_protocol::messages::assign_replicas_to_dirs::{
    self, AssignReplicasToDirsRequest, DirectoryDataRequest,
};
use klamm_protocol::messages::broker_registration::{BrokerRegistrationRequest, Feature};
use klamm_protocol::messages::create_topics::{
    CreatableReplicaAssignment, CreatableTopic, CreatableTopicConfig, CreateTopicsRequest,
};
use klamm_protocol::messages::elect_leaders::{ElectLeadersRequest, TopicPartitions};
use klamm_protocol::messages::incremental_alter_configs::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest,
};
use klamm_protocol::messages::list_partition_reassignments::ListPartitionReassignmentsRequest;
use klamm_protocol::messages::update_features::{FeatureUpdateKey, UpdateFeaturesRequest};
use klamm_protocol::messages::{BrokerHeartbeatRequest, UnregisterBrokerRequest};
use klamm_protocol::records::cluster_metadata::MetadataRecord;
use klamm_testing::{Play, SeededRandom};

use crate::judge::{Allowed, Judge};

/// The cluster.
pub(crate) struct Stage {
    pub(crate) image: Image,
    pub(crate) planted: Planted,
    judge: Judge,
    defaults: TopicDefaults,
    rules: KafkaRules,
    random: SeededRandom,
    runs: u8,
}

/// A command's words: `name positional… key=value…`.
struct Words<'a> {
    plain: Vec<&'a str>,
    named: BTreeMap<&'a str, &'a str>,
}

impl<'a> Words<'a> {
    fn of(line: &'a str) -> Words<'a> {
        let (mut plain, mut named) = (Vec::new(), BTreeMap::new());
        for word in line.split_whitespace() {
            match word.split_once('=') {
                Some((key, value)) => drop(named.insert(key, value)),
                None => plain.push(word),
            }
        }
        Words { plain, named }
    }

    fn node(&self, at: usize) -> i32 {
        self.plain[at].parse().expect("a broker's number")
    }

    fn has(&self, word: &str) -> bool {
        self.plain.contains(&word)
    }

    fn number<N: std::str::FromStr>(&self, key: &str) -> Option<N> {
        self.named.get(key).map(|text| text.parse().ok().expect("a number"))
    }
}

/// The id of a broker's log directory by its number.
fn directory(broker: i32, number: u8) -> Uuid {
    Uuid([broker as u8 * 16 + number; 16])
}

fn numbers(text: &str, separator: char) -> Vec<i32> {
    let parts = text.split(separator).filter(|part| !part.is_empty());
    parts.map(|part| part.parse().expect("a number")).collect()
}

/// What comes of a command: an answer in words, and the records.
type Outcome = (String, Vec<MetadataRecord>);

impl Play for Stage {
    fn new() -> Stage {
        Stage {
            image: Image::empty("cluster"),
            planted: Planted::default(),
            judge: Judge::default(),
            defaults: TopicDefaults::default(),
            rules: KafkaRules::new(Arc::new(BrokerConfig::defaults())),
            random: SeededRandom::new(1),
            runs: 0,
        }
    }

    fn run(&mut self, line: &str) -> Vec<String> {
        match self.attempt(line) {
            Ok(lines) => lines,
            Err(wrong) => panic!("after '{line}': {wrong}"),
        }
    }
}

impl Stage {
    pub(crate) fn context(&self) -> ControllerContext<'_> {
        ControllerContext {
            now_ms: 0,
            random: &self.random,
            defaults: &self.defaults,
            rules: &self.rules,
            planted: self.planted,
        }
    }

    /// Runs one command. The error is what must not have happened.
    ///
    /// - `start ID… `: brokers register and are unfenced
    /// - `register ID [clean|unclean] [old] [rack=R] [dirs=N]`, `beat ID [fence] [stop] [behind] [epoch=E] [offline=DIRECTORY]`
    /// - `assign ID DIRECTORY TOPIC-PARTITION…`: where its replicas are
    /// - `fence ID…`: their sessions end; `fence ID epoch=E`
    /// - `unregister ID`
    /// - `create TOPIC 1:2:3,2:3:1 key=value…`
    /// - `isr TOPIC-PARTITION 1,2 [by=B] [epoch=E] [stale=MEMBER] [recovering]`: AlterPartition of its leader
    /// - `elect preferred|unclean TOPIC-PARTITION…`, or all
    /// - `reassign TOPIC-PARTITION 1,2|cancel [keep]`, `list`: reassignments
    /// - `feature NAME LEVEL [lower|unsafe] [check]`
    /// - `rebalance`: preferred leaders take over by themselves
    /// - `config TOPIC|BROKER|* key=value…`: an empty value takes the setting away; `*` stands for all brokers
    pub(crate) fn attempt(&mut self, line: &str) -> Result<Vec<String>, String> {
        let words = Words::of(line);
        let is_unclean = |stage: &Stage| {
            let topics = stage.image.topics.values().map(|topic| stage.image.topic_config(&topic.name));
            let key = "unclean.leader.election.enable";
            topics.into_iter().any(|config| config.get(key).is_some_and(|value| value == "true"))
        };
        let mut allowed = Allowed { unclean: is_unclean(self) };
        if words.plain[0] == "start" {
            for id in &words.plain[1..] {
                self.attempt(&format!("register {id} clean"))?;
                self.attempt(&format!("beat {id}"))?;
            }
            return Ok(Vec::new());
        }
        let (answer, records) = match words.plain[0] {
            "register" => self.register(&words),
            "beat" => self.beat(&words),
            "fence" => self.fence(&words),
            "unregister" => self.unregister(&words),
            "assign" => self.assign(&words),
            "create" => self.create(&words),
            "isr" => self.alter_partition(&words),
            "config" => self.configure(&words),
            "elect" => {
                allowed.unclean |= words.has("unclean");
                self.elect(&words)
            }
            "reassign" => self.reassign(&words),
            "feature" => self.feature(&words),
            "list" => (self.list(), Vec::new()),
            "rebalance" => (String::new(), controller::rebalance_leaders(&self.image, &self.context())),
            other => panic!("there is no command '{other}'"),
        };
        let before = self.image.clone();
        records.iter().for_each(|record| apply_to(&mut self.image, record));
        self.image.offset += 1;
        allowed.unclean |= is_unclean(self);
        self.judge.look(&before, &self.image, allowed)?;
        let mut lines = vec![answer];
        lines.extend(self.differences(&before));
        Ok(lines.into_iter().filter(|line| !line.is_empty()).collect())
    }

    fn register(&mut self, words: &Words<'_>) -> Outcome {
        let id = words.node(1);
        self.runs += 1;
        let known = self.image.brokers.get(&NodeId(id)).map_or(-1, |broker| broker.epoch);
        let is_clean = !words.has("unclean");
        let directory = |number| directory(id, number);
        let feature = |(name, lowest, highest): &(&str, i16, i16)| Feature {
            name: (*name).to_owned(),
            min_supported_version: *lowest,
            max_supported_version: match *name {
                "transaction.version" if words.has("old") => 1,
                _ => *highest,
            },
        };
        let request = BrokerRegistrationRequest {
            broker_id: id,
            cluster_id: "cluster".to_owned(),
            incarnation_id: Uuid([self.runs; 16]),
            rack: words.named.get("rack").map(|rack| (*rack).to_owned()),
            features: klamm_metadata::feature_ranges().iter().map(feature).collect(),
            log_dirs: (0..words.number("dirs").unwrap_or(1)).map(directory).collect(),
            previous_broker_epoch: if is_clean { known } else { -1 },
            ..Default::default()
        };
        let has_session = words.has("alive");
        let (records, reply) =
            controller::register_broker(&self.image, &self.context(), &request, has_session);
        let eligible_leaders = self.image.feature("eligible.leader.replicas.version");
        if !is_clean && reply.error_code == 0 && eligible_leaders > 0 {
            self.judge.note_unclean(NodeId(id), reply.broker_epoch);
        }
        (code(reply.error_code), records)
    }

    fn beat(&self, words: &Words<'_>) -> Outcome {
        let id = words.node(1);
        let epoch = self.image.brokers.get(&NodeId(id)).map_or(-1, |broker| broker.epoch);
        let request = BrokerHeartbeatRequest {
            broker_id: id,
            broker_epoch: words.number("epoch").unwrap_or(epoch),
            current_metadata_offset: if words.has("behind") { epoch - 1 } else { self.image.offset },
            want_fence: words.has("fence"),
            want_shut_down: words.has("stop"),
            offline_log_dirs: words
                .number("offline")
                .map(|number| directory(id, number))
                .into_iter()
                .collect(),
            ..Default::default()
        };
        let (records, reply) = controller::heartbeat_broker(&self.image, &self.context(), &request);
        let mut answer = code(reply.error_code);
        for (says, word) in [
            (reply.is_fenced, " fenced"),
            (reply.should_shut_down, " may stop"),
            (!reply.is_caught_up && reply.error_code == 0, " not caught up"),
        ] {
            answer.push_str(if says { word } else { "" });
        }
        (answer, records)
    }

    fn fence(&self, words: &Words<'_>) -> Outcome {
        let named = words.plain[1..].iter().map(|id| NodeId(id.parse().expect("a broker's number")));
        let epoch = |id| self.image.brokers.get(&id).map_or(-1, |broker| broker.epoch);
        let expired: Vec<_> = named.map(|id| (id, words.number("epoch").unwrap_or(epoch(id)))).collect();
        (String::new(), controller::fence_brokers(&self.image, &self.context(), &expired))
    }

    fn unregister(&self, words: &Words<'_>) -> Outcome {
        let request = UnregisterBrokerRequest { broker_id: words.node(1) };
        let (records, reply) = controller::unregister_broker(&self.image, &self.context(), &request);
        (code(reply.error_code), records)
    }

    fn assign(&self, words: &Words<'_>) -> Outcome {
        let id = words.node(1);
        let topics = words.plain[3..].iter().map(|name| {
            let (topic, index) = name.rsplit_once('-').expect("TOPIC-PARTITION");
            let partitions = numbers(index, ',').into_iter();
            assign_replicas_to_dirs::TopicDataRequest {
                topic_id: self.image.topic_ids.get(topic).copied().unwrap_or(Uuid([99; 16])),
                partitions: partitions
                    .map(|partition_index| assign_replicas_to_dirs::PartitionDataRequest { partition_index })
                    .collect(),
            }
        });
        let request = AssignReplicasToDirsRequest {
            broker_id: id,
            broker_epoch: words
                .number("epoch")
                .unwrap_or(self.image.brokers.get(&NodeId(id)).map_or(-1, |broker| broker.epoch)),
            directories: vec![DirectoryDataRequest {
                id: match words.plain[2] {
                    "none" => DIRECTORY_LOST,
                    number => directory(id, number.parse().expect("a directory's number")),
                },
                topics: topics.collect(),
            }],
        };
        let (records, reply) = controller::assign_replicas_to_dirs(&self.image, &self.context(), &request);
        let each = reply.directories.iter().flat_map(|directory| &directory.topics);
        let codes = each.flat_map(|topic| topic.partitions.iter().map(|partition| partition.error_code));
        let codes = [reply.error_code].into_iter().chain(codes).filter(|code| *code != 0).map(code);
        (codes.collect::<Vec<_>>().join(", "), records)
    }

    fn create(&self, words: &Words<'_>) -> Outcome {
        let assignments = words.plain[2].split(',').zip(0..).map(|(replicas, partition_index)| {
            CreatableReplicaAssignment { partition_index, broker_ids: numbers(replicas, ':') }
        });
        let config = |(name, value): (&&str, &&str)| CreatableTopicConfig {
            name: (*name).to_owned(),
            value: Some((*value).to_owned()),
        };
        let topic = CreatableTopic {
            name: words.plain[1].to_owned(),
            num_partitions: -1,
            replication_factor: -1,
            assignments: assignments.collect(),
            configs: words.named.iter().map(config).collect(),
        };
        let request = CreateTopicsRequest { topics: vec![topic], ..Default::default() };
        let (records, reply) = controller::create_topics(&self.image, &self.context(), &request);
        (code(reply.topics[0].error_code), records)
    }

    fn alter_partition(&self, words: &Words<'_>) -> Outcome {
        let (id, index, state) = self.partition(words.plain[1]);
        let leader = words.number("by").map(NodeId).or(state.leader).unwrap_or(NodeId(-1));
        let epoch = |id| self.image.brokers.get(&id).map_or(-1, |broker| broker.epoch);
        let member = |member: i32| BrokerState {
            broker_id: member,
            broker_epoch: match words.number::<i32>("stale") {
                // -1 would stand for any epoch.
                Some(stale) if stale == member => epoch(NodeId(member)) + 1,
                _ => epoch(NodeId(member)),
            },
        };
        let partition = PartitionDataRequest {
            partition_index: index,
            leader_epoch: state.leader_epoch.0,
            partition_epoch: state.partition_epoch,
            new_isr_with_epochs: numbers(words.plain[2], ',').into_iter().map(member).collect(),
            leader_recovery_state: i8::from(words.has("recovering")),
            ..Default::default()
        };
        let request = AlterPartitionRequest {
            broker_id: leader.0,
            broker_epoch: words.number("epoch").unwrap_or(epoch(leader)),
            topics: vec![TopicDataRequest {
                topic_id: id,
                partitions: vec![partition],
                ..Default::default()
            }],
        };
        let (records, reply) = controller::alter_partition(&self.image, &self.context(), &request);
        let found = reply.topics.first().map_or(reply.error_code, |topic| topic.partitions[0].error_code);
        (code(found), records)
    }

    fn elect(&self, words: &Words<'_>) -> Outcome {
        let named = words.plain[2..].iter().map(|name| {
            let (topic, index) = name.rsplit_once('-').expect("TOPIC-PARTITION");
            TopicPartitions { topic: topic.to_owned(), partitions: numbers(index, ',') }
        });
        let request = ElectLeadersRequest {
            election_type: i8::from(words.has("unclean")),
            topic_partitions: (words.plain.len() > 2).then(|| named.collect()),
            ..Default::default()
        };
        let (records, reply) = controller::elect_leaders(&self.image, &self.context(), &request);
        let codes = reply.replica_election_results.iter().flat_map(|topic| {
            topic.partition_result.iter().map(|result| {
                let outcome =
                    if result.error_code == 0 { "elected".to_owned() } else { code(result.error_code) };
                format!("{}-{}: {outcome}", topic.topic, result.partition_id)
            })
        });
        (codes.collect::<Vec<_>>().join(", "), records)
    }

    fn reassign(&self, words: &Words<'_>) -> Outcome {
        let (topic, index) = words.plain[1].rsplit_once('-').expect("TOPIC-PARTITION");
        let partition = ReassignablePartition {
            partition_index: index.parse().expect("a partition's number"),
            replicas: (words.plain[2] != "cancel").then(|| numbers(words.plain[2], ',')),
        };
        let topic = ReassignableTopic { name: topic.to_owned(), partitions: vec![partition] };
        let request = AlterPartitionReassignmentsRequest {
            allow_replication_factor_change: !words.has("keep"),
            topics: vec![topic],
            ..Default::default()
        };
        let (records, reply) =
            controller::alter_partition_reassignments(&self.image, &self.context(), &request);
        (code(reply.responses[0].partitions[0].error_code), records)
    }

    fn feature(&self, words: &Words<'_>) -> Outcome {
        let upgrade_type = if words.has("lower") { 2 } else { 1 + 2 * i8::from(words.has("unsafe")) };
        let update = FeatureUpdateKey {
            feature: words.plain[1].to_owned(),
            max_version_level: words.plain[2].parse().expect("a level"),
            upgrade_type,
            ..Default::default()
        };
        let request = UpdateFeaturesRequest {
            feature_updates: vec![update],
            validate_only: words.has("check"),
            ..Default::default()
        };
        let (records, reply) = controller::update_features(&self.image, &self.context(), &request);
        let mut answer = code(reply.error_code);
        for record in &records {
            match record {
                MetadataRecord::FeatureLevel(level) => {
                    answer.push_str(&format!("{} is at {}", level.name, level.feature_level));
                }
                MetadataRecord::Config(config) => {
                    let of = if config.resource_name.is_empty() { "all" } else { &config.resource_name };
                    answer.push_str(&format!(", {} of broker {of}: {:?}", config.name, config.value));
                }
                _ => {}
            }
        }
        (answer, records)
    }

    fn list(&self) -> String {
        let request = ListPartitionReassignmentsRequest { topics: None, ..Default::default() };
        let reply = controller::list_partition_reassignments(&self.image, &request);
        let moving = reply.topics.iter().flat_map(|topic| {
            let of_topic = topic.partitions.iter();
            of_topic.map(|moving| {
                let (index, name) = (moving.partition_index, &topic.name);
                format!(
                    "{name}-{index} adding {:?} removing {:?}",
                    moving.adding_replicas, moving.removing_replicas
                )
            })
        });
        moving.collect::<Vec<_>>().join(", ")
    }

    fn configure(&self, words: &Words<'_>) -> Outcome {
        let config = |(name, value): (&&str, &&str)| AlterableConfig {
            name: (*name).to_owned(),
            config_operation: i8::from(value.is_empty()),
            value: Some((*value).to_owned()),
        };
        let (resource_type, resource_name) = match words.plain[1] {
            "*" => (4, ""),
            broker if broker.parse::<i32>().is_ok() => (4, broker),
            topic => (2, topic),
        };
        let resource = AlterConfigsResource {
            resource_type,
            resource_name: resource_name.to_owned(),
            configs: words.named.iter().map(config).collect(),
        };
        let request = IncrementalAlterConfigsRequest { resources: vec![resource], ..Default::default() };
        let (records, reply) = controller::incremental_alter_configs(&self.image, &self.context(), &request);
        (code(reply.responses[0].error_code), records)
    }

    /// A partition by `TOPIC-PARTITION`.
    fn partition(&self, name: &str) -> (Uuid, i32, PartitionState) {
        let (topic, index) = name.rsplit_once('-').expect("TOPIC-PARTITION");
        let index = index.parse().expect("a partition's number");
        let topic = self.image.topic_by_name(topic).expect("a topic");
        (topic.id, index, topic.partition(index).expect("a partition").clone())
    }

    /// The partitions that are not as they were, by topic.
    fn differences(&self, before: &Image) -> Vec<String> {
        let mut lines = Vec::new();
        for (name, id) in &self.image.topic_ids {
            let (topic, was) = (&self.image.topics[id], before.topic(*id));
            for (index, state) in (0..).zip(&topic.partitions) {
                if was.and_then(|was| was.partition(index)) != Some(state) {
                    lines.push(format!("{name}-{index} {}", show(state)));
                }
            }
        }
        lines
    }
}

fn code(code: i16) -> String {
    if code == 0 {
        String::new()
    } else {
        ErrorCode::from_code(code).map_or(code.to_string(), |code| code.to_string())
    }
}

fn show(state: &PartitionState) -> String {
    let list = |nodes: &[NodeId]| nodes.iter().map(|id| id.to_string()).collect::<Vec<_>>().join(",");
    let leader = state.leader.map_or("none".to_owned(), |leader| leader.to_string());
    let mut text = format!(
        "led by {leader} in {}, isr {} of {}, version {}",
        state.leader_epoch.0,
        list(&state.isr),
        list(&state.replicas),
        state.partition_epoch
    );
    for (nodes, word) in [
        (&state.eligible_leaders, "eligible"),
        (&state.last_known_eligible_leaders, "last"),
        (&state.adding, "adding"),
        (&state.removing, "removing"),
    ] {
        if !nodes.is_empty() {
            text.push_str(&format!(", {word} {}", list(nodes)));
        }
    }
    if state.recovery == RecoveryState::Recovering {
        text.push_str(", recovering");
    }
    text
}
