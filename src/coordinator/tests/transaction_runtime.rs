//! The coordinator of transactions over a log that fails: what must not be given up, and what a hostile request may
//! cost.

mod memory;

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use klamm_coordinator::runtime::LogFault;
use klamm_coordinator::transaction::{Producer, WriteMarkers};
use klamm_coordinator::{
    GroupEnvironment, TransactionCoordinator, TransactionEnvironment, TransactionSettings,
};
use klamm_io::{BoxFuture, SystemClock};
use klamm_metadata::Image;
use klamm_model::{ErrorCode, LeaderEpoch, ProducerEpoch, ProducerId, Uuid};
use klamm_partition::Partition;
use klamm_protocol::messages::add_partitions_to_txn::{
    AddPartitionsToTxnRequest, AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction,
};
use klamm_protocol::messages::describe_transactions::DescribeTransactionsRequest;
use klamm_protocol::messages::end_txn::EndTxnRequest;
use klamm_protocol::messages::init_producer_id::InitProducerIdRequest;
use klamm_protocol::messages::list_transactions::ListTransactionsRequest;
use memory::{MemoryLog, Surroundings};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::timeout;

const ID: &str = "tx";
const EPOCH: LeaderEpoch = LeaderEpoch(3);

/// A cluster with the topic `t` of two partitions, and one partition of `__transaction_state`.
struct Node {
    surroundings: Arc<Surroundings>,
    markers: mpsc::UnboundedSender<WriteMarkers>,
    last_id: Mutex<i64>,
}

impl TransactionEnvironment for Node {
    fn transactions_partition(&self, _index: i32) -> Option<Arc<Partition>> {
        None
    }

    fn transactions_partition_count(&self) -> i32 {
        1
    }

    fn image(&self) -> Arc<Image> {
        GroupEnvironment::image(&*self.surroundings)
    }

    fn led_alone(&self, _index: i32, _time: Duration) -> BoxFuture<'_, bool> {
        Box::pin(ready(true))
    }

    fn unused_producer_id(&self) -> BoxFuture<'_, Result<ProducerId, ErrorCode>> {
        let mut last = self.last_id.lock();
        *last += 1;
        Box::pin(std::future::ready(Ok(ProducerId(*last))))
    }

    fn write_markers(&self, markers: WriteMarkers) {
        self.markers.send(markers).expect("the test listens");
    }
}

fn coordinator() -> (TransactionCoordinator, mpsc::UnboundedReceiver<WriteMarkers>) {
    let (markers, written) = mpsc::unbounded_channel();
    let surroundings = Surroundings::with_topics(&[("t", Uuid([1; 16]), 2)]);
    let node = Arc::new(Node { surroundings, markers, last_id: Mutex::new(0) });
    let clock = Arc::new(SystemClock::new());
    (TransactionCoordinator::new(TransactionSettings::default(), clock, node), written)
}

async fn serving(log: &Arc<MemoryLog>) -> (TransactionCoordinator, mpsc::UnboundedReceiver<WriteMarkers>) {
    let (coordinator, written) = coordinator();
    coordinator.open(0, EPOCH, log.clone());
    let loading = ErrorCode::CoordinatorLoadInProgress.code();
    let list = || coordinator.list_transactions(ListTransactionsRequest::default());
    while list().await.error_code == loading {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    (coordinator, written)
}

/// A producer with a transaction in partition 0.
async fn begun(coordinator: &TransactionCoordinator) -> Producer {
    let init = InitProducerIdRequest {
        transactional_id: Some(ID.to_owned()),
        transaction_timeout_ms: 60_000,
        producer_id: -1,
        producer_epoch: -1,
        ..InitProducerIdRequest::default()
    };
    let (id, epoch) = coordinator.init_producer_id(4, &init).await.expect("a producer");
    let producer = Producer { transactional_id: ID.to_owned(), id, epoch };
    assert_eq!(ask(coordinator, &producer, false, vec![0]).await, [ErrorCode::None.code()]);
    producer
}

/// AddPartitionsToTxn of a broker; returns the codes of the partitions.
async fn ask(
    coordinator: &TransactionCoordinator,
    producer: &Producer,
    verify_only: bool,
    partitions: Vec<i32>,
) -> Vec<i16> {
    let topics = vec![AddPartitionsToTxnTopic { name: "t".to_owned(), partitions }];
    let transaction = AddPartitionsToTxnTransaction {
        transactional_id: producer.transactional_id.clone(),
        producer_id: producer.id.0,
        producer_epoch: producer.epoch.0,
        verify_only,
        topics,
    };
    let request = AddPartitionsToTxnRequest { transactions: vec![transaction], ..Default::default() };
    let response = coordinator.add_partitions(4, request).await;
    let topics = response.results_by_transaction.into_iter().flat_map(|one| one.topic_results);
    topics.flat_map(|topic| topic.results_by_partition).map(|one| one.partition_error_code).collect()
}

async fn state(coordinator: &TransactionCoordinator) -> String {
    let request = DescribeTransactionsRequest { transactional_ids: vec![ID.to_owned()] };
    let mut response = coordinator.describe_transactions(request).await;
    response.transaction_states.remove(0).transaction_state
}

/// Commits, and returns the producer as the markers name it.
async fn committed(
    coordinator: &TransactionCoordinator,
    written: &mut mpsc::UnboundedReceiver<WriteMarkers>,
    producer: &Producer,
) -> Producer {
    let ProducerEpoch(producer_epoch) = producer.epoch;
    let request = EndTxnRequest {
        transactional_id: ID.to_owned(),
        producer_id: producer.id.0,
        producer_epoch,
        committed: true,
    };
    assert_eq!(coordinator.end(4, request).await.error_code, ErrorCode::None.code());
    let markers = timeout(Duration::from_secs(5), written.recv()).await.expect("markers").expect("markers");
    assert_eq!(markers.coordinator_epoch, EPOCH.0);
    markers.producer
}

/// One partition that cannot be loaded, perhaps never again, kept all transactions from being seen.
#[tokio::test]
async fn transactions_are_listed_without_those_that_cannot_be_loaded() {
    let log = MemoryLog::new();
    let (before, _written) = serving(&log).await;
    begun(&before).await;
    drop(before);
    let unreadable = MemoryLog::holding(log.content());
    unreadable.set_unreadable(true);
    let after = coordinator().0;
    after.open(0, EPOCH, unreadable.clone());
    after.open(1, EPOCH, MemoryLog::holding(log.content()));
    let listed = after.list_transactions(ListTransactionsRequest::default()).await;
    assert_eq!(listed.error_code, ErrorCode::CoordinatorLoadInProgress.code());
    while unreadable.reads() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    let listed = after.list_transactions(ListTransactionsRequest::default()).await;
    assert_eq!((listed.error_code, listed.transaction_states.len()), (0, 1));
}

/// A disk that is full when all markers stand must not leave the transaction unfinished: nobody else will come. To
/// clients such a fault looks as if another node led the partition.
#[tokio::test]
async fn a_fault_of_the_log_is_no_reason_to_give_the_end_of_a_transaction_up() {
    let faults: [fn() -> LogFault; 4] = [
        || LogFault::Other("no space left on the device".to_owned()),
        || LogFault::NotLeader,
        || LogFault::NotEnoughReplicas,
        || LogFault::TooLarge,
    ];
    for fault in faults {
        let log = MemoryLog::new();
        let (coordinator, mut written) = serving(&log).await;
        let producer = begun(&coordinator).await;
        let producer = committed(&coordinator, &mut written, &producer).await;
        log.refuse(Some(fault));
        for _ in 0..2 {
            assert!(coordinator.markers_written(producer.clone(), EPOCH).await.is_err(), "{:?}", fault());
            assert_eq!(state(&coordinator).await, "PrepareCommit");
        }
        log.refuse(None);
        assert_eq!(coordinator.markers_written(producer, EPOCH).await, Ok(()));
        assert_eq!(state(&coordinator).await, "CompleteCommit");
    }
}

#[tokio::test]
async fn a_coordinator_that_resigned_leaves_the_end_to_the_next_one() {
    let log = MemoryLog::new();
    let (coordinator, mut written) = serving(&log).await;
    let producer = begun(&coordinator).await;
    let producer = committed(&coordinator, &mut written, &producer).await;
    coordinator.on_resigned(0);
    assert_eq!(coordinator.markers_written(producer, EPOCH).await, Ok(()));
}

#[tokio::test]
async fn a_partition_is_answered_as_often_as_it_is_named() {
    let log = MemoryLog::new();
    let (coordinator, _written) = serving(&log).await;
    let producer = begun(&coordinator).await;
    let named = [0, 1].repeat(1000);
    let answered = ask(&coordinator, &producer, true, named).await;
    assert_eq!(answered.len(), 2000);
    let refused = ErrorCode::TransactionAbortable.code();
    assert!(answered.chunks(2).all(|pair| pair == [ErrorCode::None.code(), refused]));
}

#[tokio::test]
async fn filters_may_be_many_and_repeated() {
    let log = MemoryLog::new();
    let (coordinator, _written) = serving(&log).await;
    begun(&coordinator).await;
    let list = async |states: Vec<&str>, producer_id_filters: Vec<i64>| {
        let state_filters = states.into_iter().map(str::to_owned).collect();
        let request = ListTransactionsRequest { state_filters, producer_id_filters, ..Default::default() };
        let response = coordinator.list_transactions(request).await;
        (response.transaction_states.len(), response.unknown_state_filters)
    };
    assert_eq!(list(vec!["Ongoing"; 1000], vec![1; 100_000]).await, (1, Vec::new()));
    assert_eq!(list(Vec::new(), vec![2; 1000]).await, (0, Vec::new()));
    // What is not known is told once, and matches nothing.
    assert_eq!(list(vec!["", "", "Odd", ""], Vec::new()).await, (0, vec![String::new(), "Odd".to_owned()]));
}
