//! SyncGroup: the leader hands the assignments in, each member fetches its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use klamm_model::ErrorCode;
use klamm_protocol::messages::sync_group::{SyncGroupRequest, SyncGroupResponse};

use super::classic::{Group, State};
use super::message::{Effects, Now, Reply, Then, Ticket, Write};
use super::record::GroupRecord;
use super::timer::Timer;
use super::{GroupShard, Turn, rebalance};

impl GroupShard {
    pub(super) fn sync(&mut self, now: Now, ticket: Ticket, request: SyncGroupRequest) -> Effects {
        let Some((group, mut turn)) = self.turn(now, &request.group_id) else {
            return Effects::reply(ticket, refusal(ErrorCode::UnknownMemberId));
        };
        if let Err(error) = check(group, &request) {
            turn.reply(ticket, refusal(error));
            return turn.effects;
        }
        group.pending_sync.remove(&*request.member_id);
        if group.pending_sync.is_empty() {
            turn.deadlines.cancel(&Timer::Sync { group: group.id.clone() });
        }
        if group.state == State::Stable {
            let assignment = group.member(&request.member_id).map(|member| member.assignment.clone());
            turn.reply(ticket, assigned(group, assignment.unwrap_or_default()));
            return turn.effects;
        }
        if let Some(member) = group.member_mut(&request.member_id)
            && let Some(earlier) = member.sync.replace(ticket)
        {
            // The same member asks twice; whoever still listens to the first call must ask again.
            turn.reply(earlier, refusal(ErrorCode::RebalanceInProgress));
        }
        if group.is_leader(&request.member_id) {
            store_assignments(&mut turn, group, &request);
        }
        turn.effects
    }

    /// The assignments are written: everyone gets its own. If the group has moved on, they are worthless.
    pub(super) fn assignment_stored(
        &mut self,
        now: Now,
        group: &str,
        generation: i32,
        mut assignments: BTreeMap<Arc<str>, Bytes>,
        outcome: Result<(), ErrorCode>,
    ) -> Effects {
        let Some((group, mut turn)) = self.turn(now, group) else { return Effects::default() };
        if group.state != State::CompletingRebalance || group.generation != generation {
            return turn.effects;
        }
        if let Err(error) = outcome {
            tracing::warn!(group = &*group.id, generation, %error, "the assignment could not be written");
            rebalance::forget_assignments(&mut turn, group, error);
            rebalance::begin(&mut turn, group, "the assignment could not be written");
            return turn.effects;
        }
        group.enter(State::Stable, now.wall_ms);
        let mut answered = Vec::new();
        for member in group.members_mut() {
            member.assignment = assignments.remove(&member.id).unwrap_or_default();
            if let Some(ticket) = member.sync.take() {
                answered.push((ticket, member.id.clone(), member.assignment.clone()));
            }
        }
        for (ticket, member, assignment) in answered {
            let reply = assigned(group, assignment);
            turn.reply(ticket, reply);
            turn.restart_session(group, &member);
        }
        turn.effects
    }
}

fn refusal(error: ErrorCode) -> Reply {
    Reply::Sync(SyncGroupResponse { error_code: error.code(), ..SyncGroupResponse::default() })
}

fn assigned(group: &Group, assignment: Bytes) -> Reply {
    Reply::Sync(SyncGroupResponse {
        protocol_type: group.protocol_type.clone(),
        protocol_name: group.protocol.clone(),
        assignment,
        ..SyncGroupResponse::default()
    })
}

fn check(group: &Group, request: &SyncGroupRequest) -> Result<(), ErrorCode> {
    group.check_member(&request.member_id, request.group_instance_id.as_deref())?;
    if request.generation_id != group.generation {
        return Err(ErrorCode::IllegalGeneration);
    }
    let differs = |asked: &Option<String>, ours: &Option<String>| matches!((asked, ours), (Some(asked), Some(ours)) if asked != ours);
    if differs(&request.protocol_type, &group.protocol_type)
        || differs(&request.protocol_name, &group.protocol)
    {
        return Err(ErrorCode::InconsistentGroupProtocol);
    }
    match group.state {
        State::Empty => Err(ErrorCode::UnknownMemberId),
        State::PreparingRebalance => Err(ErrorCode::RebalanceInProgress),
        State::CompletingRebalance | State::Stable => Ok(()),
    }
}

/// Writes the leader's assignments; members that it forgot get an empty one.
fn store_assignments(turn: &mut Turn<'_>, group: &Group, request: &SyncGroupRequest) {
    let mut assignments = BTreeMap::new();
    for assignment in &request.assignments {
        if let Some(member) = group.member(&assignment.member_id) {
            // A copy, so that the whole frame is not kept for it.
            assignments.insert(member.id.clone(), Bytes::copy_from_slice(&assignment.assignment));
        }
    }
    if assignments.len() < group.size() {
        let missing = group.size() - assignments.len();
        tracing::warn!(group = &*group.id, missing, "the leader assigned nothing to some members");
    }
    let value = group.to_stored(|member| assignments.get(&member.id).cloned().unwrap_or_default());
    let record = GroupRecord::Group { group: group.id.clone(), value: Some(value) };
    let generation = group.generation;
    let then = Then::AssignmentStored { group: group.id.clone(), generation, assignments };
    turn.effects.writes.push(Write::plain(vec![record], then));
}
