//! From the hash of a key to the slot where it was found last.
//!
//! Unlike a hash table this may forget what it learned, and what it says must be compared with what stands in the slot.
//! In return each question looks at one set of [`WAYS`] places, whatever hashes there are: names that somebody chose
//! so that they collide make it useless, and nothing slower than that.

/// A place among entries.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Slot(u32);

impl Slot {
    /// Of no entry.
    const NONE: Slot = Slot(u32::MAX);

    /// Of the last of some entries, of which there are fewer than 2³²: memory ends before.
    pub(super) fn last_of<T>(entries: &[T]) -> Slot {
        Slot(u32::try_from(entries.len() - 1).expect("fewer entries than memory has room for"))
    }

    /// Of all entries in turn.
    pub(super) fn all() -> impl Iterator<Item = Slot> {
        (0..Slot::NONE.0).map(Slot)
    }

    /// The one behind it.
    pub(super) fn next(self) -> Slot {
        Slot(self.0.wrapping_add(1))
    }

    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

/// Places that a hash may be at: as many as a line of the processor's cache holds.
const WAYS: usize = 8;

/// No more sets than that, 8 MiB: to learn all anew takes no longer than a tenth of a second.
const SETS_MAX: usize = 1 << 17;

/// Which slots belong to a hash.
#[derive(Default)]
pub(super) struct Shortcuts {
    /// None, or a power of two of them.
    sets: Vec<Set>,
}

#[derive(Clone)]
#[repr(align(64))]
struct Set([Shortcut; WAYS]);

#[derive(Clone, Copy, PartialEq, Eq)]
struct Shortcut {
    /// The half of the hash that does not tell the set.
    tag: u32,
    slot: Slot,
}

impl Shortcut {
    const NONE: Shortcut = Shortcut { tag: 0, slot: Slot::NONE };
}

impl Shortcuts {
    /// Slots in which the key of a hash may be.
    #[inline]
    pub(super) fn of(&self, hash: u64) -> impl Iterator<Item = Slot> {
        let (set, tag) = self.place(hash);
        let set = self.sets.get(set).map_or(&[][..], |set| &set.0);
        let found = set.iter().filter(move |shortcut| shortcut.tag == tag && shortcut.slot != Slot::NONE);
        found.map(|shortcut| shortcut.slot)
    }

    /// Remembers the slot of a hash, if need be in place of another.
    pub(super) fn learn(&mut self, hash: u64, slot: Slot) {
        let (set, tag) = self.place(hash);
        let Some(Set(set)) = self.sets.get_mut(set) else { return };
        let free = set.iter().position(|shortcut| *shortcut == Shortcut::NONE);
        set[free.unwrap_or(tag as usize % WAYS)] = Shortcut { tag, slot };
    }

    /// The slot is not that of the hash any more.
    pub(super) fn forget(&mut self, hash: u64, slot: Slot) {
        let (set, tag) = self.place(hash);
        let Some(Set(set)) = self.sets.get_mut(set) else { return };
        for shortcut in set.iter_mut().filter(|shortcut| **shortcut == Shortcut { tag, slot }) {
            *shortcut = Shortcut::NONE;
        }
    }

    /// Makes room for so many entries, so that half of it is free. If it returns true, it has forgotten all.
    pub(super) fn grow_for(&mut self, entries: usize) -> bool {
        let wanted = (2 * entries / WAYS).next_power_of_two().min(SETS_MAX);
        if wanted <= self.sets.len() {
            return false;
        }
        self.sets.clear();
        self.sets.resize(wanted, Set([Shortcut::NONE; WAYS]));
        true
    }

    /// Set and tag.
    #[inline]
    fn place(&self, hash: u64) -> (usize, u32) {
        (hash as usize & self.sets.len().saturating_sub(1), (hash >> 32) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever chooses names whose hashes are equal must not make anybody look through all of them.
    #[test]
    fn a_hash_leads_to_few_slots_however_many_have_it() {
        let mut shortcuts = Shortcuts::default();
        assert!(shortcuts.grow_for(1000));
        let hash = 0x1234_5678_9abc_def0;
        Slot::all().take(1000).for_each(|slot| shortcuts.learn(hash, slot));
        assert_eq!(shortcuts.of(hash).count(), WAYS);
        assert!(shortcuts.of(hash).any(|slot| slot.index() == 999), "the last one is remembered");
    }

    /// With no more entries than room was made for, next to all are remembered.
    #[test]
    fn what_there_is_room_for_is_remembered() {
        let mut shortcuts = Shortcuts::default();
        assert!(shortcuts.grow_for(100_000) && !shortcuts.grow_for(100_000));
        // The increments of the golden ratio spread evenly and yet not regularly once multiplied.
        let hash = |slot: Slot| (slot.index() as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        Slot::all().take(100_000).for_each(|slot| shortcuts.learn(hash(slot), slot));
        let found =
            Slot::all().take(100_000).filter(|slot| shortcuts.of(hash(*slot)).any(|found| found == *slot));
        assert!(found.count() > 98_000);
    }

    #[test]
    fn what_is_forgotten_leads_nowhere() {
        let mut shortcuts = Shortcuts::default();
        shortcuts.grow_for(10);
        let mut slots = Slot::all();
        let (one, other) = (slots.next().expect("a slot"), slots.next().expect("a slot"));
        shortcuts.learn(7, one);
        shortcuts.learn(7, other);
        shortcuts.forget(7, one);
        assert_eq!(shortcuts.of(7).collect::<Vec<_>>(), [other]);
    }
}
