//! One mailbox for each partition of `__consumer_offsets` that this node leads: it loads the partition's
//! groups, serves one request after the other, appends what they ask to write, and answers when that is
//! committed.

mod load;
mod log;
mod mailbox;

pub use log::{LogFault, OffsetsLog, PartitionLog};
pub(crate) use mailbox::{Mailbox, Means, Status};
