//! What a group's deadlines are for.

use std::sync::Arc;

/// What happens at a deadline. There is at most one deadline for each value.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Timer {
    /// A member, or a member id that was given out, has not been heard of.
    Session { group: Arc<str>, member: Arc<str> },
    /// The time for joining is over.
    Join { group: Arc<str> },
    /// The time for fetching one's assignment is over.
    Sync { group: Arc<str> },
    /// Offsets may have expired.
    CleanUp,
}

impl Timer {
    /// The group that it belongs to; empty for a timer of the whole shard.
    pub(super) fn group(&self) -> &str {
        match self {
            Timer::Session { group, .. } | Timer::Join { group } | Timer::Sync { group } => group,
            Timer::CleanUp => "",
        }
    }
}
