//! rdkafka against a broker; the lines below are the scenario.

// scenario: rdkafka: every codec, a group of two, a restart under it
// tier: normal
// limit: 90
// needs: cargo
// shows: rust-rdkafka: codecs idempotent groups admin restart
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::message::{Header, Headers, Message, OwnedHeaders};
use rdkafka::producer::{BaseRecord, Producer, ProducerContext, ThreadedProducer};
use rdkafka::{ClientContext, Offset, TopicPartitionList};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

static DELIVERED: AtomicUsize = AtomicUsize::new(0);
const WAIT: Duration = Duration::from_secs(30);

struct Deliveries;
impl ClientContext for Deliveries {}
impl ProducerContext for Deliveries {
    type DeliveryOpaque = ();
    fn delivery(&self, result: &rdkafka::producer::DeliveryResult<'_>, (): ()) {
        result.as_ref().expect("delivered");
        DELIVERED.fetch_add(1, Ordering::SeqCst);
    }
}

fn ask(request: &str) {
    println!("@{request}");
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).unwrap();
    assert!(answer.starts_with("ok"), "{answer}");
}

fn config(settings: &[(&str, &str)]) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", std::env::var("BOOTSTRAP").unwrap())
        .set_log_level(RDKafkaLogLevel::Error);
    for (key, value) in settings {
        config.set(*key, *value);
    }
    config
}

fn produce(values: std::ops::Range<u32>, codec: &str) {
    let producer: ThreadedProducer<Deliveries> =
        config(&[("enable.idempotence", "true"), ("compression.type", codec), ("linger.ms", "5")])
            .create_with_context(Deliveries)
            .unwrap();
    let before = DELIVERED.load(Ordering::SeqCst);
    let count = values.len();
    for value in values {
        let (key, value) = (format!("k{value}"), value.to_string());
        let headers = OwnedHeaders::new().insert(Header { key: "h", value: Some("1") });
        let record =
            BaseRecord::to("work").key(&key).payload(&value).headers(headers).timestamp(1_700_000_000_000);
        producer.send(record).map_err(|(error, _)| error).unwrap();
    }
    producer.flush(WAIT).unwrap();
    assert_eq!(DELIVERED.load(Ordering::SeqCst) - before, count);
}

fn member() -> BaseConsumer {
    let member: BaseConsumer = config(&[
        ("group.id", "team"),
        ("auto.offset.reset", "earliest"),
        ("enable.auto.commit", "false"),
        ("session.timeout.ms", "6000"),
    ])
    .create()
    .unwrap();
    member.subscribe(&["work"]).unwrap();
    member
}

/// Polls the members in turn until `done`; returns (member, value) pairs.
fn poll(members: &[&BaseConsumer], done: impl Fn(&[(usize, u32)], &[usize]) -> bool) -> Vec<(usize, u32)> {
    let (mut read, end) = (Vec::new(), Instant::now() + WAIT);
    loop {
        let assigned: Vec<usize> =
            members.iter().map(|member| member.assignment().unwrap().count()).collect();
        if done(&read, &assigned) {
            return read;
        }
        assert!(Instant::now() < end, "{} read, assigned {assigned:?}", read.len());
        for (number, member) in members.iter().enumerate() {
            if let Some(Ok(message)) = member.poll(Duration::from_millis(30)) {
                let text =
                    |bytes: Option<&[u8]>| String::from_utf8(bytes.unwrap_or_default().to_vec()).unwrap();
                let value = text(message.payload());
                assert_eq!(text(message.key()), format!("k{value}"));
                assert_eq!(message.headers().unwrap().get(0).value, Some(b"1".as_slice()));
                assert_eq!(message.timestamp().to_millis(), Some(1_700_000_000_000));
                read.push((number, value.parse().unwrap()));
            }
        }
    }
}

fn values(read: &[(usize, u32)]) -> Vec<u32> {
    let mut values: Vec<u32> = read.iter().map(|(_, value)| *value).collect();
    values.sort_unstable();
    values
}

fn main() {
    println!("librdkafka {}", rdkafka::util::get_rdkafka_version().1);
    let admin: AdminClient<DefaultClientContext> = config(&[]).create().unwrap();
    let topic = NewTopic::new("work", 4, TopicReplication::Fixed(1));
    block_on(admin.create_topics([&topic], &AdminOptions::new())).unwrap()[0].as_ref().unwrap();
    for (i, codec) in (0..).zip(["none", "gzip", "snappy", "lz4", "zstd"]) {
        produce(i * 40..i * 40 + 40, codec);
    }
    println!("ok idempotent writes with every codec");

    let one = member();
    let read = poll(&[&one], |read, assigned| read.len() >= 200 && assigned == [4]);
    assert_eq!(values(&read), (0..200).collect::<Vec<_>>());
    one.commit_consumer_state(CommitMode::Sync).unwrap();
    println!("ok one member has all four partitions and reads everything");

    let two = member();
    poll(&[&one, &two], |_, assigned| assigned == [2, 2]);
    produce(200..300, "none");
    let read = poll(&[&one, &two], |read, _| read.len() >= 100);
    assert_eq!(values(&read), (200..300).collect::<Vec<_>>());
    assert!((0..2).all(|number| read.iter().any(|(by, _)| *by == number)), "both read");
    for member in [&one, &two] {
        member.commit_consumer_state(CommitMode::Sync).unwrap();
    }
    println!("ok a second member takes half of them");

    ask("restart");
    produce(300..400, "none");
    // a group that rebalances after the restart may read again what it had not committed
    let distinct = |read: &[(usize, u32)]| values(read).into_iter().collect::<BTreeSet<_>>();
    let read = poll(&[&one, &two], |read, _| distinct(read).len() >= 100);
    assert_eq!(distinct(&read), (300..400).collect());
    for member in [&one, &two] {
        member.commit_consumer_state(CommitMode::Sync).unwrap();
    }
    println!("ok both go on after the restart");

    // what one had read and not committed before a rebalance is the other's
    poll(&[&one, &two], |_, _| {
        for member in [&one, &two] {
            let _ = member.commit_consumer_state(CommitMode::Sync); // it has nothing to commit, or the group rebalances
        }
        committed(&one) == 400
    });
    println!("ok what was committed is there");
}

/// The sum of the group's offsets.
fn committed(member: &BaseConsumer) -> i64 {
    let mut partitions = TopicPartitionList::new();
    partitions.add_partition_range("work", 0, 3);
    let committed = member.committed_offsets(partitions, WAIT).unwrap();
    let offset = |offset| if let Offset::Offset(offset) = offset { offset } else { 0 };
    committed.elements().iter().map(|partition| offset(partition.offset())).sum()
}

/// The admin client answers through a future; it wakes from a thread of its own.
fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = Box::pin(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    loop {
        if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
