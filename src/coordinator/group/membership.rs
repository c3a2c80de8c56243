//! Heartbeat and LeaveGroup.

use klamm_model::ErrorCode;
use klamm_protocol::messages::heartbeat::{HeartbeatRequest, HeartbeatResponse};
use klamm_protocol::messages::leave_group::{
    LeaveGroupRequest, LeaveGroupResponse, MemberIdentity, MemberResponse,
};

use super::classic::{Group, State};
use super::message::{Effects, Now, Reply, Ticket};
use super::{GroupShard, Turn, rebalance};

impl GroupShard {
    pub(super) fn heartbeat(&mut self, now: Now, ticket: Ticket, request: HeartbeatRequest) -> Effects {
        let error = match self.turn(now, &request.group_id) {
            None => ErrorCode::UnknownMemberId,
            Some((group, mut turn)) => match check(group, &request) {
                Err(error) => error,
                Ok(()) => {
                    turn.restart_session(group, &request.member_id);
                    match group.state {
                        State::PreparingRebalance => ErrorCode::RebalanceInProgress,
                        _ => ErrorCode::None,
                    }
                }
            },
        };
        let reply = HeartbeatResponse { error_code: error.code(), ..HeartbeatResponse::default() };
        Effects::reply(ticket, Reply::Heartbeat(reply))
    }

    pub(super) fn leave(&mut self, now: Now, ticket: Ticket, request: LeaveGroupRequest) -> Effects {
        let Some((group, mut turn)) = self.turn(now, &request.group_id) else {
            let all = request.members.iter().map(|member| answer(member, ErrorCode::UnknownMemberId));
            let reply = LeaveGroupResponse { members: all.collect(), ..LeaveGroupResponse::default() };
            return Effects::reply(ticket, Reply::Leave(reply));
        };
        let mut reply = LeaveGroupResponse::default();
        let size_before = group.size();
        for member in &request.members {
            let error = leave_one(&mut turn, group, member);
            reply.members.push(answer(member, error));
        }
        if group.size() < size_before && group.state != State::Empty {
            rebalance::begin_or_finish(&mut turn, group, "members left");
        } else {
            // It may have been a member id that all waited for.
            rebalance::finish_if_everyone_joined(&mut turn, group);
        }
        turn.reply_after_writes(ticket, Reply::Leave(reply));
        turn.effects
    }
}

fn check(group: &Group, request: &HeartbeatRequest) -> Result<(), ErrorCode> {
    group.check_member(&request.member_id, request.group_instance_id.as_deref())?;
    if request.generation_id != group.generation {
        return Err(ErrorCode::IllegalGeneration);
    }
    if group.state == State::Empty { Err(ErrorCode::UnknownMemberId) } else { Ok(()) }
}

fn leave_one(turn: &mut Turn<'_>, group: &mut Group, member: &MemberIdentity) -> ErrorCode {
    let instance_id = member.group_instance_id.as_deref();
    // An admin removes a static member by its instance id alone.
    if member.member_id.is_empty() {
        let Some(id) = instance_id.and_then(|instance_id| group.static_member(instance_id)).cloned() else {
            return ErrorCode::UnknownMemberId;
        };
        log_leave(group, &id, member);
        rebalance::remove_member(turn, group, &id);
        return ErrorCode::None;
    }
    if group.pending_join.contains(&*member.member_id) {
        log_leave(group, &member.member_id, member);
        rebalance::remove_member(turn, group, &member.member_id);
        return ErrorCode::None;
    }
    if let Err(error) = group.check_member(&member.member_id, instance_id) {
        return error;
    }
    log_leave(group, &member.member_id, member);
    rebalance::remove_member(turn, group, &member.member_id);
    ErrorCode::None
}

fn log_leave(group: &Group, id: &str, member: &MemberIdentity) {
    let reason = member.reason.as_deref().unwrap_or("not provided");
    tracing::info!(group = &*group.id, member = id, reason, "a member left");
}

fn answer(member: &MemberIdentity, error: ErrorCode) -> MemberResponse {
    MemberResponse {
        member_id: member.member_id.clone(),
        group_instance_id: member.group_instance_id.clone(),
        error_code: error.code(),
    }
}
