//! Offsets whose place in a file is known without asking the index.
//!
//! A consumer at the end of a log asks next for what its last read ended at, and the high watermark nearly
//! always stands where some append ended. So the last few such places are remembered.

use klamm_model::Offset;
use parking_lot::Mutex;

/// How many ends of appends, and as many ends of reads, are remembered.
const REMEMBERED: usize = 32;

/// At `position` of the segment the batch begins, or will begin, whose first offset is `offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) offset: Offset,
    pub(crate) segment: Offset,
    pub(crate) position: u64,
}

#[derive(Default)]
pub(crate) struct Positions {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Changes with each truncation, after which earlier knowledge is void.
    generation: u64,
    appends: Ring,
    reads: Ring,
}

#[derive(Default)]
struct Ring {
    places: Vec<Place>,
    next: usize,
}

impl Ring {
    fn add(&mut self, place: Place) {
        if self.places.len() < REMEMBERED {
            self.places.push(place);
        } else {
            self.places[self.next] = place;
            self.next = (self.next + 1) % REMEMBERED;
        }
    }

    fn find(&self, offset: Offset, segment: Offset) -> Option<u64> {
        let found = self.places.iter().find(|place| place.offset == offset && place.segment == segment);
        found.map(|place| place.position)
    }
}

impl Positions {
    /// A read begins: what it learns counts only if no truncation comes between.
    pub(crate) fn generation(&self) -> u64 {
        self.inner.lock().generation
    }

    pub(crate) fn add_append(&self, place: Place) {
        self.inner.lock().appends.add(place);
    }

    pub(crate) fn add_read(&self, place: Place, generation: u64) {
        let mut inner = self.inner.lock();
        if inner.generation == generation && inner.reads.find(place.offset, place.segment).is_none() {
            inner.reads.add(place);
        }
    }

    pub(crate) fn find(&self, offset: Offset, segment: Offset) -> Option<u64> {
        let inner = self.inner.lock();
        inner.appends.find(offset, segment).or_else(|| inner.reads.find(offset, segment))
    }

    pub(crate) fn clear(&self) {
        let mut inner = self.inner.lock();
        *inner = Inner { generation: inner.generation + 1, ..Inner::default() };
    }
}
