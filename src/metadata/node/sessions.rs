//! When each broker was last heard of, as the active controller remembers it. It is not part of the metadata: a
//! new controller gives all brokers their time again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use klamm_io::Clock;
use klamm_model::NodeId;
use parking_lot::Mutex;

use crate::image::{Broker, Image};

/// The sessions of the brokers.
pub(super) struct Sessions {
    clock: Arc<dyn Clock>,
    /// `broker.session.timeout.ms`.
    timeout: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// From when on the time of each broker runs.
    heard: BTreeMap<NodeId, Duration>,
    /// When the last heartbeat of each came to this controller.
    heartbeats: BTreeMap<NodeId, Duration>,
    /// When it was last looked for expired sessions, as the controller; `None` while another node is.
    looked: Option<Duration>,
}

impl Sessions {
    pub(super) fn new(clock: Arc<dyn Clock>, timeout: Duration) -> Sessions {
        Sessions { clock, timeout, state: Mutex::default() }
    }

    /// How often it is looked for expired sessions.
    pub(super) fn pause(&self) -> Duration {
        self.timeout / 20
    }

    /// A broker has sent a heartbeat.
    pub(super) fn heard(&self, broker: NodeId) {
        let now = self.clock.monotonic();
        let mut state = self.state.lock();
        state.heard.insert(broker, now);
        state.heartbeats.insert(broker, now);
    }

    /// A broker's connection has ended: what it does next says whether it has a session.
    pub(super) fn lost(&self, broker: NodeId) {
        self.state.lock().heartbeats.remove(&broker);
    }

    /// Whether a broker has a session with this controller: its heartbeats came here, and the last one not too
    /// long ago. After a restart of the controller nobody has.
    pub(super) fn has_session(&self, broker: NodeId) -> bool {
        let now = self.clock.monotonic();
        let heartbeat = self.state.lock().heartbeats.get(&broker).copied();
        heartbeat.is_some_and(|heartbeat| now.saturating_sub(heartbeat) <= self.timeout)
    }

    /// The brokers of which nothing was heard for the length of a session, and that are not fenced yet, with their
    /// epochs. Empty unless this node is the controller.
    pub(super) fn expired(&self, image: &Image, is_controller: bool) -> Vec<(NodeId, i64)> {
        let now = self.clock.monotonic();
        let mut state = self.state.lock();
        if !is_controller {
            state.looked = None;
            return Vec::new();
        }
        // A controller that has just begun, or that stood still itself, has no reason to blame the others.
        let stood_still = |looked: Duration| now.saturating_sub(looked) > self.timeout / 2;
        let begins_anew = state.looked.is_none_or(stood_still);
        state.looked = Some(now);
        let unfenced = || image.brokers.values().filter(|broker| !broker.fenced);
        if begins_anew {
            state.heard = unfenced().map(|broker| (broker.id, now)).collect();
            return Vec::new();
        }
        state.heard.retain(|broker, _| image.brokers.contains_key(broker));
        let is_expired = |broker: &&Arc<Broker>| match state.heard.get(&broker.id) {
            Some(heard) => now.saturating_sub(*heard) > self.timeout,
            None => false,
        };
        let expired = unfenced().filter(is_expired).map(|broker| (broker.id, broker.epoch)).collect();
        for broker in unfenced() {
            state.heard.entry(broker.id).or_insert(now);
        }
        expired
    }
}

#[cfg(test)]
mod tests {
    use klamm_protocol::records::cluster_metadata::RegisterBrokerRecord;
    use klamm_testing::SimulatedClock;

    use super::*;

    fn image(brokers: &[i32]) -> Image {
        let mut image = Image::empty("c");
        for broker in brokers {
            let record = RegisterBrokerRecord { broker_id: *broker, fenced: false, ..Default::default() };
            crate::apply_to(&mut image, &record.into());
        }
        image
    }

    #[test]
    fn a_broker_that_is_not_heard_of_expires_and_the_others_do_not() {
        let clock = Arc::new(SimulatedClock::new(0));
        let sessions = Sessions::new(clock.clone(), Duration::from_secs(9));
        let image = image(&[1, 2]);
        for _ in 0..20 {
            assert_eq!(sessions.expired(&image, true), []);
            clock.advance(Duration::from_millis(450));
            sessions.heard(NodeId(1));
        }
        clock.advance(Duration::from_millis(450));
        assert_eq!(sessions.expired(&image, true), [(NodeId(2), 0)]);
    }

    /// After SIGSTOP and SIGCONT a controller fenced every broker, itself included.
    #[test]
    fn a_controller_that_stood_still_blames_nobody() {
        let clock = Arc::new(SimulatedClock::new(0));
        let sessions = Sessions::new(clock.clone(), Duration::from_secs(9));
        let image = image(&[1, 2]);
        assert_eq!(sessions.expired(&image, true), []);
        clock.advance(Duration::from_secs(60));
        assert_eq!(sessions.expired(&image, true), []);
        assert_eq!(sessions.expired(&image, false), [], "another node is the controller");
        clock.advance(Duration::from_secs(8));
        assert_eq!(sessions.expired(&image, true), [], "and it begins anew when it is one again");
    }
}
