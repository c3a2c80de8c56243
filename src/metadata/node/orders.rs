//! What is asked of this node's part of the quorum. It is done on the thread of the quorum.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use klamm_model::NodeId;
use openraft::async_runtime::watch::WatchReceiver;
use tokio::sync::oneshot;

use super::MetadataNode;
use super::membership::{VoterChange, VoterChangeError};
use super::progress::QuorumState;
use crate::quorum::Raft;
use crate::quorum::network::QuorumMessage;
use crate::quorum::replica_key::ReplicaKey;

/// Something to be done, and where the answer goes.
pub(super) enum Order {
    /// Answer what another node sent.
    Answer(QuorumMessage, oneshot::Sender<io::Result<Bytes>>),
    /// Stand for election in the place of this leader.
    LeaderDied(NodeId),
    /// Let another voter lead.
    HandOver(oneshot::Sender<()>),
    /// Tell whether this node leads, and its image has all that was committed before.
    Confirm(oneshot::Sender<bool>),
    /// Tell who has how much of the log; `None` where this node does not lead.
    Describe(oneshot::Sender<Option<QuorumState>>),
    /// Change the voters.
    Change(VoterChange, Duration, oneshot::Sender<Result<(), VoterChangeError>>),
}

impl MetadataNode {
    /// Answers a message of another member.
    ///
    /// # Errors
    /// When it cannot be understood, or this node is stopping.
    pub async fn answer_peer(&self, message: QuorumMessage) -> io::Result<Bytes> {
        let stopped = || io::Error::other("this node is stopping");
        self.order(|sender| Order::Answer(message, sender)).await.ok_or_else(stopped)?
    }

    /// Has another voter lead, if this node does and there is one, so that nobody waits for the election time-out when
    /// this node stops. Returns when it is done, or after `limit`.
    pub async fn hand_over(&self, limit: Duration) {
        if self.is_controller() {
            let _ = tokio::time::timeout(limit, self.order(Order::HandOver)).await;
        }
    }

    /// Whether a majority says that this node leads; its image then has everything that was committed before. Another
    /// node may lead without this one having heard of it, and one that has just begun may not have applied all.
    pub(super) async fn confirm(&self) -> bool {
        self.order(Order::Confirm).await.unwrap_or(false)
    }

    /// Who has how much of the metadata log; `None` where this node is not the active controller.
    pub async fn describe_quorum(&self) -> Option<QuorumState> {
        self.order(Order::Describe).await?
    }

    /// Changes the voters, as the active controller, within `limit`.
    ///
    /// # Errors
    /// Why it is not done. After a time-out it may still be.
    pub async fn change_voters(&self, change: VoterChange, limit: Duration) -> Result<(), VoterChangeError> {
        let changed = self.order(|sender| Order::Change(change, limit, sender)).await;
        changed.unwrap_or(Err(VoterChangeError::NotLeader))
    }

    /// Has something done; `None` when this node is stopping.
    async fn order<T>(&self, order: impl FnOnce(oneshot::Sender<T>) -> Order) -> Option<T> {
        let (sender, receiver) = oneshot::channel();
        self.orders.send(order(sender)).await.ok()?;
        receiver.await.ok()
    }
}

/// Has the voter with the most of the log lead in place of this node, and returns when it does. It is nobody's turn
/// where there is no other.
pub(super) async fn hand_over(raft: Raft, own: ReplicaKey) {
    let successor = {
        let metrics = raft.metrics();
        let metrics = metrics.borrow_watched();
        let replication = metrics.replication.clone().unwrap_or_default();
        let voters = metrics.membership_config.membership().voter_ids().filter(|voter| *voter != own);
        voters.max_by_key(|voter| replication.get(voter).copied().flatten().map(|matched| matched.index))
    };
    let Some(successor) = successor else { return };
    if raft.trigger().transfer_leader(successor).await.is_ok() {
        // An error means that the quorum has ended here.
        let _ = raft
            .wait(None)
            .metrics(|metrics| metrics.current_leader.is_some_and(|it| it != own), "another leads")
            .await;
    }
}
