//! Client quotas (KIP-13, KIP-55, KIP-124, KIP-219, KIP-599): what users and clients may send, fetch, compute and change
//! in a second. Who is over a limit is answered at once, is told for how long it will not be heard, and is not heard
//! for so long.
//!
//! Limits are each broker's own, as in Kafka. All clients are the user `ANONYMOUS` while none is authenticated.
//! Changes of topics are counted where a client asks for them, in Kafka by the controller.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use klamm_config::BrokerConfig;
use klamm_io::Clock;
use klamm_metadata::{Image, QuotaEntity};
use parking_lot::Mutex;

/// Who every client is while none is authenticated.
const USER: &str = "ANONYMOUS";

/// How many users and clients are counted at once. What was idle for long makes room; then all begin anew, so that a
/// client that invents names gains little and costs little.
const COUNTED_MAX: usize = 10_000;

/// What is limited, by the names of its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Quota {
    /// Bytes of Produce requests a second.
    Produce,
    /// Bytes of Fetch answers a second.
    Fetch,
    /// Share of one processor, in percent.
    Request,
    /// Partitions created or deleted a second.
    ControllerMutation,
}

impl Quota {
    fn key(self) -> &'static str {
        match self {
            Quota::Produce => "producer_byte_rate",
            Quota::Fetch => "consumer_byte_rate",
            Quota::Request => "request_percentage",
            Quota::ControllerMutation => "controller_mutation_rate",
        }
    }
}

/// As an answer tells it.
pub(crate) fn throttle_time_ms(muted: Duration) -> i32 {
    i32::try_from(muted.as_millis()).unwrap_or(i32::MAX)
}

/// How long rates are averaged: so many samples, each of so many ms.
#[derive(Clone, Copy, Debug)]
struct Window {
    samples: u64,
    sample_ms: u64,
}

impl Window {
    fn new(samples: i32, seconds: i32) -> Window {
        let (samples, seconds) = (samples.max(1) as u64, seconds.max(1) as u64);
        Window { samples, sample_ms: seconds * 1000 }
    }
}

/// Whom a limit binds together.
type Counted = (Quota, Option<String>, Option<String>);

/// Counts what limited users and clients do.
pub(crate) struct ClientQuotas {
    clock: Arc<dyn Clock>,
    rates: Window,
    mutations: Window,
    counted: Mutex<BTreeMap<Counted, Meter>>,
}

/// What of a request may be done now.
pub(crate) struct Admitted<T> {
    pub(crate) done: Vec<T>,
    /// What is answered with THROTTLING_QUOTA_EXCEEDED.
    pub(crate) refused: Vec<T>,
    /// How long to wait before the next.
    pub(crate) throttle: Duration,
}

/// What is said beside THROTTLING_QUOTA_EXCEEDED.
pub(crate) const QUOTA_EXCEEDED: &str = "The throttling quota has been exceeded.";

enum Meter {
    Rate(Rate),
    Bucket(TokenBucket),
}

impl ClientQuotas {
    pub(crate) fn new(config: &BrokerConfig, clock: Arc<dyn Clock>) -> ClientQuotas {
        ClientQuotas {
            clock,
            rates: Window::new(config.quota_window_num, config.quota_window_size_seconds),
            mutations: Window::new(
                config.controller_quota_window_num,
                config.controller_quota_window_size_seconds,
            ),
            counted: Mutex::default(),
        }
    }

    /// Counts what a request took, and tells for how long its client is not to be heard.
    pub(crate) fn count(&self, image: &Image, client: Option<&str>, quota: Quota, amount: f64) -> Duration {
        let Some((limit, counted)) = limit(image, client, quota) else { return Duration::ZERO };
        let now_ms = self.clock.monotonic_ms();
        self.with_meter(counted, now_ms, |meter| match meter {
            Meter::Rate(rate) => {
                rate.record(now_ms, amount);
                let throttle = rate.throttle_ms(now_ms, limit);
                // As in Kafka: what it cost to answer stops nobody for longer than a sample lasts.
                if quota == Quota::Request { throttle.min(self.rates.sample_ms) } else { throttle }
            }
            Meter::Bucket(bucket) => {
                bucket.take(now_ms, limit, amount);
                bucket.throttle_ms(limit)
            }
        })
    }

    /// How many bytes one answer may have, so that it is not far ahead of a quota by itself; as in Kafka, what may be
    /// fetched in the whole time over which rates are averaged.
    pub(crate) fn fetched_at_once(&self, image: &Image, client: Option<&str>) -> usize {
        limit(image, client, Quota::Fetch).map_or(usize::MAX, |(limit, _)| {
            let seconds = (self.rates.samples - 1).max(1) * self.rates.sample_ms / 1000;
            (limit * seconds as f64) as usize
        })
    }

    /// Whether changes may still be made; if not, for how long. Where they may, they are counted.
    fn admit(&self, image: &Image, client: Option<&str>, changes: f64) -> Result<(), Duration> {
        let Some((limit, counted)) = limit(image, client, Quota::ControllerMutation) else { return Ok(()) };
        let now_ms = self.clock.monotonic_ms();
        let throttle = self.with_meter(counted, now_ms, |meter| {
            let Meter::Bucket(bucket) = meter else { return 0 };
            bucket.refill(now_ms, limit);
            let throttle_ms = bucket.throttle_ms(limit);
            if throttle_ms == 0 {
                bucket.take(now_ms, limit, changes);
            }
            throttle_ms
        });
        if throttle.is_zero() { Ok(()) } else { Err(throttle) }
    }

    /// Splits what a request wants to change into what may be done, and what must be asked again after some time. Old
    /// versions know no such answer: all is done, and the answer says how long to wait.
    pub(crate) fn admit_changes<T>(
        &self,
        image: &Image,
        client: Option<&str>,
        knows_refusals: bool,
        wanted: Vec<T>,
        changes_of: impl Fn(&T) -> usize,
    ) -> Admitted<T> {
        let mut admitted = Admitted { done: Vec::new(), refused: Vec::new(), throttle: Duration::ZERO };
        for item in wanted {
            let changes = changes_of(&item) as f64;
            if !knows_refusals {
                let throttle = self.count(image, client, Quota::ControllerMutation, changes);
                admitted.throttle = admitted.throttle.max(throttle);
                admitted.done.push(item);
                continue;
            }
            match self.admit(image, client, changes) {
                Ok(()) => admitted.done.push(item),
                Err(throttle) => {
                    admitted.throttle = admitted.throttle.max(throttle);
                    admitted.refused.push(item);
                }
            }
        }
        admitted
    }

    fn with_meter(&self, who: Counted, now_ms: u64, count: impl FnOnce(&mut Meter) -> u64) -> Duration {
        let mut counted = self.counted.lock();
        if counted.len() >= COUNTED_MAX && !counted.contains_key(&who) {
            counted.retain(|_, meter| meter.is_in_use(now_ms));
            if counted.len() >= COUNTED_MAX {
                counted.clear();
            }
        }
        let quota = who.0;
        let meter = counted.entry(who).or_insert_with(|| match quota {
            Quota::ControllerMutation => Meter::Bucket(TokenBucket::new(self.mutations, now_ms)),
            _ => Meter::Rate(Rate::new(self.rates)),
        });
        Duration::from_millis(count(meter))
    }
}

/// The limit that binds this client, and who is counted with it.
fn limit(image: &Image, client: Option<&str>, quota: Quota) -> Option<(f64, Counted)> {
    let quotas = &image.kept.client_quotas;
    if quotas.is_empty() {
        return None;
    }
    let client = client.unwrap_or_default();
    let user = |name: Option<&str>| ("user".to_owned(), name.map(str::to_owned));
    let client_id = |name: Option<&str>| ("client-id".to_owned(), name.map(str::to_owned));
    // The order of KIP-55: the one who is named before all others, the user before the client.
    let levels: [QuotaEntity; 8] = [
        vec![client_id(Some(client)), user(Some(USER))],
        vec![client_id(None), user(Some(USER))],
        vec![user(Some(USER))],
        vec![client_id(Some(client)), user(None)],
        vec![client_id(None), user(None)],
        vec![user(None)],
        vec![client_id(Some(client))],
        vec![client_id(None)],
    ];
    let limit_of = |entity: &QuotaEntity| quotas.get(entity)?.get(quota.key()).copied();
    let (entity, limit) = levels.iter().find_map(|entity| Some((entity, limit_of(entity)?)))?;
    let names = |kind: &str| entity.iter().any(|(named, _)| named == kind);
    let user = names("user").then(|| USER.to_owned());
    let client = names("client-id").then(|| client.to_owned());
    Some((limit, (quota, user, client)))
}

impl Meter {
    fn is_in_use(&self, now_ms: u64) -> bool {
        match self {
            Meter::Rate(rate) => {
                let last = rate.samples.back();
                last.is_some_and(|(start, _)| now_ms.saturating_sub(*start) < rate.window.length_ms())
            }
            Meter::Bucket(bucket) => now_ms.saturating_sub(bucket.filled_ms) < bucket.window.length_ms(),
        }
    }
}

impl Window {
    fn length_ms(&self) -> u64 {
        self.samples * self.sample_ms
    }
}

/// A rate over the last samples. It counts for at least all samples but one, so that a client that begins may be fast
/// for a moment.
struct Rate {
    window: Window,
    /// When each began, and what was counted in it.
    samples: VecDeque<(u64, f64)>,
}

impl Rate {
    fn new(window: Window) -> Rate {
        Rate { window, samples: VecDeque::new() }
    }

    fn record(&mut self, now_ms: u64, amount: f64) {
        let sample_ms = self.window.sample_ms;
        match self.samples.back_mut() {
            Some((start, sum)) if now_ms.saturating_sub(*start) < sample_ms => *sum += amount,
            _ => self.samples.push_back((now_ms, amount)),
        }
        let length_ms = self.window.length_ms();
        while self.samples.front().is_some_and(|(start, _)| now_ms.saturating_sub(*start) >= length_ms) {
            self.samples.pop_front();
        }
    }

    /// For how long nothing must come so that the rate is at the limit again.
    fn throttle_ms(&self, now_ms: u64, limit: f64) -> u64 {
        let Some((oldest, _)) = self.samples.front() else { return 0 };
        let elapsed = now_ms.saturating_sub(*oldest);
        let whole_samples = elapsed / self.window.sample_ms;
        let missing = (self.window.samples - 1).saturating_sub(whole_samples);
        let window_ms = (elapsed + missing * self.window.sample_ms).max(self.window.sample_ms);
        let total: f64 = self.samples.iter().map(|(_, sum)| sum).sum();
        let rate = total * 1000.0 / window_ms as f64;
        let over = (rate - limit) / limit * window_ms as f64;
        if over > 0.0 { over.round() as u64 } else { 0 }
    }
}

/// Tokens that come back at the rate of the limit. One who has any may take more than there are, and then waits.
struct TokenBucket {
    window: Window,
    tokens: Option<f64>,
    filled_ms: u64,
}

impl TokenBucket {
    fn new(window: Window, now_ms: u64) -> TokenBucket {
        TokenBucket { window, tokens: None, filled_ms: now_ms }
    }

    fn refill(&mut self, now_ms: u64, limit: f64) -> f64 {
        let full = limit * self.window.length_ms() as f64 / 1000.0;
        let came = limit * now_ms.saturating_sub(self.filled_ms) as f64 / 1000.0;
        let tokens = self.tokens.map_or(full, |tokens| (tokens + came).min(full));
        self.filled_ms = now_ms;
        self.tokens = Some(tokens);
        tokens
    }

    fn take(&mut self, now_ms: u64, limit: f64, amount: f64) {
        self.tokens = Some(self.refill(now_ms, limit) - amount);
    }

    fn throttle_ms(&self, limit: f64) -> u64 {
        let missing = -self.tokens.unwrap_or(0.0);
        if missing > 0.0 { (missing * 1000.0 / limit).round() as u64 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Window = Window { samples: 11, sample_ms: 1000 };

    /// The figures of Kafka's own formula: the rate over at least ten seconds, and the time by which that must grow.
    #[test]
    fn a_client_is_stopped_for_as_long_as_it_was_ahead_of_its_rate() {
        let mut rate = Rate::new(WINDOW);
        rate.record(0, 10_000.0);
        assert_eq!(rate.throttle_ms(0, 1000.0), 0, "ten seconds' worth at once");
        rate.record(10, 5_000.0);
        assert_eq!(rate.throttle_ms(10, 1000.0), 4990);
        rate.record(5_000, 0.0);
        assert_eq!(
            rate.throttle_ms(5_000, 1000.0),
            5_000,
            "time alone does not help before ten seconds have passed"
        );
        assert_eq!(rate.throttle_ms(15_000, 1000.0), 0);
        rate.record(17_000, 1.0);
        assert_eq!(rate.samples.len(), 1, "what is older is forgotten");
    }

    /// However long it runs, a client that does as it is told gets its rate.
    #[test]
    fn in_the_long_run_a_client_has_its_rate() {
        let (mut rate, mut now, mut sent) = (Rate::new(WINDOW), 0, 0.0);
        while now < 600_000 {
            rate.record(now, 700.0);
            sent += 700.0;
            now += 1 + rate.throttle_ms(now, 1000.0);
        }
        let per_second = sent * 1000.0 / now as f64;
        assert!((950.0..1050.0).contains(&per_second), "{per_second}");
    }

    #[test]
    fn the_quota_of_the_one_who_is_named_comes_first() {
        let mut image = Image::empty("test");
        let mut set = |entity: &[(&str, Option<&str>)], value: f64| {
            let part = |(kind, name): &(&str, Option<&str>)| (kind.to_string(), name.map(str::to_owned));
            let limits = BTreeMap::from([("producer_byte_rate".to_owned(), value)]);
            image.kept.client_quotas.insert(entity.iter().map(part).collect(), Arc::new(limits));
            let limit = limit(&image, Some("c"), Quota::Produce);
            limit.map(|(limit, (_, user, client))| (limit, user.is_some(), client.is_some()))
        };
        assert_eq!(set(&[("client-id", Some("d"))], 1.0), None);
        // From the last to the first in the order of KIP-55: whose limit it is, and who is counted together.
        assert_eq!(set(&[("client-id", None)], 8.0), Some((8.0, false, true)));
        assert_eq!(set(&[("client-id", Some("c"))], 7.0), Some((7.0, false, true)));
        assert_eq!(set(&[("user", None)], 6.0), Some((6.0, true, false)));
        assert_eq!(set(&[("client-id", None), ("user", None)], 5.0), Some((5.0, true, true)));
        assert_eq!(set(&[("client-id", Some("c")), ("user", None)], 4.0), Some((4.0, true, true)));
        assert_eq!(set(&[("user", Some(USER))], 3.0), Some((3.0, true, false)));
        assert_eq!(set(&[("client-id", None), ("user", Some(USER))], 2.0), Some((2.0, true, true)));
        assert_eq!(set(&[("client-id", Some("c")), ("user", Some(USER))], 1.0), Some((1.0, true, true)));
        assert_eq!(limit(&image, Some("c"), Quota::Fetch).map(|(limit, _)| limit), None);
    }

    #[test]
    fn changes_are_made_until_the_bucket_is_empty() {
        let mut bucket = TokenBucket::new(WINDOW, 0);
        bucket.take(0, 2.0, 22.0);
        assert_eq!(bucket.throttle_ms(2.0), 0, "eleven seconds' worth");
        bucket.take(0, 2.0, 4.0);
        assert_eq!(bucket.throttle_ms(2.0), 2000);
        bucket.refill(2000, 2.0);
        assert_eq!(bucket.throttle_ms(2.0), 0);
        assert_eq!(bucket.refill(1_000_000, 2.0), 22.0, "no more than full");
    }
}
