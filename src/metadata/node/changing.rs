//! One change of the members at a time, each to its end.
//!
//! A change of the voters takes two entries of the log: a configuration of the old and the new voters, and one of the new.
//! Whoever wanted it may stop waiting, and whoever leads may die in between; the quorum must not stay in the middle,
//! where two majorities are needed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ClientWriteError, RaftError};
use openraft::{AsyncRuntime, ChangeMembers};
use tokio::sync::OwnedMutexGuard;

use super::membership::Members;
use crate::quorum::replica_key::ReplicaKey;
use crate::quorum::{Runtime, VoterNode};

/// How long somebody waits for a change of the members. It needs a majority of the voters, before and after.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(4);

/// How long the leader waits before it tries again to finish a change.
const PAUSE: Duration = Duration::from_millis(500);

/// The right to change the members. A change that nobody waits for any more keeps it until it is done.
pub(super) type Turn = Arc<OwnedMutexGuard<()>>;

/// Why the members were not changed, yet.
#[derive(Debug, thiserror::Error)]
pub(super) enum ChangeError {
    #[error("this node leads no more")]
    NotLeader,
    #[error("{0}")]
    Failed(String),
    #[error("a majority of the voters does not answer; the change is made when it does")]
    NoMajority,
}

impl Members {
    /// The right to change the members, when nobody else has it any more.
    pub(super) async fn turn(&self) -> Turn {
        Arc::new(self.changing.clone().lock_owned().await)
    }

    /// The right to change the members, unless somebody else has it.
    pub(super) fn try_turn(&self) -> Option<Turn> {
        self.changing.clone().try_lock_owned().ok().map(Arc::new)
    }

    /// Changes the members.
    pub(super) async fn change(
        &self,
        turn: &Turn,
        change: ChangeMembers<ReplicaKey, VoterNode>,
    ) -> Result<(), ChangeError> {
        let (raft, turn) = (self.raft.clone(), turn.clone());
        let changing = Runtime::spawn(async move {
            let changed = raft.change_membership(change, false).await;
            drop(turn);
            changed
        });
        match tokio::time::timeout(CHANGE_TIMEOUT, changing).await {
            Ok(Ok(Ok(_))) => Ok(()),
            Ok(Ok(Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_))))) => {
                Err(ChangeError::NotLeader)
            }
            Ok(Ok(Err(error))) => Err(ChangeError::Failed(error.to_string())),
            Ok(Err(error)) => Err(ChangeError::Failed(error.to_string())),
            Err(_) => Err(ChangeError::NoMajority),
        }
    }

    /// Finishes changes of the voters that another leader, or an earlier run of this one, has begun, while this node
    /// leads. Ends with the quorum.
    pub(super) async fn finish_changes(self: Arc<Self>) {
        let mut metrics = self.raft.metrics();
        loop {
            if self.is_to_finish() {
                let turn = self.turn().await;
                if self.is_to_finish() {
                    tracing::info!("a change of the voters was begun and is finished now");
                    // Adding nobody leaves the voters that were wanted last.
                    if let Err(why) = self.change(&turn, ChangeMembers::AddVoterIds(BTreeSet::new())).await {
                        tracing::info!("the change of the voters is not finished yet: {why}");
                    }
                }
                drop(turn);
                tokio::time::sleep(PAUSE).await;
            } else if metrics.changed().await.is_err() {
                return;
            }
            if metrics.borrow_watched().running_state.is_err() {
                return;
            }
        }
    }

    /// Whether this node leads a quorum that is in the middle of a change. The first step has to be committed before the
    /// second one can be made.
    fn is_to_finish(&self) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let (last, committed) = (&metrics.membership_config, &metrics.committed_membership_config);
        let is_joint = last.membership().get_joint_config().len() > 1;
        is_joint && last == committed && metrics.current_leader == Some(self.own.key)
    }
}
