//! At which offset each leader's epoch began, in memory and in `leader-epoch-checkpoint` (KIP-101).

use klamm_model::{LeaderEpoch, Offset};

/// The name of the file in a partition's folder.
pub(crate) const FILE_NAME: &str = "leader-epoch-checkpoint";

/// The epochs of one log. Both epochs and offsets rise from entry to entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeaderEpochs {
    entries: Vec<EpochEntry>,
}

/// One epoch and the offset of its first record, or of the one that would be it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochEntry {
    /// The epoch.
    pub epoch: LeaderEpoch,
    /// Where it begins.
    pub start_offset: Offset,
}

impl LeaderEpochs {
    pub(crate) fn entries(&self) -> &[EpochEntry] {
        &self.entries
    }

    pub(crate) fn latest(&self) -> Option<EpochEntry> {
        self.entries.last().copied()
    }

    /// Notes that an epoch begins at an offset. Entries that contradict it go, as they come from a leader that
    /// never was heard of again. Returns whether anything changed.
    pub(crate) fn assign(&mut self, epoch: LeaderEpoch, start_offset: Offset) -> bool {
        if epoch.0 < 0 || start_offset < 0 {
            return false;
        }
        if let Some(latest) = self.latest()
            && latest.epoch == epoch
            && latest.start_offset <= start_offset
        {
            return false;
        }
        let kept =
            self.entries.iter().take_while(|entry| entry.epoch < epoch && entry.start_offset < start_offset);
        self.entries.truncate(kept.count());
        self.entries.push(EpochEntry { epoch, start_offset });
        true
    }

    /// The answer to OffsetForLeaderEpoch: the largest known epoch that is not above the one asked for, and
    /// where it ends. `None` stands for the undefined epoch and offset.
    pub(crate) fn end_offset_for(
        &self,
        epoch: LeaderEpoch,
        log_end_offset: Offset,
    ) -> Option<(LeaderEpoch, Offset)> {
        let latest = self.latest()?;
        if epoch == LeaderEpoch::NONE {
            return None;
        }
        if epoch == latest.epoch {
            return Some((epoch, log_end_offset));
        }
        let above = self.entries.partition_point(|entry| entry.epoch <= epoch);
        // Above all that is known: the asker knows more than this replica.
        let higher = self.entries.get(above)?;
        let floor = above.checked_sub(1).map_or(epoch, |index| self.entries[index].epoch);
        Some((floor, higher.start_offset))
    }

    /// The epoch to which an offset belongs.
    pub(crate) fn epoch_of(&self, offset: Offset) -> Option<LeaderEpoch> {
        let above = self.entries.partition_point(|entry| entry.start_offset <= offset);
        above.checked_sub(1).map(|index| self.entries[index].epoch)
    }

    /// Forgets epochs that begin at or behind the new end. Returns whether anything changed.
    pub(crate) fn truncate_from_end(&mut self, end_offset: Offset) -> bool {
        let before = self.entries.len();
        while self.latest().is_some_and(|entry| entry.start_offset >= end_offset) {
            self.entries.pop();
        }
        self.entries.len() != before
    }

    /// Forgets epochs that end before the new start; the one that holds it begins there now.
    pub(crate) fn truncate_from_start(&mut self, start_offset: Offset) -> bool {
        let below = self.entries.partition_point(|entry| entry.start_offset <= start_offset);
        let Some(last_below) = below.checked_sub(1) else { return false };
        if last_below == 0 && self.entries[0].start_offset == start_offset {
            return false;
        }
        self.entries.drain(..last_below);
        self.entries[0].start_offset = start_offset;
        true
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epochs(entries: &[(i32, Offset)]) -> LeaderEpochs {
        let mut epochs = LeaderEpochs::default();
        for (epoch, start_offset) in entries {
            epochs.assign(LeaderEpoch(*epoch), *start_offset);
        }
        epochs
    }

    fn listed(epochs: &LeaderEpochs) -> Vec<(i32, Offset)> {
        epochs.entries().iter().map(|entry| (entry.epoch.0, entry.start_offset)).collect()
    }

    #[test]
    fn a_new_epoch_removes_what_contradicts_it() {
        assert_eq!(listed(&epochs(&[(0, 0), (1, 5), (1, 9)])), [(0, 0), (1, 5)]);
        assert_eq!(listed(&epochs(&[(0, 0), (2, 5), (3, 5)])), [(0, 0), (3, 5)]);
        assert_eq!(listed(&epochs(&[(0, 0), (2, 5), (3, 9), (1, 7)])), [(0, 0), (1, 7)]);
        assert_eq!(listed(&epochs(&[(2, 6), (2, 4)])), [(2, 4)]);
        assert_eq!(listed(&epochs(&[(-1, 6)])), []);
    }

    /// The table of KIP-101 and KIP-279: epochs 2 (from 10), 4 (from 20) and 5 (from 30), log end 40.
    #[test]
    fn the_end_of_an_epoch_is_where_the_next_one_begins() {
        let epochs = epochs(&[(2, 10), (4, 20), (5, 30)]);
        let end = |epoch| epochs.end_offset_for(LeaderEpoch(epoch), 40).map(|(e, offset)| (e.0, offset));
        assert_eq!(end(1), Some((1, 10)));
        assert_eq!(end(2), Some((2, 20)));
        assert_eq!(end(3), Some((2, 20)));
        assert_eq!(end(4), Some((4, 30)));
        assert_eq!(end(5), Some((5, 40)));
        assert_eq!(end(6), None);
        assert_eq!(end(-1), None);
        assert_eq!(LeaderEpochs::default().end_offset_for(LeaderEpoch(0), 40), None);
    }

    #[test]
    fn both_ends_can_be_cut() {
        let mut all = epochs(&[(2, 10), (4, 20), (5, 30)]);
        assert!(all.truncate_from_end(30));
        assert_eq!(listed(&all), [(2, 10), (4, 20)]);
        assert!(!all.truncate_from_end(21));
        assert!(!all.truncate_from_start(5));
        assert!(all.truncate_from_start(15));
        assert_eq!(listed(&all), [(2, 15), (4, 20)]);
        assert!(all.truncate_from_start(20));
        assert_eq!(listed(&all), [(4, 20)]);
        assert!(!all.truncate_from_start(20));
        assert_eq!(all.epoch_of(19), None);
        assert_eq!(all.epoch_of(25), Some(LeaderEpoch(4)));
    }
}
