//! Arbitrary messages of every version from a seed, for tests: what a version can hold, so that a message comes
//! back equal from its own encoding.

use bytes::Bytes;
use klamm_model::Uuid;

use crate::{Fields, RecordsField};

/// Something that can be made up.
pub trait Arbitrary: Sized {
    /// A value that this version of its message can carry.
    fn arbitrary(source: &mut Source, version: i16) -> Self;
}

/// Where arbitrary values come from: the same seed gives the same values.
#[derive(Debug, Clone)]
pub struct Source {
    state: u64,
    /// How many elements may still be made, so that deep messages stay small.
    elements: usize,
}

impl Source {
    /// Begins at this seed.
    pub fn new(seed: u64) -> Source {
        Source { state: seed, elements: 64 }
    }

    /// The next 64 bits (splitmix64).
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below this one.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.bits() % limit.max(1)
    }

    pub(crate) fn any<T: Arbitrary>(&mut self, version: i16) -> T {
        T::arbitrary(self, version)
    }

    pub(crate) fn maybe<T: Arbitrary>(&mut self, version: i16, null: bool) -> Option<T> {
        if null && self.below(3) == 0 { None } else { Some(self.any(version)) }
    }

    pub(crate) fn list<T: Arbitrary>(&mut self, version: i16) -> Vec<T> {
        let count = (self.below(4) as usize).min(self.elements);
        self.elements -= count;
        (0..count).map(|_| self.any(version)).collect()
    }

    pub(crate) fn maybe_list<T: Arbitrary>(&mut self, version: i16, null: bool) -> Option<Vec<T>> {
        if null && self.below(3) == 0 { None } else { Some(self.list(version)) }
    }
}

/// A message of this version from a seed.
pub fn message<T: Fields + Arbitrary>(seed: u64, version: i16) -> T {
    T::arbitrary(&mut Source::new(seed), version)
}

impl Arbitrary for bool {
    fn arbitrary(source: &mut Source, _version: i16) -> bool {
        source.below(2) == 1
    }
}

macro_rules! integers {
    ($($kind:ident)*) => {$(
        impl Arbitrary for $kind {
            fn arbitrary(source: &mut Source, _version: i16) -> $kind {
                // Small numbers, the edges and anything, since each breaks something else.
                match source.below(6) {
                    0 => 0,
                    1 => $kind::MAX,
                    2 => $kind::MIN,
                    3 | 4 => source.below(100) as $kind,
                    _ => source.bits() as $kind,
                }
            }
        }
    )*};
}

integers!(i8 i16 u16 i32 i64);

impl Arbitrary for f64 {
    fn arbitrary(source: &mut Source, _version: i16) -> f64 {
        source.bits() as i32 as f64 / 64.0
    }
}

impl Arbitrary for Uuid {
    fn arbitrary(source: &mut Source, _version: i16) -> Uuid {
        if source.below(4) == 0 {
            return Uuid::ZERO;
        }
        Uuid((u128::from(source.bits()) << 64 | u128::from(source.bits())).to_be_bytes())
    }
}

impl Arbitrary for String {
    fn arbitrary(source: &mut Source, _version: i16) -> String {
        // 200 letters do not fit into one byte of compact length.
        let length = if source.below(16) == 0 { 200 } else { source.below(9) };
        (0..length).map(|_| ['a', 'Z', '0', '-', '"', 'ö', '好', '🦀'][source.below(8) as usize]).collect()
    }
}

impl Arbitrary for Bytes {
    fn arbitrary(source: &mut Source, _version: i16) -> Bytes {
        // 5,000 bytes become a chunk of their own.
        let length = if source.below(16) == 0 { 5_000 } else { source.below(40) };
        (0..length).map(|_| source.bits() as u8).collect()
    }
}

impl Arbitrary for RecordsField {
    fn arbitrary(source: &mut Source, version: i16) -> RecordsField {
        RecordsField::Bytes(Bytes::arbitrary(source, version))
    }
}

include!(concat!(env!("OUT_DIR"), "/arbitrary.rs"));
