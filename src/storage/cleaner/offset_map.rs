//! The offset at which each key stands last, in bounded memory: keys are told apart by their hash alone.

use klamm_model::Offset;

use super::hash::hash_128;

/// Two words of hash, and the offset plus one; 0 there is an empty slot.
type Slot = [u64; 3];

/// Bytes that a key takes, however long it is.
const SLOT_BYTES: u64 = size_of::<Slot>() as u64;

/// The last offset of each key of a part of a log.
pub(super) struct OffsetMap {
    slots: Vec<Slot>,
    used: usize,
    used_max: usize,
    hash_key: [u64; 2],
    /// Everything up to here is in the map; -1 at first.
    latest_offset: Offset,
}

impl OffsetMap {
    /// A map for at most so many keys. It takes no more than `bytes_max` of memory, of which the share
    /// `load_factor` gets used, and so may take fewer keys, but always one.
    pub(super) fn new(keys_max: u64, bytes_max: u64, load_factor: f64, hash_key: [u64; 2]) -> OffsetMap {
        let load_factor = if load_factor > 0.0 { load_factor.min(1.0) } else { 0.9 };
        // One slot always stays empty, so that a search ends.
        let wanted = (keys_max as f64 / load_factor) as u64 + 2;
        let slots = wanted.min(bytes_max / SLOT_BYTES).max(2);
        let used_max = ((slots as f64 * load_factor) as usize).clamp(1, slots as usize - 1);
        OffsetMap { slots: vec![[0; 3]; slots as usize], used: 0, used_max, hash_key, latest_offset: -1 }
    }

    /// Notes that a key stands at an offset, which must be above all before. Returns whether there was room.
    pub(super) fn put(&mut self, key: &[u8], offset: Offset) -> bool {
        // Asked before the look-up, as Kafka does: when the map is full the round ends, also at a known key.
        if self.used >= self.used_max {
            return false;
        }
        let (index, is_new) = self.find(key);
        let [first, second] = hash_128(self.hash_key, key);
        self.slots[index] = [first, second, (offset as u64).wrapping_add(1)];
        self.used += usize::from(is_new);
        self.latest_offset = offset;
        true
    }

    /// The last offset of a key; `None` if it is not in the part of the log that was looked at.
    pub(super) fn get(&self, key: &[u8]) -> Option<Offset> {
        let (index, is_empty) = self.find(key);
        (!is_empty).then(|| self.slots[index][2].wrapping_sub(1) as Offset)
    }

    /// The slot of a key, and whether it is empty.
    fn find(&self, key: &[u8]) -> (usize, bool) {
        let [first, second] = hash_128(self.hash_key, key);
        let count = self.slots.len();
        let mut index = ((u128::from(first) * count as u128) >> 64) as usize;
        loop {
            let [slot_first, slot_second, offset] = self.slots[index];
            if offset == 0 || (slot_first, slot_second) == (first, second) {
                return (index, offset == 0);
            }
            index = if index + 1 == count { 0 } else { index + 1 };
        }
    }

    /// Says that everything up to an offset was looked at.
    pub(super) fn advance_to(&mut self, offset: Offset) {
        self.latest_offset = self.latest_offset.max(offset);
    }

    /// Up to where the map knows the log.
    pub(super) fn latest_offset(&self) -> Offset {
        self.latest_offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_has_its_last_offset() {
        let mut map = OffsetMap::new(1000, 1 << 20, 0.9, [1, 2]);
        for offset in 0..1000i64 {
            assert!(map.put(format!("key-{}", offset % 300).as_bytes(), offset));
        }
        for key in 0..300i64 {
            let last = (0..1000).rfind(|offset| offset % 300 == key);
            assert_eq!(map.get(format!("key-{key}").as_bytes()), last);
        }
        assert_eq!(map.get(b"key-300"), None);
        assert_eq!(map.latest_offset(), 999);
    }

    /// The bound on memory is the point of the map: it takes what fits, says so, and keeps what it has.
    #[test]
    fn a_full_map_takes_no_more() {
        let mut map = OffsetMap::new(u64::MAX >> 20, 100 * SLOT_BYTES, 0.9, [1, 2]);
        assert_eq!(map.slots.len(), 100);
        let taken = (0..1000i64).take_while(|offset| map.put(&offset.to_be_bytes(), *offset)).count();
        assert_eq!(taken, 90);
        assert_eq!((map.get(&89i64.to_be_bytes()), map.get(&90i64.to_be_bytes())), (Some(89), None));
        assert_eq!(map.latest_offset(), 89);
    }

    /// A buffer of no size at all must not keep a log from being compacted for ever.
    #[test]
    fn the_smallest_map_takes_one_key() {
        let mut map = OffsetMap::new(0, 0, f64::NAN, [1, 2]);
        assert!(map.put(b"a", 0));
        assert!(!map.put(b"b", 1));
        assert_eq!((map.get(b"a"), map.get(b"b")), (Some(0), None));
    }
}
