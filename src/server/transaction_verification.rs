//! Asking the coordinator of a transaction whether a partition is part of it, before something is appended
//! (KIP-890).

use std::sync::Arc;
use std::time::Duration;

use klamm_coordinator::Question;
use klamm_coordinator::transaction::{Partitions, Producer};
use klamm_model::{ErrorCode, TopicPartition, topic_name};
use klamm_partition::{Partition, Verification, VerificationGuard};
use klamm_protocol::messages::add_partitions_to_txn::{
    AddPartitionsToTxnRequest, AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction,
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

/// What lets an append into a producer's transaction, `None` where one is open already. `base_sequence` is that of
/// the batch.
pub(crate) async fn verify(
    context: &Context,
    partition: &Partition,
    producer: Producer,
    base_sequence: i32,
    clients: Clients,
) -> Result<Option<VerificationGuard>, ErrorCode> {
    let is_implicit = clients.question == Question::Add;
    let config = context.config();
    let milliseconds = |of: i32| Duration::from_millis(u64::try_from(of).unwrap_or(0));
    let patience = Patience {
        pause: milliseconds(config.add_partitions_to_txn_retry_backoff_ms).max(Duration::from_millis(1)),
        left: match is_implicit {
            true => milliseconds(config.add_partitions_to_txn_retry_backoff_max_ms),
            // Producers that add partitions themselves have waited for the end of the last transaction then.
            false => Duration::ZERO,
        },
    };
    let begin = || partition.verify_transaction(producer.id, producer.epoch, base_sequence, is_implicit);
    if !is_implicit && !config.transaction_partition_verification_enable {
        return match begin() {
            Verification::Needed(guard) => Ok(Some(guard)),
            Verification::Ongoing => Ok(None),
        };
    }
    let name = partition.topic_partition();
    let ask = || ask_coordinator(context, name, producer.clone(), clients.question);
    let verified = ask_until_final(patience, begin, |guard| partition.is_valid(guard), ask).await;
    verified.map_err(|error| match error {
        ErrorCode::ProducerFenced => ErrorCode::InvalidProducerEpoch,
        ErrorCode::TransactionAbortable if !clients.know_abortable => ErrorCode::InvalidTxnState,
        error => error,
    })
}

/// Asks the coordinator of a transaction, on this node or another.
async fn ask_coordinator(
    context: &Context,
    name: &TopicPartition,
    producer: Producer,
    question: Question,
) -> Answered {
    let image = context.image();
    let topic = image.topic_by_name(topic_name::TRANSACTION_STATE);
    let topic = topic.ok_or(ErrorCode::CoordinatorNotAvailable)?;
    let index = klamm_coordinator::partition_of(&producer.transactional_id, topic.partitions.len() as i32);
    let coordinator = topic.partition(index).and_then(|state| state.leader);
    let coordinator = coordinator.ok_or(ErrorCode::CoordinatorNotAvailable)?;
    if coordinator == context.node_id {
        let partitions = Partitions::from([(name.topic.clone(), [name.partition].into())]);
        return context.transactions.answer_broker(producer, partitions, question).await;
    }
    let transaction = AddPartitionsToTxnTransaction {
        transactional_id: producer.transactional_id,
        producer_id: producer.id.0,
        producer_epoch: producer.epoch.0,
        verify_only: question == Question::Verify,
        topics: vec![AddPartitionsToTxnTopic {
            name: name.topic.to_string(),
            partitions: vec![name.partition],
        }],
    };
    let request = AddPartitionsToTxnRequest { transactions: vec![transaction], ..Default::default() };
    let answer = context.questions.ask(context, coordinator, ADD_PARTITIONS_VERSION, &request).await;
    let answer = answer.map_err(|error| {
        tracing::debug!("broker {coordinator} did not answer for a transaction: {error}");
        ErrorCode::CoordinatorNotAvailable
    })?;
    let code = |code| ErrorCode::from_code(code).unwrap_or(ErrorCode::UnknownServerError);
    let topics = answer.results_by_transaction.into_iter().flat_map(|one| one.topic_results);
    let partitions = topics.flat_map(|topic| topic.results_by_partition);
    let errors = [answer.error_code].into_iter().chain(partitions.map(|one| one.partition_error_code));
    let errors = errors.map(code).filter(|code| *code != ErrorCode::None);
    Ok(errors.map(|code| (name.topic.clone(), name.partition, code)).collect())
}

/// The errors of the partitions that have one, or the error of all.
type Answered = Result<Vec<(Arc<str>, i32, ErrorCode)>, ErrorCode>;

/// Asks until there is an answer that counts. Each try takes a guard of its own: while the last transaction is being
/// ended its marker may come at any time, and makes all guards worthless that were taken before. An answer that
/// a marker overtook says nothing, so that it is asked for again.
async fn ask_until_final<A: Future<Output = Answered>>(
    mut patience: Patience,
    begin: impl Fn() -> Verification,
    is_valid: impl Fn(&VerificationGuard) -> bool,
    ask: impl Fn() -> A,
) -> Result<Option<VerificationGuard>, ErrorCode> {
    let mut overtaken = 0;
    loop {
        let Verification::Needed(guard) = begin() else { return Ok(None) };
        let answered = ask().await.map(|errors| errors.first().map(|(_, _, error)| *error));
        match answered.and_then(|error| error.map_or(Ok(()), Err)) {
            Ok(()) if is_valid(&guard) || overtaken == OVERTAKEN_MAX => return Ok(Some(guard)),
            Ok(()) => overtaken += 1,
            Err(ErrorCode::ConcurrentTransactions) if !patience.left.is_zero() => {
                let pause = patience.pause.min(patience.left);
                patience.left -= pause;
                tokio::time::sleep(pause).await;
            }
            Err(error) => return Err(error),
        }
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

    fn leader() -> (Partition, LogStore) {
        let (node, topic) = (NodeId(1), Uuid([7; 16]));
        let clock = Arc::new(SimulatedClock::new(1_700_000_000_000));
        let (disk, random) = (Arc::new(SimulatedDisk::new(1)), Arc::new(SeededRandom::new(1)));
        let log_dirs = vec![Path::new("/data").to_owned()];
        let store = LogStore::open(StoreSettings::new(log_dirs, node, disk, clock.clone(), random)).unwrap();
        store.load(&|_| LogConfig::default()).unwrap();
        let log = store.create(&TopicPartition::new("t", 0), topic, LogConfig::default()).unwrap();
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
    /// gets into the partition. Returns how often it was asked, too.
    async fn ask(
        partition: &Partition,
        answers: &[Answered],
        marked: usize,
    ) -> (Result<Option<VerificationGuard>, ErrorCode>, usize) {
        let asked = Mutex::new(0);
        let patience = Patience { pause: Duration::from_millis(1), left: Duration::from_millis(3) };
        let begin = || partition.verify_transaction(PRODUCER, EPOCH, 0, true);
        let one = || {
            let mut asked = asked.lock().unwrap();
            if *asked == marked {
                end_last_transaction(partition);
            }
            *asked += 1;
            std::future::ready(answers[(*asked - 1).min(answers.len() - 1)].clone())
        };
        let verified = ask_until_final(patience, begin, |guard| partition.is_valid(guard), one).await;
        (verified, *asked.lock().unwrap())
    }

    /// The last transaction is still being ended when the next one begins: its marker comes while the coordinator
    /// is asked again, or just behind its answer. In Kafka 4.4.0 this is CONCURRENT_TRANSACTIONS or works.
    #[tokio::test]
    async fn the_marker_of_the_last_transaction_spoils_no_answer() {
        let busy = Err(ErrorCode::ConcurrentTransactions);
        let scripts: [(&[Answered], usize, usize); 4] = [
            (&[busy.clone(), Ok(Vec::new())], 0, 2),
            (&[busy.clone(), busy.clone(), Ok(Vec::new())], 1, 3),
            (&[busy.clone(), Ok(Vec::new())], 1, 3),
            (&[Ok(Vec::new())], 0, 2),
        ];
        for (answers, marked, asked) in scripts {
            let (partition, _store) = leader();
            let (verified, times) = ask(&partition, answers, marked).await;
            assert_eq!(times, asked, "{answers:?}");
            append(&partition, verified.unwrap()).unwrap();
        }
    }

    #[tokio::test]
    async fn patience_ends_and_other_errors_are_final() {
        let (partition, _store) = leader();
        let (verified, times) = ask(&partition, &[Err(ErrorCode::ConcurrentTransactions)], usize::MAX).await;
        assert_eq!((verified.unwrap_err(), times), (ErrorCode::ConcurrentTransactions, 4));
        let not_in = Ok(vec![("t".into(), 0, ErrorCode::TransactionAbortable)]);
        let (verified, times) = ask(&partition, &[not_in], usize::MAX).await;
        assert_eq!((verified.unwrap_err(), times), (ErrorCode::TransactionAbortable, 1));
    }
}
