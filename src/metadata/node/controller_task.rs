//! The task that decides and writes.

use std::sync::Arc;

use klamm_io::{Clock, Random};
use klamm_model::NodeId;
use klamm_protocol::records::cluster_metadata::MetadataRecord;
use openraft::errors::{ClientWriteError, RaftError};
use openraft::raft::ClientWriteResponse;
use tokio::sync::{mpsc, oneshot, watch};

use super::SubmitError;
use crate::apply::apply_to;
use crate::controller::{ConfigRules, ControllerContext, TopicDefaults};
use crate::image::Image;
use crate::quorum::log::LogStore;
use crate::quorum::{Applied, Batch, Raft, TypeConfig};

/// How many requests are decided together at most.
const JOBS_MAX: usize = 256;

/// One request that waits to be decided.
pub(super) trait Job: Send {
    /// Decides it upon this image. It is asked again when its records came too late.
    fn decide(&mut self, image: &Image, context: &ControllerContext<'_>) -> Vec<MetadataRecord>;

    /// Sends the reply of the last decision, or why there is none.
    fn finish(self: Box<Self>, outcome: Result<(), SubmitError>);
}

/// A decision and the channel for its reply.
pub(super) struct Decision<F, R> {
    decide: F,
    reply: Option<R>,
    sender: oneshot::Sender<Result<R, SubmitError>>,
}

impl<F, R> Decision<F, R> {
    pub(super) fn new(decide: F, sender: oneshot::Sender<Result<R, SubmitError>>) -> Decision<F, R> {
        Decision { decide, reply: None, sender }
    }
}

impl<F, R> Job for Decision<F, R>
where
    F: FnMut(&Image, &ControllerContext<'_>) -> (Vec<MetadataRecord>, R) + Send,
    R: Send,
{
    fn decide(&mut self, image: &Image, context: &ControllerContext<'_>) -> Vec<MetadataRecord> {
        let (records, reply) = (self.decide)(image, context);
        self.reply = Some(reply);
        records
    }

    fn finish(self: Box<Self>, outcome: Result<(), SubmitError>) {
        let reply = match (outcome, self.reply) {
            (Ok(()), Some(reply)) => Ok(reply),
            (Ok(()), None) => unreachable!("a job is decided before it is finished"),
            (Err(error), _) => Err(error),
        };
        // Whoever asked may have gone.
        let _ = self.sender.send(reply);
    }
}

/// What decisions depend on, for as long as the node runs.
pub(super) struct Surroundings {
    pub(super) id: NodeId,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) random: Arc<dyn Random>,
    pub(super) defaults: TopicDefaults,
    pub(super) rules: Arc<dyn ConfigRules>,
    pub(super) snapshot_bytes: u64,
}

/// Decides requests until the last sender is gone.
pub(super) async fn run(
    raft: Raft,
    log: LogStore,
    images: watch::Receiver<Arc<Image>>,
    mut jobs: mpsc::Receiver<Box<dyn Job>>,
    surroundings: Surroundings,
) {
    let mut waiting = Vec::new();
    let mut bytes_since_snapshot = 0;
    while jobs.recv_many(&mut waiting, JOBS_MAX).await > 0 {
        decide_all(&raft, &images, &surroundings, std::mem::take(&mut waiting)).await;
        bytes_since_snapshot += log.take_bytes_appended();
        if bytes_since_snapshot > surroundings.snapshot_bytes {
            bytes_since_snapshot = 0;
            if let Err(error) = raft.trigger().snapshot().await {
                tracing::warn!("a snapshot of the metadata could not be begun: {error}");
            }
        }
    }
}

async fn decide_all(
    raft: &Raft,
    images: &watch::Receiver<Arc<Image>>,
    surroundings: &Surroundings,
    mut jobs: Vec<Box<dyn Job>>,
) {
    let outcome = loop {
        let image = Arc::clone(&images.borrow());
        if image.controller != Some(surroundings.id) {
            break Err(SubmitError::NotController(surroundings.id));
        }
        let records = decide_upon(&image, surroundings, &mut jobs);
        if records.is_empty() {
            break Ok(());
        }
        let written = raft.client_write(Batch { based_on: image.offset, records }).await;
        match judge(written, surroundings.id) {
            Some(outcome) => break outcome,
            None => tracing::debug!("metadata changed in between; deciding again"),
        }
    };
    for job in jobs {
        job.finish(outcome.clone());
    }
}

/// Decides all jobs, each upon the image that the ones before it lead to.
fn decide_upon(image: &Image, surroundings: &Surroundings, jobs: &mut [Box<dyn Job>]) -> Vec<MetadataRecord> {
    let context = ControllerContext {
        now_ms: surroundings.clock.now_ms(),
        random: &*surroundings.random,
        defaults: &surroundings.defaults,
        rules: &*surroundings.rules,
    };
    let mut planned = image.clone();
    let mut records = Vec::new();
    for job in jobs {
        let decided = job.decide(&planned, &context);
        decided.iter().for_each(|record| apply_to(&mut planned, record));
        records.extend(decided);
    }
    records
}

/// The outcome of a write; `None` when it came too late and must be decided again.
fn judge(
    written: Result<ClientWriteResponse<TypeConfig>, RaftError<TypeConfig, ClientWriteError<TypeConfig>>>,
    id: NodeId,
) -> Option<Result<(), SubmitError>> {
    match written {
        Ok(response) if response.data == Applied::Stale => None,
        Ok(_) => Some(Ok(())),
        Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_))) => {
            Some(Err(SubmitError::NotController(id)))
        }
        Err(error) => {
            tracing::error!("the metadata log cannot be written: {error}");
            Some(Err(SubmitError::Unavailable(id)))
        }
    }
}
