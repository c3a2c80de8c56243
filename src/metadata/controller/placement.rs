//! Which brokers get the replicas of new partitions.
//!
//! As in Kafka: replicas are dealt out in turn over the racks, and over the brokers within each rack, so that
//! leaders and replicas spread evenly and no rack gets two replicas before every rack has one. A partition's
//! first replica is on a broker that is not fenced; fenced ones take part after the others, since a topic may
//! be made while a broker restarts.

use std::collections::BTreeMap;

use klamm_io::Random;
use klamm_model::NodeId;

use crate::image::Image;

/// Why replicas cannot be placed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PlacementError {
    /// More replicas are asked for than there are brokers.
    TooFewBrokers { wanted: i16, registered: usize },
    /// No broker could lead.
    AllFenced,
}

/// Deals brokers out, one rack after the other.
pub(super) struct Placer {
    racks: Vec<Rack>,
    registered: usize,
    rack_next: usize,
}

/// The brokers of one rack, each list with its own place in the round.
struct Rack {
    live: Round,
    fenced: Round,
}

struct Round {
    brokers: Vec<NodeId>,
    /// Where the next partition begins in this list.
    start: usize,
}

impl Placer {
    /// A placer over all registered brokers that begins at random places.
    pub(super) fn new(image: &Image, random: &dyn Random) -> Placer {
        let mut by_rack: BTreeMap<Option<&str>, (Vec<NodeId>, Vec<NodeId>)> = BTreeMap::new();
        for broker in image.brokers.values() {
            let (live, fenced) = by_rack.entry(broker.rack.as_deref()).or_default();
            if broker.is_active() { live.push(broker.id) } else { fenced.push(broker.id) }
        }
        let racks: Vec<Rack> = by_rack
            .into_values()
            .map(|(live, fenced)| Rack { live: Round::new(live, random), fenced: Round::new(fenced, random) })
            .collect();
        let rack_next = below(random, racks.len());
        Placer { racks, registered: image.brokers.len(), rack_next }
    }

    /// The replicas of one partition after another; the first of each is the preferred leader.
    pub(super) fn place(
        &mut self,
        partitions: usize,
        factor: i16,
    ) -> Result<Vec<Vec<NodeId>>, PlacementError> {
        if factor as usize > self.registered {
            return Err(PlacementError::TooFewBrokers { wanted: factor, registered: self.registered });
        }
        if self.racks.iter().all(|rack| rack.live.brokers.is_empty()) {
            return Err(PlacementError::AllFenced);
        }
        Ok((0..partitions).map(|_| self.place_one(factor as usize)).collect())
    }

    fn place_one(&mut self, factor: usize) -> Vec<NodeId> {
        let count = self.racks.len();
        // The leader comes from a rack that has a live broker.
        while self.racks[self.rack_next % count].live.brokers.is_empty() {
            self.rack_next += 1;
        }
        let first = self.rack_next % count;
        self.rack_next = first + 1;
        let mut taken = vec![0; count];
        let mut replicas = Vec::with_capacity(factor);
        let mut rack = first;
        while replicas.len() < factor {
            if let Some(broker) = self.racks[rack].nth(taken[rack]) {
                replicas.push(broker);
                taken[rack] += 1;
            }
            rack = (rack + 1) % count;
        }
        for (rack, taken) in self.racks.iter_mut().zip(taken) {
            rack.advance(taken);
        }
        replicas
    }
}

impl Rack {
    /// The brokers of this rack in this partition's order: live ones first.
    fn nth(&self, index: usize) -> Option<NodeId> {
        let live = self.live.brokers.len();
        if index < live { self.live.nth(index) } else { self.fenced.nth(index - live) }
    }

    fn advance(&mut self, taken: usize) {
        self.live.start += usize::from(taken > 0);
        self.fenced.start += usize::from(taken > self.live.brokers.len());
    }
}

impl Round {
    fn new(brokers: Vec<NodeId>, random: &dyn Random) -> Round {
        let start = below(random, brokers.len());
        Round { brokers, start }
    }

    fn nth(&self, index: usize) -> Option<NodeId> {
        (index < self.brokers.len()).then(|| self.brokers[(self.start + index) % self.brokers.len()])
    }
}

fn below(random: &dyn Random, limit: usize) -> usize {
    if limit == 0 { 0 } else { (random.next_u64() % limit as u64) as usize }
}
