//! Producer ids: handed out from a block that the controller has promised to nobody else.

use std::future::Future;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use klamm_model::{ErrorCode, NodeId, ProducerId};
use klamm_protocol::messages::{AllocateProducerIdsRequest, AllocateProducerIdsResponse};
use tokio::sync::Mutex;

use crate::controller_channel::ControllerChannel;

/// How long the controller may take to give a block.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The rest of this node's block.
#[derive(Default)]
pub(crate) struct ProducerIds {
    // An async mutex, because it is held while a new block is fetched: all who wait need that block.
    block: Mutex<Range<i64>>,
    /// How many attempts to fetch a block have failed.
    failures: AtomicU64,
}

impl ProducerIds {
    /// An id that no producer ever had.
    ///
    /// # Errors
    /// COORDINATOR_LOAD_IN_PROGRESS if the controller gave no block, for whatever reason: producers ask again then, as
    /// they do with Kafka.
    pub(crate) async fn next(
        &self,
        controller: &ControllerChannel,
        node: NodeId,
        broker_epoch: i64,
    ) -> Result<ProducerId, ErrorCode> {
        let request = AllocateProducerIdsRequest { broker_id: node.0, broker_epoch };
        self.next_from(|| controller.ask(request, TIMEOUT)).await
    }

    /// As [`ProducerIds::next`]. Those who come while a block is fetched share the attempt, also one that fails.
    async fn next_from<F: Future<Output = AllocateProducerIdsResponse>>(
        &self,
        fetch: impl FnOnce() -> F,
    ) -> Result<ProducerId, ErrorCode> {
        let failures = self.failures.load(Ordering::Acquire);
        let mut block = self.block.lock().await;
        if block.is_empty() {
            if self.failures.load(Ordering::Acquire) != failures {
                return Err(ErrorCode::CoordinatorLoadInProgress);
            }
            let given = fetch().await;
            let code = ErrorCode::from_code(given.error_code).unwrap_or(ErrorCode::UnknownServerError);
            if code != ErrorCode::None || given.producer_id_len <= 0 {
                tracing::warn!(
                    "no producer ids from the controller: {code}; producers are told to ask again"
                );
                self.failures.fetch_add(1, Ordering::AcqRel);
                return Err(ErrorCode::CoordinatorLoadInProgress);
            }
            *block = given.producer_id_start..given.producer_id_start + i64::from(given.producer_id_len);
        }
        let id = block.start;
        block.start += 1;
        Ok(ProducerId(id))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    /// Each of those who waited tried for five seconds of its own, one behind the other.
    #[tokio::test]
    async fn those_who_wait_for_a_block_share_one_attempt() {
        let (ids, attempts) = (ProducerIds::default(), AtomicU32::new(0));
        let fetch = async |given: AllocateProducerIdsResponse| {
            attempts.fetch_add(1, Ordering::AcqRel);
            tokio::time::sleep(Duration::from_millis(20)).await;
            given
        };
        let unreachable = AllocateProducerIdsResponse {
            error_code: ErrorCode::NotController.code(),
            ..AllocateProducerIdsResponse::default()
        };
        let next = || ids.next_from(|| fetch(unreachable.clone()));
        let told = tokio::join!(next(), next(), next());
        let error = Err(ErrorCode::CoordinatorLoadInProgress);
        assert_eq!(told, (error, error, error));
        assert_eq!(attempts.load(Ordering::Acquire), 1);

        // Who comes later tries anew, and shares a block that is given.
        let block = AllocateProducerIdsResponse {
            producer_id_start: 7,
            producer_id_len: 3,
            ..AllocateProducerIdsResponse::default()
        };
        let next = || ids.next_from(|| fetch(block.clone()));
        assert_eq!(tokio::join!(next(), next()), (Ok(ProducerId(7)), Ok(ProducerId(8))));
        assert_eq!(attempts.load(Ordering::Acquire), 2);
    }
}
