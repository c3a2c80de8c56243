//! Opening the logs at the start. Those that must be checked first are left to `recovery`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use klamm_model::{TopicId, TopicPartition};
use parking_lot::Mutex;

use super::directory::{Folder, LogDirectory, Remembered};
use super::duplicates::{self, Mark};
use super::moves::Interrupted;
use super::recovery::Waiting;
use super::side_by_side::side_by_side;
use super::{LogStore, Unopened};
use crate::checkpoint::offset_of;
use crate::config::LogConfig;
use crate::error::{StorageError, StorageErrorKind};
use crate::log::{Log, OpenLog, Opening};
use crate::partition_metadata;

/// What [`LogStore::load`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Logs that are open now.
    pub logs: usize,
    /// Logs that wait for [`LogStore::recover`].
    pub unchecked_logs: usize,
    /// Logs that had to be recovered, and are open now.
    pub recovered_logs: usize,
    /// Logs that are not as a clean stop has left them: records may be missing at their ends.
    pub changed_logs: Vec<TopicPartition>,
    /// Bytes that recovery has checked.
    pub scanned_bytes: u64,
    /// Bytes that were no whole batches and were cut off.
    pub cut_bytes: u64,
    /// Folders of partitions that could not be opened. Their directories are not marked clean at the stop.
    pub failed: Vec<(TopicPartition, StorageError)>,
    /// Folders that belong to Apache Kafka's quorum or are strays, and were left alone.
    pub ignored: Vec<PathBuf>,
}

struct Task<'a> {
    topic_partition: TopicPartition,
    path: PathBuf,
    directory: &'a LogDirectory,
    remembered: &'a Remembered,
}

impl Task<'_> {
    fn open_log(&self, config: LogConfig) -> OpenLog {
        let Task { topic_partition, path, directory, remembered } = self;
        OpenLog {
            topic_partition: topic_partition.clone(),
            directory_id: directory.id,
            dir: path.clone(),
            config,
            log_start_offset: offset_of(&remembered.log_start_offsets, topic_partition),
            recovery_point: offset_of(&remembered.recovery_points, topic_partition),
            cleaned_offset: offset_of(&remembered.cleaned_offsets, topic_partition),
            was_clean: remembered.was_clean,
        }
    }
}

impl LogStore {
    /// Opens all partitions, recovery included: [`LogStore::open_logs`] and [`LogStore::recover`].
    pub fn load(
        &self,
        config_of: &(dyn Fn(&TopicPartition) -> LogConfig + Sync),
    ) -> Result<LoadReport, StorageError> {
        let mut report = self.open_logs(config_of)?;
        let recovered = self.recover(&|| {});
        report.logs += recovered.recovered_logs;
        report.recovered_logs = recovered.recovered_logs;
        report.scanned_bytes = recovered.scanned_bytes;
        report.cut_bytes = recovered.cut_bytes;
        report.unchecked_logs = recovered.unchecked_logs;
        report.failed.extend(recovered.failed);
        report.failed.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(report)
    }

    /// Opens the partitions that need no look at their batches: all of them after a clean stop, else those to
    /// which nothing has happened since they were closed. Each can be had from [`LogStore::get`] as soon as it is
    /// open. The others wait for [`LogStore::recover`]; until then [`LogStore::create`] answers with
    /// [`StorageErrorKind::Recovering`]. A partition that cannot be opened does not keep the others from it: see
    /// the report.
    pub fn open_logs(
        &self,
        config_of: &(dyn Fn(&TopicPartition) -> LogConfig + Sync),
    ) -> Result<LoadReport, StorageError> {
        let _changing = self.changing.lock();
        let disk = &*self.shared.environment.disk;
        let mut remembered = Vec::new();
        for directory in &self.shared.directories {
            // A directory that fails here is offline, and the others serve on without it.
            match directory.remembered(disk).and_then(|found| Ok((found, directory.folders(disk)?))) {
                Ok((found, folders)) => remembered.push((directory, found, folders)),
                Err(_) if !directory.health.is_online() => super::check_first(&self.shared.health)?,
                Err(error) => return Err(error),
            }
        }
        let mut report = LoadReport::default();
        let (mut tasks, mut futures) = (Vec::new(), Vec::new());
        for (directory, remembered, folders) in &remembered {
            let of_others = tasks.len();
            for folder in folders {
                let task = |topic_partition: &TopicPartition, path: &PathBuf| Task {
                    topic_partition: topic_partition.clone(),
                    path: path.clone(),
                    directory,
                    remembered,
                };
                match folder {
                    Folder::Partition(topic_partition, path) => tasks.push(task(topic_partition, path)),
                    Folder::Future(topic_partition, path) => futures.push(task(topic_partition, path)),
                    Folder::Deleted(path) => {
                        let now_ms = self.shared.environment.clock.now_ms();
                        self.shared.environment.deletions.add_folder(path.clone(), now_ms);
                    }
                    Folder::Ignored(path) => report.ignored.push(path.clone()),
                }
            }
            if !remembered.was_clean && tasks.len() > of_others {
                tracing::info!(
                    directory = %directory.path.display(),
                    logs = tasks.len() - of_others,
                    "the last stop was not clean: logs that were written to are checked from their recovery \
                     points on"
                );
            }
        }
        let mut tasks = self.settle_duplicates(tasks, &mut report)?;
        self.remember(&tasks);
        tasks.sort_by_key(|task| !task.remembered.was_clean);
        let mut report = self.run(&tasks, config_of, report);
        let there = tasks.iter().map(|task| &task.topic_partition);
        let there: BTreeSet<_> = there.chain(report.failed.iter().map(|(name, _)| name)).cloned().collect();
        for (directory, remembered, _) in &remembered {
            report.changed_logs.extend(tell_missing(directory, remembered, &there));
        }
        report.changed_logs.sort_unstable();
        let interrupted = futures.iter().map(|task| task.open_log(config_of(&task.topic_partition)));
        self.shared.interrupted.lock().extend(interrupted.map(Interrupted));
        self.resume_moves();
        self.is_loaded.store(true, Ordering::Release);
        Ok(report)
    }

    /// Leaves one folder of each partition. Where nothing says which one is right, none is opened.
    fn settle_duplicates<'a>(
        &self,
        tasks: Vec<Task<'a>>,
        report: &mut LoadReport,
    ) -> Result<Vec<Task<'a>>, StorageError> {
        let disk = &*self.shared.environment.disk;
        let mut settled = Vec::new();
        for (name, mut folders) in duplicates::by_partition(tasks, |task| &task.topic_partition) {
            if folders.len() == 1 {
                settled.append(&mut folders);
                continue;
            }
            let marks = folders.iter().map(|task| Ok((task.directory.id, Mark::read(disk, &task.path)?)));
            let marks: Result<Vec<_>, StorageError> = marks.collect();
            let Some(winner) = duplicates::winner(&marks?) else {
                let paths: Vec<PathBuf> = folders.iter().map(|task| task.path.clone()).collect();
                let error = duplicates::undecided(&paths);
                tracing::error!(partition = %name, %error, "the log cannot be opened");
                let undecided = folders.iter().map(|task| Unopened {
                    topic_id: partition_metadata::read(disk, &task.path).ok().flatten(),
                    ..unopened(task, error.clone(), None)
                });
                self.shared.undecided.lock().insert(name.clone(), undecided.collect());
                report.failed.push((name, error));
                continue;
            };
            let winner = folders.swap_remove(winner);
            // Its name may be in memory alone yet, and the original is the partition until it is not.
            if let Err(error) = disk.sync_dir(&winner.directory.path) {
                let error = StorageError::io(&winner.directory.path, "sync the names in", &error);
                tracing::error!(partition = %name, %error, "the log cannot be opened");
                self.keep_unopened(&winner, error.clone(), None);
                report.failed.push((name, error));
                continue;
            }
            settled.push(winner);
            for replaced in folders {
                tracing::info!(folder = %replaced.path.display(), "the partition has moved; its original goes");
                self.delete_folder_later(&name, replaced.directory.id, replaced.path, 0);
            }
            if let Err(error) = self.delete_again(&name) {
                tracing::error!(partition = %name, %error, "the original of a moved partition stays for now");
            }
        }
        Ok(settled)
    }

    fn remember(&self, tasks: &[Task<'_>]) {
        // A directory may still tell of partitions that have moved into another one.
        let mut high_watermarks = self.shared.high_watermarks.lock();
        for Task { topic_partition, remembered, .. } in tasks {
            if let Some(offset) = offset_of(&remembered.high_watermarks, topic_partition) {
                high_watermarks.insert(topic_partition.clone(), offset);
            }
        }
    }

    fn run(
        &self,
        tasks: &[Task<'_>],
        config_of: &(dyn Fn(&TopicPartition) -> LogConfig + Sync),
        report: LoadReport,
    ) -> LoadReport {
        let report = Mutex::new(report);
        side_by_side(self.shared.recoveries.threads(), tasks, |task| {
            self.open_one(task, config_of(&task.topic_partition), &report);
        });
        let mut report = report.into_inner();
        report.failed.sort_by(|(one, _), (other, _)| one.cmp(other));
        report
    }

    fn open_one(&self, task: &Task<'_>, config: LogConfig, report: &Mutex<LoadReport>) {
        let topic_partition = &task.topic_partition;
        let opening = Log::begin_opening(self.shared.environment.clone(), task.open_log(config));
        let kept = opening.and_then(|opening| self.keep(task, opening));
        let mut report = report.lock();
        let is_changed = task.remembered.was_clean && task.directory.health.is_online();
        if is_changed && !matches!(kept, Ok(true)) {
            report.changed_logs.push(topic_partition.clone());
        }
        match kept {
            Ok(true) => report.logs += 1,
            Ok(false) => report.unchecked_logs += 1,
            Err(error) => {
                if task.directory.health.is_online() {
                    tracing::error!(partition = %topic_partition, %error, "the log cannot be opened");
                }
                self.keep_unopened(task, error.clone(), None);
                report.failed.push((topic_partition.clone(), error));
            }
        }
    }

    /// Puts a log where it belongs. Returns whether it is open.
    fn keep(&self, task: &Task<'_>, opening: Opening) -> Result<bool, StorageError> {
        let Task { topic_partition, path, directory, .. } = task;
        let mut logs = self.shared.logs.write();
        match opening {
            Opening::Ready(log) => {
                logs.insert(topic_partition.clone(), Arc::new(log));
                Ok(true)
            }
            Opening::Unchecked(log) => {
                let failure = StorageError::new(path, "open", StorageErrorKind::Recovering);
                self.keep_unopened(task, failure, log.topic_id());
                self.shared.recoveries.add(
                    directory.id,
                    Waiting { topic_partition: topic_partition.clone(), bytes: log.bytes(), log },
                );
                Ok(false)
            }
        }
    }

    fn keep_unopened(&self, task: &Task<'_>, failure: StorageError, topic_id: Option<TopicId>) {
        let unopened = unopened(task, failure, topic_id);
        self.shared.unopened.lock().insert(task.topic_partition.clone(), unopened);
    }
}

/// Tells of the partitions of a directory whose folders are gone since a clean stop, and counts them.
fn tell_missing(
    directory: &LogDirectory,
    remembered: &Remembered,
    there: &BTreeSet<TopicPartition>,
) -> Vec<TopicPartition> {
    let mut missing = Vec::new();
    if !remembered.was_clean {
        return missing;
    }
    for (partition, end_offset) in &remembered.recovery_points {
        if *end_offset <= 0 || there.contains(partition) {
            continue;
        }
        missing.push(partition.clone());
        tracing::error!(
            %partition, directory = %directory.path.display(), end_offset,
            "the partition's folder is gone, which was there when this node stopped; what other replicas have of it is \
             copied from them"
        );
    }
    missing
}

fn unopened(task: &Task<'_>, failure: StorageError, topic_id: Option<TopicId>) -> Unopened {
    let Task { topic_partition, path, directory, remembered } = task;
    Unopened {
        directory: directory.id,
        folder: path.clone(),
        failure,
        topic_id,
        recovery_point: offset_of(&remembered.recovery_points, topic_partition),
        log_start_offset: offset_of(&remembered.log_start_offsets, topic_partition),
        high_watermark: offset_of(&remembered.high_watermarks, topic_partition),
        cleaned_offset: offset_of(&remembered.cleaned_offsets, topic_partition),
    }
}
