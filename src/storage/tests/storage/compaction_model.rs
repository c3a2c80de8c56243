//! Random compacted logs against a model of a few lines: below where compaction came, each key's last record
//! stays, but for aborted ones, and nothing else of data.

use std::collections::BTreeMap;

use klamm_model::Offset;
use klamm_records::Compression;
use klamm_storage::{CleanerSettings, Log};
use klamm_testing::SimulatedDisk;
use proptest::prelude::*;

use crate::compaction_world::*;
use crate::support::*;

/// One append.
#[derive(Clone, Debug)]
enum Event {
    /// Records in some format and codec.
    Plain(i8, Compression, Vec<(Option<u8>, bool)>),
    /// Records in a transaction of a producer.
    Transactional(i64, Vec<(Option<u8>, bool)>),
    /// Its end.
    End(i64, bool),
    /// Compaction as far as it goes, in the middle of everything.
    Clean,
}

fn records() -> impl Strategy<Value = Vec<(Option<u8>, bool)>> {
    let key = prop_oneof![9 => (0..12u8).prop_map(Some), 1 => Just(None)];
    prop::collection::vec((key, prop::bool::weighted(0.8)), 1..5)
}

fn event() -> impl Strategy<Value = Event> {
    let codecs = [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4];
    let old = (0..=2i8, prop::sample::select(codecs.to_vec()), records());
    prop_oneof![
        4 => old.prop_map(|(magic, codec, records)| Event::Plain(magic, codec, records)),
        1 => records().prop_map(|records| Event::Plain(2, Compression::Zstd, records)),
        4 => (1..4i64, records()).prop_map(|(producer, records)| Event::Transactional(producer, records)),
        2 => (1..4i64, any::<bool>()).prop_map(|(producer, commit)| Event::End(producer, commit)),
        1 => Just(Event::Clean),
    ]
}

/// What the log was told, as the model sees it.
#[derive(Default)]
struct Model {
    /// Key, and whether there is a value, by offset.
    records: BTreeMap<Offset, (Option<String>, Option<String>)>,
    aborted: Vec<Offset>,
    open: BTreeMap<i64, Vec<Offset>>,
    sequences: BTreeMap<i64, i32>,
}

impl Model {
    fn apply(&mut self, world: &CleanedWorld, event: &Event) {
        let log = &world.log;
        let offset = log.log_end_offset();
        let named = |records: &[(Option<u8>, bool)]| -> Vec<(Option<String>, Option<String>)> {
            let name = |(index, (key, has_value)): (usize, &(Option<u8>, bool))| {
                let value = format!("value-{}", offset + index as i64);
                (key.map(|key| format!("key-{key}")), has_value.then_some(value))
            };
            records.iter().enumerate().map(name).collect()
        };
        match event {
            Event::Plain(magic, codec, records) => {
                let named = named(records);
                self.note(offset, &named);
                let pairs: Vec<Pair<'_>> = named.iter().map(|(k, v)| (k.as_deref(), v.as_deref())).collect();
                log.append_replicated(&legacy_batch(*magic, *codec, offset, &pairs)).unwrap();
            }
            Event::Transactional(producer, records) => {
                let named = named(records);
                self.note(offset, &named);
                self.open.entry(*producer).or_default().extend((offset..).take(named.len()));
                let pairs: Vec<Pair<'_>> = named.iter().map(|(k, v)| (k.as_deref(), v.as_deref())).collect();
                let sequence = self.sequences.entry(*producer).or_default();
                let batch = transactional(offset, *producer, *sequence, &pairs);
                *sequence += pairs.len() as i32;
                log.append_replicated(&[batch]).unwrap();
            }
            Event::End(producer, commit) => {
                let ended = self.open.remove(producer).unwrap_or_default();
                self.aborted.extend(ended.into_iter().filter(|_| !commit));
                log.append_replicated(&[marker(offset, (*producer, 0), *commit)]).unwrap();
            }
            Event::Clean => {
                world.clean();
            }
        }
    }

    fn note(&mut self, offset: Offset, named: &[(Option<String>, Option<String>)]) {
        self.records.extend((offset..).zip(named.iter().cloned()));
    }

    /// The offsets that stay when all below `end` was compacted.
    fn survivors(&self, end: Offset) -> Vec<Offset> {
        let mut last = BTreeMap::new();
        for (offset, (key, _)) in self.records.range(..end) {
            if !self.aborted.contains(offset) && key.is_some() {
                last.insert(key, *offset);
            }
        }
        let mut offsets: Vec<Offset> = last.into_values().collect();
        offsets.sort_unstable();
        offsets.extend(self.records.range(end..).map(|(offset, _)| *offset));
        offsets
    }

    fn check(&self, log: &Log) {
        let records = data(log);
        assert_eq!(offsets(&records), self.survivors(log.cleaned_offset().unwrap_or(0)));
        for record in records {
            let text = |bytes: &Option<bytes::Bytes>| {
                bytes.as_ref().map(|bytes| String::from_utf8(bytes.to_vec()).unwrap())
            };
            assert_eq!((text(&record.key), text(&record.value)), self.records[&record.offset]);
        }
        // What a reader of committed records sees holds no aborted one.
        let committed = crate::fixtures::committed_offsets(log);
        assert!(committed.iter().all(|offset| !self.aborted.contains(offset)));
        let end = log.last_stable_offset(log.log_end_offset());
        let seen = self.survivors(log.cleaned_offset().unwrap_or(0));
        let seen = seen.into_iter().filter(|offset| *offset < end && !self.aborted.contains(offset));
        assert_eq!(committed, seen.collect::<Vec<_>>());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn what_stays_is_what_the_model_says(
        events in prop::collection::vec(event(), 1..60),
        map_keys in prop::sample::select(vec![1u64, 3, 1000]),
    ) {
        let disk = SimulatedDisk::new(1);
        let settings = CleanerSettings { dedupe_buffer_bytes: 24 * (map_keys + 1), ..CleanerSettings::default() };
        let world = CleanedWorld::try_open(&disk, &compacted(), settings.clone()).unwrap();
        let mut model = Model::default();
        for event in &events {
            model.apply(&world, event);
        }
        world.roll();
        world.clean();
        let log = &world.log;
        let (end, producers) = (log.log_end_offset(), log.producers());
        if model.open.is_empty() {
            prop_assert_eq!(log.cleaned_offset().unwrap_or(0), *log.segment_offsets().last().unwrap());
        }
        model.check(log);
        // A restart, in order or not, finds the same log and the same producers.
        world.store.close(None).unwrap();
        drop(world);
        for stop in ["clean", "killed"] {
            let disk = disk.kill();
            if stop == "killed" {
                let mark = std::path::Path::new(LOGS).join(".kafka_cleanshutdown");
                klamm_io::Disk::remove_file(&disk, &mark).unwrap();
            }
            let world = CleanedWorld::try_open(&disk, &compacted(), settings.clone()).unwrap();
            prop_assert_eq!(world.log.log_end_offset(), end);
            model.check(&world.log);
            let last = |states: Vec<klamm_storage::ProducerState>| -> Vec<_> {
                states.iter().map(|state| (state.id, state.epoch, state.last_sequence())).collect()
            };
            prop_assert_eq!(last(world.log.producers()), last(producers.clone()));
        }
    }
}
