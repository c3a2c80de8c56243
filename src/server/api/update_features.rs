//! UpdateFeatures (key 57), versions 0 to 2: raises and lowers the levels of features (KIP-584).
//!
//! v1 kinds of downgrades, validation without change (KIP-778); v2 one error for all. The controller decides. As in Kafka,
//! version 0 only raises, whatever it says of downgrades.

use std::time::Duration;

use klamm_protocol::messages::{UpdateFeaturesRequest, UpdateFeaturesResponse};

use super::Call;
use crate::context::{CONTROLLER_TIMEOUT, Context};

pub(crate) async fn handle(
    context: &Context,
    call: &Call,
    request: UpdateFeaturesRequest,
) -> UpdateFeaturesResponse {
    // As in Kafka, no time is no limit.
    let timeout = match u64::try_from(request.timeout_ms) {
        Ok(0) | Err(_) => CONTROLLER_TIMEOUT,
        Ok(timeout_ms) => Duration::from_millis(timeout_ms),
    };
    let mut response = context.decide(call, request, timeout).await;
    if call.version >= 2 {
        response.results = Vec::new();
    }
    response
}
