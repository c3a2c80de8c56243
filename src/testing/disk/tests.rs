//! A simulated disk that is kinder than a real one hides the very bugs that it is there to find; one that is
//! crueller finds bugs that are none. Each test holds one promise of `klamm_io::Disk`, or one absence of a
//! promise, against the disk.

use super::*;

fn path(text: &str) -> &Path {
    Path::new(text)
}

fn disk_with(name: &str, content: &[u8]) -> (SimulatedDisk, Arc<dyn File>) {
    let disk = SimulatedDisk::new(1);
    let file = disk.open(path(name), OpenMode::CreateOrOpen).unwrap();
    file.write_all_at(&[content], 0).unwrap();
    (disk, file)
}

/// A store that syncs the file and forgets the directory loses the whole file.
#[test]
fn synced_data_under_an_unsynced_name_is_lost() {
    let (disk, file) = disk_with("/a", b"data");
    file.sync_data().unwrap();
    let after = disk.crash_leaving(Unsynced::Lost);
    assert!(!after.exists(path("/a")).unwrap());
}

/// A store that syncs the directory and forgets the file finds an empty one.
#[test]
fn unsynced_data_under_a_synced_name_is_lost() {
    let (disk, _file) = disk_with("/a", b"data");
    disk.sync_dir(path("/")).unwrap();
    let after = disk.crash_leaving(Unsynced::Lost);
    assert_eq!(after.read(path("/a")).unwrap(), b"");
}

#[test]
fn what_was_synced_survives_every_crash_and_what_was_not_may_survive() {
    for seed in 0..200 {
        let disk = SimulatedDisk::new(seed);
        let file = disk.open(path("/a"), OpenMode::CreateNew).unwrap();
        file.write_all_at(&[b"syn", b"ced"], 0).unwrap();
        file.sync_data().unwrap();
        disk.sync_dir(path("/")).unwrap();
        file.write_all_at(&[b"rest"], 6).unwrap();
        let found = disk.crash().read(path("/a")).unwrap();
        assert!(found.starts_with(b"synced"), "seed {seed}: {found:?}");
        assert!(found.len() <= 10, "seed {seed}: {found:?}");
    }
    let (disk, _file) = disk_with("/a", b"data");
    assert_eq!(disk.crash_leaving(Unsynced::Kept).read(path("/a")).unwrap(), b"data");
}

/// A recovery that only ever sees whole batches is not tested: the tail must come torn at every place.
#[test]
fn a_torn_tail_is_cut_anywhere_in_the_order_of_the_writes() {
    let mut lengths = BTreeSet::new();
    for seed in 0..200 {
        let disk = SimulatedDisk::new(seed);
        let file = disk.open(path("/a"), OpenMode::CreateNew).unwrap();
        disk.sync_dir(path("/")).unwrap();
        file.write_all_at(&[b"0123"], 0).unwrap();
        file.write_all_at(&[b"4567"], 4).unwrap();
        let found = disk.crash_leaving(Unsynced::Torn).read(path("/a")).unwrap();
        assert!(b"01234567".starts_with(&found[..]), "seed {seed}: {found:?}");
        lengths.insert(found.len());
    }
    assert_eq!(lengths, (0..=8).collect());
}

/// Delayed allocation: the length is there and the data is not, or a later sector is and an earlier is not.
#[test]
fn scattered_sectors_leave_zeros_before_data() {
    let mut seen = BTreeSet::new();
    for seed in 0..200 {
        let disk = SimulatedDisk::new(seed);
        let file = disk.open(path("/a"), OpenMode::CreateNew).unwrap();
        disk.sync_dir(path("/")).unwrap();
        file.write_all_at(&[&[7; 3 * 512]], 0).unwrap();
        let found = disk.crash_leaving(Unsynced::Scattered).read(path("/a")).unwrap_or_default();
        assert_eq!(found.len(), 3 * 512);
        seen.insert([found[0], found[512], found[1024]]);
    }
    assert_eq!(seen.len(), 8, "each of three sectors survives on its own");
}

#[test]
fn one_seed_gives_one_crash() {
    let run = || {
        let disk = SimulatedDisk::new(42);
        for number in 0..20 {
            let file = disk.open(path(&format!("/f{number}")), OpenMode::CreateNew).unwrap();
            file.write_all_at(&[&[number; 2000]], 0).unwrap();
        }
        let after = disk.crash();
        let names = after.read_dir(path("/")).unwrap();
        names
            .into_iter()
            .map(|entry| (after.read(&path("/").join(&entry.name)).unwrap(), entry.name))
            .collect::<Vec<_>>()
    };
    assert_eq!(run(), run());
}

/// `Disk::replace` promises the old content or the new, whatever the moment of the crash.
#[test]
fn replace_leaves_the_old_content_or_the_new_at_every_crash_point() {
    let mut seen = BTreeSet::new();
    for seed in 0..20 {
        for crash_point in 0..5 {
            let disk = SimulatedDisk::new(seed);
            disk.replace(path("/a"), b"old").unwrap();
            disk.crash_after(crash_point);
            assert!(disk.replace(path("/a"), b"new").is_err(), "five calls change the disk");
            assert!(disk.is_down());
            let found = disk.crash().read(path("/a")).unwrap();
            assert!(found == b"old" || found == b"new", "seed {seed}, point {crash_point}: {found:?}");
            seen.insert(found);
        }
    }
    assert_eq!(seen.len(), 2, "both outcomes must occur");
}

/// The same without the sync of the file: the disk must be able to show the bug that `replace` avoids.
#[test]
fn a_rename_may_become_durable_before_the_data() {
    let found_empty = (0..50).any(|seed| {
        let disk = SimulatedDisk::new(seed);
        disk.replace(path("/a"), b"old").unwrap();
        let file = disk.open(path("/a.tmp"), OpenMode::CreateNew).unwrap();
        file.write_all_at(&[b"new"], 0).unwrap();
        disk.rename(path("/a.tmp"), path("/a")).unwrap();
        disk.sync_dir(path("/")).unwrap();
        disk.crash().read(path("/a")).unwrap().is_empty()
    });
    assert!(found_empty);
}

/// A rename between directories is atomic: whatever is synced, the file is under one name or the other.
#[test]
fn a_file_is_never_lost_or_doubled_by_a_rename() {
    for seed in 0..100 {
        for synced in [None, Some("/from"), Some("/to")] {
            let disk = SimulatedDisk::new(seed);
            disk.create_dir_all(path("/from")).unwrap();
            disk.create_dir_all(path("/to")).unwrap();
            disk.open(path("/from/x"), OpenMode::CreateNew).unwrap();
            disk.sync_dir(path("/")).unwrap();
            disk.sync_dir(path("/from")).unwrap();
            disk.rename(path("/from/x"), path("/to/x")).unwrap();
            if let Some(dir) = synced {
                disk.sync_dir(path(dir)).unwrap();
            }
            let after = disk.crash();
            let places = ["/from/x", "/to/x"].map(|name| after.exists(path(name)).unwrap());
            assert_eq!(places.iter().filter(|there| **there).count(), 1, "seed {seed}, {synced:?}");
            assert!(synced.is_none() || places[1], "seed {seed}: a synced rename is durable");
        }
    }
}

/// A file that was created, renamed and whose new name was synced must not come back under the old name.
#[test]
fn syncing_the_new_directory_covers_the_creation_in_the_old_one() {
    let disk = SimulatedDisk::new(3);
    disk.create_dir_all(path("/from")).unwrap();
    disk.create_dir_all(path("/to")).unwrap();
    disk.sync_dir(path("/")).unwrap();
    disk.open(path("/from/x"), OpenMode::CreateNew).unwrap();
    disk.rename(path("/from/x"), path("/to/x")).unwrap();
    disk.sync_dir(path("/to")).unwrap();
    let after = disk.crash_leaving(Unsynced::Kept);
    assert!(!after.exists(path("/from/x")).unwrap());
    assert!(after.exists(path("/to/x")).unwrap());
}

#[test]
fn a_removal_that_was_not_synced_may_come_undone() {
    let outcomes: BTreeSet<bool> = (0..50)
        .map(|seed| {
            let disk = SimulatedDisk::new(seed);
            disk.replace(path("/a"), b"x").unwrap();
            disk.remove_file(path("/a")).unwrap();
            disk.crash().exists(path("/a")).unwrap()
        })
        .collect();
    assert_eq!(outcomes.len(), 2);
}

#[test]
fn removing_a_directory_may_stop_half_way() {
    let counts: BTreeSet<usize> = (0..100)
        .map(|seed| {
            let disk = SimulatedDisk::new(seed);
            disk.create_dir_all(path("/t-0")).unwrap();
            for name in ["/t-0/a", "/t-0/b", "/t-0/c"] {
                disk.open(path(name), OpenMode::CreateNew).unwrap();
            }
            disk.sync_dir(path("/t-0")).unwrap();
            disk.sync_dir(path("/")).unwrap();
            disk.remove_dir_all(path("/t-0")).unwrap();
            let after = disk.crash();
            after.read_dir(path("/t-0")).map_or(9, |entries| entries.len())
        })
        .collect();
    assert_eq!(counts, BTreeSet::from([0, 1, 2, 3, 9]));
}

/// A killed process loses nothing that it wrote, and a crash right after still does.
#[test]
fn a_kill_keeps_what_was_written_but_does_not_sync_it() {
    let (disk, file) = disk_with("/a", b"data");
    disk.sync_dir(path("/")).unwrap();
    let next = disk.kill();
    assert!(file.sync_data().is_err(), "the dead process cannot sync");
    assert_eq!(next.read(path("/a")).unwrap(), b"data");
    assert_eq!(next.crash_leaving(Unsynced::Lost).read(path("/a")).unwrap(), b"");
}

#[test]
fn a_lock_is_held_until_it_is_dropped_or_the_process_dies() {
    let disk = SimulatedDisk::new(1);
    let held = disk.lock(path("/.lock")).unwrap();
    let refused = disk.lock(path("/.lock")).err().map(|error| error.kind());
    assert_eq!(refused, Some(io::ErrorKind::WouldBlock));
    drop(held);
    let held = disk.lock(path("/.lock")).unwrap();
    let next = disk.kill();
    next.lock(path("/.lock")).unwrap();
    drop(held);
}

#[test]
fn after_the_crash_point_every_call_fails() {
    let (disk, file) = disk_with("/a", b"data");
    disk.crash_after(1);
    let mut byte = [0];
    assert_eq!(file.read_at(&mut byte, 0).unwrap(), 1, "reading does not count");
    file.write_all_at(&[b"x"], 4).unwrap();
    assert!(!disk.is_down());
    assert!(file.write_all_at(&[b"y"], 5).is_err());
    assert!(disk.is_down());
    assert!(file.read_at(&mut byte, 0).is_err());
    assert!(disk.open(path("/a"), OpenMode::Read).is_err());
    assert!(disk.exists(path("/a")).is_err());
    assert!(disk.space(path("/")).is_err());
}

/// The call in which the crash comes may have reached the disk, unless it was a sync: that one promises.
#[test]
fn the_interrupted_write_may_survive_and_the_interrupted_sync_is_none() {
    let (disk, file) = disk_with("/a", b"");
    disk.sync_dir(path("/")).unwrap();
    disk.crash_after(0);
    file.write_all_at(&[b"late"], 0).unwrap_err();
    assert_eq!(disk.crash_leaving(Unsynced::Kept).read(path("/a")).unwrap(), b"late");

    let (disk, file) = disk_with("/a", b"data");
    disk.sync_dir(path("/")).unwrap();
    disk.crash_after(0);
    file.sync_data().unwrap_err();
    assert_eq!(disk.crash_leaving(Unsynced::Lost).read(path("/a")).unwrap(), b"");
}

#[test]
fn a_fault_strikes_the_calls_that_it_names() {
    let disk = SimulatedDisk::new(1);
    disk.create_dir_all(path("/t-0")).unwrap();
    let file = disk.open(path("/t-0/a"), OpenMode::CreateNew).unwrap();
    let fault = Fault::new(Failure::NoSpace).of(OperationKind::Write).on("t-0").from_call(2).times(2);
    disk.inject(fault);
    let other = disk.open(path("/other"), OpenMode::CreateNew).unwrap();
    let outcomes: Vec<bool> = (0..5)
        .map(|at| {
            other.write_all_at(&[b"x"], at).unwrap();
            file.write_all_at(&[b"x"], at).is_ok()
        })
        .collect();
    assert_eq!(outcomes, [true, false, false, true, true]);
}

#[test]
fn a_fault_stands_until_it_is_cleared() {
    let (disk, file) = disk_with("/a", b"");
    let fault = disk.inject(Fault::new(Failure::Device).of(OperationKind::SyncData));
    for _ in 0..3 {
        assert_eq!(file.sync_data().unwrap_err().raw_os_error(), Some(5));
    }
    disk.clear(fault);
    file.sync_data().unwrap();
    disk.inject(Fault::new(Failure::NoSpace));
    let error = file.write_all_at(&[b"x"], 0).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    disk.clear_faults();
    file.write_all_at(&[b"x"], 0).unwrap();
}

/// The kernel marks pages clean when an fsync fails, so trying again until it succeeds loses data.
#[test]
fn a_sync_that_failed_cannot_be_made_good_by_another() {
    let (disk, file) = disk_with("/a", b"data");
    disk.sync_dir(path("/")).unwrap();
    disk.inject(Fault::new(Failure::Device).of(OperationKind::SyncData).times(1));
    file.sync_data().unwrap_err();
    file.sync_data().unwrap();
    assert_eq!(disk.read(path("/a")).unwrap(), b"data");
    assert_eq!(disk.crash_leaving(Unsynced::Kept).read(path("/a")).unwrap(), b"");
}

/// A full disk takes the first part of a write: the store meets its own torn tail without any crash.
#[test]
fn a_full_disk_takes_what_fits() {
    let (disk, file) = disk_with("/a", b"0123");
    disk.set_capacity(Some(6));
    assert_eq!(disk.space(path("/")).unwrap(), (6, 2));
    let error = file.write_all_at(&[b"4567"], 4).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    assert_eq!(disk.read(path("/a")).unwrap(), b"012345");
    file.write_all_at(&[b"abc"], 0).unwrap();
    disk.set_capacity(None);
    file.write_all_at(&[b"67"], 6).unwrap();
    assert_eq!(disk.read(path("/a")).unwrap(), b"abc34567");
}

#[test]
fn decay_is_seen_live_and_after_a_crash() {
    let (disk, file) = disk_with("/a", b"data");
    file.sync_data().unwrap();
    disk.sync_dir(path("/")).unwrap();
    file.write_all_at(&[b"more"], 4).unwrap();
    disk.flip_bits("/a", 0, 0x01).unwrap();
    disk.flip_bits("/a", 5, 0x01).unwrap();
    assert_eq!(disk.read(path("/a")).unwrap(), b"eatamnre");
    assert_eq!(disk.crash_leaving(Unsynced::Kept).read(path("/a")).unwrap(), b"eatamnre");
    assert!(disk.flip_bits("/a", 8, 1).is_err());
}

#[test]
fn names_obey_the_rules_of_a_file_system() {
    let disk = SimulatedDisk::new(1);
    let kind = |result: io::Result<()>| result.unwrap_err().kind();
    let open = |name, mode| disk.open(path(name), mode).map(|_| ());
    assert_eq!(kind(open("/none", OpenMode::Read)), io::ErrorKind::NotFound);
    assert_eq!(kind(open("/no/dir", OpenMode::CreateNew)), io::ErrorKind::NotFound);
    open("/f", OpenMode::CreateNew).unwrap();
    assert_eq!(kind(open("/f", OpenMode::CreateNew)), io::ErrorKind::AlreadyExists);
    assert_eq!(kind(disk.create_dir_all(path("/f/x"))), io::ErrorKind::NotADirectory);
    disk.create_dir_all(path("/d/e")).unwrap();
    disk.create_dir_all(path("/d/e")).unwrap();
    assert_eq!(kind(open("/d", OpenMode::Read)), io::ErrorKind::IsADirectory);
    assert_eq!(kind(disk.rename(path("/f"), path("/d"))), io::ErrorKind::IsADirectory);
    assert_eq!(kind(disk.rename(path("/d"), path("/f"))), io::ErrorKind::NotADirectory);
    disk.create_dir_all(path("/g")).unwrap();
    assert_eq!(kind(disk.rename(path("/g"), path("/d"))), io::ErrorKind::DirectoryNotEmpty);
    disk.rename(path("/d"), path("/g/d")).unwrap();
    let entry = |name: &str, is_dir| Entry { name: name.to_owned(), is_dir };
    assert_eq!(disk.read_dir(path("/g/d")).unwrap(), [entry("e", true)]);
    assert_eq!(disk.read_dir(path("/")).unwrap(), [entry("f", false), entry("g", true)]);
    assert_eq!(kind(disk.remove_file(path("/g"))), io::ErrorKind::IsADirectory);
    disk.remove_dir_all(path("/g")).unwrap();
    assert!(!disk.exists(path("/g/d/e")).unwrap());
    assert!(disk.exists(path("f")).unwrap(), "a relative path begins at the root");
}

/// As on POSIX, a file that is open outlives its name.
#[test]
fn an_open_file_outlives_its_removal_and_its_renaming() {
    let (disk, file) = disk_with("/a", b"data");
    disk.rename(path("/a"), path("/b")).unwrap();
    disk.remove_file(path("/b")).unwrap();
    let mut buffer = [0; 4];
    file.read_exact_at(&mut buffer, 0).unwrap();
    assert_eq!(&buffer, b"data");
}

#[test]
fn a_file_opened_for_reading_is_not_written() {
    let (disk, _file) = disk_with("/a", b"data");
    let file = disk.open(path("/a"), OpenMode::Read).unwrap();
    let refused = file.write_all_at(&[b"x"], 0).unwrap_err().kind();
    assert_eq!(refused, io::ErrorKind::PermissionDenied);
    assert_eq!(file.set_len(0).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
}

/// Tests count syncs to hold a flush policy to its word, so the counts must be right.
#[test]
fn calls_are_counted_and_logged() {
    let (disk, file) = disk_with("/a", b"data");
    file.sync_data().unwrap();
    file.set_len(2).unwrap();
    file.len().unwrap();
    disk.open(path("/none"), OpenMode::Read).err().unwrap();
    let counters = disk.counters();
    assert_eq!(counters.calls(OperationKind::SyncData), 1);
    assert_eq!(counters.calls(OperationKind::SyncDir), 0);
    assert_eq!((counters.changes(), counters.bytes_written), (4, 4));
    let seen: Vec<(OperationKind, bool)> =
        disk.operations().into_iter().map(|operation| (operation.kind, operation.succeeded)).collect();
    let expected = [
        (OperationKind::Create, true),
        (OperationKind::Write, true),
        (OperationKind::SyncData, true),
        (OperationKind::SetLen, true),
        (OperationKind::Read, true),
        (OperationKind::Open, false),
    ];
    assert_eq!(seen, expected);
    let write = &disk.operations()[1];
    assert_eq!((write.path.as_path(), write.position, write.len), (path("/a"), 0, 4));
}

#[test]
fn what_is_durable_can_be_looked_at_without_a_crash() {
    let (disk, file) = disk_with("/a", b"data");
    assert_eq!(disk.durable_content("/a"), None);
    disk.sync_dir(path("/")).unwrap();
    assert_eq!(disk.durable_content("/a").as_deref(), Some(&b""[..]));
    file.sync_data().unwrap();
    assert_eq!(disk.durable_content("/a").as_deref(), Some(&b"data"[..]));
}

/// A test that begins with a copied directory must find it whole after a power cut.
#[test]
fn a_copy_of_a_directory_survives_a_crash() {
    let (source, _file) = disk_with("/a", b"data");
    source.create_dir_all(path("/folder")).unwrap();
    source.replace(path("/folder/b"), b"more").unwrap();
    let disk = SimulatedDisk::new(1);
    disk.copy_from(&source, path("/"), path("/to/copy")).unwrap();
    let after = disk.crash_leaving(Unsynced::Lost);
    assert_eq!(after.read(path("/to/copy/a")).unwrap(), b"data");
    assert_eq!(after.read(path("/to/copy/folder/b")).unwrap(), b"more");
}

/// Space that runs out on the way leaves half of the bytes behind; a writer that counts on all or nothing does not
/// cut them off.
#[test]
fn a_write_may_fail_half_way() {
    let (disk, file) = disk_with("/a", b"data");
    disk.inject(Fault::new(Failure::NoSpace).of(OperationKind::Write).times(1).after_half_a_write());
    assert!(file.write_all_at(&[b"more"], 4).is_err());
    assert_eq!(disk.read(path("/a")).unwrap(), b"datamo");
    file.write_all_at(&[b"more"], 4).unwrap();
    assert_eq!(disk.read(path("/a")).unwrap(), b"datamore");
    assert_eq!(disk.counters().total(), disk.operations().len() as u64);
}

/// A simulation of a slow disk that forgot the writes or the syncs would be one of a fast disk.
#[test]
fn a_slow_disk_counts_what_changes_and_syncs_should_have_taken() {
    let disk = SimulatedDisk::new(1);
    disk.set_slowness(Duration::from_millis(10));
    let file = disk.open(Path::new("/file"), OpenMode::CreateNew).unwrap();
    file.write_all_at(&[b"x"], 0).unwrap();
    file.sync_data().unwrap();
    file.read_at(&mut [0], 0).unwrap();
    assert_eq!((disk.take_owed(), disk.take_owed()), (Duration::from_millis(30), Duration::ZERO));
}
