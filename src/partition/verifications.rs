//! The questions to the coordinators of transactions about one partition: which are under way, and what they told
//! of the order of a producer's batches (KIP-890).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use klamm_model::{ProducerEpoch, ProducerId};

/// From this number of questions on, those that nobody waits for are forgotten. A producer needs one for each
/// partition whose transaction has not begun, so that only a flood of failing producers gets there.
const KEPT_MAX: usize = 1000;

/// How long a question that failed tells of the order of batches: what Kafka's producers are remembered for.
const KEPT: Duration = Duration::from_secs(24 * 60 * 60);

/// Shows to [`crate::Partition::append_as_leader`] that the coordinator was asked. Worth nothing once a marker of
/// the producer was written.
#[derive(Clone, Debug)]
pub struct VerificationGuard(Arc<Subject>);

/// Whom a question is about.
#[derive(Debug)]
struct Subject {
    producer: ProducerId,
    epoch: ProducerEpoch,
    /// Whether the broker adds the partition to the transaction, for producers that do not do so themselves.
    is_implicit: bool,
}

struct Question {
    guard: VerificationGuard,
    /// The first sequence that was seen of the transaction, whether its batch was appended or refused.
    lowest_sequence: i32,
    /// When it was asked the last time.
    asked: Duration,
}

/// What is known of an append that brings a guard along.
pub(crate) struct Verified {
    pub(crate) lowest_sequence: i32,
    pub(crate) is_implicit: bool,
}

/// The questions by producer and epoch: what an epoch asks never disturbs another one, be it that of a zombie or
/// of the producer that replaces it. They stay when they fail, for the order of the batches that are sent again.
#[derive(Default)]
pub(crate) struct Verifications {
    by_producer: BTreeMap<(ProducerId, ProducerEpoch), Question>,
}

impl Verifications {
    /// A guard for a question that is about to be asked about the batch that begins with `sequence`.
    pub(crate) fn begin(
        &mut self,
        now: Duration,
        (producer, epoch): (ProducerId, ProducerEpoch),
        sequence: i32,
        is_implicit: bool,
    ) -> VerificationGuard {
        let key = (producer, epoch);
        if let Some(known) = self.by_producer.get_mut(&key)
            && (known.is_awaited() || now.saturating_sub(known.asked) < KEPT)
        {
            known.lowest_sequence = known.lowest_sequence.min(sequence);
            known.asked = now;
            return known.guard.clone();
        }
        if self.by_producer.len() >= KEPT_MAX {
            self.by_producer.retain(|_, question| question.is_awaited());
        }
        let guard = VerificationGuard(Arc::new(Subject { producer, epoch, is_implicit }));
        let question = Question { guard: guard.clone(), lowest_sequence: sequence, asked: now };
        self.by_producer.insert(key, question);
        guard
    }

    /// A transaction of the producer began here or ended: the guards of its epochs up to this one are worthless.
    pub(crate) fn end(&mut self, producer: ProducerId, epoch: ProducerEpoch) {
        let all = (producer, ProducerEpoch(i16::MIN))..=(producer, epoch);
        let ended: Vec<_> = self.by_producer.range(all).map(|(key, _)| *key).collect();
        for key in ended {
            self.by_producer.remove(&key);
        }
    }

    /// What a guard says about a producer's append; nothing if it is of another producer or worthless.
    pub(crate) fn check(
        &self,
        producer: ProducerId,
        epoch: ProducerEpoch,
        guard: &VerificationGuard,
    ) -> Option<Verified> {
        let question = self.by_producer.get(&(producer, epoch))?;
        Arc::ptr_eq(&question.guard.0, &guard.0)
            .then(|| Verified { lowest_sequence: question.lowest_sequence, is_implicit: guard.0.is_implicit })
    }

    /// Whether a guard is worth something.
    pub(crate) fn is_valid(&self, guard: &VerificationGuard) -> bool {
        self.check(guard.0.producer, guard.0.epoch, guard).is_some()
    }
}

impl Question {
    fn is_awaited(&self) -> bool {
        Arc::strong_count(&self.guard.0) > 1
    }
}
