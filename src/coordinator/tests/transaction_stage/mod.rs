//! The stage on which scripts of transactions play: one machine, its log in memory, and time that only scripts
//! move.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use klamm_coordinator::TransactionSettings;
use klamm_coordinator::machine::{Machine, Origin};
use klamm_coordinator::transaction::{
    Effects, End, Filter, IdPattern, Init, Now, Partitions, Producer, Reply, Request, State, Then, Ticket,
    Transaction, TransactionRecord, TransactionShard, TransactionVersion, WriteMarkers,
};
use klamm_model::{ErrorCode, ProducerEpoch, ProducerId, TimestampMs};

use klamm_testing::Play;

use crate::script::Words;

/// Key, value, and when it was written.
type StoredRecord = (Bytes, Option<Bytes>, TimestampMs);

pub(crate) struct Stage {
    settings: TransactionSettings,
    shard: TransactionShard,
    log: Vec<StoredRecord>,
    now: Now,
    next_ticket: u64,
    next_producer_id: i64,
    coordinator_epoch: i32,
    /// What was asked, to be asked again with an id.
    asked: BTreeMap<Ticket, Request>,
    /// Writes that wait for `commit-log`, while the log is held.
    held: Option<Vec<Then>>,
    /// The code that appends fail with.
    fails: Option<ErrorCode>,
    shown: Vec<String>,
}

/// Where records stand, and whose they are, does not matter to transactions.
fn origin(written_ms: TimestampMs) -> Origin {
    Origin { offset: 0, transaction_of: ProducerId::NONE, written_ms }
}

fn started(settings: &TransactionSettings, log: &[StoredRecord], epoch: i32) -> TransactionShard {
    let mut shard = TransactionShard::new(Arc::new(settings.clone()), epoch);
    for (key, value, written_ms) in log {
        shard.load(origin(*written_ms), key, value.as_deref());
    }
    shard
}

impl Play for Stage {
    fn new() -> Stage {
        let settings = TransactionSettings::default();
        let shard = started(&settings, &[], 0);
        let mut stage = Stage {
            settings,
            shard,
            log: Vec::new(),
            now: Now { wall_ms: 1_000_000, monotonic_ms: 0 },
            next_ticket: 0,
            next_producer_id: 0,
            coordinator_epoch: 0,
            asked: BTreeMap::new(),
            held: None,
            fails: None,
            shown: Vec::new(),
        };
        stage.restart(0);
        stage
    }

    /// Runs one command. `P` is a producer, its id and epoch as `7:0`.
    ///
    /// - `set KEY=VALUE…` settings; only at the beginning of a script
    /// - `init ID [timeout=60000] [has=P]`
    /// - `add ID P TOPIC-P… [v=2]`, `verify ID P TOPIC-P…`
    /// - `end ID P commit|abort [v=2]`, `written ID P` all markers are written
    /// - `describe ID`, `list [states=S,S] [ids=N,N] [longer=MS]`
    /// - `found ID P STATE [TOPIC-P…] [previous=N] [next=N] [timeout=MS] [start=MS] [updated=MS] [v=N]` and
    ///   `tombstone ID`: as found in the log; `unreadable ID [written=MS]` a record that cannot be read
    /// - `wait MS` time passes; `hold` nothing is committed until `commit-log` or `lose CODE`; `fail CODE`
    ///   appends fail until `heal`; `restart` the next coordinator loads the log
    fn run(&mut self, line: &str) -> Vec<String> {
        let words = Words::of(line);
        match words.plain[0] {
            "set" => self.set(&words),
            "wait" => self.wait(words.plain[1].parse().expect("milliseconds")),
            "hold" => self.held = Some(Vec::new()),
            "commit-log" => self.settle(Ok(())),
            "lose" => self.settle(Err(code(words.plain[1]))),
            "fail" => self.fails = Some(code(words.plain[1])),
            "heal" => self.fails = None,
            "restart" => self.restart(self.coordinator_epoch + 1),
            "found" | "tombstone" => self.find(&words),
            "unreadable" => self.find_unreadable(&words),
            _ => self.ask(request(&words)),
        }
        self.check_restart();
        std::mem::take(&mut self.shown)
    }
}

impl Stage {
    fn set(&mut self, words: &Words<'_>) {
        for (key, value) in &words.named {
            let value: i32 = value.parse().expect("a number");
            match *key {
                "transaction_max_timeout_ms" => self.settings.max_timeout_ms = value,
                "transactional_id_expiration_ms" => self.settings.transactional_id_expiration_ms = value,
                "remove_expired_interval_ms" => {
                    self.settings.remove_expired_transaction_cleanup_interval_ms = value;
                }
                "abort_timed_out_interval_ms" => {
                    self.settings.abort_timed_out_transaction_cleanup_interval_ms = value;
                }
                key => panic!("no setting {key}"),
            }
        }
        self.restart(0);
    }

    fn find_unreadable(&mut self, words: &Words<'_>) {
        let record = TransactionRecord { transactional_id: words.plain[1].into(), value: None };
        let (key, _) = record.encode().expect("encodes");
        // A version that no Kafka writes.
        let value = Some(Bytes::from_static(b"\x00\x63rubbish"));
        let written_ms = words.number("written", self.now.wall_ms);
        self.log.push((key.clone(), value.clone(), written_ms));
        self.shard.load(origin(written_ms), &key, value.as_deref());
    }

    fn restart(&mut self, coordinator_epoch: i32) {
        self.coordinator_epoch = coordinator_epoch;
        self.shard = started(&self.settings, &self.log, coordinator_epoch);
        self.held = None;
        let effects = self.shard.finish_loading(self.now);
        self.carry_out(effects);
    }

    fn ask(&mut self, request: Request) {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.asked.insert(ticket, request.clone());
        let effects = self.shard.handle(self.now, ticket, request);
        self.carry_out(effects);
    }

    /// What the node does when a machine says that it needs an id that is not used.
    fn ask_again(&mut self, request: Request) {
        self.next_producer_id += 1;
        let unused = Some(ProducerId(self.next_producer_id));
        self.shown.push(format!("needs an id: {}", self.next_producer_id));
        self.ask(match request {
            Request::Init(init) => Request::Init(Init { unused, ..init }),
            Request::End(end) => Request::End(End { unused, ..end }),
            Request::MarkersWritten { producer, .. } => Request::MarkersWritten { producer, unused },
            other => panic!("{other:?} needs no id"),
        });
    }

    fn wait(&mut self, by_ms: u64) {
        let end = self.now.monotonic_ms + by_ms;
        while let Some(at) = self.shard.next_deadline_ms().filter(|at| *at <= end) {
            self.move_to(at.max(self.now.monotonic_ms));
            let before = self.shown.len();
            while let Some(effects) = self.shard.expire(self.now) {
                self.carry_out(effects);
            }
            if self.shown.len() > before {
                self.shown.insert(before, format!("at {} ms:", self.now.monotonic_ms));
            }
        }
        self.move_to(end);
    }

    fn move_to(&mut self, monotonic_ms: u64) {
        self.now.wall_ms += (monotonic_ms - self.now.monotonic_ms) as i64;
        self.now.monotonic_ms = monotonic_ms;
    }

    fn carry_out(&mut self, effects: Effects) {
        for (ticket, reply) in effects.replies {
            let request = self.asked.remove(&ticket).expect("a reply to a request that waits");
            if reply == Reply::NeedsProducerId {
                self.ask_again(request);
            } else {
                self.shown.push(format!("-> {}", show_reply(&reply)));
            }
        }
        self.shown.extend(effects.commands.iter().map(show_markers));
        for write in effects.writes {
            if let Some(code) = self.fails {
                self.shown.push(format!("append fails: {code}"));
                let effects = self.shard.completed(self.now, write.then, Err(code));
                self.carry_out(effects);
                continue;
            }
            for record in write.records {
                self.shown.push(format!("{}: {}", self.log.len(), show_record(&record)));
                let (key, value) = record.encode().expect("encodes");
                self.log.push((key, value, self.now.wall_ms));
                self.shard.replay(record);
            }
            match &mut self.held {
                Some(held) => held.push(write.then),
                None => {
                    let effects = self.shard.completed(self.now, write.then, Ok(()));
                    self.carry_out(effects);
                }
            }
        }
    }

    fn settle(&mut self, outcome: Result<(), ErrorCode>) {
        for then in self.held.take().expect("the log is held") {
            let effects = self.shard.completed(self.now, then, outcome);
            self.carry_out(effects);
        }
    }

    /// The machine and one that is loaded from the log must know the same.
    fn check_restart(&self) {
        let loaded = started(&self.settings, &self.log, self.coordinator_epoch);
        let written = |shard: &TransactionShard| -> Vec<_> {
            let last_producer_epoch = ProducerEpoch::NONE;
            let all = shard.transactions();
            all.map(|(id, known)| (id.clone(), Transaction { last_producer_epoch, ..known.clone() }))
                .collect()
        };
        assert_eq!(written(&self.shard), written(&loaded), "a restart would know something else");
    }

    fn find(&mut self, words: &Words<'_>) {
        let value = (words.plain[0] == "found").then(|| {
            let (id, epoch) = producer(words.plain[2]);
            let state = State::ALL.into_iter().find(|state| state.name() == words.plain[3]).expect("a state");
            Transaction {
                producer_id: id,
                previous_producer_id: ProducerId(words.number("previous", -1)),
                next_producer_id: ProducerId(words.number("next", -1)),
                producer_epoch: epoch,
                last_producer_epoch: ProducerEpoch::NONE,
                timeout_ms: words.number("timeout", 60_000),
                state,
                partitions: partitions(&words.plain[4..]),
                last_update_ms: words.number("updated", self.now.wall_ms),
                start_ms: words.number("start", self.now.wall_ms),
                version: TransactionVersion(words.number("v", 2)),
            }
        });
        let record = TransactionRecord { transactional_id: words.plain[1].into(), value };
        let (key, value) = record.encode().expect("encodes");
        self.log.push((key, value, self.now.wall_ms));
        self.shard.replay(record);
    }
}

fn producer(word: &str) -> (ProducerId, ProducerEpoch) {
    let (id, epoch) = word.split_once(':').expect("id:epoch");
    (ProducerId(id.parse().expect("an id")), ProducerEpoch(epoch.parse().expect("an epoch")))
}

fn partitions(words: &[&str]) -> Partitions {
    let mut partitions = Partitions::new();
    for word in words {
        let (topic, index) = word.rsplit_once('-').expect("topic-partition");
        partitions.entry(topic.into()).or_default().insert(index.parse().expect("a partition"));
    }
    partitions
}

fn request(words: &Words<'_>) -> Request {
    let plain = &words.plain;
    let transactional_id = plain.get(1).map_or_else(String::new, |id| (*id).to_owned());
    let named = || {
        let (id, epoch) = producer(plain[2]);
        Producer { transactional_id: transactional_id.clone(), id, epoch }
    };
    let version = TransactionVersion(words.number("v", 2));
    let list = |key: &str| -> Vec<String> {
        words.text(key).map(|text| text.split(',').map(str::to_owned).collect()).unwrap_or_default()
    };
    match plain[0] {
        "init" => Request::Init(Init {
            transactional_id,
            timeout_ms: words.number("timeout", 60_000),
            has: words.named.get("has").map(|word| producer(word)),
            unused: None,
        }),
        "add" => Request::Add { producer: named(), partitions: partitions(&plain[3..]), version },
        "verify" => Request::Verify { producer: named(), partitions: partitions(&plain[3..]) },
        "end" => {
            let is_commit = match plain[3] {
                "commit" => true,
                "abort" => false,
                other => panic!("{other} is no end"),
            };
            Request::End(End { producer: named(), is_commit, version, unused: None })
        }
        "written" => Request::MarkersWritten { producer: named(), unused: None },
        "describe" => Request::Describe { transactional_id },
        "list" => Request::List(Filter {
            states: Arc::new(list("states").into_iter().collect()),
            producer_ids: Arc::new(list("ids").iter().map(|id| id.parse().expect("an id")).collect()),
            longer_than_ms: words.number("longer", -1),
            pattern: words.named.get("like").map(|like| IdPattern::new(like).expect("a pattern")),
        }),
        name => panic!("no command {name}"),
    }
}

fn code(name: &str) -> ErrorCode {
    let found = (-1..150).filter_map(ErrorCode::from_code).find(|code| code.name() == name);
    found.unwrap_or_else(|| panic!("no error {name}"))
}

fn show_partitions(partitions: &Partitions) -> String {
    let all =
        partitions.iter().flat_map(|(topic, indexes)| indexes.iter().map(move |i| format!("{topic}-{i}")));
    all.collect::<Vec<_>>().join(" ")
}

fn show_record(record: &TransactionRecord) -> String {
    let id = &record.transactional_id;
    let Some(value) = &record.value else { return format!("{id} is forgotten") };
    let (producer, epoch, state) = (value.producer_id.0, value.producer_epoch.0, value.state.name());
    let mut out = format!("{id} {producer}:{epoch} {state} [{}]", show_partitions(&value.partitions));
    if value.last_producer_epoch != ProducerEpoch::NONE {
        write!(out, " was :{}", value.last_producer_epoch.0).expect("to memory");
    }
    for (name, other) in [("previous", value.previous_producer_id), ("next", value.next_producer_id)] {
        if other != ProducerId::NONE && other != value.producer_id {
            write!(out, " {name} {}", other.0).expect("to memory");
        }
    }
    let TransactionVersion(version) = value.version;
    write!(out, " timeout {} since {} v{version}", value.timeout_ms, value.start_ms).expect("to memory");
    out
}

fn show_markers(markers: &WriteMarkers) -> String {
    let Producer { transactional_id, id, epoch } = &markers.producer;
    let end = if markers.is_commit { "commit" } else { "abort" };
    let (coordinator, TransactionVersion(version)) = (markers.coordinator_epoch, markers.version);
    let places = show_partitions(&markers.partitions);
    format!(
        "markers {transactional_id} {}:{} {end} to [{places}] coordinator {coordinator} v{version}",
        id.0, epoch.0
    )
}

fn show_reply(reply: &Reply) -> String {
    match reply {
        Reply::Producer(id, epoch) => format!("{}:{}", id.0, epoch.0),
        Reply::Done => "done".to_owned(),
        Reply::Verified(all) => {
            let all = all.iter().map(|(topic, index, error)| format!("{topic}-{index} {error}"));
            all.collect::<Vec<_>>().join(", ")
        }
        Reply::Described(state) if state.error_code != 0 => {
            ErrorCode::from_code(state.error_code).map_or("?", ErrorCode::name).to_owned()
        }
        Reply::Described(state) => {
            let topics = state.topics.iter().map(|topic| format!("{}{:?}", topic.topic, topic.partitions));
            format!(
                "{} {} {}:{} timeout {} since {} {}",
                state.transactional_id,
                state.transaction_state,
                state.producer_id,
                state.producer_epoch,
                state.transaction_timeout_ms,
                state.transaction_start_time_ms,
                topics.collect::<Vec<_>>().join(" ")
            )
        }
        Reply::Listed(all) => {
            let one = |state: &klamm_protocol::messages::list_transactions::TransactionState| {
                format!("{} {} {}", state.transactional_id, state.producer_id, state.transaction_state)
            };
            format!("[{}]", all.iter().map(one).collect::<Vec<_>>().join(", "))
        }
        Reply::NeedsProducerId => "needs an id".to_owned(),
        Reply::Refused(error) => error.name().to_owned(),
    }
}
