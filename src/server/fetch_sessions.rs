//! Fetch sessions (KIP-227): a client names its partitions once, and each later request and answer carries
//! only what has changed. A thousand idle partitions then cost a few bytes each way.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use klamm_io::Random;
use klamm_model::{ErrorCode, LeaderEpoch, Offset, TopicId, topic_name};
use parking_lot::Mutex;

/// What a client wants of one partition.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Wanted {
    /// The topic's id; zero before Fetch v13.
    pub(crate) topic_id: TopicId,
    /// The topic's name; empty from Fetch v13 on.
    pub(crate) topic: Arc<str>,
    pub(crate) partition: i32,
    pub(crate) fetch_offset: Offset,
    pub(crate) bytes_max: i32,
    pub(crate) current_leader_epoch: LeaderEpoch,
    pub(crate) last_fetched_epoch: LeaderEpoch,
    /// Where a replica's log begins; -1 if it does not tell.
    pub(crate) log_start: Offset,
    /// The high watermark that a replica knows (KIP-1166); the largest number if it does not tell.
    pub(crate) high_watermark: Offset,
}

/// How many partitions all sessions together keep; beyond it a client goes without a session and names its
/// partitions each time.
const PARTITIONS_MAX: usize = 1_000_000;

/// Names a partition within a session.
pub(crate) type Key = (TopicId, Arc<str>, i32);

impl Wanted {
    fn key(&self) -> Key {
        (self.topic_id, self.topic.clone(), self.partition)
    }
}

/// What the client was last told of a partition; an answer that says nothing new is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Told {
    pub(crate) high_watermark: Offset,
    pub(crate) log_start: Offset,
}

struct Cached {
    wanted: Wanted,
    told: Option<Told>,
}

/// One session. Its requests come one after the other, so the lock is never waited for in earnest.
pub(crate) struct Session {
    id: i32,
    /// How many partitions it keeps.
    partitions: AtomicUsize,
    state: Mutex<SessionState>,
}

struct SessionState {
    /// What the next request's epoch must be.
    epoch: i32,
    uses_topic_ids: bool,
    /// In the order in which they are read; those that gave data move to the end, so that none starves.
    order: BTreeMap<u64, Cached>,
    places: BTreeMap<Key, u64>,
    next_place: u64,
}

/// All sessions, at most `max.incremental.fetch.session.cache.slots`.
pub(crate) struct FetchSessions {
    slots_max: usize,
    /// `min.incremental.fetch.session.eviction.ms`.
    evict_after: Duration,
    random: Arc<dyn Random>,
    sessions: Mutex<BTreeMap<i32, (Arc<Session>, Duration)>>,
}

/// What kind of request this is.
pub(crate) enum Kind {
    /// All partitions are named, all are answered; no session follows it.
    Sessionless,
    /// All partitions are named, all are answered, and the session begins.
    First(Arc<Session>),
    /// Only changes are named, only news is answered.
    Next(Arc<Session>),
    /// The last partition was forgotten: nothing is answered, and no session follows.
    Ended,
}

impl FetchSessions {
    pub(crate) fn new(slots_max: usize, evict_after: Duration, random: Arc<dyn Random>) -> FetchSessions {
        FetchSessions { slots_max, evict_after, random, sessions: Mutex::default() }
    }

    /// Finds or makes the session that a request speaks of.
    pub(crate) fn open(
        &self,
        id: i32,
        epoch: i32,
        wanted: &[Wanted],
        forgotten: &[Key],
        uses_topic_ids: bool,
        now: Duration,
    ) -> Result<Kind, ErrorCode> {
        match epoch {
            -1 | 0 => {
                self.close(id);
                if epoch == -1 {
                    return Ok(Kind::Sessionless);
                }
                let session = self.begin(wanted, uses_topic_ids, now);
                Ok(session.map_or(Kind::Sessionless, Kind::First))
            }
            _ => {
                let session = self.resume(id, epoch, wanted, forgotten, uses_topic_ids, now)?;
                Ok(session.map_or(Kind::Ended, Kind::Next))
            }
        }
    }

    fn close(&self, id: i32) {
        self.sessions.lock().remove(&id);
    }

    fn begin(&self, wanted: &[Wanted], uses_topic_ids: bool, now: Duration) -> Option<Arc<Session>> {
        let mut sessions = self.sessions.lock();
        let kept: usize =
            sessions.values().map(|(session, _)| session.partitions.load(Ordering::Relaxed)).sum();
        if kept + wanted.len() > PARTITIONS_MAX {
            return None;
        }
        if sessions.len() >= self.slots_max {
            let oldest = sessions.iter().min_by_key(|(_, (_, used))| *used);
            let (oldest, used) = oldest.map(|(id, (_, used))| (*id, *used))?;
            if now.saturating_sub(used) < self.evict_after {
                return None;
            }
            sessions.remove(&oldest);
        }
        let id = loop {
            let id = (self.random.next_u64() >> 33) as i32;
            if id != 0 && !sessions.contains_key(&id) {
                break id;
            }
        };
        let mut state = SessionState {
            epoch: 1,
            uses_topic_ids,
            order: BTreeMap::new(),
            places: BTreeMap::new(),
            next_place: 0,
        };
        for wanted in wanted {
            state.put(wanted.clone());
        }
        let partitions = AtomicUsize::new(state.order.len());
        let session = Arc::new(Session { id, partitions, state: Mutex::new(state) });
        sessions.insert(id, (session.clone(), now));
        Some(session)
    }

    fn resume(
        &self,
        id: i32,
        epoch: i32,
        wanted: &[Wanted],
        forgotten: &[Key],
        uses_topic_ids: bool,
        now: Duration,
    ) -> Result<Option<Arc<Session>>, ErrorCode> {
        let session = {
            let mut sessions = self.sessions.lock();
            let (session, used) = sessions.get_mut(&id).ok_or(ErrorCode::FetchSessionIdNotFound)?;
            *used = now;
            session.clone()
        };
        let mut state = session.state.lock();
        if state.epoch != epoch {
            return Err(ErrorCode::InvalidFetchSessionEpoch);
        }
        if state.uses_topic_ids != uses_topic_ids {
            return Err(ErrorCode::FetchSessionTopicIdError);
        }
        state.epoch = if epoch == i32::MAX { 1 } else { epoch + 1 };
        for key in forgotten {
            state.forget(key);
        }
        for wanted in wanted {
            state.put(wanted.clone());
        }
        session.partitions.store(state.order.len(), Ordering::Relaxed);
        let is_empty = state.order.is_empty();
        drop(state);
        if is_empty {
            // Nothing is left to ask for: the session ends, and the answer says so with id 0.
            self.close(id);
            return Ok(None);
        }
        Ok(Some(session))
    }
}

impl SessionState {
    fn put(&mut self, wanted: Wanted) {
        // What cannot be a topic's name will never have records, and is not worth its memory.
        if wanted.topic.len() > topic_name::LENGTH_MAX {
            return;
        }
        let key = wanted.key();
        if let Some(cached) = self.places.get(&key).and_then(|place| self.order.get_mut(place)) {
            cached.wanted = wanted;
            return;
        }
        self.places.insert(key, self.next_place);
        self.order.insert(self.next_place, Cached { wanted, told: None });
        self.next_place += 1;
    }

    fn forget(&mut self, key: &Key) {
        if let Some(place) = self.places.remove(key) {
            self.order.remove(&place);
        }
    }
}

impl Session {
    /// The session's number.
    pub(crate) fn id(&self) -> i32 {
        self.id
    }

    /// What the client wants, in the order in which it is to be read. It knows the high watermarks that it was told.
    pub(crate) fn wanted(&self) -> Vec<Wanted> {
        let known = |cached: &Cached| Wanted {
            high_watermark: cached.told.map_or(cached.wanted.high_watermark, |told| told.high_watermark),
            ..cached.wanted.clone()
        };
        self.state.lock().order.values().map(known).collect()
    }

    /// Whether an answer about a partition is news, and remembers that it was given. `has_data` moves the
    /// partition to the end; `told` is `None` for an error, which is always news.
    pub(crate) fn tell(&self, wanted: &Wanted, has_data: bool, told: Option<Told>) -> bool {
        let mut state = self.state.lock();
        let key = wanted.key();
        let Some(place) = state.places.get(&key).copied() else {
            return true;
        };
        let Some(cached) = state.order.get_mut(&place) else {
            return true;
        };
        let is_news = has_data || told.is_none() || cached.told != told;
        cached.told = told;
        if has_data {
            let next = state.next_place;
            state.next_place += 1;
            if let Some(cached) = state.order.remove(&place) {
                state.order.insert(next, cached);
                state.places.insert(key, next);
            }
        }
        is_news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Counting(std::sync::atomic::AtomicU64);

    impl Random for Counting {
        fn fill(&self, bytes: &mut [u8]) {
            let next = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
            bytes.fill(0);
            bytes[..8].copy_from_slice(&(next << 33).to_le_bytes());
        }
    }

    fn sessions(slots: usize) -> FetchSessions {
        FetchSessions::new(slots, Duration::from_secs(120), Arc::new(Counting(0.into())))
    }

    fn wanted(partition: i32, fetch_offset: Offset) -> Wanted {
        Wanted {
            topic_id: TopicId::ZERO,
            topic: "t".into(),
            partition,
            fetch_offset,
            bytes_max: 1,
            current_leader_epoch: LeaderEpoch::NONE,
            last_fetched_epoch: LeaderEpoch::NONE,
            log_start: -1,
            high_watermark: Offset::MAX,
        }
    }

    fn first(sessions: &FetchSessions, wanted: &[Wanted], now: u64) -> Option<Arc<Session>> {
        match sessions.open(0, 0, wanted, &[], false, Duration::from_secs(now)) {
            Ok(Kind::First(session)) => Some(session),
            Ok(Kind::Sessionless) => None,
            _ => panic!("a first request neither begins a session nor goes without"),
        }
    }

    #[test]
    fn a_partition_is_told_again_only_when_something_moved() {
        let sessions = sessions(10);
        let session = first(&sessions, &[wanted(0, 5), wanted(1, 5)], 0).unwrap();
        let told = Some(Told { high_watermark: 5, log_start: 0 });
        assert!(session.tell(&wanted(0, 5), false, told), "the first answer names all partitions");
        assert!(!session.tell(&wanted(0, 5), false, told));
        assert!(session.tell(&wanted(0, 5), true, told), "data is always news");
        assert!(session.tell(&wanted(0, 5), false, None), "so is an error");
        let moved = Some(Told { high_watermark: 6, log_start: 0 });
        assert!(session.tell(&wanted(0, 5), false, moved));
    }

    #[test]
    fn a_busy_partition_goes_to_the_end_of_the_queue() {
        let sessions = sessions(10);
        let session = first(&sessions, &[wanted(0, 0), wanted(1, 0), wanted(2, 0)], 0).unwrap();
        session.tell(&wanted(0, 0), true, Some(Told { high_watermark: 1, log_start: 0 }));
        let order: Vec<i32> = session.wanted().iter().map(|wanted| wanted.partition).collect();
        assert_eq!(order, [1, 2, 0]);
    }

    #[test]
    fn later_requests_change_and_forget_partitions() {
        let sessions = sessions(10);
        let session = first(&sessions, &[wanted(0, 0), wanted(1, 0)], 0).unwrap();
        let forgotten = [(TopicId::ZERO, "t".into(), 1)];
        let next = sessions.open(session.id(), 1, &[wanted(0, 9)], &forgotten, false, Duration::ZERO);
        assert!(matches!(next, Ok(Kind::Next(_))));
        assert_eq!(session.wanted(), [wanted(0, 9)]);
    }

    /// A consumer that was told of no partitions yet opens its session all the same, and one that has lost all of
    /// them must not go on with an id that this side has forgotten.
    #[test]
    fn a_session_may_begin_empty_and_ends_with_its_last_partition() {
        let sessions = sessions(10);
        let empty = first(&sessions, &[], 0).unwrap();
        let next = sessions.open(empty.id(), 1, &[wanted(0, 0)], &[], false, Duration::ZERO);
        assert!(matches!(next, Ok(Kind::Next(_))));
        let forgotten = [(TopicId::ZERO, "t".into(), 0)];
        let last = sessions.open(empty.id(), 2, &[], &forgotten, false, Duration::ZERO);
        assert!(matches!(last, Ok(Kind::Ended)));
        let gone = sessions.open(empty.id(), 3, &[], &[], false, Duration::ZERO);
        assert!(matches!(gone, Err(ErrorCode::FetchSessionIdNotFound)));
    }

    #[test]
    fn a_wrong_id_epoch_or_kind_of_topic_is_told_apart() {
        let sessions = sessions(10);
        let session = first(&sessions, &[wanted(0, 0)], 0).unwrap();
        let open = |id, epoch, ids| sessions.open(id, epoch, &[], &[], ids, Duration::ZERO).err();
        assert_eq!(open(session.id() + 1, 1, false), Some(ErrorCode::FetchSessionIdNotFound));
        assert_eq!(open(session.id(), 2, false), Some(ErrorCode::InvalidFetchSessionEpoch));
        assert_eq!(open(session.id(), 1, true), Some(ErrorCode::FetchSessionTopicIdError));
        assert_eq!(open(session.id(), 1, false), None);
        assert_eq!(open(session.id(), -1, false), None, "the final epoch ends the session");
        assert_eq!(open(session.id(), 2, false), Some(ErrorCode::FetchSessionIdNotFound));
    }

    #[test]
    fn a_full_cache_gives_up_only_sessions_that_nobody_used_for_long() {
        let sessions = sessions(1);
        let old = first(&sessions, &[wanted(0, 0)], 0).unwrap();
        assert!(first(&sessions, &[wanted(0, 0)], 60).is_none(), "two minutes have not passed");
        assert!(first(&sessions, &[wanted(0, 0)], 200).is_some());
        let gone = sessions.open(old.id(), 1, &[], &[], false, Duration::from_secs(200));
        assert!(matches!(gone, Err(ErrorCode::FetchSessionIdNotFound)));
    }
}
