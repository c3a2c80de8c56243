//! Which brokers get the replicas of new partitions.
//!
//! As in Kafka: replicas are dealt out in turn over the racks, and over the brokers within each rack, so that
//! leaders and replicas spread evenly and no rack gets two replicas before every rack has one. A partition's
//! first replica is on a broker that is not fenced; fenced ones take part after the others, since a topic may
//! be made while a broker restarts. After each round, in which every live broker could lead once, the racks and
//! their brokers are put into another order: else the partitions of a broker would all have the same second replica, and
//! it alone would take them over.

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
pub(super) struct Placer<'a> {
    random: &'a dyn Random,
    racks: Vec<Rack>,
    registered: usize,
    rack_next: usize,
    /// How many partitions are left of this round.
    left: usize,
}

/// The brokers of one rack: an order for each round, and how far it has come.
struct Rack {
    live: Vec<NodeId>,
    fenced: Vec<NodeId>,
    led: usize,
    followed: usize,
}

impl<'a> Placer<'a> {
    /// A placer over all registered brokers that begins at random places.
    pub(super) fn new(image: &Image, random: &'a dyn Random) -> Placer<'a> {
        let mut by_rack: BTreeMap<Option<&str>, Rack> = BTreeMap::new();
        for broker in image.brokers.values() {
            let rack = by_rack.entry(broker.rack.as_deref()).or_insert(Rack {
                live: Vec::new(),
                fenced: Vec::new(),
                led: 0,
                followed: 0,
            });
            if broker.is_active() { rack.live.push(broker.id) } else { rack.fenced.push(broker.id) }
        }
        let racks: Vec<Rack> = by_rack.into_values().collect();
        let rack_next = below(random, racks.len());
        Placer { random, racks, registered: image.brokers.len(), rack_next, left: 0 }
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
        if self.racks.iter().all(|rack| rack.live.is_empty()) {
            return Err(PlacementError::AllFenced);
        }
        Ok((0..partitions).map(|_| self.place_one(factor as usize)).collect())
    }

    fn place_one(&mut self, factor: usize) -> Vec<NodeId> {
        if self.left == 0 {
            shuffle(&mut self.racks, self.random);
            self.racks.iter_mut().for_each(|rack| rack.begin_round(self.random));
            self.left = self.racks.iter().map(|rack| rack.live.len()).sum();
        }
        self.left -= 1;
        let count = self.racks.len();
        // The leader comes from a rack that has a live broker.
        while self.racks[self.rack_next % count].live.is_empty() {
            self.rack_next += 1;
        }
        let first = self.rack_next % count;
        self.rack_next = first + 1;
        let mut taken = vec![0; count];
        let mut replicas = Vec::with_capacity(factor);
        let mut rack = first;
        while replicas.len() < factor {
            if let Some(broker) = self.racks[rack].nth(rack == first, taken[rack]) {
                replicas.push(broker);
                taken[rack] += 1;
            }
            rack = (rack + 1) % count;
        }
        for (index, rack) in self.racks.iter_mut().enumerate().filter(|(index, _)| taken[*index] > 0) {
            if index == first { rack.led += 1 } else { rack.followed += 1 }
        }
        replicas
    }
}

impl Rack {
    fn begin_round(&mut self, random: &dyn Random) {
        shuffle(&mut self.live, random);
        shuffle(&mut self.fenced, random);
        (self.led, self.followed) = (0, 0);
    }

    /// The brokers of this rack in the order of a partition that it leads, or not: live ones first.
    fn nth(&self, leads: bool, index: usize) -> Option<NodeId> {
        let start = if leads { self.led } else { self.followed };
        let turned = |list: &[NodeId], index: usize| list.get((start + index) % list.len().max(1)).copied();
        match index.checked_sub(self.live.len()) {
            None => turned(&self.live, index),
            Some(index) if index < self.fenced.len() => turned(&self.fenced, index),
            Some(_) => None,
        }
    }
}

fn shuffle<T>(list: &mut [T], random: &dyn Random) {
    (1..list.len()).for_each(|last| list.swap(last, below(random, last + 1)));
}

fn below(random: &dyn Random, limit: usize) -> usize {
    if limit == 0 { 0 } else { (random.next_u64() % limit as u64) as usize }
}
