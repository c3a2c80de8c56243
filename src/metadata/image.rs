//! What the cluster agreed on, as one immutable value. A new image shares all that did not change with the
//! one before it, so holding one for the length of a request costs nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use imbl::OrdMap;
use klamm_model::{LeaderEpoch, NodeId, Offset, TopicId, TopicPartition, Uuid};

use crate::kept::Kept;

/// The state of the cluster as of one offset of the metadata log.
#[derive(Clone, Debug, PartialEq)]
pub struct Image {
    /// The cluster's id, which `meta.properties` holds too.
    pub cluster_id: String,
    /// The offset of the last batch of records that is in here; -1 when there is none yet.
    pub offset: Offset,
    /// The active controller, as far as this node knows. It is no part of the replicated state.
    pub controller: Option<NodeId>,
    /// All registered brokers, fenced ones too.
    pub brokers: OrdMap<NodeId, Arc<Broker>>,
    /// All topics, by id.
    pub topics: OrdMap<TopicId, Arc<Topic>>,
    /// The id of each topic, by name.
    pub topic_ids: OrdMap<Arc<str>, TopicId>,
    /// What was set for topics, brokers and other resources. Resources without any setting are not in here.
    pub configs: OrdMap<ConfigResource, Arc<BTreeMap<String, String>>>,
    /// The finalized feature levels that are above 0, `metadata.version` among them.
    pub features: BTreeMap<String, i16>,
    /// The first producer id that no broker was given yet.
    pub next_producer_id: i64,
    /// Client quotas, and what nothing acts upon yet: users, access control entries and delegation tokens.
    pub kept: Kept,
}

/// A topic.
#[derive(Clone, Debug, PartialEq)]
pub struct Topic {
    /// Its name.
    pub name: Arc<str>,
    /// Its id; a topic that is made again under the same name has another.
    pub id: TopicId,
    /// Its partitions; the index is the partition's number.
    pub partitions: Vec<PartitionState>,
}

/// Where a partition lives and who leads it.
#[derive(Clone, Debug, PartialEq)]
pub struct PartitionState {
    /// The brokers that hold it; the first one is the preferred leader.
    pub replicas: Vec<NodeId>,
    /// The log directory of each replica, in the order of `replicas`.
    pub directories: Vec<Uuid>,
    /// The replicas that have all that is committed.
    pub isr: Vec<NodeId>,
    /// Replicas that a reassignment takes away.
    pub removing: Vec<NodeId>,
    /// Replicas that a reassignment adds.
    pub adding: Vec<NodeId>,
    /// Who leads it; `None` while nobody can.
    pub leader: Option<NodeId>,
    /// The leader's term. It rises with each change of leader.
    pub leader_epoch: LeaderEpoch,
    /// Rises with each change of this state.
    pub partition_epoch: i32,
    /// Whether the leader was elected uncleanly and has not recovered yet.
    pub recovery: RecoveryState,
    /// Replicas outside the ISR that are safe to elect (KIP-966).
    pub eligible_leaders: Vec<NodeId>,
    /// The members of the ISR that were lost uncleanly last (KIP-966).
    pub last_known_eligible_leaders: Vec<NodeId>,
}

/// `LeaderRecoveryState` (KIP-704).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryState {
    /// Nothing is to be done.
    Recovered,
    /// The leader was elected from outside the ISR and still has to recover.
    Recovering,
}

/// A registered broker.
#[derive(Clone, Debug, PartialEq)]
pub struct Broker {
    /// Its `node.id`.
    pub id: NodeId,
    /// The number of its registration; rises with each.
    pub epoch: i64,
    /// Which run of the process registered.
    pub incarnation: Uuid,
    /// What clients may connect to, by listener.
    pub endpoints: Vec<Endpoint>,
    /// `broker.rack`.
    pub rack: Option<String>,
    /// Whether it must lead nothing and be in no ISR, since it is not known to be alive.
    pub fenced: bool,
    /// Whether it is stopping on purpose.
    pub in_controlled_shutdown: bool,
    /// The ids of its log directories that are online.
    pub directories: Vec<Uuid>,
    /// The features that it supports: name to lowest and highest level.
    pub features: BTreeMap<String, (i16, i16)>,
}

/// An address that a broker advertises.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The listener's name.
    pub name: String,
    /// Host name or address; empty where each connection is told the address that it came in by.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Kafka's number of the security protocol: 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL.
    pub security_protocol: i16,
}

/// A replica in a log directory that the broker has not told yet.
pub(crate) const DIRECTORY_UNASSIGNED: Uuid = Uuid::ZERO;

/// A replica in a log directory that is offline, of which more is not known.
pub const DIRECTORY_LOST: Uuid = reserved_directory(1);

/// A replica in a log directory that was chosen before directories had ids.
pub(crate) const DIRECTORY_MIGRATING: Uuid = reserved_directory(2);

/// Kafka's ids that stand for no directory.
const fn reserved_directory(number: u8) -> Uuid {
    let mut bytes = [0; 16];
    bytes[15] = number;
    Uuid(bytes)
}

/// What a setting may be attached to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConfigResource {
    /// A topic (type 2).
    Topic(String),
    /// One broker, or with `None` the default for all (type 4).
    Broker(Option<NodeId>),
    /// A subscription to client metrics (type 16).
    ClientMetrics(String),
    /// A group (type 32).
    Group(String),
}

impl Image {
    /// The image of a cluster to which nothing has happened.
    pub fn empty(cluster_id: impl Into<String>) -> Image {
        Image {
            cluster_id: cluster_id.into(),
            offset: -1,
            controller: None,
            brokers: OrdMap::new(),
            topics: OrdMap::new(),
            topic_ids: OrdMap::new(),
            configs: OrdMap::new(),
            features: BTreeMap::new(),
            next_producer_id: 0,
            kept: Kept::default(),
        }
    }

    /// The topic of this name.
    pub fn topic_by_name(&self, name: &str) -> Option<&Arc<Topic>> {
        self.topics.get(self.topic_ids.get(name)?)
    }

    /// The topic with this id.
    pub fn topic(&self, id: TopicId) -> Option<&Arc<Topic>> {
        self.topics.get(&id)
    }

    /// A partition by its topic's name.
    pub fn partition(&self, partition: &TopicPartition) -> Option<&PartitionState> {
        self.topic_by_name(&partition.topic)?.partition(partition.partition)
    }

    /// What was set for a resource; nothing for one that has no settings.
    pub fn config_of(&self, resource: &ConfigResource) -> Arc<BTreeMap<String, String>> {
        self.configs.get(resource).cloned().unwrap_or_default()
    }

    /// What was set for a topic.
    pub fn topic_config(&self, name: &str) -> Arc<BTreeMap<String, String>> {
        self.config_of(&ConfigResource::Topic(name.to_owned()))
    }

    /// The replicas of a partition whose brokers are not there, or whose log directories are offline.
    pub fn offline_replicas(&self, partition: &PartitionState) -> Vec<NodeId> {
        let is_live = |node: &NodeId| {
            let broker = self.brokers.get(node).filter(|broker| broker.is_active());
            broker.is_some_and(|broker| broker.has_directory(partition.directory_of(*node)))
        };
        partition.replicas.iter().copied().filter(|node| !is_live(node)).collect()
    }

    /// Whom clients are told to bring to what the controller decides: the controller, where it is a broker that serves
    /// them, else one that does and passes it on. A client waits minutes for a controller that is not among the
    /// brokers that it was told of.
    pub fn controller_for_clients(&self) -> Option<NodeId> {
        let is_served = |node: &NodeId| self.live_brokers().any(|broker| broker.id == *node);
        self.controller.filter(is_served).or_else(|| self.live_brokers().next().map(|broker| broker.id))
    }

    /// The brokers that may lead and serve.
    pub fn live_brokers(&self) -> impl Iterator<Item = &Arc<Broker>> {
        self.brokers.values().filter(|broker| !broker.fenced)
    }

    /// The level of a feature; 0 where it was never finalized.
    pub fn feature(&self, name: &str) -> i16 {
        self.features.get(name).copied().unwrap_or(0)
    }
}

impl Topic {
    /// A partition by its number.
    pub fn partition(&self, index: i32) -> Option<&PartitionState> {
        self.partitions.get(usize::try_from(index).ok()?)
    }

    /// The largest number of replicas that a partition has.
    pub fn replication_factor(&self) -> i16 {
        self.partitions.first().map_or(0, |partition| partition.replicas.len() as i16)
    }
}

impl PartitionState {
    /// The log directory of a replica; zero where it is not known.
    pub fn directory_of(&self, replica: NodeId) -> Uuid {
        let place = self.replicas.iter().position(|id| *id == replica);
        place.and_then(|place| self.directories.get(place).copied()).unwrap_or(Uuid::ZERO)
    }

    /// The replicas that are in no log directory, as their brokers have told.
    pub fn lost_replicas(&self) -> impl Iterator<Item = NodeId> {
        self.replicas.iter().copied().filter(|id| self.directory_of(*id) == DIRECTORY_LOST)
    }
}

impl Broker {
    /// Whether it may lead partitions and be in an ISR: neither fenced nor about to stop (KIP-841).
    pub fn is_active(&self) -> bool {
        !self.fenced && !self.in_controlled_shutdown
    }

    /// Whether a replica in this one of its log directories can be read and written, as far as is known.
    pub fn has_directory(&self, directory: Uuid) -> bool {
        match directory {
            DIRECTORY_LOST => false,
            DIRECTORY_UNASSIGNED | DIRECTORY_MIGRATING => true,
            known => self.directories.is_empty() || self.directories.contains(&known),
        }
    }

    /// What it advertises for a listener.
    pub fn endpoint(&self, listener: &str) -> Option<&Endpoint> {
        self.endpoints.iter().find(|endpoint| endpoint.name == listener)
    }
}

impl ConfigResource {
    /// Kafka's number of the resource's type.
    pub fn type_code(&self) -> i8 {
        match self {
            ConfigResource::Topic(_) => 2,
            ConfigResource::Broker(_) => 4,
            ConfigResource::ClientMetrics(_) => 16,
            ConfigResource::Group(_) => 32,
        }
    }

    /// The name as requests and records write it; empty for the default of all brokers.
    pub fn name(&self) -> String {
        match self {
            ConfigResource::Topic(name)
            | ConfigResource::ClientMetrics(name)
            | ConfigResource::Group(name) => name.clone(),
            ConfigResource::Broker(Some(id)) => id.to_string(),
            ConfigResource::Broker(None) => String::new(),
        }
    }

    /// From Kafka's type number and name; `None` for a type that holds no settings or a broker whose name is
    /// no number.
    pub fn from_wire(type_code: i8, name: &str) -> Option<ConfigResource> {
        match type_code {
            2 => Some(ConfigResource::Topic(name.to_owned())),
            4 if name.is_empty() => Some(ConfigResource::Broker(None)),
            4 => Some(ConfigResource::Broker(Some(NodeId(name.parse().ok()?)))),
            16 => Some(ConfigResource::ClientMetrics(name.to_owned())),
            32 => Some(ConfigResource::Group(name.to_owned())),
            _ => None,
        }
    }
}

/// The features that this Klamm supports: name, lowest and highest level. ApiVersions and a broker's
/// registration list them.
pub fn feature_ranges() -> &'static [(&'static str, i16, i16)] {
    crate::controller::features::SUPPORTED
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use imbl::ordmap::DiffItem;
    use klamm_protocol::records::cluster_metadata::RegisterBrokerRecord;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// All that follows the image asks the map what has changed. A version of the library passed over some of it.
        #[test]
        fn a_map_tells_every_change(
            size in 0u16..600,
            changes in prop::collection::vec((any::<u16>(), 0u8..3), 1..60),
            together in 1usize..4,
        ) {
            let mut before: OrdMap<u16, u32> = (0..size).map(|key| (key, 0u32)).collect();
            for (number, several) in (1..).zip(changes.chunks(together)) {
                let mut now = before.clone();
                for (key, kind) in several {
                    match kind {
                        0 => now.remove(&(key % 600)),
                        _ => now.insert(key % 600, number),
                    };
                }
                let changed: BTreeMap<u16, Option<u32>> = (0..600)
                    .filter(|key| before.get(key) != now.get(key))
                    .map(|key| (key, now.get(&key).copied()))
                    .collect();
                let told = before.diff(&now).map(|item| match item {
                    DiffItem::Add(key, value) | DiffItem::Update { new: (key, value), .. } => (*key, Some(*value)),
                    DiffItem::Remove(key, _) => (*key, None),
                });
                prop_assert_eq!(told.collect::<BTreeMap<_, _>>(), changed);
                before = now;
            }
        }
    }

    /// librdkafka asked a cluster that had just formed, heard of a controller that was no broker yet, and waited a minute
    /// for it before it gave up making a topic.
    #[test]
    fn clients_are_told_of_a_controller_that_is_among_the_brokers() {
        let mut image = Image::empty("c");
        image.controller = Some(NodeId(1));
        assert_eq!(image.controller_for_clients(), None);
        for (broker_id, fenced) in [(1, true), (2, false), (3, false)] {
            let record = RegisterBrokerRecord { broker_id, fenced, ..Default::default() };
            crate::apply_to(&mut image, &record.into());
        }
        assert_eq!(image.controller_for_clients(), Some(NodeId(2)));
        image.controller = Some(NodeId(3));
        assert_eq!(image.controller_for_clients(), Some(NodeId(3)));
    }
}
