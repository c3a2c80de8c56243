//! The follower's side of a fetch session (KIP-227): partitions are named once, and each later request carries only
//! what has changed.

use std::collections::{BTreeMap, BTreeSet};

use klamm_model::{ErrorCode, TopicId};
use klamm_protocol::messages::fetch::{FetchPartition, FetchTopic, ForgottenTopic};

use super::Key;

/// What a follower asks of one leader, and what that leader knows of it.
#[derive(Default)]
pub(super) struct Session {
    id: i32,
    /// The number of the next request; 0 begins a session and names all.
    epoch: i32,
    wanted: BTreeMap<Key, FetchPartition>,
    changed: BTreeSet<Key>,
    forgotten: BTreeSet<Key>,
}

/// The parts of a request that are the session's.
#[derive(Debug, PartialEq)]
pub(super) struct SessionRequest {
    pub(super) id: i32,
    pub(super) epoch: i32,
    pub(super) topics: Vec<FetchTopic>,
    pub(super) forgotten: Vec<ForgottenTopic>,
}

impl Session {
    /// Whether nothing is asked for.
    pub(super) fn is_empty(&self) -> bool {
        self.wanted.is_empty()
    }

    /// How many partitions are asked for.
    pub(super) fn len(&self) -> usize {
        self.wanted.len()
    }

    /// What is asked of a partition.
    pub(super) fn wanted(&self, key: &Key) -> Option<&FetchPartition> {
        self.wanted.get(key)
    }

    /// Asks for a partition from now on. The high watermark alone makes no request longer: the leader knows what it
    /// has told.
    pub(super) fn put(&mut self, key: Key, wanted: FetchPartition) {
        let known = self.wanted.get(&key);
        let same = known.is_some_and(|known| {
            FetchPartition { high_watermark: wanted.high_watermark, ..known.clone() } == wanted
        });
        if !same {
            self.forgotten.remove(&key);
            self.changed.insert(key);
            self.wanted.insert(key, wanted);
        }
    }

    /// Does not ask for a partition any more.
    pub(super) fn remove(&mut self, key: &Key) {
        if self.wanted.remove(key).is_some() {
            self.changed.remove(key);
            self.forgotten.insert(*key);
        }
    }

    /// Begins anew with the next request: an answer was lost, or is not wanted any more.
    pub(super) fn reset(&mut self) {
        self.epoch = 0;
    }

    /// The next request.
    pub(super) fn request(&mut self) -> SessionRequest {
        let (changed, forgotten) = (std::mem::take(&mut self.changed), std::mem::take(&mut self.forgotten));
        let mut topics: Vec<FetchTopic> = Vec::new();
        let named = self.wanted.iter().filter(|(key, _)| self.epoch == 0 || changed.contains(key));
        for (key, partition) in named {
            match topics.last_mut().filter(|topic| topic.topic_id == key.0) {
                Some(topic) => topic.partitions.push(partition.clone()),
                None => topics.push(FetchTopic {
                    topic_id: key.0,
                    partitions: vec![partition.clone()],
                    ..Default::default()
                }),
            }
        }
        let forgotten = if self.epoch == 0 { Vec::new() } else { by_topic(forgotten) };
        SessionRequest { id: self.id, epoch: self.epoch, topics, forgotten }
    }

    /// Takes an answer's head. Returns whether its body is one to the last request.
    pub(super) fn answered(&mut self, session_id: i32, error: ErrorCode) -> bool {
        match error {
            ErrorCode::None => {
                self.id = session_id;
                // Without a session all is named each time.
                self.epoch = match (session_id, self.epoch) {
                    (0, _) => 0,
                    (_, i32::MAX) => 1,
                    (_, epoch) => epoch + 1,
                };
                true
            }
            ErrorCode::FetchSessionIdNotFound => {
                (self.id, self.epoch) = (0, 0);
                false
            }
            _ => {
                self.epoch = 0;
                false
            }
        }
    }
}

fn by_topic(keys: BTreeSet<Key>) -> Vec<ForgottenTopic> {
    let mut topics: BTreeMap<TopicId, Vec<i32>> = BTreeMap::new();
    for (id, index) in keys {
        topics.entry(id).or_default().push(index);
    }
    let forgotten = |(topic_id, partitions)| ForgottenTopic { topic_id, partitions, ..Default::default() };
    topics.into_iter().map(forgotten).collect()
}

#[cfg(test)]
mod tests {
    use klamm_model::Uuid;

    use super::*;

    fn key(index: i32) -> Key {
        (Uuid([1; 16]), index)
    }

    fn at(index: i32, fetch_offset: i64) -> FetchPartition {
        FetchPartition { partition: index, fetch_offset, high_watermark: 0, ..Default::default() }
    }

    fn named(request: &SessionRequest) -> Vec<(i32, i64)> {
        let partitions = request.topics.iter().flat_map(|topic| &topic.partitions);
        partitions.map(|partition| (partition.partition, partition.fetch_offset)).collect()
    }

    #[test]
    fn only_what_changed_is_named_again() {
        let mut session = Session::default();
        session.put(key(0), at(0, 5));
        session.put(key(1), at(1, 7));
        let first = session.request();
        assert_eq!((first.id, first.epoch, named(&first)), (0, 0, vec![(0, 5), (1, 7)]));
        assert!(session.answered(9, ErrorCode::None));

        session.put(key(0), FetchPartition { high_watermark: 4, ..at(0, 5) });
        session.put(key(1), at(1, 8));
        let second = session.request();
        assert_eq!((second.id, second.epoch, named(&second)), (9, 1, vec![(1, 8)]));
        assert!(session.answered(9, ErrorCode::None));

        session.remove(&key(1));
        let third = session.request();
        assert_eq!((third.epoch, named(&third)), (2, vec![]));
        assert_eq!(third.forgotten[0].partitions, [1]);
    }

    #[test]
    fn a_partition_that_comes_back_before_the_request_is_not_forgotten() {
        let mut session = Session::default();
        session.put(key(0), at(0, 5));
        session.request();
        session.answered(9, ErrorCode::None);
        session.remove(&key(0));
        session.put(key(0), at(0, 5));
        let request = session.request();
        assert_eq!((named(&request), request.forgotten), (vec![(0, 5)], vec![]));
    }

    #[test]
    fn a_lost_answer_and_a_lost_session_begin_anew() {
        let mut session = Session::default();
        session.put(key(0), at(0, 5));
        session.request();
        session.answered(9, ErrorCode::None);
        session.reset();
        let again = session.request();
        assert_eq!((again.id, again.epoch, named(&again)), (9, 0, vec![(0, 5)]), "the old session is closed");
        assert!(!session.answered(0, ErrorCode::FetchSessionIdNotFound));
        let anew = session.request();
        assert_eq!((anew.id, anew.epoch, named(&anew)), (0, 0, vec![(0, 5)]));
    }
}
