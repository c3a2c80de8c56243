//! Voters that `controller.quorum.voters` does not name. Where the voters are configured, the quorum takes in whom the list
//! names, and nobody goes because a list is shorter: else a mistake in one file could take a majority away.

use std::sync::Arc;
use std::time::Duration;

use klamm_model::NodeId;
use openraft::async_runtime::watch::WatchReceiver;

use super::membership::Members;

/// How often the leader says it again.
const TELL_EVERY: Duration = Duration::from_secs(3600);

/// What to say of the voters that are not configured, if there are any.
pub(super) fn unlisted(configured: &[NodeId], voters: impl Iterator<Item = NodeId>) -> Option<String> {
    let mut unlisted: Vec<NodeId> = voters.filter(|voter| !configured.contains(voter)).collect();
    unlisted.sort();
    unlisted.dedup();
    let (who, they) = match &unlisted[..] {
        [] => return None,
        [one] => (format!("voter {one} is"), "it counts"),
        more => {
            let names: Vec<String> = more.iter().map(NodeId::to_string).collect();
            (format!("voters {} are", names.join(", ")), "they count")
        }
    };
    Some(format!(
        "{who} in the quorum and not in controller.quorum.voters: {they} for its majority all the same. How to take voters \
         out: 'More or fewer controllers' in docs/cluster.md"
    ))
}

impl Members {
    /// Tells the log at the start, when this changes, and now and then while this node leads. Ends with the quorum.
    pub(super) async fn watch_unlisted(self: Arc<Self>) {
        let configured: Vec<NodeId> = self.voters.iter().map(|voter| voter.id).collect();
        if configured.is_empty() {
            return;
        }
        let mut metrics = self.raft.metrics();
        let mut told: Option<(String, bool, Duration)> = None;
        loop {
            let voters = self.membership();
            let found = unlisted(&configured, voters.voter_ids().map(|voter| voter.id));
            let (leads, now) = (self.leads(), self.clock.monotonic());
            match found.filter(|_| !self.is_dynamic()) {
                None => told = None,
                Some(text) => {
                    let is_due = told.as_ref().is_none_or(|(known, led, at)| {
                        let again = !led || now.saturating_sub(*at) >= TELL_EVERY;
                        *known != text || (leads && again)
                    });
                    if is_due {
                        tracing::warn!("{text}");
                        told = Some((text, leads, now));
                    }
                }
            }
            if metrics.changed().await.is_err() {
                return;
            }
        }
    }
}
