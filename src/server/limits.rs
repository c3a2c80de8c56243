//! Limits on what clients may take: connections, and lines in the log.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

/// Counts connections, in all and by address (`max.connections`, `max.connections.per.ip`).
pub(crate) struct Connections {
    total_max: usize,
    per_ip_max: usize,
    per_ip_overrides: BTreeMap<IpAddr, usize>,
    open: Mutex<BTreeMap<IpAddr, usize>>,
}

/// A connection's place; dropping it frees it.
pub(crate) struct Place {
    connections: Arc<Connections>,
    ip: IpAddr,
}

impl Connections {
    pub(crate) fn new(
        total_max: usize,
        per_ip_max: usize,
        per_ip_overrides: BTreeMap<IpAddr, usize>,
    ) -> Arc<Connections> {
        Arc::new(Connections { total_max, per_ip_max, per_ip_overrides, open: Mutex::default() })
    }

    /// A place for one more connection, unless that is one too many.
    pub(crate) fn admit(self: &Arc<Connections>, ip: IpAddr) -> Option<Place> {
        let mut open = self.open.lock();
        let total: usize = open.values().sum();
        let most = self.per_ip_overrides.get(&ip).copied().unwrap_or(self.per_ip_max);
        let from_ip = open.get(&ip).copied().unwrap_or(0);
        if total >= self.total_max || from_ip >= most {
            return None;
        }
        open.insert(ip, from_ip + 1);
        Some(Place { connections: self.clone(), ip })
    }

    /// How many are open.
    #[cfg(test)]
    fn open(&self) -> usize {
        self.open.lock().values().sum()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.connections.open.lock();
        match open.get_mut(&self.ip) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                open.remove(&self.ip);
            }
        }
    }
}

/// Lets one line through in a while and counts those that it holds back.
pub(crate) struct RateLimit {
    every: Duration,
    state: Mutex<(Option<Duration>, u64)>,
}

impl RateLimit {
    pub(crate) fn new(every: Duration) -> RateLimit {
        RateLimit { every, state: Mutex::new((None, 0)) }
    }

    /// Whether a line may be written now; the number is how many were held back since the last.
    pub(crate) fn permit(&self, now: Duration) -> Option<u64> {
        let mut state = self.state.lock();
        if state.0.is_some_and(|last| now.saturating_sub(last) < self.every) {
            state.1 += 1;
            return None;
        }
        state.0 = Some(now);
        Some(std::mem::take(&mut state.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_cannot_take_all_places() {
        let (one, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let connections = Connections::new(3, 2, BTreeMap::new());
        let first = connections.admit(one).unwrap();
        let _second = connections.admit(one).unwrap();
        assert!(connections.admit(one).is_none(), "max.connections.per.ip is 2");
        let _third = connections.admit(other).unwrap();
        assert!(connections.admit(other).is_none(), "max.connections is 3");
        drop(first);
        assert_eq!(connections.open(), 2);
        assert!(connections.admit(one).is_some());
    }

    #[test]
    fn an_override_is_for_its_address_alone() {
        let (one, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let connections = Connections::new(9, 1, BTreeMap::from([(one, 0)]));
        assert!(connections.admit(one).is_none());
        assert!(connections.admit(other).is_some());
    }

    #[test]
    fn a_flood_of_bad_frames_writes_one_line_a_second() {
        let limit = RateLimit::new(Duration::from_secs(1));
        assert_eq!(limit.permit(Duration::from_millis(5)), Some(0));
        for _ in 0..1000 {
            assert_eq!(limit.permit(Duration::from_millis(900)), None);
        }
        assert_eq!(limit.permit(Duration::from_millis(1100)), Some(1000));
    }
}
