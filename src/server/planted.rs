//! Mistakes that a simulation makes nodes make, to see that its checks notice.
//!
//! Only a build with debug assertions can make one: in a release build the compiler leaves out what stands behind it.
//! A mistake is made by the thread that it was planted on, so that tests beside each other do not mix.

#[cfg(debug_assertions)]
use std::cell::Cell;

/// A mistake.
#[cfg(debug_assertions)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names say all; each is explained where it is made")]
pub enum PlantedBug {
    KeepRecreatedLog,
}

#[cfg(debug_assertions)]
impl PlantedBug {
    /// All of them.
    pub const ALL: &[PlantedBug] = &[PlantedBug::KeepRecreatedLog];
}

#[cfg(debug_assertions)]
thread_local! {
    static PLANTED: Cell<Option<PlantedBug>> = const { Cell::new(None) };
}

/// Has all nodes make a mistake, or none, in what this thread does from now on.
#[cfg(debug_assertions)]
pub fn plant(bug: Option<PlantedBug>) {
    PLANTED.set(bug);
}

#[cfg(debug_assertions)]
pub(crate) fn is_planted(bug: PlantedBug) -> bool {
    PLANTED.get() == Some(bug)
}

/// Whether a mistake is planted: `planted!(KeepRecreatedLog)`.
macro_rules! planted {
    ($bug:ident) => {{
        #[cfg(debug_assertions)]
        let is_planted = $crate::planted::is_planted($crate::planted::PlantedBug::$bug);
        #[cfg(not(debug_assertions))]
        let is_planted = false;
        is_planted
    }};
}
pub(crate) use planted;
