//! Learners that are gone are members no more. One that comes back asks to be taken in again (`joining`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;
use openraft::{ChangeMembers, Instant};

use super::membership::Members;
use crate::quorum::replica_key::ReplicaKey;

/// After how long without a word a learner is gone; Kafka forgets an observer after the same time.
const GONE_AFTER: Duration = Duration::from_secs(300);

impl Members {
    /// Forgets learners that are gone, while this node leads. Ends with the quorum.
    pub(super) async fn forget_gone(self: Arc<Self>) {
        let mut metrics = self.raft.metrics();
        let mut known_since = BTreeMap::new();
        loop {
            let gone = self.gone(&mut known_since);
            if !gone.is_empty() {
                let turn = self.turn().await;
                for key in &gone {
                    tracing::info!(
                        "node {} with directory {} is silent and no observer any more",
                        key.id,
                        key.directory_id
                    );
                }
                if let Err(why) = self.change(&turn, ChangeMembers::RemoveNodes(gone)).await {
                    tracing::info!("observers that are gone are not forgotten yet: {why}");
                }
            }
            if metrics.borrow_watched().running_state.is_err() {
                return;
            }
            let has_learners = !known_since.is_empty();
            tokio::select! {
                biased;
                () = tokio::time::sleep(self.silence / 4), if has_learners => {}
                changed = metrics.changed(), if !has_learners => if changed.is_err() {
                    return;
                }
            }
        }
    }

    /// The learners that are gone, as this node knows while it leads. What it notes is since when it knows each.
    fn gone(&self, known_since: &mut BTreeMap<ReplicaKey, Duration>) -> BTreeSet<ReplicaKey> {
        if !self.leads() {
            known_since.clear();
            return BTreeSet::new();
        }
        let now = self.clock.monotonic();
        let learners: BTreeSet<ReplicaKey> = self.membership().learner_ids().collect();
        known_since.retain(|key, _| learners.contains(key));
        let image = self.images.borrow().clone();
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let mut is_gone = |key: &ReplicaKey| {
            let known = now.saturating_sub(*known_since.entry(*key).or_insert(now));
            let heard = metrics.heartbeat.as_ref().and_then(|all| all.get(key).copied().flatten());
            let silent = heard.map_or(known, |at| at.elapsed().min(known));
            // What is no broker, or was unregistered, loses nothing: if it lives, it asks to be taken in again.
            silent > if image.brokers.contains_key(&key.id) { GONE_AFTER } else { self.silence }
        };
        learners.into_iter().filter(|key| is_gone(key)).collect()
    }
}
