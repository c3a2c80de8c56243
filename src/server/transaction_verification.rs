//! Asking the coordinator of a transaction whether a partition is part of it, before something is appended
//! (KIP-890).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use klamm_coordinator::Question;
use klamm_coordinator::transaction::{Partitions, Producer};
use klamm_model::{ErrorCode, TopicPartition, topic_name};
use klamm_partition::{Partition, Verification, VerificationGuard};
use klamm_protocol::messages::add_partitions_to_txn::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnRequest, AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
};

use crate::context::Context;

/// The version of AddPartitionsToTxn that brokers speak with each other.
const ADD_PARTITIONS_VERSION: i16 = 5;

/// How many markers may overtake an answer. A second one would belong to a transaction that began meanwhile.
const OVERTAKEN_MAX: u32 = 5;

/// What the clients of a version expect.
#[derive(Clone, Copy)]
pub(crate) struct Clients {
    /// Whether they add partitions to their transactions themselves.
    pub(crate) question: Question,
    /// Whether they know TRANSACTION_ABORTABLE.
    pub(crate) know_abortable: bool,
}

/// How long a producer waits while its last transaction is still being ended.
struct Patience {
    /// Between two tries.
    pause: Duration,
    /// All pauses together.
    left: Duration,
}

/// A batch that may be the first of a transaction in its partition.
pub(crate) struct Subject {
    /// Where it goes.
    pub(crate) partition: Arc<Partition>,
    /// Whose it is.
    pub(crate) producer: Producer,
    /// Its first sequence number; -1 for offsets that a group commits.
    pub(crate) base_sequence: i32,
}

/// What lets an append into a producer's transaction, `None` where one is open already.
pub(crate) type Verified = Result<Option<VerificationGuard>, ErrorCode>;

/// What lets each of these into its producer's transaction, in their order. The coordinator is asked about all partitions
/// of a producer at once.
pub(crate) async fn verify(context: &Context, subjects: &[Subject], clients: Clients) -> Vec<Verified> {
    let is_implicit = clients.question == Question::Add;
    let config = context.config();
    let milliseconds = |of: i32| Duration::from_millis(u64::try_from(of).unwrap_or(0));
    let patience = || Patience {
        pause: milliseconds(config.add_partitions_to_txn_retry_backoff_ms).max(Duration::from_millis(1)),
        left: match is_implicit {
            true => milliseconds(config.add_partitions_to_txn_retry_backoff_max_ms),
            // Producers that add partitions themselves have waited for the end of the last transaction then.
            false => Duration::ZERO,
        },
    };
    let begin = |subject: &Subject| {
        let Subject { partition, producer, base_sequence } = subject;
        partition.verify_transaction(producer.id, producer.epoch, *base_sequence, is_implicit)
    };
    if !is_implicit && !config.transaction_partition_verification_enable {
        let unasked = subjects.iter().map(|subject| match begin(subject) {
            Verification::Needed(guard) => Ok(Some(guard)),
            Verification::Ongoing => Ok(None),
        });
        return unasked.collect();
    }
    let is_valid = |subject: &Subject, guard: &VerificationGuard| subject.partition.is_valid(guard);
    let mut verified = BTreeMap::new();
    for (producer, places) in by_producer(subjects) {
        let subjects: Vec<&Subject> = places.iter().map(|place| &subjects[*place]).collect();
        let ask = |asked: Vec<&Subject>| {
            let names = asked.iter().map(|subject| subject.partition.topic_partition().clone()).collect();
            ask_coordinator(context, names, producer.clone(), clients.question)
        };
        let answers = ask_until_final(&subjects, patience(), begin, is_valid, ask).await;
        verified.extend(places.into_iter().zip(answers));
    }
    verified.into_values().map(|verified| verified.map_err(|error| for_clients(error, clients))).collect()
}

/// The places of each producer's batches. A request has one producer, unless it is hostile.
fn by_producer(subjects: &[Subject]) -> Vec<(Producer, Vec<usize>)> {
    let mut all: Vec<(Producer, Vec<usize>)> = Vec::new();
    for (place, subject) in subjects.iter().enumerate() {
        match all.last_mut().filter(|(producer, _)| *producer == subject.producer) {
            Some((_, places)) => places.push(place),
            None => all.push((subject.producer.clone(), vec![place])),
        }
    }
    all
}

fn for_clients(error: ErrorCode, clients: Clients) -> ErrorCode {
    match error {
        ErrorCode::ProducerFenced => ErrorCode::InvalidProducerEpoch,
        ErrorCode::TransactionAbortable if !clients.know_abortable => ErrorCode::InvalidTxnState,
        error => error,
    }
}

/// Asks the coordinator of a transaction, on this node or another.
async fn ask_coordinator(
    context: &Context,
    names: Vec<TopicPartition>,
    producer: Producer,
    question: Question,
) -> Answered {
    let image = context.image();
    let topic = image.topic_by_name(topic_name::TRANSACTION_STATE);
    let topic = topic.ok_or(ErrorCode::CoordinatorNotAvailable)?;
    let index = klamm_coordinator::partition_of(&producer.transactional_id, topic.partitions.len() as i32);
    let coordinator = topic.partition(index).and_then(|state| state.leader);
    let coordinator = coordinator.ok_or(ErrorCode::CoordinatorNotAvailable)?;
    let mut partitions = Partitions::new();
    for name in names {
        partitions.entry(name.topic).or_default().insert(name.partition);
    }
    if coordinator == context.node_id {
        let errors = context.transactions.answer_broker(producer, partitions, question).await?;
        return Ok(errors.into_iter().map(|(topic, index, error)| ((topic, index), error)).collect());
    }
    let topics = partitions.into_iter().map(|(name, partitions)| AddPartitionsToTxnTopic {
        name: name.to_string(),
        partitions: partitions.into_iter().collect(),
    });
    let transaction = AddPartitionsToTxnTransaction {
        transactional_id: producer.transactional_id,
        producer_id: producer.id.0,
        producer_epoch: producer.epoch.0,
        verify_only: question == Question::Verify,
        topics: topics.collect(),
    };
    let request = AddPartitionsToTxnRequest { transactions: vec![transaction], ..Default::default() };
    let answer = context.questions.ask(context, coordinator, ADD_PARTITIONS_VERSION, &request).await;
    let answer = answer.map_err(|error| {
        tracing::debug!("broker {coordinator} did not answer for a transaction: {error}");
        ErrorCode::CoordinatorNotAvailable
    })?;
    let code = |code| ErrorCode::from_code(code).unwrap_or(ErrorCode::UnknownServerError);
    if answer.error_code != ErrorCode::None.code() {
        return Err(code(answer.error_code));
    }
    let topics = answer.results_by_transaction.into_iter().flat_map(|one| one.topic_results);
    let errors = topics.flat_map(|topic| {
        let name: Arc<str> = topic.name.as_str().into();
        let error = move |one: AddPartitionsToTxnPartitionResult| {
            ((name.clone(), one.partition_index), code(one.partition_error_code))
        };
        topic.results_by_partition.into_iter().map(error)
    });
    Ok(errors.filter(|(_, error)| *error != ErrorCode::None).collect())
}

/// The errors of the partitions that have one, or the error of all.
type Answered = Result<BTreeMap<(Arc<str>, i32), ErrorCode>, ErrorCode>;

/// Asks about the partitions of one producer until there are answers that count. Each try takes a guard of its own: while
/// the last transaction is being ended its marker may come at any time, and makes all guards worthless that were taken
/// before. An answer that a marker overtook says nothing, so that it is asked for again; so is that about a partition that
/// was not looked at, because of the error of another one.
async fn ask_until_final<'a, A: Future<Output = Answered>>(
    subjects: &[&'a Subject],
    mut patience: Patience,
    begin: impl Fn(&Subject) -> Verification,
    is_valid: impl Fn(&Subject, &VerificationGuard) -> bool,
    ask: impl Fn(Vec<&'a Subject>) -> A,
) -> Vec<Verified> {
    let mut verified: BTreeMap<usize, Verified> = BTreeMap::new();
    let mut overtaken = 0;
    loop {
        let mut asked = Vec::new();
        for (place, subject) in subjects.iter().enumerate() {
            if verified.contains_key(&place) {
                continue;
            }
            match begin(subject) {
                Verification::Needed(guard) => asked.push((place, *subject, guard)),
                Verification::Ongoing => drop(verified.insert(place, Ok(None))),
            }
        }
        if asked.is_empty() {
            return verified.into_values().collect();
        }
        let answered = ask(asked.iter().map(|(_, subject, _)| *subject).collect()).await;
        let is_about_another = |error: &ErrorCode| *error != ErrorCode::OperationNotAttempted;
        let has_failed = answered.as_ref().is_ok_and(|errors| errors.values().any(is_about_another));
        let (mut is_overtaken, mut is_busy) = (false, false);
        for (place, subject, guard) in asked {
            match error_of(&answered, subject) {
                None if is_valid(subject, &guard) || overtaken == OVERTAKEN_MAX => {
                    verified.insert(place, Ok(Some(guard)));
                }
                None => is_overtaken = true,
                Some(ErrorCode::OperationNotAttempted) if has_failed => {}
                Some(ErrorCode::ConcurrentTransactions) if !patience.left.is_zero() => is_busy = true,
                Some(error) => drop(verified.insert(place, Err(error))),
            }
        }
        overtaken += u32::from(is_overtaken);
        if is_busy {
            let pause = patience.pause.min(patience.left);
            patience.left -= pause;
            tokio::time::sleep(pause).await;
        }
    }
}

fn error_of(answered: &Answered, subject: &Subject) -> Option<ErrorCode> {
    let name = subject.partition.topic_partition();
    match answered {
        Ok(errors) => errors.get(&(name.topic.clone(), name.partition)).copied(),
        Err(error) => Some(*error),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Mutex;

    use klamm_model::{LeaderEpoch, NodeId, ProducerEpoch, ProducerId, TopicPartition, Uuid};
    use klamm_partition::{
        AppendError, AppendOptions, Leadership, Origin, PartitionSettings, TransactionMarker,
    };
    use klamm_records::{BatchBuilder, BatchSettings};
    use klamm_storage::{LogConfig, LogStore, StoreSettings};
    use klamm_testing::{SeededRandom, SimulatedClock, SimulatedDisk};

    use super::*;

    const PRODUCER: ProducerId = ProducerId(5);
    /// That of the transaction that begins, and of the marker of the last one.
    const EPOCH: ProducerEpoch = ProducerEpoch(1);

    fn subject() -> (Subject, LogStore) {
        let (partition, store) = leader(0);
        (subject_in(partition), store)
    }

    fn subject_in(partition: Partition) -> Subject {
        let producer = Producer { transactional_id: "id".to_owned(), id: PRODUCER, epoch: EPOCH };
        Subject { partition: Arc::new(partition), producer, base_sequence: 0 }
    }

    fn leader(index: i32) -> (Partition, LogStore) {
        let (node, topic) = (NodeId(1), Uuid([7; 16]));
        let clock = Arc::new(SimulatedClock::new(1_700_000_000_000));
        let (disk, random) = (Arc::new(SimulatedDisk::new(1)), Arc::new(SeededRandom::new(1)));
        let log_dirs = vec![Path::new("/data").to_owned()];
        let store = LogStore::open(StoreSettings::new(log_dirs, node, disk, clock.clone(), random)).unwrap();
        store.load(&|_| LogConfig::default()).unwrap();
        let log = store.create(&TopicPartition::new("t", index), topic, LogConfig::default()).unwrap();
        let partition = Partition::new(topic, node, log, 0, PartitionSettings::default(), clock);
        let leadership = Leadership {
            leader: Some(node),
            leader_epoch: LeaderEpoch(0),
            partition_epoch: 0,
            replicas: vec![node],
            isr: vec![node],
            lost: Vec::new(),
        };
        partition.become_leader(&leadership).unwrap();
        (partition, store)
    }

    fn end_last_transaction(partition: &Partition) {
        let marker = TransactionMarker {
            producer_id: PRODUCER,
            producer_epoch: EPOCH,
            coordinator_epoch: 0,
            is_commit: true,
            transaction_version: 2,
        };
        partition.end_transaction(&marker, None).unwrap();
    }

    fn append(partition: &Partition, guard: Option<VerificationGuard>) -> Result<(), AppendError> {
        let mut batch = BatchBuilder::v2(BatchSettings {
            producer_id: PRODUCER,
            producer_epoch: EPOCH,
            base_sequence: 0,
            transactional: true,
            ..Default::default()
        });
        batch.append(1_700_000_000_000, None, Some(b"v"), &[]);
        let options = AppendOptions {
            origin: Origin::Client,
            produce_version: 12,
            acks: -1,
            expected_leader_epoch: None,
            guard,
        };
        partition.append_as_leader(batch.build(), &options).map(drop)
    }

    /// Asks a coordinator that gives these answers; before the one at `marked` the marker of the last transaction
    /// gets into the partition of the first. Returns how many partitions it was asked about each time, too.
    async fn ask(subjects: &[&Subject], answers: &[Answered], marked: usize) -> (Vec<Verified>, Vec<usize>) {
        let asked = Mutex::new(Vec::new());
        let patience = Patience { pause: Duration::from_millis(1), left: Duration::from_millis(3) };
        let begin = |subject: &Subject| subject.partition.verify_transaction(PRODUCER, EPOCH, 0, true);
        let is_valid = |subject: &Subject, guard: &VerificationGuard| subject.partition.is_valid(guard);
        let one = |about: Vec<&Subject>| {
            let mut asked = asked.lock().unwrap();
            if asked.len() == marked {
                end_last_transaction(&subjects[0].partition);
            }
            asked.push(about.len());
            std::future::ready(answers[(asked.len() - 1).min(answers.len() - 1)].clone())
        };
        let verified = ask_until_final(subjects, patience, begin, is_valid, one).await;
        (verified, asked.lock().unwrap().clone())
    }

    fn all_well() -> Answered {
        Ok(BTreeMap::new())
    }

    /// The last transaction is still being ended when the next one begins: its marker comes while the coordinator
    /// is asked again, or just behind its answer. In Kafka 4.4.0 this is CONCURRENT_TRANSACTIONS or works.
    #[tokio::test]
    async fn the_marker_of_the_last_transaction_spoils_no_answer() {
        let busy = Err(ErrorCode::ConcurrentTransactions);
        let scripts: [(&[Answered], usize, usize); 4] = [
            (&[busy.clone(), all_well()], 0, 2),
            (&[busy.clone(), busy.clone(), all_well()], 1, 3),
            (&[busy.clone(), all_well()], 1, 3),
            (&[all_well()], 0, 2),
        ];
        for (answers, marked, times) in scripts {
            let (subject, _store) = subject();
            let (mut verified, asked) = ask(&[&subject], answers, marked).await;
            assert_eq!(asked.len(), times, "{answers:?}");
            append(&subject.partition, verified.remove(0).unwrap()).unwrap();
        }
    }

    #[tokio::test]
    async fn patience_ends_and_other_errors_are_final() {
        let (subject, _store) = subject();
        let busy = Err(ErrorCode::ConcurrentTransactions);
        let (verified, asked) = ask(&[&subject], &[busy], usize::MAX).await;
        assert_eq!((verified[0].clone().unwrap_err(), asked.len()), (ErrorCode::ConcurrentTransactions, 4));
        let not_in = Ok([(("t".into(), 0), ErrorCode::TransactionAbortable)].into());
        let (verified, asked) = ask(&[&subject], &[not_in], usize::MAX).await;
        assert_eq!((verified[0].clone().unwrap_err(), asked.len()), (ErrorCode::TransactionAbortable, 1));
    }

    /// A transaction that began in a hundred partitions asked a hundred times, one after the other.
    #[tokio::test]
    async fn all_partitions_of_a_producer_are_asked_about_at_once() {
        let (leaders, _stores): (Vec<_>, Vec<_>) = (0..3).map(leader).unzip();
        let all: Vec<Subject> = leaders.into_iter().map(subject_in).collect();
        let subjects: Vec<&Subject> = all.iter().collect();
        let (verified, asked) = ask(&subjects, &[all_well()], usize::MAX).await;
        assert_eq!(asked, [3]);
        for (subject, verified) in all.iter().zip(verified) {
            append(&subject.partition, verified.unwrap()).unwrap();
        }
        let (verified, asked) = ask(&subjects, &[all_well()], usize::MAX).await;
        assert!(asked.is_empty() && verified.iter().all(|one| matches!(one, Ok(None))), "they are open");
    }

    /// The coordinator adds all or none. One partition that it does not know yet must not keep the others out.
    #[tokio::test]
    async fn an_error_of_one_partition_is_not_that_of_the_others() {
        let (leaders, _stores): (Vec<_>, Vec<_>) = (0..3).map(leader).unzip();
        let all: Vec<Subject> = leaders.into_iter().map(subject_in).collect();
        let subjects: Vec<&Subject> = all.iter().collect();
        let unknown = Ok([
            (("t".into(), 0), ErrorCode::OperationNotAttempted),
            (("t".into(), 1), ErrorCode::UnknownTopicOrPartition),
            (("t".into(), 2), ErrorCode::OperationNotAttempted),
        ]
        .into());
        let (verified, asked) = ask(&subjects, &[unknown, all_well()], usize::MAX).await;
        assert_eq!(asked, [3, 2]);
        assert_eq!(verified[1].clone().unwrap_err(), ErrorCode::UnknownTopicOrPartition);
        append(&all[0].partition, verified[0].clone().unwrap()).unwrap();
        append(&all[2].partition, verified[2].clone().unwrap()).unwrap();
    }
}
