//! Groups that one request names more than once.
//!
//! Apache Kafka answers each as often as it is named. A name takes three bytes and its answer may take
//! megabytes, so that one request could fill the memory: here repeats are answered up to a bound, and left out
//! beyond it.

use std::collections::BTreeSet;

/// What the answers to repeats of one request may take together, in bytes, about.
const BYTES_MAX: usize = 1024 * 1024;

/// Counts what is answered again.
pub(super) struct Repeats {
    answered: BTreeSet<String>,
    bytes_left: usize,
}

impl Repeats {
    pub(super) fn new() -> Repeats {
        Repeats { answered: BTreeSet::new(), bytes_left: BYTES_MAX }
    }

    /// The answer for a group, unless it was answered before and the bound is reached. `bytes_of` tells how much
    /// memory an answer takes.
    pub(super) async fn answer<A>(
        &mut self,
        group: String,
        answer: impl Future<Output = A>,
        bytes_of: impl FnOnce(&A) -> usize,
    ) -> Option<A> {
        if self.answered.insert(group) {
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
