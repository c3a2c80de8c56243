//! The task that decides and writes.

use std::sync::Arc;
use std::time::Duration;

use klamm_io::{Clock, Random};
use klamm_model::NodeId;
use klamm_protocol::records::cluster_metadata::MetadataRecord;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ClientWriteError, Fatal, RaftError};
use openraft::raft::ClientWriteResponse;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::MissedTickBehavior;

use super::SubmitError;
use super::majority::has_majority;
use super::sessions::Sessions;
use super::settings::QuorumSettings;
use crate::apply::apply_to;
use crate::controller::{ConfigRules, ControllerContext, TopicDefaults, fence_brokers, rebalance_leaders};
use crate::image::Image;
use crate::quorum::log::LogStore;
use crate::quorum::{Applied, Batch, Raft, TypeConfig, entry};

/// How many requests are decided together at most.
const JOBS_MAX: usize = 256;
/// How many bytes of records are joined into one entry of the log, so that an entry stays far below what can be
/// read again, and can travel to other voters.
const BATCH_BYTES_MAX: usize = 8 << 20;
/// How many bytes of records a single request may lead to. Its records must stand in one entry, all or none, and an
/// entry must reach the other voters before they miss the leader.
const REQUEST_BYTES_MAX: usize = 16 << 20;

/// One request that waits to be decided.
pub(super) trait Job: Send {
    /// Decides it upon this image. It is asked again when its records came too late.
    fn decide(&mut self, image: &Image, context: &ControllerContext<'_>) -> Vec<MetadataRecord>;

    /// Whether whoever asked for it waits no longer. It may have asked again, and is not to get both.
    fn is_given_up(&self) -> bool;

    /// Sends the reply of the last decision, or why there is none.
    fn finish(self: Box<Self>, outcome: Result<(), SubmitError>);
}

/// A decision and the channel for its reply.
pub(super) struct Decision<F, R> {
    decide: F,
    reply: Option<R>,
    /// Nothing where nobody waits for it.
    sender: Option<oneshot::Sender<Result<R, SubmitError>>>,
}

impl<F, R> Decision<F, R> {
    pub(super) fn new(decide: F, sender: oneshot::Sender<Result<R, SubmitError>>) -> Decision<F, R> {
        Decision { decide, reply: None, sender: Some(sender) }
    }

    /// One that the controller makes of itself.
    fn unasked(decide: F) -> Decision<F, R> {
        Decision { decide, reply: None, sender: None }
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

    fn is_given_up(&self) -> bool {
        self.sender.as_ref().is_some_and(oneshot::Sender::is_closed)
    }

    fn finish(self: Box<Self>, outcome: Result<(), SubmitError>) {
        let reply = match (outcome, self.reply) {
            (Ok(()), Some(reply)) => Ok(reply),
            (Ok(()), None) => unreachable!("a job is decided before it is finished"),
            (Err(error), _) => Err(error),
        };
        if let Some(sender) = self.sender {
            // Whoever asked may have gone.
            let _ = sender.send(reply);
        }
    }
}

/// What decisions depend on, for as long as the node runs.
pub(super) struct Surroundings {
    pub(super) id: NodeId,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) random: Arc<dyn Random>,
    pub(super) defaults: TopicDefaults,
    pub(super) rules: Arc<dyn ConfigRules>,
    pub(super) quorum: QuorumSettings,
}

/// Decides requests until the last sender is gone.
pub(super) async fn run(
    raft: Raft,
    log: LogStore,
    images: watch::Receiver<Arc<Image>>,
    mut jobs: mpsc::Receiver<Box<dyn Job>>,
    sessions: Arc<Sessions>,
    surroundings: Surroundings,
) {
    let mut waiting = Vec::new();
    let mut bytes_since_snapshot = 0;
    let mut rebalancing = Rebalancing { every: surroundings.quorum.rebalance_leaders_every, next: None };
    // It comes before the requests, of which there may always be one that waits.
    let mut looks = tokio::time::interval(sessions.pause());
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        // A broker that is alone has nobody who could take over from it.
        let watches = images.borrow().brokers.len() > 1;
        tokio::select! {
            biased;
            _ = looks.tick(), if watches => {
                waiting.extend(fencing(&images, &sessions, &surroundings));
                let is_controller = images.borrow().controller == Some(surroundings.id);
                if rebalancing.is_due(surroundings.clock.monotonic(), is_controller) {
                    let decide = |image: &Image, context: &ControllerContext<'_>| {
                        (rebalance_leaders(image, context), ())
                    };
                    waiting.push(Box::new(Decision::unasked(decide)));
                }
            }
            received = jobs.recv_many(&mut waiting, JOBS_MAX) => if received == 0 {
                return;
            },
        }
        decide_all(&raft, &images, &surroundings, std::mem::take(&mut waiting)).await;
        bytes_since_snapshot += log.take_bytes_appended();
        if bytes_since_snapshot > surroundings.quorum.snapshot_bytes {
            bytes_since_snapshot = 0;
            if let Err(error) = raft.trigger().snapshot().await {
                tracing::warn!("a snapshot of the metadata could not be begun: {error}");
            }
        }
    }
}

/// When leadership is given back to preferred leaders by itself.
struct Rebalancing {
    every: Option<Duration>,
    /// When it is due, by the monotonic clock; `None` while another node is the controller.
    next: Option<Duration>,
}

impl Rebalancing {
    /// Whether it is due now. A new controller gives brokers that start with it the whole time to catch up.
    fn is_due(&mut self, now: Duration, is_controller: bool) -> bool {
        let Some(every) = self.every.filter(|_| is_controller) else {
            self.next = None;
            return false;
        };
        let next = *self.next.get_or_insert(now.saturating_add(every));
        if now < next {
            return false;
        }
        self.next = Some(now.saturating_add(every));
        true
    }
}

/// What fences the brokers whose sessions have expired, if there are any.
fn fencing(
    images: &watch::Receiver<Arc<Image>>,
    sessions: &Sessions,
    surroundings: &Surroundings,
) -> Option<Box<dyn Job>> {
    let image = Arc::clone(&images.borrow());
    let expired = sessions.expired(&image, image.controller == Some(surroundings.id));
    if expired.is_empty() {
        return None;
    }
    let silent: Vec<String> = expired.iter().map(|(broker, _)| broker.to_string()).collect();
    let silent = silent.join(", ");
    tracing::warn!("nothing was heard of broker(s) {silent} for broker.session.timeout.ms: fenced");
    let decide =
        move |image: &Image, context: &ControllerContext<'_>| (fence_brokers(image, context, &expired), ());
    Some(Box::new(Decision::unasked(decide)))
}

async fn decide_all(
    raft: &Raft,
    images: &watch::Receiver<Arc<Image>>,
    surroundings: &Surroundings,
    mut jobs: Vec<Box<dyn Job>>,
) {
    loop {
        jobs.retain(|job| !job.is_given_up());
        if jobs.is_empty() {
            return;
        }
        let outcomes = decide_some(raft, images, surroundings, &mut jobs).await;
        for (job, outcome) in jobs.drain(..outcomes.len()).zip(outcomes) {
            job.finish(outcome);
        }
    }
}

/// Decides and writes as many jobs, from the first on, as fit into one entry. Returns the outcome of each.
async fn decide_some(
    raft: &Raft,
    images: &watch::Receiver<Arc<Image>>,
    surroundings: &Surroundings,
    jobs: &mut [Box<dyn Job>],
) -> Vec<Result<(), SubmitError>> {
    loop {
        let image = Arc::clone(&images.borrow());
        if image.controller != Some(surroundings.id) {
            return vec![Err(SubmitError::NotController(surroundings.id)); jobs.len()];
        }
        let Plan { records, mut outcomes } = decide_upon(&image, surroundings, jobs);
        if records.is_empty() {
            // What was decided upon an image that may be old would be wrong; what is written cannot be.
            return match is_surely_leader(raft, surroundings) {
                true => outcomes,
                false => vec![Err(SubmitError::NotController(surroundings.id)); jobs.len()],
            };
        }
        let written = raft.client_write(Batch { based_on: image.offset, records }).await;
        match judge(written, surroundings.id) {
            Some(Ok(())) => return outcomes,
            Some(Err(error)) => {
                outcomes.iter_mut().filter(|outcome| outcome.is_ok()).for_each(|outcome| {
                    *outcome = Err(error.clone());
                });
                return outcomes;
            }
            None => tracing::debug!("metadata changed in between; deciding again"),
        }
    }
}

/// Whether no other node can lead the quorum by now: a majority has heard of this one more recently than it takes to vote
/// for another.
fn is_surely_leader(raft: &Raft, surroundings: &Surroundings) -> bool {
    has_majority(&raft.metrics().borrow_watched(), surroundings.quorum.election_timeout_min)
}

/// What was decided together.
struct Plan {
    records: Vec<MetadataRecord>,
    /// One for each job that was decided: an error for those whose records cannot be written.
    outcomes: Vec<Result<(), SubmitError>>,
}

/// Decides jobs until one entry is full, each upon the image that the ones before it lead to. A broker registers only
/// once in an entry, since the entry's offset is the epoch.
///
/// Records are encoded here already: one that cannot be would be found out only by the log, whose errors end
/// the quorum on this node.
fn decide_upon(image: &Image, surroundings: &Surroundings, jobs: &mut [Box<dyn Job>]) -> Plan {
    let context = ControllerContext {
        now_ms: surroundings.clock.now_ms(),
        random: &*surroundings.random,
        defaults: &surroundings.defaults,
        rules: &*surroundings.rules,
        planted: surroundings.quorum.planted,
    };
    let mut planned = image.clone();
    let mut plan = Plan { records: Vec::new(), outcomes: Vec::new() };
    let mut bytes = 0;
    for job in jobs {
        let decided = job.decide(&planned, &context);
        match writable_len(&decided) {
            Ok(len) if bytes > 0 && bytes + len > BATCH_BYTES_MAX => break,
            Ok(_) if registers_again(&plan.records, &decided) => break,
            Ok(len) => {
                bytes += len;
                decided.iter().for_each(|record| apply_to(&mut planned, record));
                plan.records.extend(decided);
                plan.outcomes.push(Ok(()));
            }
            Err(error) => {
                tracing::warn!("a request is refused: {error}");
                plan.outcomes.push(Err(error));
            }
        }
    }
    plan
}

/// Whether a broker is registered that the records before register already.
fn registers_again(before: &[MetadataRecord], decided: &[MetadataRecord]) -> bool {
    let registered = |record: &MetadataRecord| match record {
        MetadataRecord::RegisterBroker(record) => Some(record.broker_id),
        _ => None,
    };
    let mut ids = decided.iter().filter_map(registered);
    ids.any(|id| before.iter().any(|record| registered(record) == Some(id)))
}

/// How many bytes the records of one request take in the log, if it can hold them.
fn writable_len(records: &[MetadataRecord]) -> Result<usize, SubmitError> {
    let bytes = entry::records_len(records).map_err(|error| SubmitError::NotEncodable(error.to_string()))?;
    if bytes > REQUEST_BYTES_MAX {
        return Err(SubmitError::TooLarge { bytes, bytes_max: REQUEST_BYTES_MAX });
    }
    Ok(bytes)
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
            if is_failure(&error) {
                tracing::error!("the metadata log cannot be written: {error}");
            }
            Some(Err(SubmitError::Unavailable(id)))
        }
    }
}

/// Whether a write failed for more than that the node is being stopped, as it is when a majority is missing and requests
/// wait for it.
fn is_failure(error: &RaftError<TypeConfig, ClientWriteError<TypeConfig>>) -> bool {
    !matches!(error, RaftError::Fatal(Fatal::Stopped))
}

#[cfg(test)]
mod tests {
    use klamm_config::BrokerConfig;
    use klamm_model::Uuid;
    use klamm_protocol::records::cluster_metadata::{
        ConfigRecord, PartitionRecord, RegisterBrokerRecord, TopicRecord,
    };
    use klamm_testing::{SeededRandom, SimulatedClock};

    use super::*;
    use crate::rules::KafkaRules;

    fn surroundings() -> Surroundings {
        Surroundings {
            id: NodeId(1),
            clock: Arc::new(SimulatedClock::new(0)),
            random: Arc::new(SeededRandom::new(1)),
            defaults: TopicDefaults::default(),
            rules: Arc::new(KafkaRules::new(Arc::new(BrokerConfig::defaults()))),
            quorum: QuorumSettings::default(),
        }
    }

    /// A job that leads to this many settings of this length.
    fn job(count: usize, value_len: usize) -> Box<dyn Job> {
        let record = move |index: usize| {
            MetadataRecord::from(ConfigRecord {
                resource_type: 4,
                resource_name: String::new(),
                name: format!("key-{index}"),
                value: Some("v".repeat(value_len)),
            })
        };
        let decide = move |_: &Image, _: &ControllerContext<'_>| ((0..count).map(record).collect(), ());
        Box::new(Decision::unasked(decide))
    }

    fn plan(mut jobs: Vec<Box<dyn Job>>) -> Plan {
        decide_upon(&Image::empty("c"), &surroundings(), &mut jobs)
    }

    /// A broker that dies must not take the controller's time, nor more than one entry of its log.
    #[test]
    fn a_broker_that_holds_ten_thousand_partitions_is_fenced_with_one_entry() {
        let mut image = Image::empty("c");
        for id in 1..=3 {
            let record = RegisterBrokerRecord { broker_id: id, fenced: false, ..Default::default() };
            apply_to(&mut image, &record.into());
        }
        for topic in 0..100_u8 {
            let topic_id = Uuid([topic + 1; 16]);
            apply_to(&mut image, &TopicRecord { name: format!("t{topic}"), topic_id }.into());
            for partition_id in 0..100 {
                let replicas: Vec<i32> = (0..3).map(|place| 1 + (partition_id + place) % 3).collect();
                let (isr, leader) = (replicas.clone(), replicas[0]);
                let record =
                    PartitionRecord { partition_id, topic_id, replicas, isr, leader, ..Default::default() };
                apply_to(&mut image, &record.into());
            }
        }
        let fence = |image: &Image, context: &ControllerContext<'_>| {
            (fence_brokers(image, context, &[(NodeId(1), image.brokers[&NodeId(1)].epoch)]), ())
        };
        let mut jobs: Vec<Box<dyn Job>> = vec![Box::new(Decision::unasked(fence))];
        let plan = decide_upon(&image, &surroundings(), &mut jobs);
        assert_eq!((plan.outcomes, plan.records.len()), (vec![Ok(())], 10_001));
        let bytes = entry::records_len(&plan.records).unwrap();
        assert!(bytes < BATCH_BYTES_MAX / 8, "{bytes} bytes");
    }

    /// An error of the log ends the node, so a record that cannot be encoded must fail its own request alone.
    #[test]
    fn a_record_that_cannot_be_encoded_fails_only_the_request_it_belongs_to() {
        let plan = plan(vec![job(1, 10), job(3, 32_768), job(2, 32_767)]);
        assert!(
            matches!(&plan.outcomes[..], [Ok(()), Err(SubmitError::NotEncodable(_)), Ok(())]),
            "{:?}",
            plan.outcomes
        );
        assert_eq!(plan.records.len(), 3);
    }

    /// An ordinary stop without a majority logged an error of the log.
    #[test]
    fn a_stop_is_no_failure_of_the_log() {
        assert!(!is_failure(&RaftError::Fatal(Fatal::Stopped)));
        assert!(is_failure(&RaftError::Fatal(Fatal::Panicked)));
    }

    #[test]
    fn leadership_is_given_back_every_so_often_by_the_controller() {
        let seconds = Duration::from_secs;
        let mut rebalancing = Rebalancing { every: Some(seconds(300)), next: None };
        let due = |rebalancing: &mut Rebalancing, at: &[u64]| -> Vec<u64> {
            at.iter().copied().filter(|at| rebalancing.is_due(seconds(*at), true)).collect()
        };
        assert_eq!(due(&mut rebalancing, &[10, 309, 310, 311, 610]), [310, 610]);
        assert!(!rebalancing.is_due(seconds(1000), false), "another node is the controller");
        assert_eq!(due(&mut rebalancing, &[1001, 1300, 1301]), [1301]);
        let mut never = Rebalancing { every: None, next: None };
        assert!(due(&mut never, &[0, 10_000]).is_empty());
    }

    /// What is acknowledged must be readable again, and entries have a greatest length.
    #[test]
    fn requests_are_joined_up_to_a_size_and_a_huge_one_is_refused() {
        // About 3 MB each: two fit, the third waits.
        let joined = plan((0..4).map(|_| job(100, 30_000)).collect());
        assert_eq!((joined.outcomes.len(), joined.records.len()), (2, 200));
        // One alone may be larger than what is joined.
        let single = plan(vec![job(400, 30_000), job(1, 10)]);
        assert_eq!((single.outcomes, single.records.len()), (vec![Ok(())], 400));
        let huge = plan(vec![job(2_300, 30_000), job(1, 10)]);
        assert!(
            matches!(&huge.outcomes[..], [Err(SubmitError::TooLarge { .. }), Ok(())]),
            "{:?}",
            huge.outcomes
        );
        assert_eq!(huge.records.len(), 1);
    }
}
