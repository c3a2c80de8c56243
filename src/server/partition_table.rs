//! The partitions of this node, by their topic's id or name. Readers never wait: they see one immutable
//! table, which `background` replaces.

use std::sync::Arc;

use arc_swap::ArcSwap;
use imbl::OrdMap;
use klamm_model::TopicId;
use klamm_partition::Partition;

/// The partitions of a topic that this node has, by index.
#[derive(Clone)]
pub(crate) struct LocalTopic {
    pub(crate) name: Arc<str>,
    pub(crate) id: TopicId,
    pub(crate) partitions: OrdMap<i32, Arc<Partition>>,
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
