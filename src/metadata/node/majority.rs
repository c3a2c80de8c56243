//! Whether the quorum has a leader that a majority of the voters follows, and what to say when it has none.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use klamm_model::NodeId;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::{Instant, RaftMetrics};
use tokio::sync::watch;

use super::forming::introduce;
use super::membership::Members;
use crate::image::Image;
use crate::quorum::TypeConfig;

/// For how long there may be no controller before it is said.
const GRACE: Duration = Duration::from_secs(5);

/// How often it is said again.
const TELL_EVERY: Duration = Duration::from_secs(30);

/// How often it is looked who is missing.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Whether a leader needs no other voter, or a majority has heard of it within that time.
pub(super) fn has_majority(metrics: &RaftMetrics<TypeConfig>, within: Duration) -> bool {
    let is_alone = metrics.membership_config.membership().voter_ids().count() == 1;
    is_alone || metrics.last_quorum_acked.is_some_and(|acked| acked.elapsed() < within)
}

impl Members {
    /// The active controller: a leader of which this node heard a moment ago, or which this node is, with a majority
    /// behind it. A leader that lost its majority, or its vote, decides nothing, and must not seem to.
    pub(super) fn controller(&self) -> Option<NodeId> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let leader = metrics.current_leader?;
        let is_followed = if leader != self.own.key {
            let heard = self.leader_heard.lock();
            !heard.is_cut_off && self.clock.monotonic().saturating_sub(heard.at) <= self.silence
        } else if metrics.committed_membership_config.membership().voter_ids().all(|voter| voter != leader) {
            false
        } else {
            has_majority(&metrics, self.silence)
        };
        is_followed.then_some(leader.id)
    }

    /// Notes whether this node leads without a majority, which it tells those that it still reaches. One that was elected
    /// a moment ago had the votes of a majority then.
    pub(super) fn note_cut_off(&self) {
        let now = self.clock.monotonic();
        let since = {
            let mut since = self.leads_since.lock();
            *since = if self.leads() { since.or(Some(now)) } else { None };
            *since
        };
        let has_led = since.is_some_and(|since| now.saturating_sub(since) > self.silence);
        let is_cut_off = has_led && !has_majority(&self.raft.metrics().borrow_watched(), self.silence);
        self.network.is_cut_off.store(is_cut_off, Ordering::Relaxed);
    }

    /// Tells the log, and whoever asks for the health of the node, when there is no controller, who is missing, and
    /// what to do. Ends with the quorum.
    pub(super) async fn watch_majority(
        self: Arc<Self>,
        mut images: watch::Receiver<Arc<Image>>,
        lost: watch::Sender<Option<String>>,
    ) {
        loop {
            if images.wait_for(|image| image.controller.is_none()).await.is_err() {
                return;
            }
            let found = images.wait_for(|image| image.controller.is_some());
            match tokio::time::timeout(GRACE, found).await {
                Ok(Ok(_)) => continue,
                Ok(Err(_)) => return,
                Err(_) => {}
            }
            if !self.tell_until_found(&mut images, &lost).await {
                return;
            }
        }
    }

    /// Returns when there is a controller again; false when the quorum ends first.
    async fn tell_until_found(
        &self,
        images: &mut watch::Receiver<Arc<Image>>,
        lost: &watch::Sender<Option<String>>,
    ) -> bool {
        let mut told: Option<(String, Duration)> = None;
        loop {
            let why = self.who_is_missing().await;
            let now = self.clock.monotonic();
            let is_due =
                |(text, at): &(String, Duration)| *text != why || now.saturating_sub(*at) >= TELL_EVERY;
            if told.as_ref().is_none_or(is_due) {
                tracing::error!("{why}");
                told = Some((why.clone(), now));
            }
            lost.send_replace(Some(why));
            let found = images.wait_for(|image| image.controller.is_some());
            match tokio::time::timeout(LOOK_EVERY, found).await {
                Ok(Ok(image)) => {
                    let controller = image.controller.map(|node| node.to_string()).unwrap_or_default();
                    tracing::info!("the metadata quorum has a controller again: node {controller}");
                    lost.send_replace(None);
                    return true;
                }
                Ok(Err(_)) => return false,
                Err(_) => {}
            }
        }
    }

    /// Asks all that are configured who they are, and says what they answer to a node that knows no voters yet.
    async fn who_could_take_it_in(&self) -> String {
        let named = self.voters.iter().filter(|voter| voter.id != self.own.key.id);
        let named = named.map(|voter| (voter.id, voter.to_string(), voter.address()));
        let unnamed = self.bootstrap_servers.iter();
        let unnamed =
            unnamed.map(|(host, port)| (NodeId(-1), format!("{host}:{port}"), (host.clone(), *port)));
        let asked = named.chain(unnamed).map(|(id, name, address)| async move {
            match introduce(&self.network, &self.own.asking_for(0), id, address).await {
                Ok(found) => format!("{name} (node {} answers)", found.key.id),
                Err(why) => format!("{name} ({why})"),
            }
        });
        let answers: Vec<String> = join_all(asked).await;
        format!(
            "no controller is known, and this node has no voters yet: it waits to be taken into the cluster by a leader \
             with a majority of {}",
            answers.join(", ")
        )
    }

    /// Asks all voters who they are, and says which do not answer.
    async fn who_is_missing(&self) -> String {
        let membership = self.raft.metrics().borrow_watched().membership_config.membership().clone();
        let voters: Vec<_> = membership
            .voter_ids()
            .filter(|voter| *voter != self.own.key)
            .filter_map(|voter| Some((voter, membership.get_node(&voter)?.clone())))
            .collect();
        let all = membership.voter_ids().count();
        let asked = voters.iter().map(|(voter, node)| async move {
            let found = introduce(&self.network, &self.own.asking_for(0), voter.id, node.address()).await;
            let why = match found {
                Ok(found) if found.key == *voter => return None,
                Ok(found) => {
                    format!("node {} with directory {} answers there", found.key.id, found.key.directory_id)
                }
                Err(why) => why,
            };
            Some(format!("node {} with directory {} at {node} ({why})", voter.id, voter.directory_id))
        });
        let missing: Vec<String> = join_all(asked).await.into_iter().flatten().collect();
        if all == 0 {
            return self.who_could_take_it_in().await;
        }
        if missing.is_empty() {
            return format!(
                "the metadata quorum has no leader, although all of its {all} voters answer: an election \
                            is under way"
            );
        }
        let (present, needed) = (all - missing.len(), all / 2 + 1);
        let (state, advice) = if present < needed {
            (
                "no majority: nothing of the metadata can change, and no partition gets a new leader",
                ". Start these nodes again with their directories. New nodes cannot take the place of a majority that is \
                 lost for good: 'klamm release --alone' makes a cluster of what one node has (docs/cluster.md)",
            )
        } else {
            ("no leader yet: an election is under way", "")
        };
        format!(
            "the metadata quorum has {state}. {present} of {all} voters are there, {needed} are needed; missing: {}{advice}",
            missing.join(", ")
        )
    }
}
