//! Mistakes that tests make the controller make, to see that its checks notice.
//!
//! Only a build with debug assertions can hold one: in a release build [`Planted`] is empty, and the compiler
//! leaves out what stands behind it.

/// A mistake.
#[cfg(debug_assertions)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names say all; each is explained where it is made")]
pub enum PlantedBug {
    ElectFenced,
    ElectOutsideIsr,
    KeepUncleanEligible,
    AcceptStaleBrokerEpoch,
}

/// The mistake that a controller makes, if any.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Planted {
    /// Which one.
    #[cfg(debug_assertions)]
    pub bug: Option<PlantedBug>,
}

// A release build has no place for a mistake.
const _: () = assert!(cfg!(debug_assertions) || size_of::<Planted>() == 0);

/// Whether a mistake is planted: `planted!(context.planted, ElectFenced)`.
macro_rules! planted {
    ($planted:expr, $bug:ident) => {{
        #[cfg(debug_assertions)]
        let is_planted = $planted.bug == Some($crate::planted::PlantedBug::$bug);
        #[cfg(not(debug_assertions))]
        let is_planted = {
            let _ = $planted;
            false
        };
        is_planted
    }};
}
pub(crate) use planted;
