//! What lies within the whole: offsets without records between segments, which a cleaner leaves and a power cut may,
//! and damage in segments that were closed long ago.

use std::path::Path;

use klamm_io::{Disk, OpenMode};
use klamm_storage::LogConfig;
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

/// A batch in a sealed segment that claims more bytes than are left was taken for the end of its segment, and readers
/// went on behind all that follows it there.
#[test]
fn a_damaged_length_in_a_sealed_segment_is_an_error_and_no_end() {
    let disk = SimulatedDisk::new(1);
    let (store, log) = with_partition(&disk, &small());
    append_many(&log, 40);
    let (second, third) = (log.segment_offsets()[1], log.segment_offsets()[2]);
    store.close(None).unwrap();
    let path = folder().join(format!("{second:020}.log"));
    let whole = disk.read(&path).unwrap();
    let batch_bytes = u64::from(u32::from_be_bytes(whole[8..12].try_into().unwrap())) + 12;
    let count = whole.len() as u64 / batch_bytes;
    for damaged in 0..count {
        let disk = disk.kill();
        disk.flip_bits(&path, damaged * batch_bytes + 10, 0x40).unwrap();
        let log = open(&disk, &small()).log();
        let lines = told(|| {
            for offset in second + 3 * damaged as i64..third {
                let error = log.read(offset, 1, log.log_end_offset(), true);
                let Err(error) = error else { continue };
                let error = error.to_string();
                let place = format!("{} at {}", path.display(), damaged * batch_bytes);
                assert!(error.contains(&place) && error.contains("claims"), "{error}");
            }
        });
        let first = second + 3 * damaged as i64;
        assert!(log.read(first, 1, log.log_end_offset(), true).is_err(), "batch {damaged}");
        for offset in first..third {
            if let Ok(Some(slice)) = log.read(offset, 1, log.log_end_offset(), true) {
                assert!(
                    slice.first.last_offset() < offset + 3,
                    "batch {damaged}, {offset}: nothing is passed over"
                );
            }
        }
        log.offset_for_timestamp(NOW + first * 1000).unwrap_err();
        assert!(!lines.iter().any(|line| line.contains("index is wrong")), "{lines:?}");
    }
}

/// After a clean stop the last segment was believed to end where the checkpoint says, whatever it had lost.
#[test]
fn a_last_segment_that_was_cut_after_a_clean_stop_is_checked() {
    let disk = SimulatedDisk::new(1);
    let (store, log) = with_partition(&disk, &small());
    append_many(&log, 40);
    let (records, last) = (read_all(&log), *log.segment_offsets().last().unwrap());
    store.close(None).unwrap();
    drop((store, log));
    let path = folder().join(format!("{last:020}.log"));
    let whole = disk.read(&path).unwrap();
    for len in (0..whole.len()).rev() {
        let disk = disk.kill();
        disk.open(&path, OpenMode::ReadWrite).unwrap().set_len(len as u64).unwrap();
        let mut store = None;
        let lines = told(|| store = Some(open(&disk, &small())));
        let store = store.unwrap();
        assert_eq!(store.report.recovered_logs, 1, "cut at {len}");
        let found = read_all(&store.log());
        assert!(found.len() < records.len() && found[..] == records[..found.len()], "cut at {len}");
        assert_eq!(store.log().log_end_offset(), found.len() as i64, "cut at {len}");
        let name = path.file_stem().unwrap().to_str().unwrap();
        assert!(lines.iter().any(|line| line.contains(name)), "cut at {len}: {lines:?}");
        append(&store.log()).unwrap();
    }
}

/// One flipped bit in the last entry of a time index made a fresh segment look old, and retention deleted it.
#[test]
fn a_flipped_bit_in_a_time_index_deletes_no_fresh_segment() {
    let disk = SimulatedDisk::new(1);
    let config = LogConfig { retention_ms: Some(3_600_000), ..small() };
    let (store, log) = with_partition(&disk, &config);
    append_many(&log, 40);
    let (end, largest) = (log.log_end_offset(), log.max_timestamp().unwrap());
    store.close(None).unwrap();
    drop((store, log));
    let path = folder().join(format!("{:020}.timeindex", 0));
    let whole = disk.read(&path).unwrap();
    let last = whole.len() as u64 - 12;
    for byte in 0..8 {
        for bit in 0..8 {
            let disk = disk.kill();
            disk.flip_bits(&path, last + byte, 1 << bit).unwrap();
            let store = open(&disk, &config);
            let log = store.log();
            let lines = told(|| {
                assert_eq!(log.apply_retention(NOW, end).unwrap(), 0, "bit {bit} of byte {byte}");
                assert_eq!(log.max_timestamp().unwrap(), largest);
            });
            assert!(lines.iter().any(|line| line.contains(path.to_str().unwrap())), "{lines:?}");
            let made = disk.read(&path).unwrap();
            assert_eq!(made[made.len() - 12..], whole[last as usize..], "the index is right again");
        }
    }
}
