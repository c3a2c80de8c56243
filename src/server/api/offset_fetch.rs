//! OffsetFetch (key 9), versions 0 to 10.
//!
//! v2 all topics of a group; v3 throttle time; v5 leader epochs; v6 flexible; v7 stable offsets (KIP-447); v8 several
//! groups (KIP-709); v9 the consumer protocol (KIP-848); v10 topic ids.
//!
//! Version 0, which meant ZooKeeper, reads `__consumer_offsets` like the others.

use klamm_protocol::messages::offset_fetch::{OffsetFetchRequest, OffsetFetchResponse};

use super::Call;
use crate::context::Context;

pub(crate) async fn handle(
    context: &Context,
    call: &Call,
    request: OffsetFetchRequest,
) -> OffsetFetchResponse {
    context.groups.offset_fetch(&call.client(), request).await
}
