//! Mistakes that a simulation makes nodes make, to see that its checks notice.
//!
//! Only a build with debug assertions can make one: in a release build the compiler leaves out what stands behind it.
//! A mistake is made by the thread that it was planted on, so that tests beside each other do not mix.

klamm_storage::planted_bugs! {
    KeepRecreatedLog,
    OverlookTopic,
    BelieveDeafLease,
}

/// Whether a mistake is planted: `planted!(KeepRecreatedLog)`.
pub(crate) use klamm_storage::planted_here as planted;
