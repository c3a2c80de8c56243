//! Client quotas (KIP-13, KIP-55, KIP-124, KIP-219, KIP-599): what users and clients may send, fetch, compute and change
//! in a second. Who is over a limit is answered, and then not heard for as long as it was ahead. What differs from
//! Apache Kafka is in `docs/quotas.md`.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use imbl::OrdMap;
use klamm_config::BrokerConfig;
use klamm_io::Clock;
use klamm_metadata::{Image, QuotaEntity};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::api::ANONYMOUS;

/// How many users and clients are counted one by one. When there are more, those make room that are not stopped and did
/// nothing lately; then the others are counted together.
const COUNTED_MAX: usize = 10_000;

/// How long ago is not lately, in ms.
const LATELY_MS: u64 = 1000;

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
    const COUNT: usize = 4;

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
        Window { samples, sample_ms: seconds.saturating_mul(1000) }
    }
}

/// Whom a limit binds together: those of one user, of one client by the hash of its name, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Counted {
    quota: Quota,
    is_of_user: bool,
    client: Option<u64>,
}

/// Counts what limited users and clients do.
pub(crate) struct ClientQuotas {
    images: watch::Receiver<Arc<Image>>,
    clock: Arc<dyn Clock>,
    rates: Window,
    mutations: Window,
    counted: Mutex<Meters>,
}

#[derive(Default)]
struct Meters {
    by_counted: BTreeMap<Counted, Arc<Meter>>,
    /// When room was made last. It is not worth looking more often.
    swept_ms: u64,
}

/// All limits of the cluster, as the image has them.
type Quotas = OrdMap<QuotaEntity, Arc<BTreeMap<String, f64>>>;

/// What a connection keeps of quotas.
#[derive(Default)]
pub(crate) struct ConnectionQuotas {
    pub(crate) mute: Mute,
    known: Mutex<Known>,
}

/// The limits of the client that asked last over a connection, so that they are found once.
#[derive(Default)]
struct Known {
    client: Option<String>,
    /// Of which limits they are a part: as long as the image has this very map, nothing has changed.
    quotas: Quotas,
    limits: [Found; Quota::COUNT],
}

/// Whether a limit was looked for, and what was found.
#[derive(Clone, Default)]
enum Found {
    #[default]
    Unknown,
    None,
    Limit(Limit),
}

/// A limit that binds a client.
#[derive(Clone)]
pub(crate) struct Limit {
    per_second: f64,
    who: Counted,
    /// What is counted of it; nothing where so many are counted that the last ones are counted together.
    meter: Option<Arc<Meter>>,
}

/// Until when a connection is not heard, because its client is over a quota.
#[derive(Default)]
pub(crate) struct Mute(AtomicU64);

impl Mute {
    /// Does not hear it for so long; a mute that lasts longer stays.
    pub(crate) fn extend(&self, now_ms: u64, duration: Duration) {
        if !duration.is_zero() {
            let duration_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
            self.0.fetch_max(now_ms.saturating_add(duration_ms), Ordering::AcqRel);
        }
    }

    /// For how long it is not heard yet.
    pub(crate) fn left(&self, now_ms: u64) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Acquire).saturating_sub(now_ms))
    }
}

/// What is said beside THROTTLING_QUOTA_EXCEEDED.
pub(crate) const QUOTA_EXCEEDED: &str = "The throttling quota has been exceeded.";

struct Meter {
    counts: Mutex<Counts>,
    /// Whether it made room for others, so that nobody looks at it any more.
    is_gone: AtomicBool,
}

struct Counts {
    kind: MeterKind,
    counted_ms: u64,
    /// Until when it is over its limit.
    over_until_ms: u64,
}

enum MeterKind {
    Rate(Rate),
    Bucket(TokenBucket),
}

impl ClientQuotas {
    /// `images` tell which limits there are.
    pub(crate) fn new(
        config: &BrokerConfig,
        images: watch::Receiver<Arc<Image>>,
        clock: Arc<dyn Clock>,
    ) -> ClientQuotas {
        ClientQuotas {
            images,
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
    pub(crate) fn count(
        &self,
        connection: &ConnectionQuotas,
        client: Option<&str>,
        quota: Quota,
        amount: f64,
    ) -> Duration {
        let limit = self.limit(connection, client, quota);
        limit.map_or(Duration::ZERO, |limit| self.count_in(&limit, amount))
    }

    /// As [`ClientQuotas::count`], where the limit is known.
    pub(crate) fn count_in(&self, limit: &Limit, amount: f64) -> Duration {
        let now_ms = self.clock.monotonic_ms();
        let own = limit.meter.as_ref();
        let throttle = own.and_then(|meter| meter.measure(now_ms, limit.per_second, amount));
        let throttle = throttle.unwrap_or_else(|| self.measure(limit.who, limit.per_second, amount));
        // As in Kafka: what it cost to answer stops nobody for longer than a sample lasts.
        let is_work = limit.who.quota == Quota::Request;
        if is_work { throttle.min(Duration::from_millis(self.rates.sample_ms)) } else { throttle }
    }

    /// How many bytes one answer may have, so that it is not far ahead of a quota by itself; as in Kafka, what may be
    /// fetched in the whole time over which rates are averaged.
    pub(crate) fn fetched_at_once(&self, connection: &ConnectionQuotas, client: Option<&str>) -> usize {
        self.limit(connection, client, Quota::Fetch).map_or(usize::MAX, |limit| {
            let samples = (self.rates.samples - 1).max(1);
            (limit.per_second * samples as f64 * self.rates.sample_ms as f64 / 1000.0) as usize
        })
    }

    /// The limit that binds a client, if there is one. It is looked for when a connection first needs it, and again when
    /// limits were changed or another client asks over the connection.
    pub(crate) fn limit(
        &self,
        connection: &ConnectionQuotas,
        client: Option<&str>,
        quota: Quota,
    ) -> Option<Limit> {
        let image = self.images.borrow();
        let quotas = &image.kept.client_quotas;
        if quotas.is_empty() {
            return None;
        }
        let mut known = connection.known.lock();
        if known.client.as_deref() != client || !known.quotas.ptr_eq(quotas) {
            let client = client.map(str::to_owned);
            *known = Known { client, quotas: quotas.clone(), limits: Default::default() };
        }
        let found = &mut known.limits[quota as usize];
        match found {
            Found::None => return None,
            Found::Limit(limit) if limit.is_current() => return Some(limit.clone()),
            Found::Unknown | Found::Limit(_) => {}
        }
        let Some((per_second, who)) = limit(quotas, client, quota) else {
            *found = Found::None;
            return None;
        };
        let (meter, is_own) = self.meter(who);
        let limit = Limit { per_second, who, meter: is_own.then_some(meter) };
        *found = Found::Limit(limit.clone());
        Some(limit)
    }

    fn measure(&self, who: Counted, limit: f64, amount: f64) -> Duration {
        loop {
            let (meter, _) = self.meter(who);
            if let Some(throttle) = meter.measure(self.clock.monotonic_ms(), limit, amount) {
                return throttle;
            }
        }
    }

    /// What is counted of somebody, and whether it is of nobody else: when there are too many, the others are counted
    /// together.
    fn meter(&self, mut who: Counted) -> (Arc<Meter>, bool) {
        let now_ms = self.clock.monotonic_ms();
        let Meters { by_counted, swept_ms } = &mut *self.counted.lock();
        let mut is_own = true;
        if by_counted.len() >= COUNTED_MAX && !by_counted.contains_key(&who) {
            if now_ms.saturating_sub(*swept_ms) >= LATELY_MS {
                *swept_ms = now_ms;
                by_counted.retain(|_, meter| meter.is_kept(now_ms));
            }
            if by_counted.len() >= COUNTED_MAX {
                is_own = who.client.is_none();
                who.client = None;
            }
        }
        let kind = || match who.quota {
            Quota::ControllerMutation => MeterKind::Bucket(TokenBucket::new(self.mutations, now_ms)),
            _ => MeterKind::Rate(Rate::new(self.rates)),
        };
        let meter = by_counted.entry(who).or_insert_with(|| {
            let counts = Counts { kind: kind(), counted_ms: now_ms, over_until_ms: 0 };
            Arc::new(Meter { counts: Mutex::new(counts), is_gone: AtomicBool::new(false) })
        });
        (meter.clone(), is_own)
    }
}

impl Limit {
    /// Whether its client is counted by itself, in the place where all its connections look.
    fn is_current(&self) -> bool {
        self.meter.as_ref().is_some_and(|meter| !meter.is_gone.load(Ordering::Acquire))
    }
}

/// The limit that binds this client, and who is counted with it.
fn limit(quotas: &Quotas, client: Option<&str>, quota: Quota) -> Option<(f64, Counted)> {
    let client = client.unwrap_or_default();
    // Client and user of a limit, where no name stands for all. The order is that of KIP-55: the one who is named before
    // all others, the user before the client.
    let levels = [
        (Some(Some(client)), Some(Some(ANONYMOUS))),
        (Some(None), Some(Some(ANONYMOUS))),
        (None, Some(Some(ANONYMOUS))),
        (Some(Some(client)), Some(None)),
        (Some(None), Some(None)),
        (None, Some(None)),
        (Some(Some(client)), None),
        (Some(None), None),
    ];
    levels.into_iter().find_map(|(client_id, user)| {
        let part = |kind: &str, name: Option<&str>| (kind.to_owned(), name.map(str::to_owned));
        let parts = [client_id.map(|name| part("client-id", name)), user.map(|name| part("user", name))];
        let entity: QuotaEntity = parts.into_iter().flatten().collect();
        let limit = quotas.get(&entity)?.get(quota.key()).copied()?;
        // A limit that names no client in particular binds each by itself.
        let client = client_id.map(|_| {
            let mut hasher = DefaultHasher::new();
            client.hash(&mut hasher);
            hasher.finish()
        });
        Some((limit, Counted { quota, is_of_user: user.is_some(), client }))
    })
}

impl Meter {
    /// Counts an amount, and tells how long is to be waited; nothing if it is gone.
    fn measure(&self, now_ms: u64, limit: f64, amount: f64) -> Option<Duration> {
        let mut counts = self.counts.lock();
        if self.is_gone.load(Ordering::Acquire) {
            return None;
        }
        let throttle_ms = match &mut counts.kind {
            MeterKind::Rate(rate) => {
                rate.record(now_ms, amount);
                rate.throttle_ms(now_ms, limit)
            }
            MeterKind::Bucket(bucket) => {
                bucket.take(now_ms, limit, amount);
                bucket.throttle_ms(limit)
            }
        };
        counts.counted_ms = now_ms;
        counts.over_until_ms = now_ms.saturating_add(throttle_ms);
        Some(Duration::from_millis(throttle_ms))
    }

    /// Whether it stays when others need room; if not, it is gone.
    fn is_kept(&self, now_ms: u64) -> bool {
        let counts = self.counts.lock();
        let is_kept = counts.over_until_ms > now_ms || now_ms.saturating_sub(counts.counted_ms) < LATELY_MS;
        if !is_kept {
            self.is_gone.store(true, Ordering::Release);
        }
        is_kept
    }
}

impl Window {
    fn length_ms(&self) -> u64 {
        self.samples.saturating_mul(self.sample_ms)
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
        let missing_ms = missing.saturating_mul(self.window.sample_ms);
        let window_ms = elapsed.saturating_add(missing_ms).max(self.window.sample_ms);
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
    use klamm_testing::SimulatedClock;

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
            let limit = limit(&image.kept.client_quotas, Some("c"), Quota::Produce);
            limit.map(|(limit, counted)| (limit, counted.is_of_user, counted.client.is_some()))
        };
        assert_eq!(set(&[("client-id", Some("d"))], 1.0), None);
        // From the last to the first in the order of KIP-55: whose limit it is, and who is counted together.
        assert_eq!(set(&[("client-id", None)], 8.0), Some((8.0, false, true)));
        assert_eq!(set(&[("client-id", Some("c"))], 7.0), Some((7.0, false, true)));
        assert_eq!(set(&[("user", None)], 6.0), Some((6.0, true, false)));
        assert_eq!(set(&[("client-id", None), ("user", None)], 5.0), Some((5.0, true, true)));
        assert_eq!(set(&[("client-id", Some("c")), ("user", None)], 4.0), Some((4.0, true, true)));
        assert_eq!(set(&[("user", Some(ANONYMOUS))], 3.0), Some((3.0, true, false)));
        assert_eq!(set(&[("client-id", None), ("user", Some(ANONYMOUS))], 2.0), Some((2.0, true, true)));
        assert_eq!(set(&[("client-id", Some("c")), ("user", Some(ANONYMOUS))], 1.0), Some((1.0, true, true)));
        assert_eq!(limit(&image.kept.client_quotas, Some("c"), Quota::Fetch).map(|(limit, _)| limit), None);
    }

    /// A client that invents names must neither make the broker forget who is over a limit, nor fill its memory.
    #[test]
    fn who_is_over_a_limit_is_not_forgotten_for_others() {
        let clock = Arc::new(SimulatedClock::new(0));
        let images = watch::channel(Arc::new(Image::empty("test"))).1;
        let quotas = ClientQuotas::new(&BrokerConfig::defaults(), images, clock.clone());
        let who = |client| Counted { quota: Quota::Produce, is_of_user: false, client: Some(client) };
        assert!(quotas.measure(who(0), 1.0, 1_000_000.0) > Duration::from_secs(100_000));
        for client in 1..3 * COUNTED_MAX as u64 {
            quotas.measure(who(client), 1.0, 1.0);
        }
        assert!(quotas.measure(who(0), 1.0, 0.0) > Duration::from_secs(100_000));
        // All of those were there lately, so that the last ones were counted together; that is one more.
        assert_eq!(quotas.counted.lock().by_counted.len(), COUNTED_MAX + 1);
        assert!(!quotas.measure(who(u64::MAX), 1.0, 1.0).is_zero());
        clock.advance(Duration::from_secs(60));
        assert!(quotas.measure(who(u64::MAX), 1.0, 1.0).is_zero());
        assert_eq!(
            quotas.counted.lock().by_counted.len(),
            3,
            "the one that is stopped, those together, and the new one"
        );
    }

    /// An image in which clients of this name, or all others, may send so much in a second.
    fn image(limits: &[(Option<&str>, f64)]) -> Arc<Image> {
        let mut image = Image::empty("test");
        for (client, value) in limits {
            let limits = BTreeMap::from([("producer_byte_rate".to_owned(), *value)]);
            let entity = vec![("client-id".to_owned(), client.map(str::to_owned))];
            image.kept.client_quotas.insert(entity, Arc::new(limits));
        }
        Arc::new(image)
    }

    /// Each request built up to eight keys to find its limit, and all connections waited for one lock.
    #[test]
    fn a_connection_that_knows_its_limit_looks_for_nothing_and_waits_for_no_other() {
        let clock = Arc::new(SimulatedClock::new(0));
        let images = watch::channel(image(&[(Some("c"), 1000.0)])).1;
        let quotas = ClientQuotas::new(&BrokerConfig::defaults(), images, clock);
        let (of_c, of_d) = (ConnectionQuotas::default(), ConnectionQuotas::default());
        let count =
            |of: &ConnectionQuotas, client, amount| quotas.count(of, Some(client), Quota::Produce, amount);
        assert!(count(&of_c, "c", 1.0).is_zero() && count(&of_d, "d", 1.0).is_zero());
        let known = |of: &ConnectionQuotas| match &of.known.lock().limits[Quota::Produce as usize] {
            Found::Limit(limit) => limit.meter.clone(),
            _ => None,
        };
        let meter = known(&of_c).expect("it has a limit");
        assert!(matches!(of_d.known.lock().limits[Quota::Produce as usize], Found::None));
        std::thread::scope(|scope| {
            // Whoever needs one of these now would wait for ever.
            let held = quotas.counted.lock();
            let (done, is_done) = std::sync::mpsc::channel();
            let (of_c, of_d, meter, count) = (&of_c, &of_d, &meter, &count);
            scope.spawn(move || {
                (0..1000).for_each(|_| assert!(count(of_c, "c", 1.0).is_zero()));
                let counts = meter.counts.lock();
                (0..1000).for_each(|_| assert!(count(of_d, "d", 1e9).is_zero()));
                drop(counts);
                done.send(()).unwrap();
            });
            let waited_for_none = is_done.recv_timeout(Duration::from_secs(20));
            drop(held);
            waited_for_none.expect("it waited for what all share");
        });
        assert!(Arc::ptr_eq(&meter, &known(&of_c).unwrap()));
        assert_eq!(count(&of_c, "c", 9_000.0), Duration::from_millis(1), "all was counted");
    }

    /// What is remembered of limits must not outlive them, nor bind another client of the same connection.
    #[test]
    fn a_connection_goes_by_the_limits_of_its_client_as_they_are() {
        let clock = Arc::new(SimulatedClock::new(0));
        let (told, images) = watch::channel(image(&[]));
        let quotas = ClientQuotas::new(&BrokerConfig::defaults(), images, clock);
        let (one, other) = (ConnectionQuotas::default(), ConnectionQuotas::default());
        let count = |of: &ConnectionQuotas, client, amount| {
            quotas.count(of, Some(client), Quota::Produce, amount).as_millis()
        };
        assert_eq!(count(&one, "c", 1e9), 0, "no limit");
        told.send_replace(image(&[(Some("c"), 1000.0)]));
        assert_eq!(count(&one, "c", 10_000.0), 0);
        assert_eq!(count(&other, "c", 1_000.0), 1_000, "the connections of a client are counted together");
        assert_eq!((count(&one, "d", 1e9), count(&one, "c", 0.0)), (0, 1_000), "a connection for two");
        told.send_replace(image(&[(Some("c"), 2000.0), (None, 1.0)]));
        assert_eq!(count(&one, "c", 0.0), 0, "it may do more now, and what it did counts on");
        assert_eq!(count(&one, "d", 11.0), 1_000);
        assert_eq!(count(&other, "e", 11.0), 1_000, "each by itself");
        told.send_replace(image(&[]));
        assert_eq!(count(&one, "d", 1e9), 0);
    }

    /// A connection went on counting where nobody else looked any more, once its client had made room for others.
    #[test]
    fn a_client_that_made_room_and_comes_back_is_counted_with_all_its_connections() {
        let clock = Arc::new(SimulatedClock::new(0));
        let images = watch::channel(image(&[(None, 1.0)])).1;
        let quotas = ClientQuotas::new(&BrokerConfig::defaults(), images, clock.clone());
        let (one, other) = (ConnectionQuotas::default(), ConnectionQuotas::default());
        let count = |of: &ConnectionQuotas, client: &str, amount| {
            quotas.count(of, Some(client), Quota::Produce, amount).as_millis()
        };
        assert_eq!(count(&one, "c", 1.0), 0);
        clock.advance(Duration::from_secs(60));
        for client in 0..COUNTED_MAX {
            count(&other, &client.to_string(), 1.0);
        }
        assert_eq!(count(&other, "c", 1e6), 999_990_000, "counted by itself again, from the beginning");
        assert!(count(&one, "c", 0.0) > 900_000_000);
    }

    #[test]
    fn the_longest_mute_counts() {
        let mute = Mute::default();
        mute.extend(1000, Duration::from_secs(5));
        mute.extend(1000, Duration::from_secs(1));
        mute.extend(1000, Duration::ZERO);
        assert_eq!(mute.left(2000), Duration::from_secs(4));
        assert_eq!(mute.left(9000), Duration::ZERO);
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
