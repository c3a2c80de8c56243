//! Appends, rolls, syncs, checkpoints and stops in any order, and a power cut at the end: what was synced is there, in
//! order and without a hole, and what is there is what was appended. What is durable follows from what was told, not
//! from how the log is laid out.

use klamm_storage::LogConfig;
use klamm_testing::SimulatedDisk;
use proptest::prelude::*;

use crate::support::*;

#[derive(Clone, Debug)]
enum Step {
    Append {
        batches: usize,
        value_bytes: usize,
    },
    Transaction {
        is_committed: bool,
    },
    Roll,
    Flush,
    FlushRolled,
    Checkpoint,
    /// A stop in order, and a start.
    Restart,
    /// The process is killed, and started again.
    Kill,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..4usize, 1..400usize).prop_map(|(batches, value_bytes)| Step::Append { batches, value_bytes }),
        2 => any::<bool>().prop_map(|is_committed| Step::Transaction { is_committed }),
        1 => Just(Step::Roll),
        2 => Just(Step::Flush),
        1 => Just(Step::FlushRolled),
        2 => Just(Step::Checkpoint),
        1 => Just(Step::Restart),
        1 => Just(Step::Kill),
    ]
}

/// What was appended, and up to where it must survive the end of the machine.
#[derive(Default)]
struct Told {
    batches: Vec<(i64, bytes::Bytes)>,
    synced: i64,
    sequence: i32,
}

impl Told {
    fn append(&mut self, log: &klamm_storage::Log, batch: klamm_records::Batch) {
        log.append_replicated(std::slice::from_ref(&batch)).unwrap();
        self.batches.push((batch.header.base_offset, batch.bytes));
    }
}

fn run(disk: SimulatedDisk, steps: &[Step], told: &mut Told) -> SimulatedDisk {
    let config = config();
    let (mut disk, mut current) = (disk.clone(), with_partition(&disk, &config));
    for step in steps {
        let (store, log) = &current;
        match step {
            Step::Append { batches, value_bytes } => {
                for _ in 0..*batches {
                    let value_bytes = *value_bytes;
                    told.append(log, Draft { value_bytes, ..Draft::at(log.log_end_offset()) }.batch());
                }
            }
            Step::Transaction { is_committed } => {
                let offset = log.log_end_offset();
                let producer = Some((1, 0, told.sequence));
                told.append(log, Draft { producer, is_transactional: true, ..Draft::at(offset) }.batch());
                told.append(log, marker(offset + 3, (1, 0), *is_committed));
                told.sequence += 3;
            }
            Step::Roll => log.roll().unwrap(),
            Step::Flush => {
                log.flush().unwrap();
                told.synced = log.log_end_offset();
            }
            Step::FlushRolled => {
                log.flush_rolled().unwrap();
                told.synced = told.synced.max(*log.segment_offsets().last().unwrap());
            }
            Step::Checkpoint => store.checkpoint(&[]).unwrap(),
            Step::Restart | Step::Kill => {
                if matches!(step, Step::Restart) {
                    store.close(None).unwrap();
                    told.synced = log.log_end_offset();
                }
                let end = log.log_end_offset();
                drop(current);
                disk = disk.kill();
                let store = open(&disk, &config);
                let log = store.log();
                assert_eq!(log.log_end_offset(), end, "the end of a process loses nothing");
                current = (store, log);
            }
        }
    }
    drop(current);
    disk
}

fn config() -> LogConfig {
    LogConfig { segment_bytes: 2000, ..small() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn what_was_synced_survives_and_what_survives_was_appended(
        seed in any::<u64>(),
        steps in prop::collection::vec(step(), 1..40),
        unsynced in prop::sample::select(ENDINGS.into_iter().flatten().collect::<Vec<_>>()),
    ) {
        let mut told = Told::default();
        let disk = run(SimulatedDisk::new(seed), &steps, &mut told).crash_leaving(unsynced);
        let store = open(&disk, &config());
        let Some(log) = store.get(&partition()) else {
            prop_assert_eq!(told.synced, 0, "the log is gone");
            return Ok(());
        };
        let end = log.log_end_offset();
        prop_assert!(end >= told.synced, "{} of {} synced offsets are left", end, told.synced);
        let mut next = 0;
        for (base_offset, bytes) in told.batches.iter().filter(|(base_offset, _)| *base_offset < end) {
            let slice = log.read(*base_offset, 1, end, true).unwrap().unwrap();
            let found = slice.to_bytes().unwrap();
            prop_assert_eq!(&found, bytes, "the batch at {}", base_offset);
            next = klamm_records::batches(found).next().unwrap().unwrap().header.next_offset();
        }
        prop_assert_eq!(next, end, "the log ends with a batch that was appended");
        // The aborted transactions and the producer are those of what is left.
        let recovered = (log.aborted_transactions(0, i64::MAX).unwrap(), log.producers());
        drop((store, log));
        let points = std::path::Path::new(LOGS).join("recovery-point-offset-checkpoint");
        let disk = disk.kill();
        put(&disk, &points, b"");
        for name in names(&disk, &folder()).iter().filter(|name| name.ends_with(".snapshot")) {
            klamm_io::Disk::remove_file(&disk, &folder().join(name)).unwrap();
        }
        let whole = open(&disk, &config()).log();
        prop_assert_eq!(whole.aborted_transactions(0, i64::MAX).unwrap(), recovered.0);
        let last = |states: &[klamm_storage::ProducerState]| {
            states.iter().map(|state| (state.id, state.epoch, state.last_sequence())).collect::<Vec<_>>()
        };
        prop_assert_eq!(last(&whole.producers()), last(&recovered.1));
    }
}
