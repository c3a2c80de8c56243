//! Mistakes that tests make the controller make, to see that its checks notice.
//!
//! Only a build with debug assertions can hold one: in a release build [`Planted`] is empty, and the compiler
//! leaves out what stands behind it.

klamm_storage::planted_bugs! {
    ElectFenced,
    ElectOutsideIsr,
    KeepUncleanEligible,
    AcceptStaleBrokerEpoch,
    AcceptOldPartitionEpoch,
    ElectWithoutNewEpoch,
    ApplyOutOfOrder,
    ForgetVoteSync,
    ForgetLogSync,
}

/// The mistake that a controller makes, if any.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Planted {
    /// Which one.
    #[cfg(debug_assertions)]
    pub bug: Option<PlantedBug>,
}

impl Default for Planted {
    /// What is planted on this thread.
    fn default() -> Planted {
        Planted {
            #[cfg(debug_assertions)]
            bug: PLANTED.get(),
        }
    }
}

// A release build has no place for a mistake.
const _: () = assert!(cfg!(debug_assertions) || size_of::<Planted>() == 0);

/// Whether a mistake is planted: `planted!(context.planted, ElectFenced)` in what a controller decides, which is a
/// function of what it is given; `planted!(ForgetVoteSync)` elsewhere, on this thread.
macro_rules! planted {
    ($bug:ident) => {{
        #[cfg(debug_assertions)]
        let is_planted = $crate::planted::is_planted($crate::planted::PlantedBug::$bug);
        #[cfg(not(debug_assertions))]
        let is_planted = false;
        is_planted
    }};
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
