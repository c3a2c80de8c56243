//! How sure this broker may be that it still leads what it leads.
//!
//! What is written is safe whoever believes to lead: it is acknowledged only when the replicas have it. What is only
//! read is not: a broker that was cut off, or stood still for longer than its session, has been fenced, and others have gone
//! on without it, which it does not know yet. Consumers see nothing wrong in its logs, which end earlier. But the offsets of a
//! group that it would tell are older than those that its successor has committed.
//!
//! So it counts from each heartbeat that the controller took: until a session later (`broker.session.timeout.ms`, which
//! brokers and controllers have to agree on) nobody is elected in its place because it is silent. Where the controllers
//! are silent that time passes, though the brokers work on; then the followers' fetches tell.
//!
//! Others are elected for more reasons than silence: its disk is full, an admin moves a partition. Of that it hears from its
//! metadata log. Where its disk keeps that log from being written there is no lease, nor one from before that time after it;
//! nor is there one for a partition whose records find no room, which it gives away itself.
//!
//! This is no proof. After a wait for space a heartbeat may be taken before all is there that was missed meanwhile, and a write
//! that takes long without waiting for space is noticed only in the thread that syncs. A broker that stands still while it is
//! unregistered, or while its partitions are reassigned, may answer once from what it had, before it hears of that.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use klamm_partition::Partition;
use parking_lot::Mutex;

use crate::context::Context;
use crate::directory_assignments::lacks_space;
use crate::planted::planted;

/// How long it waits before it looks at the followers again.
const PAUSE: Duration = Duration::from_millis(25);

/// The last one that the controller took.
#[derive(Clone, Copy, Default)]
struct Heartbeat {
    /// Until when the session goes on, in ms of the monotonic clock.
    until_ms: u64,
    /// What [`klamm_metadata::MetadataNode::hears`] said when it was sent.
    heard: Option<u64>,
}

/// Until when no other broker is elected in this one's place.
#[derive(Default)]
pub(crate) struct Lease {
    heartbeat: Mutex<Heartbeat>,
    /// Whether this broker gives away what it leads. It gets no lease any more.
    is_leaving: AtomicBool,
}

impl Lease {
    /// The controller took a heartbeat that was sent at this time, when this node heard of changes like this
    /// ([`klamm_metadata::MetadataNode::hears`]), and the session goes on for that long from then, at least.
    pub(crate) fn renew(&self, sent_ms: u64, heard: Option<u64>, session_ms: u64) {
        *self.heartbeat.lock() = Heartbeat { until_ms: sent_ms.saturating_add(session_ms), heard };
    }

    /// This broker is about to give away what it leads.
    pub(crate) fn leave(&self) {
        self.is_leaving.store(true, Ordering::Release);
    }

    /// The controller has fenced this broker.
    pub(crate) fn end(&self) {
        *self.heartbeat.lock() = Heartbeat::default();
    }

    /// Whether this broker was the leader of all that it led, up to now.
    pub(crate) fn holds(&self, context: &Context) -> bool {
        let last = *self.heartbeat.lock();
        let hears = context.metadata.hears();
        let has_heard = (hears.is_some() && hears == last.heard) || planted!(BelieveDeafLease);
        has_heard && context.clock.monotonic_ms() < last.until_ms && !self.is_leaving.load(Ordering::Acquire)
    }
}

/// Whether the newest image of this node has it as the leader, which the partition may not have followed yet.
fn is_leader_in_image(context: &Context, partition: &Partition) -> bool {
    let image = context.image();
    let state = image
        .topic(partition.topic_id())
        .and_then(|topic| topic.partition(partition.topic_partition().partition));
    state.is_some_and(|state| {
        state.leader == Some(context.node_id) && state.leader_epoch == partition.leader_epoch()
    })
}

/// Whether nobody else led a partition at `time`, though this broker believed to lead it. Without a lease it waits for the
/// replicas in sync to fetch, as long as those that have nothing to fetch take.
pub(crate) async fn led_alone(context: &Context, partition: &Partition, time: Duration) -> bool {
    if is_leader_in_image(context, partition)
        && !lacks_space(context, partition)
        && context.lease.holds(context)
    {
        return partition.has_led_since(time);
    }
    let fetch_wait = u64::try_from(context.config().replica_fetch_wait_max_ms).unwrap_or(0);
    let deadline = time.saturating_add(4 * Duration::from_millis(fetch_wait));
    loop {
        if partition.was_leader_at(time) {
            return true;
        }
        if !partition.has_led_since(time) || context.clock.monotonic() >= deadline {
            return false;
        }
        tokio::time::sleep(PAUSE).await;
    }
}
