//! A disk in memory that loses what was not synced when its machine crashes.

mod faults;
mod image;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use klamm_io::{Disk, Entry, File, OpenMode};

use crate::SeededRandom;

pub use faults::{Counters, Failure, Fault, FaultId, Operation, OperationKind};
use image::{Image, Inode};

/// How many operations the log keeps; older ones are forgotten.
const OPERATIONS_MAX: usize = 100_000;

/// What [`Disk::space`] says while no capacity is set.
const CAPACITY_BYTES_UNSET: u64 = 1 << 40;

/// What a crash leaves of the changes that no sync covered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unsynced {
    /// Nothing.
    Lost,
    /// Everything, as if the kernel had just written it all back.
    Kept,
    /// Of each file the first changes, the last of them cut anywhere; of each directory the first changes.
    Torn,
    /// Of each file all lengths but only some of the sectors, in no order; of each directory the first
    /// changes.
    Scattered,
    /// For each file one of the four by chance; of each directory the first changes.
    Seeded,
}

/// A disk in memory with a live and a durable image. Clones are the same disk.
///
/// What is durable when is what [`Disk`] promises and not more: a file's data after `sync_data`, a name after
/// `sync_dir` of the directory that holds it. A rename is atomic. The directory `/` is always there, and
/// relative paths begin at it.
#[derive(Clone)]
pub struct SimulatedDisk {
    shared: Arc<Mutex<State>>,
}

struct State {
    image: Image,
    random: SeededRandom,
    is_down: bool,
    changes_left: Option<u64>,
    capacity_bytes: Option<u64>,
    faults: BTreeMap<FaultId, Fault>,
    fault_next: u64,
    /// Whether the write that is done now fails half way.
    half_written: bool,
    locks: BTreeSet<Inode>,
    operations: VecDeque<Operation>,
    counters: Counters,
    /// What each change and sync takes.
    slowness: Duration,
    owed: Duration,
}

impl SimulatedDisk {
    /// An empty disk. What chance decides at a crash follows from the seed.
    pub fn new(seed: u64) -> SimulatedDisk {
        SimulatedDisk::with(Image::new(), SeededRandom::new(seed))
    }

    fn with(image: Image, random: SeededRandom) -> SimulatedDisk {
        let state = State {
            image,
            random,
            is_down: false,
            changes_left: None,
            capacity_bytes: None,
            faults: BTreeMap::new(),
            fault_next: 0,
            half_written: false,
            locks: BTreeSet::new(),
            operations: VecDeque::new(),
            counters: Counters::default(),
            slowness: Duration::ZERO,
            owed: Duration::ZERO,
        };
        SimulatedDisk { shared: Arc::new(Mutex::new(state)) }
    }

    /// Lets `changes` more calls that change the disk succeed (see [`OperationKind::is_change`]); the next
    /// one fails, and every call after it, of any kind. What that next call was to write counts as written
    /// and not synced, so a crash may find it there, in part or not at all.
    pub fn crash_after(&self, changes: u64) {
        self.state().changes_left = Some(changes);
    }

    /// Whether the crash that [`SimulatedDisk::crash_after`] announced has come.
    pub fn is_down(&self) -> bool {
        self.state().is_down
    }

    /// The power goes: the disk as the machine finds it after its reboot, with [`Unsynced::Seeded`]. Every
    /// call on this disk and its open files fails from now on.
    pub fn crash(&self) -> SimulatedDisk {
        self.crash_leaving(Unsynced::Seeded)
    }

    /// As [`SimulatedDisk::crash`], with a choice of what is left of unsynced changes.
    pub fn crash_leaving(&self, unsynced: Unsynced) -> SimulatedDisk {
        let mut state = self.state();
        state.is_down = true;
        let random = state.random.fork();
        let image = state.image.clone().after_crash(unsynced, &random);
        SimulatedDisk::with(image, random)
    }

    /// Only the process dies (`kill -9`): the disk as the next process finds it. All that was written is
    /// there and, where it was not synced, still in danger; locks are free. Every call on this disk and its
    /// open files fails from now on.
    pub fn kill(&self) -> SimulatedDisk {
        let mut state = self.state();
        state.is_down = true;
        SimulatedDisk::with(state.image.clone(), state.random.fork())
    }

    /// Makes calls fail. Several faults may stand side by side; the oldest that matches decides. A
    /// `sync_data` that fails so loses what it was to sync, as on Linux: reads still show the data, but no
    /// later sync makes it durable.
    pub fn inject(&self, fault: Fault) -> FaultId {
        let mut state = self.state();
        let id = FaultId(state.fault_next);
        state.fault_next += 1;
        state.faults.insert(id, fault);
        id
    }

    /// Ends one fault.
    pub fn clear(&self, fault: FaultId) {
        self.state().faults.remove(&fault);
    }

    /// Ends all faults.
    pub fn clear_faults(&self) {
        self.state().faults.clear();
    }

    /// Makes the disk so large, or without bound. A write that does not fit writes what fits and fails.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state().capacity_bytes = bytes;
    }

    /// Has each call that changes the disk or syncs take so long. The disk itself does not wait: see
    /// [`SimulatedDisk::take_owed`].
    pub fn set_slowness(&self, per_call: Duration) {
        self.state().slowness = per_call;
    }

    /// The time that the calls since the last question should have taken. Who simulates a process of one thread lets
    /// the process stand still for that long.
    pub fn take_owed(&self) -> Duration {
        std::mem::take(&mut self.state().owed)
    }

    /// Turns the bits of `mask` over in one byte of a file, live and durable: decay of the medium.
    pub fn flip_bits(&self, path: impl AsRef<Path>, position: u64, mask: u8) -> io::Result<()> {
        let mut state = self.state();
        let inode = state.image.file(path.as_ref())?;
        let position = usize::try_from(position).expect("a simulated file fits into memory");
        if position >= state.image.content(inode).len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        state.image.flip_bits(inode, position, mask);
        Ok(())
    }

    /// Makes a directory that holds what one of another disk holds. All of it is durable, as if it had been there for
    /// long.
    pub fn copy_from(&self, other: &dyn Disk, from: &Path, to: &Path) -> io::Result<()> {
        self.create_dir_all(to)?;
        for entry in other.read_dir(from)? {
            let (source, target) = (from.join(&entry.name), to.join(&entry.name));
            if entry.is_dir {
                self.copy_from(other, &source, &target)?;
            } else {
                let file = self.open(&target, OpenMode::CreateNew)?;
                file.write_all_at(&[&other.read(&source)?], 0)?;
                file.sync_data()?;
            }
        }
        to.ancestors().try_for_each(|directory| self.sync_dir(directory))
    }

    /// What a file would hold after a crash that keeps nothing unsynced; `None` if it would not be there.
    pub fn durable_content(&self, path: impl AsRef<Path>) -> Option<Vec<u8>> {
        self.state().image.durable_content(path.as_ref()).map(<[u8]>::to_vec)
    }

    /// The calls so far, oldest first; at most the last 100,000.
    pub fn operations(&self) -> Vec<Operation> {
        self.state().operations.iter().cloned().collect()
    }

    /// How often what was called so far.
    pub fn counters(&self) -> Counters {
        self.state().counters.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(&self, inode: Inode, path: &Path, is_writable: bool, is_lock: bool) -> Arc<dyn File> {
        Arc::new(SimulatedFile { disk: self.clone(), inode, path: path.to_owned(), is_writable, is_lock })
    }
}

/// A call, before it is known how it ends.
struct Call<'a> {
    kind: OperationKind,
    path: &'a Path,
    inode: Option<Inode>,
    position: u64,
    len: u64,
}

impl<'a> Call<'a> {
    fn on_path(kind: OperationKind, path: &'a Path) -> Call<'a> {
        Call { kind, path, inode: None, position: 0, len: 0 }
    }
}

impl State {
    /// Does what a call asks, unless the machine is down, a fault strikes or the crash point is reached.
    fn perform<T>(
        &mut self,
        call: &Call<'_>,
        action: impl FnOnce(&mut State) -> io::Result<T>,
    ) -> io::Result<T> {
        if self.is_down {
            return Err(down());
        }
        if call.kind.is_change() {
            self.owed += self.slowness;
        }
        let result = self.attempt(call, action);
        *self.counters.calls.entry(call.kind).or_insert(0) += 1;
        if self.operations.len() == OPERATIONS_MAX {
            self.operations.pop_front();
        }
        self.operations.push_back(Operation {
            kind: call.kind,
            path: call.path.to_owned(),
            position: call.position,
            len: call.len,
            succeeded: result.is_ok(),
        });
        result
    }

    fn attempt<T>(
        &mut self,
        call: &Call<'_>,
        action: impl FnOnce(&mut State) -> io::Result<T>,
    ) -> io::Result<T> {
        if call.kind.is_change() {
            if self.changes_left == Some(0) {
                self.is_down = true;
                // A sync that the crash interrupts has synced nothing for certain.
                if !call.kind.is_sync() {
                    let _ = action(self);
                }
                return Err(down());
            }
            self.changes_left = self.changes_left.map(|left| left - 1);
        }
        let strike = self.faults.values_mut().find_map(|fault| fault.strike(call.kind, call.path));
        if let Some(strike) = strike {
            if let (OperationKind::SyncData, Some(inode)) = (call.kind, call.inode) {
                self.image.fail_sync_data(inode);
            }
            if strike.writes_half && call.kind == OperationKind::Write {
                self.half_written = true;
                let _ = action(self);
                self.half_written = false;
            }
            return Err(strike.failure.error());
        }
        action(self)
    }

    /// How many of `wanted` more bytes fit on the disk.
    fn fitting(&self, wanted: u64) -> u64 {
        match self.capacity_bytes {
            Some(capacity) => wanted.min(capacity.saturating_sub(self.image.used_bytes())),
            None => wanted,
        }
    }

    fn write(&mut self, inode: Inode, position: u64, mut bytes: Vec<u8>) -> io::Result<()> {
        let end = position.checked_add(bytes.len() as u64).ok_or(io::ErrorKind::InvalidInput)?;
        if self.half_written {
            bytes.truncate(bytes.len() / 2);
        }
        let grows_by = end.saturating_sub(self.image.content(inode).len() as u64);
        let missing = grows_by - self.fitting(grows_by);
        bytes.truncate(bytes.len().saturating_sub(missing as usize));
        self.counters.bytes_written += bytes.len() as u64;
        self.image.write(inode, in_memory(position)?, bytes);
        if missing > 0 { Err(Failure::NoSpace.error()) } else { Ok(()) }
    }

    fn set_len(&mut self, inode: Inode, len: u64) -> io::Result<()> {
        let grows_by = len.saturating_sub(self.image.content(inode).len() as u64);
        if self.fitting(grows_by) < grows_by {
            return Err(Failure::NoSpace.error());
        }
        self.image.set_len(inode, in_memory(len)?);
        Ok(())
    }
}

impl Disk for SimulatedDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let mut state = self.state();
        let is_there = state.image.exists(path);
        let makes = match mode {
            OpenMode::Read | OpenMode::ReadWrite => false,
            OpenMode::CreateOrOpen => !is_there,
            OpenMode::CreateNew => true,
        };
        let kind = if makes { OperationKind::Create } else { OperationKind::Open };
        let inode = state.perform(&Call::on_path(kind, path), |state| match (makes, is_there) {
            (true, true) => Err(io::ErrorKind::AlreadyExists.into()),
            (true, false) => state.image.create_file(path),
            (false, _) => state.image.file(path),
        })?;
        drop(state);
        Ok(self.handle(inode, path, mode != OpenMode::Read, false))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let call = Call::on_path(OperationKind::CreateDir, path);
        self.state().perform(&call, |state| state.image.create_dir_all(path))
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<Entry>> {
        let call = Call::on_path(OperationKind::ReadDir, path);
        let entries = self.state().perform(&call, |state| state.image.entries(path))?;
        Ok(entries.into_iter().map(|(name, is_dir)| Entry { name, is_dir }).collect())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let call = Call::on_path(OperationKind::Rename, from);
        self.state().perform(&call, |state| state.image.rename(from, to))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let call = Call::on_path(OperationKind::Remove, path);
        self.state().perform(&call, |state| state.image.remove_file(path))
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        let call = Call::on_path(OperationKind::Remove, path);
        self.state().perform(&call, |state| state.image.remove_dir_all(path))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let call = Call::on_path(OperationKind::SyncDir, path);
        self.state().perform(&call, |state| state.image.sync_dir(path))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        let call = Call::on_path(OperationKind::ReadDir, path);
        self.state().perform(&call, |state| Ok(state.image.exists(path)))
    }

    fn lock(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let mut state = self.state();
        let is_there = state.image.exists(path);
        let kind = if is_there { OperationKind::Open } else { OperationKind::Create };
        let inode = state.perform(&Call::on_path(kind, path), |state| {
            if is_there { state.image.file(path) } else { state.image.create_file(path) }
        })?;
        if !state.locks.insert(inode) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        drop(state);
        Ok(self.handle(inode, path, true, true))
    }

    fn space(&self, _path: &Path) -> io::Result<(u64, u64)> {
        let state = self.state();
        if state.is_down {
            return Err(down());
        }
        let capacity = state.capacity_bytes.unwrap_or(CAPACITY_BYTES_UNSET);
        Ok((capacity, capacity.saturating_sub(state.image.used_bytes())))
    }
}

struct SimulatedFile {
    disk: SimulatedDisk,
    inode: Inode,
    path: PathBuf,
    is_writable: bool,
    is_lock: bool,
}

impl SimulatedFile {
    fn call(&self, kind: OperationKind, position: u64, len: u64) -> Call<'_> {
        Call { kind, path: &self.path, inode: Some(self.inode), position, len }
    }

    fn check_writable(&self) -> io::Result<()> {
        if self.is_writable { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
    }
}

impl File for SimulatedFile {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        let call = self.call(OperationKind::Read, position, buffer.len() as u64);
        self.disk.state().perform(&call, |state| {
            let content = state.image.content(self.inode);
            let start = content.len().min(usize::try_from(position).unwrap_or(usize::MAX));
            let count = buffer.len().min(content.len() - start);
            buffer[..count].copy_from_slice(&content[start..start + count]);
            Ok(count)
        })
    }

    fn write_all_at(&self, parts: &[&[u8]], position: u64) -> io::Result<()> {
        self.check_writable()?;
        let bytes = parts.concat();
        let call = self.call(OperationKind::Write, position, bytes.len() as u64);
        self.disk.state().perform(&call, |state| state.write(self.inode, position, bytes))
    }

    fn len(&self) -> io::Result<u64> {
        let call = self.call(OperationKind::Read, 0, 0);
        self.disk.state().perform(&call, |state| Ok(state.image.content(self.inode).len() as u64))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check_writable()?;
        let call = self.call(OperationKind::SetLen, len, 0);
        self.disk.state().perform(&call, |state| state.set_len(self.inode, len))
    }

    fn sync_data(&self) -> io::Result<()> {
        let call = self.call(OperationKind::SyncData, 0, 0);
        self.disk.state().perform(&call, |state| {
            state.image.sync_data(self.inode);
            Ok(())
        })
    }
}

impl Drop for SimulatedFile {
    fn drop(&mut self) {
        if self.is_lock {
            self.disk.state().locks.remove(&self.inode);
        }
    }
}

fn down() -> io::Error {
    io::Error::other("the simulated machine is down")
}

fn in_memory(position: u64) -> io::Result<usize> {
    usize::try_from(position).map_err(|_| io::ErrorKind::FileTooLarge.into())
}
