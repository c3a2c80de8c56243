//! Serving: what other nodes send, and what this process orders.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use openraft::AsyncRuntime;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::raft::ReadPolicy;
use tokio::sync::{mpsc, oneshot, watch};

use super::membership::Members;
use super::orders::{Order, hand_over};
use super::{scrutiny, succession};
use crate::quorum::disk_thread::DiskThread;
use crate::quorum::introduction::{JoinAnswer, JoinRequest};
use crate::quorum::message::{self, Envelope, Question};
use crate::quorum::{Raft, Runtime, network};

/// What runs on the metadata thread.
pub(super) struct Running {
    pub(super) raft: Raft,
    pub(super) members: Arc<Members>,
    pub(super) orders: mpsc::Receiver<Order>,
    pub(super) stop: oneshot::Receiver<()>,
    pub(super) failed: watch::Sender<Option<String>>,
    pub(super) disk_thread: DiskThread,
}

impl Running {
    /// Serves the other members until the node is stopped or fails.
    pub(super) async fn until_stopped(mut self) {
        let mut metrics = self.raft.metrics();
        loop {
            tokio::select! {
                biased;
                _ = &mut self.stop => break,
                changed = metrics.changed() => {
                    let state = metrics.borrow_watched().running_state.clone();
                    if let Err(error) = state {
                        tracing::error!("the metadata quorum ended on this node: {error}");
                        self.failed.send_replace(Some(error.to_string()));
                        break;
                    }
                    if changed.is_err() {
                        break;
                    }
                }
                order = self.orders.recv() => match order {
                    Some(order) => drop(Runtime::spawn(obey(self.raft.clone(), self.members.clone(), order))),
                    None => break,
                }
            }
        }
        self.disk_thread.close();
        if let Err(error) = self.raft.shutdown().await {
            tracing::warn!("the metadata quorum did not stop cleanly: {error}");
        }
    }
}

/// Does what was asked for. Whoever asked may have given up waiting for the answer.
async fn obey(raft: Raft, members: Arc<Members>, order: Order) {
    match order {
        Order::Answer(message, sender) => drop(sender.send(answer(&raft, &members, message.0).await)),
        Order::LeaderDied(dead) => succession::succeed(raft, members.own.key, dead).await,
        Order::HandOver(sender) => {
            hand_over(raft, members.own.key).await;
            let _ = sender.send(());
        }
        Order::Confirm(sender) => {
            let confirmed = raft.ensure_linearizable(ReadPolicy::ReadIndex).await;
            let _ = sender.send(confirmed.is_ok());
        }
        Order::Describe(sender) => drop(sender.send(members.describe())),
        Order::Change(change, limit, sender) => drop(sender.send(members.change_voters(change, limit).await)),
    }
}

/// Answers what another node sent, if it is meant for this one.
async fn answer(raft: &Raft, members: &Members, message: Bytes) -> io::Result<Bytes> {
    let (envelope, question) = match message::decode_question(members.network.versions, message) {
        Ok(decoded) => decoded,
        Err(answer) => return Ok(answer),
    };
    if let Question::Introduce(other) = &question {
        return message::encode_answer(&members.own.told_to(other));
    }
    if let Some(why) = misdirected(&envelope, members) {
        return Ok(message::refuse(&why));
    }
    match question {
        Question::Join(request) => join(members, request).await,
        Question::IsMember(key) => message::encode_answer(&members.membership().get_node(&key).is_some()),
        question => {
            if let Err(why) = scrutiny::examine(raft, members, &envelope, &question).await {
                return Ok(message::refuse(&why));
            }
            if let Question::Lost { vote, acknowledged } = question {
                return match members.has_lost(&envelope, vote, acknowledged).await {
                    Ok(()) => message::encode_answer(&()),
                    Err(why) => Ok(message::refuse(&why)),
                };
            }
            match &question {
                Question::Append { is_cut_off, .. } => members.heard_of_leader(Some(*is_cut_off)),
                Question::Snapshot { .. } => members.heard_of_leader(None),
                _ => {}
            }
            network::answer(raft, question).await
        }
    }
}

async fn join(members: &Members, request: JoinRequest) -> io::Result<Bytes> {
    match members.admit(request).await {
        Ok(answer) => {
            if let JoinAnswer::Taken(why) = &answer {
                tracing::warn!("a node is not taken in: {why}");
            }
            message::encode_answer(&answer)
        }
        Err(why) => {
            tracing::warn!("a node is not taken in: {why}");
            Ok(message::refuse(&why))
        }
    }
}

/// Why a message is not for this node, if it is not.
fn misdirected(envelope: &Envelope, members: &Members) -> Option<String> {
    let own = &members.own;
    if envelope.cluster_id != own.cluster_id {
        let name = |id: &Option<String>| id.clone().unwrap_or_else(|| "none".to_owned());
        return Some(format!(
            "node {} belongs to cluster {}, and the message came from node {} of cluster {}: check the addresses of \
             the controllers",
            own.key.id,
            name(&own.cluster_id),
            envelope.from.id,
            name(&envelope.cluster_id)
        ));
    }
    let to = envelope.to?;
    (to != own.key).then(|| {
        format!(
            "it is meant for node {} with directory {}, and here is node {} with directory {}",
            to.id, to.directory_id, own.key.id, own.key.directory_id
        )
    })
}
