//! What Apache Kafka 4.4.0 answers to requests that create, change and delete topics and settings, good and
//! bad, one after another on a fresh cluster of one broker (id 1, num.partitions=4). Every answer of ours must
//! carry the same error code for the same topic or resource and, where Kafka shows counts and values, the same
//! ones, and the same message: people search for it, and some programs do.

use std::collections::BTreeMap;
use std::sync::Arc;

use klamm_config::BrokerConfig;
use klamm_metadata::controller::{self, ControllerContext};
use klamm_metadata::{Image, KafkaRules, Planted, TopicDefaults, apply};
use klamm_model::Uuid;
use klamm_protocol::messages::alter_configs::AlterConfigsRequest;
use klamm_protocol::messages::create_partitions::CreatePartitionsRequest;
use klamm_protocol::messages::create_topics::CreateTopicsRequest;
use klamm_protocol::messages::delete_topics::DeleteTopicsRequest;
use klamm_protocol::messages::incremental_alter_configs::IncrementalAlterConfigsRequest;
use klamm_protocol::messages::{BrokerHeartbeatRequest, BrokerRegistrationRequest};
use klamm_protocol::records::cluster_metadata::MetadataRecord;
use klamm_protocol::{Message, Reader};
use klamm_testing::SeededRandom;
use serde_json::Value;

/// Where we answer otherwise on purpose: the case, our codes, and why.
const DIFFERENT: &[(&str, &[i16], &str)] = &[
    ("message.format.version", &[0], "old tools set it, and Klamm serves the old formats"),
    ("al duplicate resource", &[42, 42], "Kafka never answers"),
    ("ia broker all read only", &[42], "Kafka 4 forgot zookeeper.connect; we know it and cannot change it"),
    ("ia broker loggers", &[42], "Klamm has no Log4j loggers"),
];

/// Where we say it otherwise: Kafka's words speak of the one broker that was asked, and here any broker passes it on.
const OWN_WORDS: &[&str] = &["ia broker unknown id", "ia broker negative id", "al broker unknown id"];

/// One result of a reply: who, and what.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Answer {
    name: Option<String>,
    code: i16,
    counts: Option<(i64, i64)>,
    message: Option<String>,
}

struct Cluster {
    image: Image,
    defaults: TopicDefaults,
    rules: KafkaRules,
    random: SeededRandom,
}

impl Cluster {
    fn new() -> Cluster {
        let image = Image::empty("golden");
        let registration = BrokerRegistrationRequest {
            broker_id: 1,
            cluster_id: image.cluster_id.clone(),
            incarnation_id: Uuid([7; 16]),
            log_dirs: vec![Uuid([9; 16])],
            ..Default::default()
        };
        let mut cluster = Cluster {
            image,
            defaults: TopicDefaults { num_partitions: 4, ..TopicDefaults::default() },
            rules: KafkaRules::new(Arc::new(BrokerConfig::defaults())),
            random: SeededRandom::new(1),
        };
        let (records, registered) =
            controller::register_broker(&cluster.image, &cluster.context(), &registration, false);
        cluster.commit(&records);
        let heartbeat = BrokerHeartbeatRequest {
            broker_id: 1,
            broker_epoch: registered.broker_epoch,
            current_metadata_offset: registered.broker_epoch,
            ..Default::default()
        };
        let (records, _) = controller::heartbeat_broker(&cluster.image, &cluster.context(), &heartbeat);
        cluster.commit(&records);
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
        records.iter().for_each(|record| self.image = apply(&self.image, record));
    }

    fn ask(&mut self, api: &str, bytes: Vec<u8>, version: i16) -> Vec<Answer> {
        let context = self.context();
        let (image, reader) = (&self.image, &mut Reader::new(bytes.into()));
        let answer = |name: Option<&str>, code: i16, message: &Option<String>| Answer {
            name: name.map(str::to_owned),
            code,
            counts: None,
            message: message.clone(),
        };
        let (records, answers): (Vec<MetadataRecord>, Vec<Answer>) = match api {
            "CreateTopics" => {
                let request = CreateTopicsRequest::decode(reader, version).unwrap();
                let (records, reply) = controller::create_topics(image, &context, &request);
                let counts = |t: &klamm_protocol::messages::create_topics::CreatableTopicResult| {
                    (version >= 5).then_some((i64::from(t.num_partitions), i64::from(t.replication_factor)))
                };
                let answers = reply.topics.iter().map(|t| Answer {
                    counts: counts(t),
                    ..answer(Some(&t.name), t.error_code, &t.error_message)
                });
                (records, answers.collect())
            }
            "DeleteTopics" => {
                let request = DeleteTopicsRequest::decode(reader, version).unwrap();
                let (records, reply) = controller::delete_topics(image, &context, &request);
                let result = |t: &klamm_protocol::messages::delete_topics::DeletableTopicResult| {
                    answer(t.name.as_deref(), t.error_code, &t.error_message)
                };
                (records, reply.responses.iter().map(result).collect())
            }
            "CreatePartitions" => {
                let request = CreatePartitionsRequest::decode(reader, version).unwrap();
                let (records, reply) = controller::create_partitions(image, &context, &request);
                let results = reply.results.iter();
                (records, results.map(|t| answer(Some(&t.name), t.error_code, &t.error_message)).collect())
            }
            "IncrementalAlterConfigs" => {
                let request = IncrementalAlterConfigsRequest::decode(reader, version).unwrap();
                let (records, reply) = controller::incremental_alter_configs(image, &context, &request);
                let results = reply.responses.iter();
                (
                    records,
                    results.map(|r| answer(Some(&r.resource_name), r.error_code, &r.error_message)).collect(),
                )
            }
            "AlterConfigs" => {
                let request = AlterConfigsRequest::decode(reader, version).unwrap();
                let (records, reply) = controller::alter_configs(image, &context, &request);
                let results = reply.responses.iter();
                (
                    records,
                    results.map(|r| answer(Some(&r.resource_name), r.error_code, &r.error_message)).collect(),
                )
            }
            other => panic!("the golden file holds {other}"),
        };
        for record in &records {
            self.image = apply(&self.image, record);
        }
        answers
    }
}

fn kafka_answers(kafka: &Value) -> Vec<Answer> {
    let lists = ["Topics", "Responses", "Results"].iter().filter_map(|key| kafka.get(key)?.as_array());
    let answer = |item: &Value| Answer {
        name: item.get("Name").or(item.get("ResourceName")).and_then(|name| Some(name.as_str()?.to_owned())),
        code: item["ErrorCode"].as_i64().unwrap() as i16,
        counts: item
            .get("NumPartitions")
            .map(|n| (n.as_i64().unwrap(), item["ReplicationFactor"].as_i64().unwrap())),
        message: item.get("ErrorMessage").and_then(|message| Some(message.as_str()?.to_owned())),
    };
    lists.flatten().map(answer).collect()
}

/// DescribeConfigs: what Kafka shows as set for the topic is what our image holds for it.
fn check_settings(case: &Value, image: &Image) {
    let shown = &case["kafka"]["Results"][0];
    let ours = image.topic_config(shown["ResourceName"].as_str().unwrap());
    for config in shown["Configs"].as_array().unwrap() {
        let set = (config["ConfigSource"] == 1).then(|| config["Value"].as_str().unwrap().to_owned());
        let key = config["Name"].as_str().unwrap();
        assert_eq!(ours.get(key), set.as_ref(), "{}: {key}", case["name"]);
    }
}

fn from_hex(digits: &str) -> Vec<u8> {
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn every_code_and_message_is_that_of_apache_kafka_4_4_0() {
    let mut cluster = Cluster::new();
    let mut different: BTreeMap<&str, &[i16]> =
        DIFFERENT.iter().map(|(name, codes, _)| (*name, *codes)).collect();
    let mut id_of_b = String::new();
    let mut wrong = Vec::new();
    for line in include_str!("golden/admin-4.4.0.jsonl").lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let (name, api) = (case["name"].as_str().unwrap(), case["api"].as_str().unwrap());
        if api == "DescribeConfigs" {
            check_settings(&case, &cluster.image);
            continue;
        }
        let bytes = from_hex(&case["bytes"].as_str().unwrap().replace("<id of b>", &id_of_b));
        let mut ours = cluster.ask(api, bytes, case["version"].as_i64().unwrap() as i16);
        ours.sort();
        if let Some(topic) = cluster.image.topic_by_name("b") {
            id_of_b = topic.id.0.iter().map(|byte| format!("{byte:02x}")).collect();
        }
        if let Some(codes) = different.remove(name) {
            assert_eq!(ours.iter().map(|answer| answer.code).collect::<Vec<_>>(), codes, "{name}");
            continue;
        }
        let mut kafka = kafka_answers(&case["kafka"]);
        kafka.sort();
        let matches = |(ours, kafka): (&Answer, &Answer)| {
            let has_its_message = kafka.message.is_none()
                || ours.message == kafka.message
                || (OWN_WORDS.contains(&name) && ours.message.is_some());
            (&ours.name, ours.code, ours.counts) == (&kafka.name, kafka.code, kafka.counts) && has_its_message
        };
        if ours.len() != kafka.len() || !ours.iter().zip(&kafka).all(matches) {
            wrong.push(format!("{name}\n   ours: {ours:?}\n  kafka: {kafka:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} answers differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(different.is_empty(), "the golden file lacks {different:?}");
}
