//! The walk from one generation to the next, and the deadlines that drive it when members do not.

use klamm_model::ErrorCode;
use klamm_protocol::messages::join_group::JoinGroupResponse;
use klamm_protocol::messages::sync_group::SyncGroupResponse;

use super::Turn;
use super::classic::{Group, InitialDelay, Member, State};
use super::message::{Reply, Then, Write};
use super::record::GroupRecord;
use super::timer::Timer;

/// After a change of members: begins a rebalance, or ends the one under way if nobody else is waited for.
pub(super) fn begin_or_finish(turn: &mut Turn<'_>, group: &mut Group, reason: &str) {
    if group.state == State::PreparingRebalance {
        finish_if_everyone_joined(turn, group);
    } else {
        begin(turn, group, reason);
    }
}

/// Begins a rebalance.
pub(super) fn begin(turn: &mut Turn<'_>, group: &mut Group, reason: &str) {
    if group.state == State::CompletingRebalance {
        forget_assignments(turn, group, ErrorCode::RebalanceInProgress);
    }
    turn.deadlines.cancel(&Timer::Sync { group: group.id.clone() });
    tracing::info!(
        group = &*group.id,
        state = group.state.name(),
        generation = group.generation,
        reason,
        "preparing to rebalance"
    );
    let was_empty = group.state == State::Empty;
    group.enter(State::PreparingRebalance, turn.now.wall_ms);
    if was_empty {
        let delay_ms = turn.settings.group_initial_rebalance_delay_ms;
        let remaining_ms = (group.rebalance_timeout_ms() - delay_ms).max(0);
        group.initial = Some(InitialDelay { delay_ms, remaining_ms, another_came: false });
        turn.set_timer(Timer::Join { group: group.id.clone() }, delay_ms);
    } else if group.everyone_joined() {
        finish(turn, group);
    } else {
        turn.set_timer(Timer::Join { group: group.id.clone() }, group.rebalance_timeout_ms());
    }
}

/// Ends the joining if all have joined; a first rebalance waits for its delay all the same.
pub(super) fn finish_if_everyone_joined(turn: &mut Turn<'_>, group: &mut Group) {
    if group.state == State::PreparingRebalance && group.initial.is_none() && group.everyone_joined() {
        finish(turn, group);
    }
}

/// The time for joining is over.
pub(super) fn expire_join(turn: &mut Turn<'_>, group: &mut Group) {
    if group.state != State::PreparingRebalance {
        return;
    }
    match group.initial {
        Some(initial) if initial.another_came && initial.remaining_ms > 0 => {
            let delay_ms = turn.settings.group_initial_rebalance_delay_ms.min(initial.remaining_ms);
            let remaining_ms = (initial.remaining_ms - initial.delay_ms).max(0);
            group.initial = Some(InitialDelay { delay_ms, remaining_ms, another_came: false });
            turn.set_timer(Timer::Join { group: group.id.clone() }, delay_ms);
        }
        _ => finish(turn, group),
    }
}

/// Ends the joining: whoever has not joined is out, unless it is static, and the next generation begins.
fn finish(turn: &mut Turn<'_>, group: &mut Group) {
    group.initial = None;
    turn.deadlines.cancel(&Timer::Join { group: group.id.clone() });
    let absent = |member: &&Member| !member.awaits_join() && member.instance_id.is_none();
    let absent: Vec<_> = group.members().filter(absent).map(|member| member.id.clone()).collect();
    for member in absent {
        tracing::info!(group = &*group.id, member = &*member, "removed: did not join the rebalance");
        turn.cancel_session(group, &member);
        group.remove(&member);
    }
    if group.size() > 0 && !group.elect_joined_leader() {
        // Only static members are left, none has joined. Their sessions end the wait.
        turn.set_timer(Timer::Join { group: group.id.clone() }, group.rebalance_timeout_ms());
        return;
    }
    group.begin_generation(turn.now.wall_ms);
    if group.state == State::Empty {
        tracing::info!(group = &*group.id, generation = group.generation, "the group is empty");
        let value = group.to_stored(|member| member.assignment.clone());
        let record = GroupRecord::Group { group: group.id.clone(), value: Some(value) };
        turn.effects.writes.push(Write::plain(vec![record], Then::Nothing));
        return;
    }
    tracing::info!(
        group = &*group.id,
        generation = group.generation,
        members = group.size(),
        protocol = group.protocol.as_deref(),
        "all have joined"
    );
    let members: Vec<_> = group.members().map(|member| member.id.clone()).collect();
    for member in members {
        let reply = joined(group, &member);
        if let Some(ticket) = group.take_join(&member) {
            turn.reply(ticket, Reply::Join(reply));
        }
        turn.restart_session(group, &member);
        if let Some(member) = group.member_mut(&member) {
            member.is_new = false;
        }
        group.pending_sync.insert(member);
    }
    turn.set_timer(Timer::Sync { group: group.id.clone() }, group.rebalance_timeout_ms());
}

/// The answer of a generation's beginning; the leader is told of all members.
pub(super) fn joined(group: &Group, member: &str) -> JoinGroupResponse {
    let members = if group.is_leader(member) { group.members_for_leader() } else { Vec::new() };
    JoinGroupResponse {
        generation_id: group.generation,
        protocol_type: group.protocol_type.clone(),
        protocol_name: group.protocol.clone(),
        leader: group.leader.as_deref().unwrap_or_default().to_owned(),
        member_id: member.to_owned(),
        members,
        ..JoinGroupResponse::default()
    }
}

/// The time for asking for one's assignment is over: those who did not are out.
pub(super) fn expire_sync(turn: &mut Turn<'_>, group: &mut Group) {
    let may = matches!(group.state, State::CompletingRebalance | State::Stable);
    if !may || group.pending_sync.is_empty() {
        return;
    }
    for member in std::mem::take(&mut group.pending_sync) {
        tracing::info!(group = &*group.id, member = &*member, "removed: sent no SyncGroup in time");
        turn.cancel_session(group, &member);
        let removed = group.remove(&member);
        answer_removed(turn, removed, ErrorCode::UnknownMemberId);
    }
    begin(turn, group, "members sent no SyncGroup in time");
}

/// A member's session is over, unless it waits for an answer of ours.
pub(super) fn expire_session(turn: &mut Turn<'_>, group: &mut Group, member: &str) {
    if group.pending_join.remove(member) {
        tracing::info!(group = &*group.id, member, "the member id was not used in time");
        finish_if_everyone_joined(turn, group);
        return;
    }
    let Some(found) = group.member(member) else { return };
    let is_waiting = !found.is_new && (found.awaits_join() || found.sync.is_some());
    if !is_waiting {
        tracing::info!(group = &*group.id, member, "removed: its session expired");
        let removed = group.remove(member);
        answer_removed(turn, removed, ErrorCode::UnknownMemberId);
        if group.state != State::Empty {
            begin_or_finish(turn, group, "a member's session expired");
        }
    }
}

/// Takes a member out on request. The rebalance that follows is the caller's.
pub(super) fn remove_member(turn: &mut Turn<'_>, group: &mut Group, member: &str) {
    turn.cancel_session(group, member);
    let removed = group.remove(member);
    answer_removed(turn, removed, ErrorCode::UnknownMemberId);
}

/// Answers the requests that a member had waiting when it was removed.
pub(super) fn answer_removed(turn: &mut Turn<'_>, removed: Option<Member>, error: ErrorCode) {
    let Some(removed) = removed else { return };
    if let Some(ticket) = removed.join_ticket() {
        let member_id = removed.id.to_string();
        let reply = JoinGroupResponse { error_code: error.code(), member_id, ..JoinGroupResponse::default() };
        turn.reply(ticket, Reply::Join(reply));
    }
    if let Some(ticket) = removed.sync {
        let reply = SyncGroupResponse { error_code: error.code(), ..SyncGroupResponse::default() };
        turn.reply(ticket, Reply::Sync(reply));
    }
}

/// Takes all assignments back and answers with an error whoever waits for one.
pub(super) fn forget_assignments(turn: &mut Turn<'_>, group: &mut Group, error: ErrorCode) {
    let mut answered = Vec::new();
    for member in group.members_mut() {
        member.assignment.clear();
        if let Some(ticket) = member.sync.take() {
            answered.push((ticket, member.id.clone()));
        }
    }
    for (ticket, member) in answered {
        let reply = SyncGroupResponse { error_code: error.code(), ..SyncGroupResponse::default() };
        turn.reply(ticket, Reply::Sync(reply));
        turn.restart_session(group, &member);
    }
}
