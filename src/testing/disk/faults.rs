//! What is done to a simulated disk, counted and logged, and the faults that a test asks for.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// What a call asks of the disk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum OperationKind {
    /// A file that was there is opened.
    Open,
    /// A file is made.
    Create,
    /// Data is read, or a length.
    Read,
    /// Data is written.
    Write,
    /// A file is cut or made longer.
    SetLen,
    /// A file's data is synced.
    SyncData,
    /// A directory is made, with those above it.
    CreateDir,
    /// A directory is listed, or a name looked up.
    ReadDir,
    /// A name is changed.
    Rename,
    /// A file or a directory is removed.
    Remove,
    /// A directory's names are synced.
    SyncDir,
}

impl OperationKind {
    /// Whether it changes what is on the disk, live or durable. Only these count towards a crash point.
    pub fn is_change(self) -> bool {
        !matches!(self, OperationKind::Open | OperationKind::Read | OperationKind::ReadDir)
    }

    pub(super) fn is_sync(self) -> bool {
        matches!(self, OperationKind::SyncData | OperationKind::SyncDir)
    }
}

/// One call, as the log of a disk shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Operation {
    /// What was asked.
    pub kind: OperationKind,
    /// Of which file or directory, by the name under which it was opened; the old name of a rename.
    pub path: PathBuf,
    /// Where in the file; the length for [`OperationKind::SetLen`]; else 0.
    pub position: u64,
    /// How many bytes; else 0.
    pub len: u64,
    /// Whether it succeeded.
    pub succeeded: bool,
}

/// How often each kind of call was made, whether it succeeded or not, and the bytes that were written.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Counters {
    pub(super) calls: BTreeMap<OperationKind, u64>,
    /// The bytes of all writes that succeeded.
    pub bytes_written: u64,
}

impl Counters {
    /// The calls of one kind.
    pub fn calls(&self, kind: OperationKind) -> u64 {
        self.calls.get(&kind).copied().unwrap_or(0)
    }

    /// All calls: the places at which one can fail.
    pub fn total(&self) -> u64 {
        self.calls.values().sum()
    }

    /// The calls that change the disk: the crash points that a run has.
    pub fn changes(&self) -> u64 {
        self.calls.iter().filter(|(kind, _)| kind.is_change()).map(|(_, count)| count).sum()
    }
}

/// The error that a fault answers with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// ENOSPC: no space left on the device.
    NoSpace,
    /// EIO: the device failed.
    Device,
}

impl Failure {
    pub(super) fn error(self) -> io::Error {
        const EIO: i32 = 5;
        const ENOSPC: i32 = 28;
        io::Error::from_raw_os_error(match self {
            Failure::NoSpace => ENOSPC,
            Failure::Device => EIO,
        })
    }
}

/// Calls that are to fail. Without a filter it is every call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    failure: Failure,
    kind: Option<OperationKind>,
    path_part: Option<String>,
    skipped: u64,
    times: Option<u64>,
    writes_half: bool,
}

/// How a call fails.
#[derive(Clone, Copy)]
pub(super) struct Strike {
    pub(super) failure: Failure,
    /// Whether a write has written the first half of its bytes before.
    pub(super) writes_half: bool,
}

impl Fault {
    /// A fault of every call from now on, until it is cleared.
    pub fn new(failure: Failure) -> Fault {
        Fault { failure, kind: None, path_part: None, skipped: 0, times: None, writes_half: false }
    }

    /// Only calls of this kind.
    pub fn of(mut self, kind: OperationKind) -> Fault {
        self.kind = Some(kind);
        self
    }

    /// Only calls on paths in which this text occurs.
    pub fn on(mut self, path_part: &str) -> Fault {
        self.path_part = Some(path_part.to_owned());
        self
    }

    /// Only from the `nth` call that matches on; the first is 1.
    pub fn from_call(mut self, nth: u64) -> Fault {
        assert!(nth > 0, "the first call is number 1");
        self.skipped = nth - 1;
        self
    }

    /// Only so many times, then never again.
    pub fn times(mut self, times: u64) -> Fault {
        self.times = Some(times);
        self
    }

    /// A write that fails so has written the first half of its bytes, as when space runs out on the way.
    pub fn after_half_a_write(mut self) -> Fault {
        self.writes_half = true;
        self
    }

    /// Counts a call, and answers how it fails if it does.
    pub(super) fn strike(&mut self, kind: OperationKind, path: &Path) -> Option<Strike> {
        let matches = self.kind.is_none_or(|wanted| wanted == kind)
            && self.path_part.as_ref().is_none_or(|part| path.to_string_lossy().contains(part));
        if !matches || self.times == Some(0) {
            return None;
        }
        if self.skipped > 0 {
            self.skipped -= 1;
            return None;
        }
        self.times = self.times.map(|times| times - 1);
        Some(Strike { failure: self.failure, writes_half: self.writes_half })
    }
}

/// Names a fault that was injected.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct FaultId(pub(super) u64);
