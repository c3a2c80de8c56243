//! Limits on what clients may take: connections, and lines in the log.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use klamm_config::BrokerConfig;
use parking_lot::Mutex;

/// Counts connections, in all and by address.
pub(crate) struct Connections {
    limits: ArcSwap<Limits>,
    open: Mutex<BTreeMap<IpAddr, usize>>,
}

/// How many connections there may be: `max.connections`, `max.connections.per.ip`, and its overrides.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    total_max: usize,
    per_ip_max: usize,
    per_ip_overrides: BTreeMap<IpAddr, usize>,
}

impl Limits {
    pub(crate) fn of(config: &BrokerConfig) -> Limits {
        let count = |number: i32| usize::try_from(number).unwrap_or(0);
        let mut per_ip_overrides = BTreeMap::new();
        for (host, most) in &config.max_connections_per_ip_overrides {
            match host.parse::<IpAddr>() {
                Ok(ip) => {
                    per_ip_overrides.insert(ip, count(*most));
                }
                Err(_) => tracing::warn!(
                    "max.connections.per.ip.overrides: {host} is not an IP address and is left out"
                ),
            }
        }
        Limits {
            total_max: count(config.max_connections),
            per_ip_max: count(config.max_connections_per_ip),
            per_ip_overrides,
        }
    }
}

/// A connection's place; dropping it frees it.
pub(crate) struct Place {
    connections: Arc<Connections>,
    ip: IpAddr,
}

impl Connections {
    pub(crate) fn new(limits: Limits) -> Arc<Connections> {
        Arc::new(Connections { limits: ArcSwap::from_pointee(limits), open: Mutex::default() })
    }

    /// Changes how many there may be. Connections that are open stay open.
    pub(crate) fn set_limits(&self, limits: Limits) {
        self.limits.store(Arc::new(limits));
    }

    /// A place for one more connection, unless that is one too many.
    pub(crate) fn admit(self: &Arc<Connections>, ip: IpAddr) -> Option<Place> {
        let limits = self.limits.load();
        let mut open = self.open.lock();
        let total: usize = open.values().sum();
        let most = limits.per_ip_overrides.get(&ip).copied().unwrap_or(limits.per_ip_max);
        let from_ip = open.get(&ip).copied().unwrap_or(0);
        if total >= limits.total_max || from_ip >= most {
            return None;
        }
        open.insert(ip, from_ip + 1);
        Some(Place { connections: self.clone(), ip })
    }

    /// How many are open.
    pub(crate) fn open(&self) -> usize {
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

    /// The line, if it may be written now. It tells at its end how many were held back since the last.
    pub(crate) fn line(&self, now: Duration, line: impl FnOnce() -> String) -> Option<String> {
        match self.permit(now)? {
            0 => Some(line()),
            more => Some(format!("{} ({more} more since the last such line)", line())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(total_max: usize, per_ip_max: usize, overrides: &[(IpAddr, usize)]) -> Limits {
        Limits { total_max, per_ip_max, per_ip_overrides: overrides.iter().copied().collect() }
    }

    #[test]
    fn one_address_cannot_take_all_places() {
        let (one, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let connections = Connections::new(limits(3, 2, &[]));
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
        let connections = Connections::new(limits(9, 1, &[(one, 0)]));
        assert!(connections.admit(one).is_none());
        assert!(connections.admit(other).is_some());
    }

    /// The limits were read at start alone, and a change that was answered with success changed nothing.
    #[test]
    fn limits_change_while_connections_are_open() {
        let ip = IpAddr::from([10, 0, 0, 1]);
        let connections = Connections::new(limits(2, 2, &[]));
        let _open = (connections.admit(ip).unwrap(), connections.admit(ip).unwrap());
        connections.set_limits(limits(4, 2, &[(ip, 3)]));
        let third = connections.admit(ip);
        assert!(third.is_some() && connections.admit(ip).is_none());
        connections.set_limits(limits(1, 1, &[]));
        drop(third);
        assert_eq!(connections.open(), 2, "who is in stays in");
        assert!(connections.admit(ip).is_none());
    }

    #[test]
    fn limits_are_those_of_the_config_in_force() {
        let text = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let cluster = text(&[
            ("max.connections", "10"),
            ("max.connections.per.ip", "5"),
            ("max.connections.per.ip.overrides", "10.0.0.1:7,[::1]:8,somewhere:9"),
        ]);
        let dynamic = klamm_config::DynamicConfigs { broker: None, cluster: Some(&cluster) };
        let found = Limits::of(&BrokerConfig::defaults().with_dynamic(&dynamic));
        let overrides = [("10.0.0.1".parse().unwrap(), 7), ("::1".parse().unwrap(), 8)];
        assert_eq!(found, limits(10, 5, &overrides));
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
