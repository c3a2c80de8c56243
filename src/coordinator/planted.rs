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
pub(crate) use klamm_partition::planted_here as planted;
