//! What one request names more than once: a group, a transactional id, a partition.
//!
//! Apache Kafka answers each as often as it is named. A name takes three bytes and its answer may take
//! megabytes, so that one request could fill the memory: here repeats are answered up to a bound, and left out
//! beyond it.

use std::collections::BTreeSet;

/// What the answers to repeats of one request may take together, in bytes, about.
const BYTES_MAX: usize = 1024 * 1024;

/// Counts what is answered again.
pub struct Repeats<K> {
    answered: BTreeSet<K>,
    bytes_left: usize,
}

impl<K: Ord> Default for Repeats<K> {
    fn default() -> Repeats<K> {
        Repeats { answered: BTreeSet::new(), bytes_left: BYTES_MAX }
    }
}

impl<K: Ord> Repeats<K> {
    /// The answer for what was named, unless it was answered before and the bound is reached. `bytes_of` tells how
    /// much memory an answer takes.
    pub async fn answer<A>(
        &mut self,
        named: K,
        answer: impl Future<Output = A>,
        bytes_of: impl FnOnce(&A) -> usize,
    ) -> Option<A> {
        if self.answered.insert(named) {
            return Some(answer.await);
        }
        if self.bytes_left == 0 {
            return None;
        }
        let answer = answer.await;
        self.bytes_left = self.bytes_left.saturating_sub(bytes_of(&answer));
        Some(answer)
    }
}
