//! Mistakes that a simulation makes coordinators make, to see that its checks notice.
//!
//! Only a build with debug assertions can make one: in a release build the compiler leaves out what stands behind it.
//! A mistake is made by the thread that it was planted on, so that tests beside each other do not mix.

klamm_partition::planted_bugs! {
    AcceptOldGeneration,
    ReplyBeforeCommitted,
    LoadHalf,
    ForgetMarker,
    KeepProducerEpoch,
    ExpireLiveOffsets,
}

/// Whether a mistake is planted: `planted!(LoadHalf)`.
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
