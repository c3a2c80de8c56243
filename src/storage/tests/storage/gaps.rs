//! Offsets without records between whole segments: a cleaner leaves them, and a power cut may.

use std::path::Path;

use klamm_io::{Disk, OpenMode};
use klamm_testing::SimulatedDisk;

use crate::support::*;

fn removed(disk: &SimulatedDisk, base: i64) {
    for suffix in [".log", ".index", ".timeindex", ".snapshot"] {
        let _ = disk.remove_file(&folder().join(format!("{base:020}{suffix}")));
    }
}

fn put_checkpoint(disk: &SimulatedDisk, name: &str, content: &str) {
    put(disk, &Path::new(LOGS).join(name), content.as_bytes());
}

/// What Apache Kafka has compacted came here with `cleanup.policy=delete`, and a recovery took all behind the first
/// gap out of service.
#[test]
fn gaps_that_a_cleaner_left_take_no_record_out_of_service() {
    for cleaned in [true, false] {
        let disk = SimulatedDisk::new(1);
        let (_store, log) = with_partition(&disk, &small());
        append_many(&log, 20);
        if !cleaned {
            // No checkpoint of the cleaner is there, but a hole within a segment.
            let offset = log.log_end_offset() + 5;
            log.append_replicated(&[Draft::at(offset).batch()]).unwrap();
        }
        append_many(&log, 20);
        let (bases, records) = (log.segment_offsets(), read_all(&log));
        let disk = disk.kill();
        removed(&disk, bases[1]);
        put_checkpoint(&disk, "recovery-point-offset-checkpoint", "0\n0\n");
        if cleaned {
            put_checkpoint(&disk, "cleaner-offset-checkpoint", "0\n1\nt 0 9999\n");
        }
        let mut store = None;
        let lines = told(|| store = Some(open(&disk, &small())));
        let found = offsets(&read_all(&store.unwrap().log()));
        let left: Vec<i64> =
            offsets(&records).into_iter().filter(|o| !(bases[1]..bases[2]).contains(o)).collect();
        assert_eq!(found, left, "cleaned={cleaned}");
        let errors = lines.iter().filter(|line| line.starts_with("ERROR")).count();
        assert_eq!(errors, usize::from(!cleaned), "{lines:?}");
    }
}

/// An index that was lost made the recovery begin at 0, and everything above 0 counted as not yet synced.
#[test]
fn a_gap_below_the_recovery_point_is_no_loss_of_the_last_stop() {
    for was_clean in [true, false] {
        for lost in [".timeindex", "leader-epoch-checkpoint"] {
            let disk = SimulatedDisk::new(1);
            let (store, log) = with_partition(&disk, &small());
            append_many(&log, 40);
            let (bases, end) = (log.segment_offsets(), log.log_end_offset());
            store.close(None).unwrap();
            drop((store, log));
            let disk = disk.kill();
            removed(&disk, bases[1]);
            if !was_clean {
                disk.remove_file(&Path::new(LOGS).join(".kafka_cleanshutdown")).unwrap();
            }
            match lost {
                ".timeindex" => {
                    let path = folder().join(format!("{:020}.timeindex", 0));
                    disk.remove_file(&path).unwrap();
                }
                name => put(&disk, &folder().join(name), &[0; 12]),
            }
            let store = open(&disk, &small());
            assert_eq!(store.report.recovered_logs, 1, "{lost} {was_clean}");
            assert_eq!(store.log().log_end_offset(), end);
            let left = end - (bases[2] - bases[1]);
            assert_eq!(read_all(&store.log()).len() as i64, left, "{lost} {was_clean}");
        }
    }
}

/// The end of a segment that was never cleaned is missing, above all that was synced: what stands behind would be
/// served with a hole in it.
#[test]
fn a_loss_by_the_last_stop_ends_the_log_and_is_told_as_one() {
    let disk = SimulatedDisk::new(1);
    let (_store, log) = with_partition(&disk, &small());
    append_many(&log, 40);
    let bases = log.segment_offsets();
    let disk = disk.kill();
    let path = folder().join(format!("{:020}.log", bases[1]));
    disk.open(&path, OpenMode::ReadWrite).unwrap().set_len(0).unwrap();
    let mut store = None;
    let lines = told(|| store = Some(open(&disk, &small())));
    let log = store.unwrap().log();
    assert_eq!(log.log_end_offset(), bases[1]);
    let missing = format!("the records from {} to {} are missing", bases[1], bases[2] - 1);
    let told = lines.iter().find(|line| line.contains(&missing)).expect("it is told");
    assert!(told.starts_with("ERROR") && !told.contains("no batch"), "{told}");
    let kept = lines.iter().filter(|line| line.contains(".log.cut")).collect::<Vec<_>>();
    assert_eq!(kept.len(), bases.len() - 2);
    assert!(kept.iter().all(|line| line.starts_with("ERROR") && line.contains("bytes=")), "{kept:?}");
}

/// What one recovery has set aside may be the only copy, so the next one must not write over it.
#[test]
fn what_was_set_aside_is_never_overwritten() {
    let disk = SimulatedDisk::new(1);
    let (_store, log) = with_partition(&disk, &small());
    append_many(&log, 40);
    let mut disk = disk.kill();
    let name = |base: i64, suffix: &str| folder().join(format!("{base:020}{suffix}"));
    disk.flip_bits(name(0, ".log"), 70, 1).unwrap();
    let second = log.segment_offsets()[1];
    let (damaged, behind) = (disk.read(&name(0, ".log")).unwrap(), disk.read(&name(second, ".log")).unwrap());
    let content = |whole: &[u8], round: u8| [whole, &[round; 9]].concat();
    for round in 0..3 {
        put(&disk, &name(0, ".log"), &content(&damaged, round));
        put(&disk, &name(second, ".log"), &content(&behind, round));
        assert_eq!(open(&disk, &small()).log().log_end_offset(), 0);
        for earlier in 0..=round {
            let number = if earlier == 0 { String::new() } else { format!(".{earlier}") };
            let kept = disk.read(&name(0, &format!(".0.log.cut{number}"))).unwrap();
            assert!(kept == content(&damaged, earlier), "{earlier} after {round}");
            let kept = disk.read(&name(second, &format!(".log.cut{number}"))).unwrap();
            assert!(kept == content(&behind, earlier), "{earlier} after {round}");
        }
        disk = disk.kill();
    }
}
