//! Mistakes that tests make the store make, to see that the crash tests notice.
//!
//! Only a build with debug assertions can hold one: in a release build [`Planted`] is empty, and the compiler
//! leaves out what stands behind it.

/// A mistake.
#[cfg(debug_assertions)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names say all; each is explained where it is made")]
pub enum PlantedBug {
    DropSegmentSync,
    SkipNameSync,
    RecoveryPointAhead,
    IndexBeforeLog,
    ReuseOffset,
    SkipProducerSnapshot,
    SkipEpochSync,
    TruncateWithoutSync,
    CleanMarkFirst,
    ForgetLogStart,
    DeleteWithoutSync,
    SwallowFailedSync,
    SwapBeforeClean,
    AcknowledgeBeforeSync,
    SwapBeforeSync,
    SwapWithoutMark,
}

/// The mistake that this process makes, if any.
#[derive(Clone, Copy, Default)]
pub(crate) struct Planted {
    #[cfg(debug_assertions)]
    pub(crate) bug: Option<PlantedBug>,
}

// A release build has no place for a mistake.
const _: () = assert!(cfg!(debug_assertions) || size_of::<Planted>() == 0);

/// Whether a mistake is planted: `planted!(environment, DropSegmentSync)`.
macro_rules! planted {
    ($environment:expr, $bug:ident) => {{
        #[cfg(debug_assertions)]
        let is_planted = $environment.planted.bug == Some($crate::planted::PlantedBug::$bug);
        #[cfg(not(debug_assertions))]
        let is_planted = false;
        is_planted
    }};
}
pub(crate) use planted;
