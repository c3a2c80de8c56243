//! Files that are damaged: cut anywhere, with any bit turned over, empty, of a later version, of another topic.
//!
//! What can be made anew is made anew, and one line of the log names the file. What cannot stops its own partition,
//! with an error that names the file. No partition is kept from service by the files of another one, and nothing
//! that cannot be made anew is deleted.

use std::path::{Path, PathBuf};

use klamm_io::Disk;
use klamm_model::TopicPartition;
use klamm_records::Record;
use klamm_storage::{AbortedTransaction, EpochEntry, Log};
use klamm_testing::SimulatedDisk;

use crate::support::*;

/// What a log must still say after its files were mended.
#[derive(Debug, PartialEq)]
struct Content {
    records: Vec<Record>,
    aborted: Vec<AbortedTransaction>,
    epochs: Vec<EpochEntry>,
    sequences: Vec<(i64, i32)>,
}

impl Content {
    fn of(log: &Log) -> Content {
        let producers = log.producers();
        Content {
            records: read_all(log),
            aborted: log.aborted_transactions(0, 10_000).unwrap(),
            epochs: log.leader_epochs(),
            sequences: producers.iter().map(|state| (state.id.0, state.last_sequence())).collect(),
        }
    }
}

fn bystander() -> TopicPartition {
    TopicPartition::new("bystander", 0)
}

/// A store with a log of several segments and another one, stopped in order.
fn stopped() -> (SimulatedDisk, Content) {
    let disk = SimulatedDisk::new(1);
    let (store, log) = with_partition(&disk, &small());
    append_many(&store.create(&bystander(), TOPIC_ID, small()).unwrap(), 3);
    for sequence in 0..14 {
        let offset = log.log_end_offset();
        let epoch = i32::from(sequence >= 7);
        let producer = Some((1, 0, sequence * 3));
        let data = Draft { producer, is_transactional: true, epoch, ..Draft::at(offset) };
        log.append_replicated(&[data.batch(), marker(offset + 3, (1, 0), sequence % 2 == 0)]).unwrap();
    }
    assert!(log.segment_count() > 2);
    let content = Content::of(&log);
    store.close(Some(7)).unwrap();
    (disk, content)
}

/// Ways to damage a file of this content: all cuts and flips of a small one, some of a large one.
fn damages(content: &[u8]) -> Vec<(String, Vec<u8>)> {
    let step = content.len() / 80 + 1;
    let cuts = (0..content.len()).step_by(step).map(|len| (format!("cut at {len}"), content[..len].to_vec()));
    let flips = (0..content.len()).step_by(step).flat_map(|position| {
        [0x01u8, 0x80].map(|mask| {
            let mut damaged = content.to_vec();
            damaged[position] ^= mask;
            (format!("byte {position} with {mask:#x}"), damaged)
        })
    });
    cuts.chain(flips).chain([("zeros".to_owned(), vec![0; content.len()])]).collect()
}

/// What opening a store with one damaged file came to.
struct Outcome {
    lines: Vec<String>,
    content: Option<Content>,
    failure: Option<String>,
}

impl Outcome {
    fn names(&self, name: &str) -> bool {
        self.lines
            .iter()
            .any(|line| line.contains(name) && (line.starts_with("WARN") || line.starts_with("ERROR")))
    }
}

fn reopened(disk: &SimulatedDisk) -> Outcome {
    let mut outcome = Outcome { lines: Vec::new(), content: None, failure: None };
    outcome.lines = told(|| {
        let store = try_open(disk, &small()).unwrap();
        assert_eq!(store.get(&bystander()).unwrap().log_end_offset(), 9, "the other partition is served");
        outcome.failure = store.report.failed.first().map(|(tp, error)| {
            assert_eq!(*tp, partition());
            error.to_string()
        });
        outcome.content = store.get(&partition()).map(|log| Content::of(&log));
    });
    outcome
}

fn unmarked(disk: &SimulatedDisk) -> SimulatedDisk {
    let disk = disk.kill();
    disk.remove_file(&Path::new(LOGS).join(".kafka_cleanshutdown")).unwrap();
    disk
}

fn path_of(disk: &SimulatedDisk, suffix: &str, index: usize) -> PathBuf {
    folder().join(&files(disk, &folder(), suffix)[index].0)
}

/// Indexes and snapshots say nothing that the batches do not say.
#[test]
fn damaged_files_of_a_segment_are_made_anew() {
    let (disk, content) = stopped();
    let last = files(&disk, &folder(), ".snapshot").len() - 1;
    let rows = [(".index", 0), (".txnindex", 0), (".snapshot", last), ("leader-epoch-checkpoint", 0)];
    let rows = rows.map(|(suffix, index)| {
        let path = path_of(&disk, suffix, index);
        (suffix, disk.read(&path).unwrap(), path)
    });
    for (suffix, whole, path) in rows {
        let name = path.file_name().unwrap().to_str().unwrap();
        for (what, damaged) in damages(&whole) {
            let disk = unmarked(&disk);
            put(&disk, &Path::new(LOGS).join("recovery-point-offset-checkpoint"), b"");
            put(&disk, &path, &damaged);
            let outcome = reopened(&disk);
            // A later version than is known is one of the things that a bit can make of a file.
            let is_later = outcome.failure.as_ref().is_some_and(|failure| failure.contains("version"));
            if is_later {
                assert!(outcome.failure.unwrap().contains(name), "{name}, {what}");
                assert_eq!(disk.read(&path).unwrap(), damaged, "{name}, {what}: it is kept");
                continue;
            }
            assert_eq!(outcome.failure, None, "{name}, {what}");
            let mut found = outcome.content.unwrap();
            if suffix == "leader-epoch-checkpoint" && found.epochs != content.epochs {
                // A digit that became another digit cannot be told; the batches raise what is too low.
                assert!(what.starts_with("byte"), "{what}: {:?}", found.epochs);
                found.epochs = content.epochs.clone();
            }
            assert_eq!(found, content, "{name}, {what}");
        }
    }
}

/// After a clean stop nothing is scanned, so a damaged index has to be noticed by itself.
#[test]
fn a_torn_index_after_a_clean_stop_is_told_and_made_anew() {
    let (disk, content) = stopped();
    let rows = [".index", ".timeindex", ".txnindex"].map(|suffix| {
        let path = path_of(&disk, suffix, 0);
        (suffix, disk.read(&path).unwrap(), path)
    });
    for (suffix, whole, path) in rows {
        let name = path.file_name().unwrap().to_str().unwrap();
        let entry_bytes = match suffix {
            ".index" => 8,
            ".timeindex" => 12,
            _ => 34,
        };
        assert!(whole.len() >= entry_bytes, "{name} has entries");
        for len in (0..whole.len()).filter(|len| len % entry_bytes != 0) {
            let disk = disk.kill();
            put(&disk, &path, &whole[..len]);
            let outcome = reopened(&disk);
            assert_eq!(outcome.content.as_ref(), Some(&content), "{name} cut at {len}");
            assert!(outcome.names(name), "{name} cut at {len}: {:?}", outcome.lines);
            assert_eq!(disk.read(&path).unwrap(), whole, "{name} cut at {len}");
        }
        // The last entry points behind the end of the segment.
        let disk = disk.kill();
        let last = whole.len() - entry_bytes;
        put(&disk, &path, &[&whole[..last], &vec![0x7f; entry_bytes]].concat());
        let outcome = reopened(&disk);
        assert_eq!(outcome.content.as_ref(), Some(&content), "{name}");
        assert!(outcome.names(name), "{name}: {:?}", outcome.lines);
        assert_eq!(disk.read(&path).unwrap(), whole, "{name}");
    }
}

/// The checkpoints of a directory concern all its partitions: a damaged one must not keep the node from starting.
#[test]
fn a_damaged_checkpoint_of_a_directory_is_set_aside() {
    let (disk, content) = stopped();
    let rows =
        ["recovery-point-offset-checkpoint", "replication-offset-checkpoint", "log-start-offset-checkpoint"];
    let rows = rows.map(|name| (name, disk.read(&Path::new(LOGS).join(name)).unwrap()));
    let malformed: [&[u8]; 6] =
        [b"0\n1\nt 0\n", b"0\n5\nt 0 3\n", b"x", b"7\n1\nt 0 3\n", &[0; 20], &[0xff; 9]];
    for (name, whole) in rows {
        for damaged in malformed {
            for disk in [disk.kill(), unmarked(&disk)] {
                let path = Path::new(LOGS).join(name);
                put(&disk, &path, damaged);
                let outcome = reopened(&disk);
                assert_eq!(outcome.content.as_ref(), Some(&content), "{name}: {damaged:?}");
                assert!(outcome.names(name), "{name}: {:?}", outcome.lines);
                let kept = disk.read(&Path::new(LOGS).join(format!("{name}.damaged"))).unwrap();
                assert_eq!(kept, damaged, "{name}");
            }
        }
        // And whatever single damage there is, all that was appended is there.
        for (what, damaged) in damages(&whole) {
            let disk = unmarked(&disk);
            put(&disk, &Path::new(LOGS).join(name), &damaged);
            let store = try_open(&disk, &small()).unwrap();
            assert_eq!(store.report.failed, [], "{name}, {what}");
            let records = read_all(&store.log());
            assert_eq!(records, content.records, "{name}, {what}");
        }
    }
}

/// That the marker is there is what counts; what it says is only for the next registration.
#[test]
fn a_damaged_mark_of_a_clean_stop_is_one_all_the_same() {
    let (disk, content) = stopped();
    let path = Path::new(LOGS).join(".kafka_cleanshutdown");
    for (what, damaged) in damages(&disk.read(&path).unwrap()) {
        let disk = disk.kill();
        put(&disk, &path, &damaged);
        let store = try_open(&disk, &small()).unwrap();
        assert_eq!((store.report.recovered_logs, store.report.failed.len()), (0, 0), "{what}");
        assert_eq!(Content::of(&store.log()), content, "{what}");
    }
}

/// Which topic a folder belongs to stands nowhere else: a wrong guess would show one topic's records as another's.
#[test]
fn a_damaged_topic_id_stops_its_partition_alone() {
    let (disk, content) = stopped();
    let path = folder().join("partition.metadata");
    let whole = disk.read(&path).unwrap();
    let later = String::from_utf8(whole.clone()).unwrap().replace("version: 0", "version: 1").into_bytes();
    for (what, damaged) in damages(&whole).into_iter().chain([("later version".to_owned(), later)]) {
        let disk = disk.kill();
        put(&disk, &path, &damaged);
        let outcome = reopened(&disk);
        match (outcome.failure, outcome.content) {
            (Some(failure), None) => {
                assert!(failure.contains("/logs/t-0/partition.metadata: "), "{what}: {failure}");
                assert!(
                    failure.contains("restore it") || failure.contains("version that wrote it"),
                    "{failure}"
                );
            }
            // A letter of the id that became another letter makes another id, which the caller compares.
            (None, Some(found)) => assert_eq!(found, content, "{what}"),
            (failure, _) => panic!("{what}: {failure:?}"),
        }
        assert_eq!(disk.read(&path).unwrap(), damaged, "{what}: it is kept");
    }
    let store = open(&disk.kill(), &small());
    let error = store.create(&partition(), klamm_model::Uuid([8; 16]), small()).err().unwrap().to_string();
    assert!(error.contains("/logs/t-0") && error.contains("move the folder away"), "{error}");
}

/// A directory without a readable identity may be anybody's.
#[test]
fn a_damaged_identity_of_a_directory_is_refused_and_kept() {
    let (disk, _) = stopped();
    let path = Path::new(LOGS).join("meta.properties");
    for (what, damaged) in damages(&disk.read(&path).unwrap()) {
        let disk = disk.kill();
        put(&disk, &path, &damaged);
        match try_open(&disk, &small()) {
            Ok(store) => assert_eq!(store.report.failed, [], "{what}"),
            Err(error) => assert!(error.to_string().contains("meta.properties"), "{what}: {error}"),
        }
        if damaged.is_empty() {
            assert_eq!(disk.read(&path).unwrap(), b"", "it is kept");
        }
    }
}

/// A segment that is cut or decayed anywhere: what stands before is there, one line names the file and the place,
/// and whole batches behind are kept.
#[test]
fn a_damaged_segment_keeps_all_before_the_damage() {
    let (disk, content) = stopped();
    let path = path_of(&disk, ".log", 1);
    let name = path.file_name().unwrap().to_str().unwrap();
    let base: i64 = name.trim_end_matches(".log").parse().unwrap();
    let whole = disk.read(&path).unwrap();
    // Checksums cover neither offsets nor leader epochs, in Kafka's format.
    let starts = klamm_records::batches(whole.clone().into()).scan(0, |start, batch| {
        let begins = *start;
        *start += batch.unwrap().bytes.len();
        Some(begins)
    });
    let uncovered: Vec<usize> =
        starts.flat_map(|start| (start..start + 8).chain(start + 12..start + 16)).collect();
    let differs = |damaged: &[u8], at: usize| damaged.get(at).is_some_and(|byte| *byte != whole[at]);
    for (what, damaged) in damages(&whole) {
        if damaged.len() == whole.len()
            && what.starts_with("byte")
            && uncovered.iter().any(|at| differs(&damaged, *at))
        {
            continue;
        }
        let disk = unmarked(&disk);
        put(&disk, &Path::new(LOGS).join("recovery-point-offset-checkpoint"), b"");
        put(&disk, &path, &damaged);
        let outcome = reopened(&disk);
        assert_eq!(outcome.failure, None, "{what}");
        let found = &outcome.content.as_ref().unwrap().records;
        assert!(found.iter().zip(&content.records).all(|(found, before)| found == before), "{what}");
        assert!(found.iter().filter(|record| record.offset < base).count() as i64 == base, "{what}");
        if found.len() < content.records.len() {
            assert!(outcome.names(name), "{what}: {:?}", outcome.lines);
            let place = |line: &&String| {
                line.contains(name) && line.contains("position=") && line.contains("problem=")
            };
            assert!(outcome.lines.iter().any(|line| place(&line)), "{what}: {:?}", outcome.lines);
            assert!(
                names(&disk, &folder()).iter().any(|name| name.ends_with(".cut")),
                "{what}: the rest is kept"
            );
        }
    }
}
