//! openraft's state machine: committed batches go into the image, in order, and each new image is published.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use klamm_io::Disk;
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend, RaftSnapshotBuilder};
use tokio::sync::watch;

use super::disk_thread::DiskThread;
use super::{
    Applied, Batch, LogId, Membership, Snapshot, SnapshotMeta, StoredMembership, TypeConfig, snapshot,
};
use crate::apply::apply_to;
use crate::image::Image;
use crate::planted::planted;

/// The file of the snapshot.
pub(crate) const SNAPSHOT_FILE: &str = "snapshot";

/// The image and what it was made from.
pub(crate) struct StateMachine {
    image: Image,
    last_applied: Option<LogId>,
    membership: StoredMembership,
    published: watch::Sender<Arc<Image>>,
    files: SnapshotFiles,
}

#[derive(Clone)]
struct SnapshotFiles {
    disk: Arc<dyn Disk>,
    thread: DiskThread,
    path: PathBuf,
    /// The version of the format that is written, and the highest that is read.
    version: u32,
}

impl StateMachine {
    /// The state of the snapshot in `dir`, or that of an empty cluster. Images go to `published`, where others set
    /// the active controller, which is not replicated. `raised` is what a test adds to the version of the snapshot.
    pub(crate) fn open(
        disk: &Arc<dyn Disk>,
        thread: &DiskThread,
        dir: &Path,
        cluster_id: &str,
        published: watch::Sender<Arc<Image>>,
        raised: u8,
    ) -> io::Result<StateMachine> {
        let files = SnapshotFiles {
            disk: Arc::clone(disk),
            thread: thread.clone(),
            path: dir.join(SNAPSHOT_FILE),
            version: snapshot::VERSION + u32::from(raised),
        };
        let (meta, image) = if disk.exists(&files.path)? {
            let content = disk.read(&files.path)?;
            snapshot::decode(files.version, &content.into(), cluster_id)
                .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", files.path.display())))?
        } else {
            (SnapshotMeta::default(), Image::empty(cluster_id))
        };
        published.send_replace(Arc::new(image.clone()));
        Ok(StateMachine {
            image,
            last_applied: meta.last_log_id,
            membership: meta.last_membership,
            published,
            files,
        })
    }

    fn apply_batch(&mut self, index: u64, batch: &Batch) -> Applied {
        if batch.based_on != self.image.offset {
            return Applied::Stale;
        }
        if planted!(ApplyOutOfOrder) {
            batch.records.iter().rev().for_each(|record| apply_to(&mut self.image, record));
        } else {
            batch.records.iter().for_each(|record| apply_to(&mut self.image, record));
        }
        self.image.offset = index as i64;
        self.publish();
        Applied::Yes
    }

    fn publish(&self) {
        self.published.send_modify(|current| {
            let controller = current.controller;
            *current = Arc::new(Image { controller, ..self.image.clone() });
        });
    }

    fn apply_membership(&mut self, id: LogId, membership: Membership) {
        self.membership = StoredMembership::new(Some(id), membership);
    }
}

impl RaftStateMachine<TypeConfig> for StateMachine {
    type SnapshotData = Bytes;
    type SnapshotBuilder = SnapshotBuilder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        Ok((self.last_applied, self.membership.clone()))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> Result<(), io::Error>
    where
        Strm: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        while let Some(next) = entries.next().await {
            let (entry, responder) = next?;
            let id = entry.log_id;
            let applied = match entry.payload {
                EntryPayload::Blank => Applied::Yes,
                EntryPayload::Normal(batch) => self.apply_batch(id.index, &batch),
                EntryPayload::Membership(membership) => {
                    self.apply_membership(id, membership);
                    Applied::Yes
                }
            };
            self.last_applied = Some(id);
            if let Some(responder) = responder {
                responder.send(applied);
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder {
        SnapshotBuilder {
            image: self.image.clone(),
            meta: SnapshotMeta { last_log_id: self.last_applied, last_membership: self.membership.clone() },
            files: self.files.clone(),
        }
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, content: Bytes) -> Result<(), io::Error> {
        let (_, image) = snapshot::decode(self.files.version, &content, &self.image.cluster_id)?;
        self.files.write(content).await?;
        self.image = image;
        self.last_applied = meta.last_log_id;
        self.membership = meta.last_membership.clone();
        self.publish();
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, io::Error> {
        let (files, cluster_id) = (self.files.clone(), self.image.cluster_id.clone());
        let read = move || {
            if !files.disk.exists(&files.path)? {
                return Ok(None);
            }
            let snapshot = Bytes::from(files.disk.read(&files.path)?);
            let (meta, _) = snapshot::decode(files.version, &snapshot, &cluster_id)?;
            Ok(Some(Snapshot { meta, snapshot }))
        };
        self.files.thread.run(read).await
    }
}

impl SnapshotFiles {
    async fn write(&self, content: Bytes) -> io::Result<()> {
        let files = self.clone();
        self.thread.run_with_space(&self.path, move || files.disk.replace(&files.path, &content)).await
    }
}

/// Writes the image that it holds, while the state machine goes on.
pub(crate) struct SnapshotBuilder {
    image: Image,
    meta: SnapshotMeta,
    files: SnapshotFiles,
}

impl RaftSnapshotBuilder<TypeConfig> for SnapshotBuilder {
    type SnapshotData = Bytes;

    async fn build_snapshot(&mut self) -> Result<Snapshot, io::Error> {
        let content = snapshot::encode(self.files.version, &self.meta, &self.image)?;
        self.files.write(content.clone()).await?;
        Ok(Snapshot { meta: self.meta.clone(), snapshot: content })
    }
}
