//! Mistakes that tests make replicas make, to see that their checks notice.
//!
//! Only a build with debug assertions can make one: in a release build the compiler leaves out what stands behind it.
//! A mistake is made by the thread that it was planted on, so that tests beside each other do not mix.

klamm_storage::planted_bugs! {
    TruncateToHighWatermark,
    AcknowledgeBelowMinIsr,
    SkipEpochCheck,
    ServeAboveHighWatermark,
    CountUnknownFollower,
    AcknowledgeOnAppend,
    IgnoreFollowers,
    IgnoreSequences,
    TellUnknownEnd,
    JoinBeforeCaughtUp,
    KeepDiverging,
    BeginAtLogEnd,
    ForgetOpenTransactions,
    ForgetAbortedTransactions,
    SkipVerification,
    AcceptEarlierMarker,
}

/// Whether a mistake is planted: `planted!(SkipEpochCheck)`.
pub(crate) use klamm_storage::planted_here as planted;
