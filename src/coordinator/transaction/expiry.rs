//! Transactions that take too long are aborted; transactional ids that nobody uses are forgotten.

use super::message::{Effects, Now, Then, Write};
use super::state::State;
use super::{Timer, TransactionRecord, TransactionShard};

impl TransactionShard {
    /// Aborts all that have taken longer than their producers allowed, and sets the time of the next look.
    pub(super) fn abort_timed_out(&mut self, now: Now) -> Effects {
        let mut effects = Effects::default();
        for (id, transaction) in &self.transactions {
            let ends_ms = transaction.start_ms.saturating_add(i64::from(transaction.timeout_ms));
            if transaction.state != State::Ongoing || ends_ms >= now.wall_ms {
                continue;
            }
            tracing::info!(
                transactional_id = &**id,
                timeout_ms = transaction.timeout_ms,
                "the transaction takes too long: aborted, and its producer is fenced"
            );
            effects.extend(self.fence(now, id, transaction, None));
        }
        self.set_abort_timer(now);
        effects
    }

    /// Forgets all that were not used for `transactional.id.expiration.ms`.
    pub(super) fn remove_expired(&mut self, now: Now) -> Effects {
        let expiration_ms = i64::from(self.settings.transactional_id_expiration_ms);
        let mut effects = Effects::default();
        for (id, transaction) in &self.transactions {
            let is_unused =
                matches!(transaction.state, State::Empty | State::CompleteCommit | State::CompleteAbort);
            let expires_ms = transaction.last_update_ms.saturating_add(expiration_ms);
            if is_unused && expires_ms <= now.wall_ms {
                let record = TransactionRecord { transactional_id: id.clone(), value: None };
                effects.writes.push(Write::plain(vec![record], Then::Nothing));
            }
        }
        for id in self.unreadable.written_before(now.wall_ms.saturating_sub(expiration_ms)) {
            let record = TransactionRecord { transactional_id: id.clone(), value: None };
            effects.writes.push(Write::plain(vec![record], Then::Nothing));
        }
        self.set_expiry_timer(now);
        effects
    }

    pub(super) fn set_abort_timer(&mut self, now: Now) {
        let after_ms = self.settings.abort_timed_out_transaction_cleanup_interval_ms;
        self.deadlines.set(Timer::AbortTimedOut, later(now, after_ms));
    }

    pub(super) fn set_expiry_timer(&mut self, now: Now) {
        let after_ms = self.settings.remove_expired_transaction_cleanup_interval_ms;
        self.deadlines.set(Timer::RemoveExpired, later(now, after_ms));
    }
}

fn later(now: Now, after_ms: i32) -> u64 {
    now.monotonic_ms + u64::try_from(after_ms).unwrap_or(0).max(1)
}
