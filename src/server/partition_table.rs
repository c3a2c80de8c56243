//! The partitions of this node, by their topic's id or name. Readers never wait: they see one immutable
//! table, which `background` replaces.

use std::borrow::Cow;
use std::sync::Arc;

use arc_swap::ArcSwap;
use imbl::{OrdMap, OrdSet};
use klamm_metadata::{Image, PartitionState, Topic};
use klamm_model::{NodeId, TopicId, TopicPartition};
use klamm_partition::Partition;

/// The partitions of a topic that this node has, by index.
#[derive(Clone)]
pub(crate) struct LocalTopic {
    pub(crate) name: Arc<str>,
    pub(crate) id: TopicId,
    pub(crate) partitions: OrdMap<i32, Arc<Partition>>,
    /// Those of which this node can serve nothing: their log directory is offline, or their log does not open.
    pub(crate) offline: OrdSet<i32>,
}

/// All topics of which this node has partitions.
#[derive(Clone, Default)]
pub(crate) struct Table {
    topics: OrdMap<TopicId, Arc<LocalTopic>>,
    ids: OrdMap<Arc<str>, TopicId>,
}

impl Table {
    pub(crate) fn topic(&self, id: TopicId) -> Option<&Arc<LocalTopic>> {
        self.topics.get(&id)
    }

    pub(crate) fn topic_by_name(&self, name: &str) -> Option<&Arc<LocalTopic>> {
        self.topics.get(self.ids.get(name)?)
    }

    /// A partition, by the topic's id where there is one, else by its name.
    pub(crate) fn find(&self, id: TopicId, name: &str, partition: i32) -> Option<&Arc<Partition>> {
        let topic = if id.is_zero() { self.topic_by_name(name)? } else { self.topic(id)? };
        topic.partitions.get(&partition)
    }

    /// Whether this node has a partition and can serve nothing of it.
    pub(crate) fn is_offline(&self, id: TopicId, partition: i32) -> bool {
        self.topic(id).is_some_and(|local| local.offline.contains(&partition))
    }

    /// The partitions of which this node can serve nothing.
    pub(crate) fn offline(&self) -> impl Iterator<Item = TopicPartition> {
        self.topics.values().flat_map(|topic| {
            topic.offline.iter().map(|index| TopicPartition::new(topic.name.clone(), *index))
        })
    }

    /// A partition's state as clients are told it, and its replicas that are offline. A replica whose log directory
    /// is offline neither leads nor is in sync. As in Kafka but for the leader epoch, which grows there.
    pub(crate) fn as_told<'a>(
        &self,
        node: NodeId,
        image: &Image,
        topic: &Topic,
        index: i32,
        state: &'a PartitionState,
    ) -> (Cow<'a, PartitionState>, Vec<NodeId>) {
        let mut offline = image.offline_replicas(state);
        if !self.is_offline(topic.id, index) {
            return (Cow::Borrowed(state), offline);
        }
        if !offline.contains(&node) {
            offline.push(node);
        }
        let mut told = state.clone();
        told.leader = state.leader.filter(|leader| *leader != node);
        told.isr.retain(|replica| *replica != node);
        (Cow::Owned(told), offline)
    }

    /// All topics.
    pub(crate) fn topics(&self) -> impl Iterator<Item = &Arc<LocalTopic>> {
        self.topics.values()
    }

    /// All partitions.
    pub(crate) fn partitions(&self) -> impl Iterator<Item = &Arc<Partition>> {
        self.topics.values().flat_map(|topic| topic.partitions.values())
    }

    pub(crate) fn put(&mut self, topic: LocalTopic) {
        self.ids.insert(topic.name.clone(), topic.id);
        self.topics.insert(topic.id, Arc::new(topic));
    }

    pub(crate) fn remove(&mut self, id: TopicId) {
        if let Some(topic) = self.topics.remove(&id)
            && self.ids.get(&topic.name) == Some(&id)
        {
            self.ids.remove(&topic.name);
        }
    }
}

/// The table that is in force.
#[derive(Default)]
pub(crate) struct PartitionTable {
    current: ArcSwap<Table>,
}

impl PartitionTable {
    pub(crate) fn load(&self) -> arc_swap::Guard<Arc<Table>> {
        self.current.load()
    }

    pub(crate) fn replace(&self, table: Table) {
        self.current.store(Arc::new(table));
    }

    /// A partition by the name of its topic.
    pub(crate) fn by_name(&self, topic: &str, partition: i32) -> Option<Arc<Partition>> {
        self.load().topic_by_name(topic)?.partitions.get(&partition).cloned()
    }
}
