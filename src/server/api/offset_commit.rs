//! OffsetCommit (key 8), versions 0 to 10.
//!
//! v1 generations and members; v2 retention time, until v4; v6 leader epochs (KIP-320); v7 static members (KIP-345);
//! v8 flexible; v9 the consumer protocol (KIP-848); v10 topic ids.
//!
//! Version 0, which meant ZooKeeper, commits to `__consumer_offsets` like the others.

use klamm_protocol::messages::offset_commit::{OffsetCommitRequest, OffsetCommitResponse};

use super::Call;
use crate::context::Context;

pub(crate) async fn handle(
    context: &Context,
    call: &Call,
    request: OffsetCommitRequest,
) -> OffsetCommitResponse {
    context.groups.offset_commit(&call.client(), request).await
}
