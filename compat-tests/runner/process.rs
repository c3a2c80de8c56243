//! Child processes that cannot outlive the runner: each is the head of a process group of its own, and the group is
//! killed by its id when its time is over, when the runner drops it, and when the runner itself is told to stop.

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::BTreeSet;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::Mutex;
use std::time::{Duration, Instant};

static LIVE: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

/// A running child and whatever it started.
pub(crate) struct Group {
    pub(crate) child: Child,
    id: i32,
}

impl Group {
    pub(crate) fn start(command: &mut Command) -> Result<Group> {
        let mut live = LIVE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let child = command
            .process_group(0)
            .spawn()
            .with_context(|| format!("start {}", command.get_program().to_string_lossy()))?;
        let id = i32::try_from(child.id())?;
        live.insert(id);
        Ok(Group { child, id })
    }

    /// Waits for the head of the group; None when it still runs after `limit`.
    pub(crate) fn wait(&mut self, limit: Duration) -> Result<Option<ExitStatus>> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        signal_group(self.id, signal);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        signal_group(self.id, Signal::KILL);
        let _ = self.child.wait();
        LIVE.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).remove(&self.id);
    }
}

fn signal_group(id: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(id) {
        let _ = kill_process_group(pid, signal); // no such group: all of it has ended already
    }
}

/// On SIGINT, SIGTERM or SIGHUP: kills every group and exits.
pub(crate) fn end_all_on_signal() -> Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut interrupt, mut terminate, mut hangup) = {
        let _guard = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, signal(SignalKind::hangup())?)
    };
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {}, _ = hangup.recv() => {} }
        });
        for id in LIVE.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).iter() {
            signal_group(*id, Signal::KILL);
        }
        std::process::exit(130);
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::test_kill_process_group;

    /// A shell's background child outlives the shell; it must not outlive the scenario.
    #[test]
    fn what_a_child_started_ends_with_it() {
        let mut group = Group::start(Command::new("sh").args(["-c", "sleep 1000 & exit 3"])).unwrap();
        let status = group.wait(Duration::from_secs(10)).unwrap().expect("the shell ends at once");
        assert_eq!(status.code(), Some(3));
        let id = Pid::from_raw(group.id).unwrap();
        test_kill_process_group(id).expect("the sleeper is still there");
        drop(group);
        let gone = (0..200).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            test_kill_process_group(id).is_err()
        });
        assert!(gone);
    }
}
