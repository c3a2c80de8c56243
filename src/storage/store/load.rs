//! Opening all logs at the start, those that need recovery on several threads.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use klamm_model::TopicPartition;
use parking_lot::Mutex;

use super::directory::{Folder, LogDirectory, Remembered};
use super::{LogStore, Unopened};
use crate::checkpoint::offset_of;
use crate::config::LogConfig;
use crate::error::StorageError;
use crate::log::{Log, OpenLog};

/// What [`LogStore::load`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Logs that are open now.
    pub logs: usize,
    /// Those of them that had to be recovered.
    pub recovered_logs: usize,
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

impl LogStore {
    /// Opens all partitions. Each can be had from [`LogStore::get`] as soon as it is open; those after a clean
    /// stop come first. A partition that cannot be opened does not keep the others from it: see the report.
    pub fn load(
        &self,
        config_of: &(dyn Fn(&TopicPartition) -> LogConfig + Sync),
    ) -> Result<LoadReport, StorageError> {
        let _changing = self.changing.lock();
        let disk = &*self.shared.environment.disk;
        let mut remembered = Vec::new();
        for directory in &self.shared.directories {
            remembered.push(directory.remembered(disk)?);
        }
        let mut report = LoadReport::default();
        let mut tasks = Vec::new();
        for (directory, remembered) in self.shared.directories.iter().zip(&remembered) {
            let of_others = tasks.len();
            for folder in directory.folders(disk)? {
                match folder {
                    Folder::Partition(topic_partition, path) => {
                        tasks.push(Task { topic_partition, path, directory, remembered });
                    }
                    Folder::Deleted(path) => {
                        self.shared
                            .environment
                            .deletions
                            .add_folder(path, self.shared.environment.clock.now_ms());
                    }
                    Folder::Ignored(path) => report.ignored.push(path),
                }
            }
            if !remembered.was_clean && tasks.len() > of_others {
                tracing::info!(
                    directory = %directory.path.display(),
                    logs = tasks.len() - of_others,
                    "the last stop was not clean: logs are checked from their recovery points on"
                );
            }
        }
        self.remember(&remembered);
        tasks.sort_by_key(|task| !task.remembered.was_clean);
        let report = self.run(&tasks, config_of, report);
        self.is_loaded.store(true, Ordering::Release);
        Ok(report)
    }

    fn remember(&self, remembered: &[Remembered]) {
        let mut high_watermarks = self.shared.high_watermarks.lock();
        high_watermarks.extend(remembered.iter().flat_map(|r| r.high_watermarks.iter().cloned()));
        // With several directories the epoch counts only if all of them were closed with it.
        let epochs: Vec<Option<i64>> = remembered.iter().map(|r| r.broker_epoch).collect();
        let first = epochs.first().copied().flatten();
        let all_agree = epochs.iter().all(|epoch| *epoch == first);
        *self.previous_broker_epoch.lock() = first.filter(|epoch| all_agree && *epoch >= 0);
    }

    fn run(
        &self,
        tasks: &[Task<'_>],
        config_of: &(dyn Fn(&TopicPartition) -> LogConfig + Sync),
        report: LoadReport,
    ) -> LoadReport {
        let next = AtomicUsize::new(0);
        let report = Mutex::new(report);
        let work = || {
            while let Some(task) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.open_one(task, config_of(&task.topic_partition), tasks.len(), &report);
            }
        };
        let threads = self.recovery_threads.min(tasks.len());
        if threads <= 1 {
            work();
        } else {
            std::thread::scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(work);
                }
            });
        }
        let mut report = report.into_inner();
        report.failed.sort_by(|(one, _), (other, _)| one.cmp(other));
        report
    }

    fn open_one(&self, task: &Task<'_>, config: LogConfig, total: usize, report: &Mutex<LoadReport>) {
        let Task { topic_partition, path, directory, remembered } = task;
        let opened = Log::open(
            self.shared.environment.clone(),
            OpenLog {
                topic_partition: topic_partition.clone(),
                directory_id: directory.id,
                dir: path.clone(),
                config,
                log_start_offset: offset_of(&remembered.log_start_offsets, topic_partition),
                recovery_point: offset_of(&remembered.recovery_points, topic_partition),
                cleaned_offset: offset_of(&remembered.cleaned_offsets, topic_partition),
                was_clean: remembered.was_clean,
            },
        );
        let opened = opened.and_then(|opened| {
            let mut logs = self.shared.logs.write();
            if let Some(other) = logs.get(topic_partition) {
                let reason = format!("the partition also stands in {}", other.dir().display());
                return Err(StorageError::corrupt(path, "open", reason));
            }
            logs.insert(topic_partition.clone(), Arc::new(opened.log));
            Ok(opened.recovery)
        });
        let mut report = report.lock();
        match opened {
            Ok(recovery) => {
                report.logs += 1;
                let Some(recovery) = recovery else { return };
                report.recovered_logs += 1;
                report.scanned_bytes += recovery.scanned_bytes;
                report.cut_bytes += recovery.cut_bytes;
                tracing::info!(
                    partition = %topic_partition, bytes = recovery.scanned_bytes, cut_bytes = recovery.cut_bytes,
                    "recovered log {} of {total}", report.logs + report.failed.len()
                );
            }
            Err(error) => {
                tracing::error!(partition = %topic_partition, %error, "the log cannot be opened");
                self.keep_unopened(task, &error);
                report.failed.push((topic_partition.clone(), error));
            }
        }
    }

    fn keep_unopened(&self, task: &Task<'_>, failure: &StorageError) {
        let Task { topic_partition, directory, remembered, .. } = task;
        let unopened = Unopened {
            directory: directory.id,
            failure: failure.clone(),
            recovery_point: offset_of(&remembered.recovery_points, topic_partition),
            log_start_offset: offset_of(&remembered.log_start_offsets, topic_partition),
            high_watermark: offset_of(&remembered.high_watermarks, topic_partition),
            cleaned_offset: offset_of(&remembered.cleaned_offsets, topic_partition),
        };
        self.shared.unopened.lock().insert(topic_partition.clone(), unopened);
    }
}
