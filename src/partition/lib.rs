//! One replica of one partition: who leads, what may be appended, what may be read, who waits for it.
//!
//! This crate knows offsets, epochs, watermarks and producers' sequences. It must never know wire types,
//! groups, cluster metadata or another partition: what changes from outside reaches it as a call
//! ([`Partition::become_leader`], [`Partition::become_follower`], [`Partition::update_settings`]), and what it
//! wants changed outside leaves it as a value ([`IsrChange`]).

mod append;
mod follower;
mod isr;
mod leader;
mod look_up;
mod moving;
mod planted;
mod progress;
mod read;
mod sequence;
mod settings;
mod space;
mod transactions;
mod verifications;
mod waiters;
mod watermarks;

use std::sync::Arc;

use arc_swap::ArcSwap;
use klamm_io::Clock;
use klamm_model::{LeaderEpoch, NodeId, Offset, TopicId, TopicPartition};
use klamm_storage::Log;
use parking_lot::Mutex;
use tokio::sync::Notify;

pub use append::{AppendError, AppendOptions, Appended, Origin};
pub use follower::{Fetched, ReplicationError};
pub use isr::{ActiveBrokers, IsrAnswer, IsrChange};
/// Declares mistakes for crates that do not know the store.
pub use klamm_storage::{planted_bugs, planted_here};
pub use leader::Leadership;
pub use look_up::{FoundTimestamp, LookUp, LookUpError};
pub use moving::Copied;
#[cfg(debug_assertions)]
pub use planted::{PlantedBug, plant};
pub use progress::FollowerProgress;
pub use read::{PartitionRead, ReadError, ReadOptions, Reader};
pub use settings::PartitionSettings;
pub use transactions::{Ended, TransactionMarker, Verification};
pub use verifications::VerificationGuard;
pub use watermarks::PartitionOffsets;

use leader::LeaderState;
use moving::Moving;
use planted::planted;
use space::Space;
use verifications::Verifications;
use waiters::Waiters;
use watermarks::Watermarks;

/// A replica of a partition on this node.
///
/// Lock order: `writer` before `moving` before `state`. `writer` is held while records are validated and appended, so that
/// offsets are given in order; `state` only for a few instructions, never while a disk works.
pub struct Partition {
    topic_partition: TopicPartition,
    topic_id: TopicId,
    local: NodeId,
    /// Replaced, under the writer's lock, when the partition has moved into another log directory.
    log: ArcSwap<Log>,
    moving: Mutex<Option<Moving>>,
    clock: Arc<dyn Clock>,
    settings: ArcSwap<PartitionSettings>,
    brokers: Arc<ActiveBrokers>,
    writer: Mutex<()>,
    state: Mutex<State>,
    waiters: Waiters,
    space: Space,
    /// Taken after any other lock, and held for a few instructions.
    verifications: Mutex<Verifications>,
}

struct State {
    role: Role,
    leader_epoch: LeaderEpoch,
    watermarks: Watermarks,
    /// Whether the disk has lost records that this replica had told that it has, and it may still count as in sync.
    /// It must not lead then: the others would cut those records from their logs.
    has_lost_records: bool,
}

enum Role {
    /// Opened, but nobody has said yet who leads.
    Idle,
    Leader(LeaderState),
    Follower {
        leader: Option<NodeId>,
    },
}

impl Partition {
    /// A partition over its log. It serves nothing before it is told who leads; `high_watermark` is what the
    /// checkpoint said, a lower bound.
    pub fn new(
        topic_id: TopicId,
        local: NodeId,
        log: Arc<Log>,
        high_watermark: Offset,
        settings: PartitionSettings,
        clock: Arc<dyn Clock>,
    ) -> Partition {
        let watermarks = Watermarks::new(high_watermark, &log);
        let role = Role::Idle;
        let state = State { role, leader_epoch: LeaderEpoch::NONE, watermarks, has_lost_records: false };
        Partition {
            topic_partition: log.topic_partition().clone(),
            topic_id,
            local,
            log: ArcSwap::new(log),
            moving: Mutex::new(None),
            clock,
            settings: ArcSwap::from_pointee(settings),
            brokers: Arc::default(),
            writer: Mutex::new(()),
            state: Mutex::new(state),
            waiters: Waiters::default(),
            space: Space::default(),
            verifications: Mutex::default(),
        }
    }

    /// This partition, which learns from `brokers` who may be in sync.
    pub fn with_brokers(self, brokers: Arc<ActiveBrokers>) -> Partition {
        Partition { brokers, ..self }
    }

    /// Its topic's name and its index.
    pub fn topic_partition(&self) -> &TopicPartition {
        &self.topic_partition
    }

    /// The id of its topic.
    pub fn topic_id(&self) -> TopicId {
        self.topic_id
    }

    /// Its log on disk. It is another one when the partition has moved into another log directory.
    pub fn log(&self) -> Arc<Log> {
        self.log.load_full()
    }

    /// The epoch of the leader that it knows of.
    pub fn leader_epoch(&self) -> LeaderEpoch {
        self.state.lock().leader_epoch
    }

    /// Whether this replica leads.
    pub fn is_leader(&self) -> bool {
        matches!(self.state.lock().role, Role::Leader(_))
    }

    /// Whether the disk has lost records of this replica, and it may still count as in sync: the controller has to be
    /// told.
    pub fn has_lost_records(&self) -> bool {
        self.state.lock().has_lost_records
    }

    /// Whether the disk has no room for more of its records: another replica should lead. Where nothing is written for
    /// long, `has_room` is asked.
    pub fn lacks_space(&self, has_room: impl FnOnce() -> bool) -> bool {
        self.space.is_lacking(self.clock.monotonic_ms(), has_room)
    }

    /// `min.insync.replicas`, but never more than there are replicas; that of a follower is the setting.
    pub fn in_sync_replicas_min(&self) -> usize {
        let settings = self.settings.load();
        match &self.state.lock().role {
            Role::Leader(leader) => leader.min_in_sync(&settings),
            _ => settings.in_sync_replicas_min,
        }
    }

    /// The leader that it follows or is.
    pub fn leader(&self) -> Option<NodeId> {
        match self.state.lock().role {
            Role::Idle => None,
            Role::Leader(_) => Some(self.local),
            Role::Follower { leader } => leader,
        }
    }

    /// The settings in force.
    pub fn settings(&self) -> Arc<PartitionSettings> {
        self.settings.load_full()
    }

    /// Replaces the settings: a topic's configs have changed.
    pub fn update_settings(&self, settings: PartitionSettings) {
        self.settings.store(Arc::new(settings));
    }

    /// The four offsets, all of one moment.
    pub fn offsets(&self) -> PartitionOffsets {
        self.state.lock().watermarks.offsets(&self.log())
    }

    /// Wakes `wake` once, when anything about this partition moves: its end, its high watermark, its log
    /// start or its leader. Register first, look then, wait last, and no move is missed.
    pub fn wake_on_progress(&self, wake: &Arc<Notify>) {
        self.waiters.register(wake);
    }

    /// Returns when the high watermark has reached `offset`, or with an error when this replica stops to lead
    /// in `leader_epoch`: whoever waits then does not know what became of the records.
    pub async fn wait_for_high_watermark(
        &self,
        offset: Offset,
        leader_epoch: LeaderEpoch,
    ) -> Result<(), AppendError> {
        let wake = Arc::new(Notify::new());
        loop {
            self.waiters.register(&wake);
            match self.is_committed(offset, leader_epoch) {
                Ok(true) => return Ok(()),
                Ok(false) => wake.notified().await,
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether the high watermark has reached `offset` under this leader; what acks=all waits for.
    pub fn is_committed(&self, offset: Offset, leader_epoch: LeaderEpoch) -> Result<bool, AppendError> {
        let state = self.state.lock();
        match &state.role {
            Role::Leader(leader) if leader_epoch == state.leader_epoch => {
                if planted!(AcknowledgeOnAppend) {
                    return Ok(true);
                }
                if state.watermarks.high_watermark() < offset {
                    return Ok(false);
                }
                if leader.in_sync_at_most() < leader.min_in_sync(&self.settings.load())
                    && !planted!(AcknowledgeBelowMinIsr)
                {
                    return Err(AppendError::NotEnoughReplicasAfterAppend);
                }
                Ok(true)
            }
            _ => Err(AppendError::NotLeader),
        }
    }

    /// Moves the log start up to `before` (DeleteRecords) and returns the new start; -1 as `before` means the
    /// high watermark.
    pub fn delete_records_before(&self, before: Offset) -> Result<Offset, LookUpError> {
        let _writer = self.writer.lock();
        let high_watermark = {
            let state = self.state.lock();
            if !matches!(state.role, Role::Leader(_)) {
                return Err(LookUpError::NotLeader);
            }
            state.watermarks.high_watermark()
        };
        let before = if before == -1 { high_watermark } else { before };
        if before < 0 || before > high_watermark {
            return Err(LookUpError::OutOfRange);
        }
        let start = self.log().delete_records_before(before).map_err(|error| match error {
            klamm_storage::ReadError::OutOfRange { .. } => LookUpError::OutOfRange,
            klamm_storage::ReadError::Storage(error) => LookUpError::Storage(error),
        })?;
        self.waiters.wake_all();
        Ok(start)
    }
}
