//! One mailbox for each partition of a coordinator's topic that this node leads: it loads the partition, serves
//! one request after the other, appends what they ask to write, and answers when that is committed.

mod batch;
mod load;
mod log;
mod mailbox;
mod mailboxes;

pub use log::{CoordinatorLog, LogFault, PartitionLog};
pub use mailboxes::Loading;
pub(crate) use mailboxes::Mailboxes;

/// What the configuration says about a runtime.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RuntimeSettings {
    /// Requests that may wait in one mailbox.
    pub(crate) queue_max: i32,
    /// Bytes read at once while a partition is loaded.
    pub(crate) load_bytes: i32,
    /// How long a reply waits for its records to be committed, in milliseconds.
    pub(crate) commit_timeout_ms: i32,
    /// Bytes of records that go into one append.
    pub(crate) append_bytes_max: i32,
}
