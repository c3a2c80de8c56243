//! Transactions that Apache Kafka 0.11 and 4.4 stored: after loading them each goes on where Kafka stopped. A
//! coordinator that loads less lets a zombie write, or leaves a transaction open for ever.
#![allow(clippy::disallowed_methods, reason = "fixtures are read with std")]

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use klamm_coordinator::TransactionSettings;
use klamm_coordinator::transaction::{
    End, Init, Now, Partitions, Producer, Reply, Request, State, Then, Ticket, TransactionRecord,
    TransactionShard, TransactionVersion,
};
use klamm_model::{ErrorCode, ProducerEpoch, ProducerId};
use klamm_records::batches;

/// The records of all partitions of `__transaction_state` in a fixture.
fn records(version: &str) -> Vec<(Bytes, Option<Bytes>)> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = here.ancestors().map(|up| up.join("fixtures/txn")).find(|folder| folder.is_dir());
    let folder = folder.expect("fixtures/txn stands in the root of the project").join(version);
    let mut records = Vec::new();
    for number in 22..=25 {
        let file = folder.join(format!("__transaction_state-{number}/00000000000000000000.log"));
        for batch in batches(std::fs::read(file).expect("a segment").into()) {
            let batch = batch.expect("a batch").records().expect("records");
            records.extend(batch.into_iter().map(|record| (record.key.expect("a key"), record.value)));
        }
    }
    records
}

fn loaded(version: &str) -> TransactionShard {
    let mut shard = TransactionShard::new(Arc::new(TransactionSettings::default()), 5);
    for (key, value) in records(version) {
        shard.replay(TransactionRecord::decode(key, value).expect("a record"));
    }
    let effects = shard.finish_loading(NOW);
    assert!(effects.writes.is_empty(), "no transaction was being ended");
    shard
}

const NOW: Now = Now { wall_ms: 1_795_983_100_000, monotonic_ms: 0 };

fn partitions(all: &[(&str, i32)]) -> Partitions {
    all.iter().map(|(topic, index)| ((*topic).into(), [*index].into())).collect()
}

#[test]
fn transactions_are_loaded_as_kafka_left_them() {
    let a = partitions(&[("ledger", 0), ("other", 0), ("__consumer_offsets", 0)]);
    let c = partitions(&[("ledger", 0)]);
    for (version, client, epochs) in [("4.4", 2, [8, 9, 1, 2]), ("0.11", 0, [0, 0, 0, 0])] {
        let shard = loaded(version);
        let expected = [
            ("transaction-a", State::Ongoing, a.clone()),
            ("transaction-b", State::CompleteCommit, Partitions::new()),
            ("transaction-c", State::Ongoing, c.clone()),
            ("transaction-d", State::CompleteAbort, Partitions::new()),
        ];
        assert_eq!(shard.transactions().len(), expected.len());
        for (((id, state, partitions), epoch), producer) in expected.into_iter().zip(epochs).zip(1..) {
            let known = shard.transaction(id).expect("an id");
            assert_eq!(
                (known.producer_id, known.producer_epoch),
                (ProducerId(producer), ProducerEpoch(epoch))
            );
            assert_eq!((known.state, &known.partitions), (state, &partitions), "{version} {id}");
            assert_eq!(known.version, TransactionVersion(client));
            assert_eq!(known.timeout_ms, 900_000);
        }
    }
}

/// Asks, and has what is written replayed and committed; returns the reply and whether markers went out.
fn ask(shard: &mut TransactionShard, request: Request) -> (Reply, usize) {
    let mut todo = vec![shard.handle(NOW, Ticket(0), request)];
    let (mut answer, mut markers) = (None, 0);
    while let Some(effects) = todo.pop() {
        answer = effects.replies.into_iter().map(|(_, reply)| reply).next().or(answer);
        markers += effects.commands.len();
        for write in effects.writes {
            write.records.into_iter().for_each(|record| shard.replay(record));
            let then: Then = write.then;
            todo.push(shard.completed(NOW, then, Ok(())));
        }
    }
    (answer.expect("an answer"), markers)
}

#[test]
fn transactions_go_on_where_kafka_stopped() {
    for (version, client, a_epoch, b_epoch) in [("4.4", 2, 8, 9), ("0.11", 0, 0, 0)] {
        let mut shard = loaded(version);
        let producer = |id: &str, number, epoch| Producer {
            transactional_id: id.to_owned(),
            id: ProducerId(number),
            epoch: ProducerEpoch(epoch),
        };
        // Its producer ends the transaction that it had open.
        let version = TransactionVersion(client);
        let a = producer("transaction-a", 1, a_epoch);
        let ended =
            ask(&mut shard, Request::End(End { producer: a, is_commit: true, version, unused: None }));
        let raised = if client == 2 { a_epoch + 1 } else { a_epoch };
        assert_eq!(ended, (Reply::Producer(ProducerId(1), ProducerEpoch(raised)), 1));
        let a = producer("transaction-a", 1, raised);
        assert_eq!(ask(&mut shard, Request::MarkersWritten { producer: a, unused: None }).0, Reply::Done);
        // A new one fences it.
        let init = |id: &str| {
            let transactional_id = id.to_owned();
            Request::Init(Init { transactional_id, timeout_ms: 1_000, has: None, unused: None })
        };
        let b = ask(&mut shard, init("transaction-b")).0;
        assert_eq!(b, Reply::Producer(ProducerId(2), ProducerEpoch(b_epoch + 1)));
        let (c, markers) = ask(&mut shard, init("transaction-c"));
        assert_eq!((c, markers), (Reply::Refused(ErrorCode::ConcurrentTransactions), 1));
    }
}

/// What Kafka's tools and brokers are to read must be written as Kafka writes it. The order of topics is that of
/// a hash in Kafka, so that only records with one topic can be compared byte by byte.
#[test]
fn records_are_written_as_kafka_4_4_writes_them() {
    let mut count = 0;
    for (key, value) in records("4.4") {
        let decoded = TransactionRecord::decode(key.clone(), value.clone()).expect("a record");
        let (written_key, written_value) = decoded.encode().expect("encodes");
        assert_eq!(written_key, key);
        let again = TransactionRecord::decode(written_key, written_value.clone()).expect("a record");
        assert_eq!(again, decoded);
        if decoded.value.as_ref().is_some_and(|value| value.partitions.len() <= 1) {
            assert_eq!(written_value, value, "{decoded:?}");
            count += 1;
        }
    }
    assert!(count > 40, "only {count} records were compared");
}

/// Bytes from a disk may be anything: they are an error, and never a panic.
#[test]
fn damaged_records_are_errors() {
    let (key, value) = records("4.4").swap_remove(3);
    let value = value.expect("a value");
    for end in 0..key.len() {
        assert!(TransactionRecord::decode(key.slice(..end), Some(value.clone())).is_err());
    }
    for end in 0..value.len() {
        let _ = TransactionRecord::decode(key.clone(), Some(value.slice(..end)));
    }
    for at in 0..value.len() {
        let mut damaged = value.to_vec();
        damaged[at] ^= 0xff;
        let _ = TransactionRecord::decode(key.clone(), Some(damaged.into()));
    }
}
