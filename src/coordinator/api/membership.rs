//! JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

use klamm_model::ErrorCode;
use klamm_protocol::messages::heartbeat::{HeartbeatRequest, HeartbeatResponse};
use klamm_protocol::messages::join_group::{JoinGroupRequest, JoinGroupResponse};
use klamm_protocol::messages::leave_group::{LeaveGroupRequest, LeaveGroupResponse, MemberIdentity};
use klamm_protocol::messages::sync_group::{SyncGroupRequest, SyncGroupResponse};

use super::error_of;
use crate::coordinator::{Client, GroupCoordinator};
use crate::group::{Join, Reply, Request};

/// The first version of JoinGroup whose answer may have no protocol name.
const FIRST_JOIN_WITH_NULL_PROTOCOL: i16 = 7;
/// The first version of SyncGroup that must name the protocol (KIP-559).
const FIRST_SYNC_WITH_PROTOCOL: i16 = 5;
/// The first version of LeaveGroup with a list of members (KIP-345).
const FIRST_LEAVE_WITH_MEMBERS: i16 = 3;

impl GroupCoordinator {
    /// JoinGroup. The answer comes when the rebalance that it takes part in has come to its second half.
    pub async fn join_group(&self, client: &Client, request: JoinGroupRequest) -> JoinGroupResponse {
        let member_id = request.member_id.clone();
        let mut response = match self.join(client, request).await {
            Reply::Join(response) => response,
            other => {
                let error_code = error_of(&other).code();
                JoinGroupResponse { error_code, member_id, ..JoinGroupResponse::default() }
            }
        };
        if client.api_version < FIRST_JOIN_WITH_NULL_PROTOCOL {
            response.protocol_name.get_or_insert_default();
        } else {
            response.protocol_name = response.protocol_name.filter(|name| !name.is_empty());
        }
        response
    }

    async fn join(&self, client: &Client, mut request: JoinGroupRequest) -> Reply {
        if request.group_id.is_empty() {
            return Reply::Refused(ErrorCode::InvalidGroupId);
        }
        let settings = &self.settings;
        let allowed = settings.group_min_session_timeout_ms..=settings.group_max_session_timeout_ms;
        if !allowed.contains(&request.session_timeout_ms) {
            return Reply::Refused(ErrorCode::InvalidSessionTimeout);
        }
        if client.api_version == 0 {
            // Before there was a time-out of its own, a rebalance took as long as a session.
            request.rebalance_timeout_ms = request.session_timeout_ms;
        }
        let group = request.group_id.clone();
        let join = Join {
            version: client.api_version,
            client_id: client.client_id.clone(),
            client_host: client.client_host.clone(),
            random: self.random.next_16(),
            request,
        };
        self.ask(&group, Request::Join(Box::new(join))).await
    }

    /// SyncGroup. A follower's answer comes when the leader's assignments are stored.
    pub async fn sync_group(&self, client: &Client, request: SyncGroupRequest) -> SyncGroupResponse {
        let reply = self.sync(client, request).await;
        match reply {
            Reply::Sync(response) => response,
            other => {
                SyncGroupResponse { error_code: error_of(&other).code(), ..SyncGroupResponse::default() }
            }
        }
    }

    async fn sync(&self, client: &Client, request: SyncGroupRequest) -> Reply {
        let names_protocol = request.protocol_type.is_some() && request.protocol_name.is_some();
        if client.api_version >= FIRST_SYNC_WITH_PROTOCOL && !names_protocol {
            return Reply::Refused(ErrorCode::InconsistentGroupProtocol);
        }
        if request.group_id.is_empty() {
            return Reply::Refused(ErrorCode::InvalidGroupId);
        }
        let group = request.group_id.clone();
        self.ask(&group, Request::Sync(request)).await
    }

    /// Heartbeat. While the group is being loaded it is answered as if all were well, as Kafka does: a
    /// member has no better way to learn that it should wait.
    pub async fn heartbeat(&self, _client: &Client, request: HeartbeatRequest) -> HeartbeatResponse {
        let reply = if request.group_id.is_empty() {
            Reply::Refused(ErrorCode::InvalidGroupId)
        } else {
            let group = request.group_id.clone();
            self.ask(&group, Request::Heartbeat(request)).await
        };
        match reply {
            Reply::Heartbeat(response) => response,
            Reply::Refused(ErrorCode::CoordinatorLoadInProgress) => HeartbeatResponse::default(),
            other => {
                HeartbeatResponse { error_code: error_of(&other).code(), ..HeartbeatResponse::default() }
            }
        }
    }

    /// LeaveGroup.
    pub async fn leave_group(&self, client: &Client, mut request: LeaveGroupRequest) -> LeaveGroupResponse {
        let is_single = client.api_version < FIRST_LEAVE_WITH_MEMBERS;
        if is_single {
            let member_id = std::mem::take(&mut request.member_id);
            request.members = vec![MemberIdentity { member_id, ..MemberIdentity::default() }];
        }
        let reply = if request.group_id.is_empty() {
            Reply::Refused(ErrorCode::InvalidGroupId)
        } else {
            let group = request.group_id.clone();
            self.ask(&group, Request::Leave(request)).await
        };
        let mut response = match reply {
            Reply::Leave(response) => response,
            other => {
                LeaveGroupResponse { error_code: error_of(&other).code(), ..LeaveGroupResponse::default() }
            }
        };
        if is_single && let Some(member) = response.members.pop() {
            response.error_code = member.error_code;
        }
        response
    }
}
