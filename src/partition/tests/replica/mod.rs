//! A replica on a simulated disk.
#![allow(dead_code, reason = "each test file uses its part of this")]

use std::path::Path;
use std::sync::Arc;

use klamm_model::{LeaderEpoch, NodeId, TimestampMs, TopicPartition, Uuid};
use klamm_partition::{Leadership, Partition, PartitionSettings};
use klamm_storage::{LogConfig, LogStore, StoreSettings};
use klamm_testing::{SeededRandom, SimulatedClock, SimulatedDisk};

const TOPIC: Uuid = Uuid([7; 16]);

pub(crate) struct Replica {
    pub(crate) disk: Arc<SimulatedDisk>,
    pub(crate) clock: Arc<SimulatedClock>,
    pub(crate) store: LogStore,
    pub(crate) partition: Partition,
}

impl Replica {
    /// An empty one of partition 0, which nobody has told yet who leads.
    pub(crate) fn new(
        node: NodeId,
        now_ms: TimestampMs,
        config: LogConfig,
        settings: PartitionSettings,
    ) -> Replica {
        let clock = Arc::new(SimulatedClock::new(now_ms));
        let (disk, random) = (Arc::new(SimulatedDisk::new(1)), Arc::new(SeededRandom::new(1)));
        let log_dirs = vec![Path::new("/data").to_owned()];
        let store =
            LogStore::open(StoreSettings::new(log_dirs, node, disk.clone(), clock.clone(), random)).unwrap();
        store.load(&|_| config.clone()).unwrap();
        let log = store.create(&TopicPartition::new("t", 0), TOPIC, config).unwrap();
        let partition = Partition::new(TOPIC, node, log, 0, settings, clock.clone());
        Replica { disk, clock, store, partition }
    }

    /// Leads from now on, and is the only replica.
    pub(crate) fn lead_alone(&self, node: NodeId) {
        let leadership = Leadership {
            leader: Some(node),
            leader_epoch: LeaderEpoch(0),
            partition_epoch: 0,
            replicas: vec![node],
            isr: vec![node],
            lost: Vec::new(),
        };
        self.partition.become_leader(&leadership).unwrap();
    }
}
