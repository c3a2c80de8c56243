//! This node's part of the metadata quorum: it holds the image, and when it is the active controller it
//! decides what requests change.
//!
//! Decisions are made one after another. Requests that arrive while a batch is being written wait, and are
//! then decided together, each upon the image with the ones before it, and written as one batch: under load a
//! sync serves many requests. A reply goes out when its records are on disk, committed, and in this node's
//! image.

mod changing;
mod commands;
mod controller_task;
mod forgetting;
mod forming;
mod joining;
mod majority;
mod membership;
mod orders;
mod progress;
mod quorum_commands;
mod scrutiny;
mod serving;
mod sessions;
mod settings;
mod start;
mod succession;
mod tool_file;
mod unlisted;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use klamm_io::Clock;
use klamm_model::NodeId;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};

use crate::controller::KRAFT_VERSION;
use crate::image::Image;
use crate::quorum::disk_thread::DiskThread;
use controller_task::Job;
use orders::Order;
use sessions::Sessions;

pub use commands::Decisions;
pub use membership::{VoterChange, VoterChangeError};
pub use progress::{QuorumState, ReplicaProgress};
pub use settings::{Identity, Keep, QuorumSettings, Settings, StartError, Voter};
pub use start::holds_metadata;

/// A node of the metadata quorum. Dropping it stops it.
pub struct MetadataNode {
    id: NodeId,
    /// Whom `controller.quorum.voters` names.
    configured: Vec<NodeId>,
    /// The name of the listener that the quorum uses.
    listener: String,
    images: watch::Receiver<Arc<Image>>,
    jobs: mpsc::Sender<Box<dyn Job>>,
    orders: mpsc::Sender<Order>,
    failure: watch::Receiver<Option<String>>,
    /// Where the nodes of the quorum listen, as its membership says.
    addresses: watch::Receiver<Addresses>,
    /// Whether the node belongs to a cluster, or why it never will.
    joined: watch::Receiver<Option<Result<(), String>>>,
    /// What is wrong while the quorum has no majority, or what a node waits for that belongs to no cluster yet.
    majority: watch::Receiver<Option<String>>,
    sessions: Arc<Sessions>,
    disk_thread: DiskThread,
    clock: Arc<dyn Clock>,
    stop: Mutex<Option<oneshot::Sender<()>>>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

/// Where each member of the quorum listens, and whether it votes.
type Addresses = BTreeMap<NodeId, ((String, u16), bool)>;

/// Why a decision was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum SubmitError {
    /// Another node is the active controller, or none is.
    #[error("node {0} is not the active controller")]
    NotController(NodeId),
    /// The quorum has no majority, as the text says: nobody decides, and nothing was changed.
    #[error("{0}")]
    NoMajority(String),
    /// The metadata log cannot be written, or the node is stopping. Whether the change was made is not known.
    #[error("the metadata log of node {0} cannot be written")]
    Unavailable(NodeId),
    /// It was not made in time. It may still be made.
    #[error(
        "the controller on node {node} did not decide within {limit:?}: its metadata log may wait for a disk"
    )]
    TimedOut {
        /// The controller.
        node: NodeId,
        /// How long one waited.
        limit: Duration,
    },
    /// The change has a record that has no encoding, for example for the length of a string in it.
    #[error("the change cannot be written to the metadata log: {0}")]
    NotEncodable(String),
    /// The change does not fit into one entry of the metadata log.
    #[error("the change needs {bytes} bytes of the metadata log; {bytes_max} are the most for one request")]
    TooLarge {
        /// How many it needs.
        bytes: usize,
        /// How many there may be.
        bytes_max: usize,
    },
}

impl MetadataNode {
    /// The cluster as this node knows it now.
    pub fn image(&self) -> Arc<Image> {
        Arc::clone(&self.images.borrow())
    }

    /// Every image from now on; a slow reader skips some.
    pub fn watch(&self) -> watch::Receiver<Arc<Image>> {
        self.images.clone()
    }

    /// This node's number.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// Whether this node is the active controller.
    pub fn is_controller(&self) -> bool {
        self.images.borrow().controller == Some(self.id)
    }

    /// Why there is no active controller, who is missing, and what to do, once that has lasted some seconds. Of a node that
    /// belongs to no cluster yet: what it waits for.
    pub fn lost_majority(&self) -> Option<String> {
        self.majority.borrow().clone()
    }

    /// What to say of voters that `controller.quorum.voters` does not name, if there are any. They count all the same.
    pub fn unlisted_voters(&self) -> Option<String> {
        let is_dynamic = self.image().feature(KRAFT_VERSION) > 0;
        if self.configured.is_empty() || is_dynamic {
            return None;
        }
        unlisted::unlisted(&self.configured, self.voter_addresses().into_keys())
    }

    /// The host and port on which a node of the quorum listens for the others.
    pub fn address_of(&self, node: NodeId) -> Option<(String, u16)> {
        self.addresses.borrow().get(&node).map(|(address, _)| address.clone())
    }

    /// Where the voters of the quorum listen for each other.
    pub fn voter_addresses(&self) -> BTreeMap<NodeId, (String, u16)> {
        let addresses = self.addresses.borrow();
        let voters = addresses.iter().filter(|(_, (_, votes))| *votes);
        voters.map(|(node, (address, _))| (*node, address.clone())).collect()
    }

    /// The nodes of the quorum, with or without a vote.
    pub fn members(&self) -> BTreeSet<NodeId> {
        self.addresses.borrow().keys().copied().collect()
    }

    /// The node of the quorum that listens at this host and port.
    pub fn node_at(&self, address: &(String, u16)) -> Option<NodeId> {
        let addresses = self.addresses.borrow();
        addresses.iter().find(|(_, (known, _))| known == address).map(|(node, _)| *node)
    }

    /// A connection to a node has ended, or was refused. Until its next heartbeat it counts as one without a session, so that
    /// it can register again under a new incarnation.
    pub fn connection_lost(&self, node: NodeId) {
        self.sessions.lost(node);
    }

    /// Whether a broker has sent a heartbeat to this node lately, and since a connection to it was lost.
    pub fn has_session(&self, node: NodeId) -> bool {
        self.sessions.has_session(node)
    }

    /// The leader of the quorum has died: as a voter, this node stands for election at once.
    pub fn leader_died(&self, leader: NodeId) {
        // If several wait already, the next word comes with the next attempt to reach it.
        let _ = self.orders.try_send(Order::LeaderDied(leader));
    }

    /// Returns when this node belongs to a cluster, whose id is in its image.
    ///
    /// # Errors
    /// When its settings and those of others contradict each other, its files cannot be used, or it is stopped.
    pub async fn joined(&self) -> Result<(), StartError> {
        let mut joined = self.joined.clone();
        let stopped = || StartError::Membership("it is stopped".to_owned());
        let joined = joined.wait_for(Option::is_some).await.map_err(|_| stopped())?;
        joined.clone().unwrap_or(Ok(())).map_err(StartError::Membership)
    }

    /// `None` while the disk keeps this node from writing its metadata log, so that it does not hear what was decided. Else a
    /// number that is another one after each time it waited for space.
    pub fn hears(&self) -> Option<u64> {
        self.disk_thread.goes_on(self.clock.monotonic_ms())
    }

    /// Waits until the quorum is lost for good on this node (its disk failed) and says why. It never returns
    /// while all is well; the process cannot serve after it has.
    pub async fn failure(&self) -> String {
        let mut failure = self.failure.clone();
        let reason = failure.wait_for(Option::is_some).await.map(|reason| reason.clone().unwrap_or_default());
        match reason {
            Ok(reason) => reason,
            Err(_) => std::future::pending().await,
        }
    }

    /// Stops and waits until nothing is written any more. What was answered is on disk already.
    pub fn shutdown(&self) {
        drop(self.stop.lock().take());
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the metadata thread panicked");
        }
    }
}

impl Drop for MetadataNode {
    fn drop(&mut self) {
        self.shutdown();
    }
}
