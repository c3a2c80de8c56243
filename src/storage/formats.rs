//! Which part of a segment holds format V2 alone.
//!
//! Clients that fetch in flexible versions cannot read the formats V0 and V1, and a segment may hold all three: the
//! topic's `message.format.version` changed, or the folder came from an old Kafka. Nothing in a segment's files says
//! so, and looking at every head on the way out would cost more than sending. So it is remembered where there was
//! nothing old; a log that this process has written is known from its appends.

use std::ops::Range;

use parking_lot::Mutex;

use crate::error::StorageError;
use crate::walk::Walk;

/// The positions of a segment between which all batches are of V2, as far as known.
#[derive(Default)]
pub(crate) struct KnownFormats {
    only_v2: Mutex<Range<u64>>,
}

impl KnownFormats {
    /// Whether a batch of V0 or V1 stands in the part that the walk goes through, also as one that is cut off at its
    /// end. Heads are looked at only where that is not known yet.
    pub(crate) fn is_old_in(&self, mut walk: Walk<'_>, part: Range<u64>) -> Result<bool, StorageError> {
        if self.is_only_v2(&part) {
            return Ok(false);
        }
        loop {
            let position = walk.position();
            match walk.next_whole_head()? {
                Some(found) if found.header.magic < 2 => return Ok(true),
                Some(_) => {}
                None => {
                    self.learn_only_v2(part.start..position);
                    return walk.is_old_at_end();
                }
            }
        }
    }

    fn is_only_v2(&self, part: &Range<u64>) -> bool {
        let known = self.only_v2.lock();
        known.start <= part.start && part.end <= known.end
    }

    /// Notes that the part holds V2 alone. Of two parts with a gap between them the longer one is kept.
    pub(crate) fn learn_only_v2(&self, part: Range<u64>) {
        let mut known = self.only_v2.lock();
        if part.start <= known.end && known.start <= part.end {
            *known = known.start.min(part.start)..known.end.max(part.end);
        } else if part.end - part.start > known.end - known.start {
            *known = part;
        }
    }

    /// Forgets what stands behind a position: it was cut off and may be written anew.
    pub(crate) fn cut(&self, position: u64) {
        let mut known = self.only_v2.lock();
        known.start = known.start.min(position);
        known.end = known.end.min(position);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_joined_and_what_is_cut_is_forgotten() {
        let known = KnownFormats::default();
        assert!(!known.is_only_v2(&(0..10)));
        known.learn_only_v2(0..10);
        known.learn_only_v2(10..30);
        assert!(known.is_only_v2(&(0..30)) && known.is_only_v2(&(5..20)) && !known.is_only_v2(&(5..31)));
        known.learn_only_v2(100..110);
        assert!(known.is_only_v2(&(0..30)), "the longer part is kept");
        known.learn_only_v2(200..300);
        assert!(known.is_only_v2(&(200..300)) && !known.is_only_v2(&(0..30)));
        known.cut(250);
        assert!(known.is_only_v2(&(200..250)) && !known.is_only_v2(&(200..251)));
        known.cut(100);
        assert!(!known.is_only_v2(&(100..101)));
    }
}
