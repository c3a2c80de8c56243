//! Mistakes that the nodes of a simulation can be made to make, to see that the checks find them.

/// A mistake.
pub(crate) struct Mistake {
    pub(crate) name: String,
    /// The crate in which it is made.
    pub(crate) place: &'static str,
    plant: Box<dyn Fn(bool)>,
}

impl Mistake {
    /// Has all nodes of this thread make it from now on.
    pub(crate) fn plant(&self) {
        (self.plant)(true);
    }

    /// They make it no longer.
    pub(crate) fn heal(&self) {
        (self.plant)(false);
    }
}

/// Those that this build knows: none without debug assertions.
pub(crate) fn all() -> Vec<Mistake> {
    #[cfg(not(debug_assertions))]
    let all = Vec::new();
    #[cfg(debug_assertions)]
    let all = {
        let partition = klamm_partition::PlantedBug::ALL.iter().map(|bug| Mistake {
            name: format!("{bug:?}"),
            place: "partition",
            plant: Box::new(|is_made| klamm_partition::plant(is_made.then_some(*bug))),
        });
        let metadata = klamm_metadata::PlantedBug::ALL.iter().map(|bug| Mistake {
            name: format!("{bug:?}"),
            place: "metadata",
            plant: Box::new(|is_made| klamm_metadata::plant(is_made.then_some(*bug))),
        });
        let coordinator = klamm_coordinator::PlantedBug::ALL.iter().map(|bug| Mistake {
            name: format!("{bug:?}"),
            place: "coordinator",
            plant: Box::new(|is_made| klamm_coordinator::plant(is_made.then_some(*bug))),
        });
        let server = klamm_server::PlantedBug::ALL.iter().map(|bug| Mistake {
            name: format!("{bug:?}"),
            place: "server",
            plant: Box::new(|is_made| klamm_server::plant(is_made.then_some(*bug))),
        });
        partition.chain(metadata).chain(coordinator).chain(server).collect()
    };
    all
}
