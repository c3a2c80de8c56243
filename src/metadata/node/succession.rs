//! What a voter does when it is told that the leader of the quorum has died: it stands for election without waiting
//! for the time-outs that are there for leaders of which nothing is known.
//!
//! Nothing depends on the word being true. The others vote as in a hand-over of the leadership, in a new term, and a
//! leader that lives after all learns of it and steps back.

use std::time::Duration;

use klamm_model::NodeId;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::raft::TransferLeaderRequest;

use crate::quorum::Raft;
use crate::quorum::replica_key::ReplicaKey;

/// How long a voter gives each of those before it, so that they do not take the votes from each other. Whoever lacks
/// entries that others have is not elected, and the next one's turn comes.
const TURN: Duration = Duration::from_millis(100);

/// Stands for election in the place of `dead`, unless another one leads by the time it is this node's turn.
pub(super) async fn succeed(raft: Raft, own: ReplicaKey, dead: NodeId) {
    let leader = || raft.metrics().borrow_watched().current_leader;
    let is_led_by_another = || leader().is_some_and(|leader| leader.id != dead);
    let voters: Vec<ReplicaKey> =
        raft.metrics().borrow_watched().membership_config.membership().voter_ids().collect();
    let place = voters.iter().filter(|voter| voter.id != dead).position(|voter| *voter == own);
    let Some(place) = place.filter(|_| !is_led_by_another()) else { return };
    tokio::time::sleep(TURN * place as u32).await;
    if is_led_by_another() {
        return;
    }
    let Ok(vote) = raft.with_raft_state(|state| *state.vote_ref()).await else { return };
    tracing::info!("node {own} stands for election, since the leader, node {dead}, has died");
    let asked = raft.handle_transfer_leader(TransferLeaderRequest::new(vote, own, None)).await;
    if let Ok(Err(error)) = asked {
        tracing::debug!("it does not stand for election now: {error}");
    }
}
