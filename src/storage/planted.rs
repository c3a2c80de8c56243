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

/// Declares `PlantedBug` with these mistakes and `ALL` of them, `plant` and `is_planted`, for a module `planted`. They are
/// there only in a build with debug assertions; a mistake is made by the thread that it was planted on, so that tests
/// beside each other do not mix.
#[macro_export]
macro_rules! planted_bugs {
    ($($bug:ident),+ $(,)?) => {
        /// A mistake.
        #[cfg(debug_assertions)]
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[allow(missing_docs, reason = "the names say all; each is explained where it is made")]
        pub enum PlantedBug {
            $($bug),+
        }

        #[cfg(debug_assertions)]
        impl PlantedBug {
            /// All of them.
            pub const ALL: &[PlantedBug] = &[$(PlantedBug::$bug),+];
        }

        #[cfg(debug_assertions)]
        thread_local! {
            static PLANTED: std::cell::Cell<Option<PlantedBug>> = const { std::cell::Cell::new(None) };
        }

        /// Has this crate make a mistake, or none, in what this thread calls and starts from now on.
        #[cfg(debug_assertions)]
        pub fn plant(bug: Option<PlantedBug>) {
            PLANTED.set(bug);
        }

        #[cfg(debug_assertions)]
        pub(crate) fn is_planted(bug: PlantedBug) -> bool {
            PLANTED.get() == Some(bug)
        }
    };
}

/// Whether a mistake of the crate that asks is planted: one of those that it has listed with [`planted_bugs!`] in its
/// module `planted`. In a release build none is, and the compiler leaves out what stands behind it.
#[macro_export]
#[allow(clippy::crate_in_macro_def, reason = "each crate has mistakes of its own")]
macro_rules! planted_here {
    ($bug:ident) => {{
        #[cfg(debug_assertions)]
        let is_planted = crate::planted::is_planted(crate::planted::PlantedBug::$bug);
        #[cfg(not(debug_assertions))]
        let is_planted = false;
        is_planted
    }};
}
