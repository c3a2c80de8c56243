//! Static members (KIP-345) that come back under a new member id.

use std::sync::Arc;

use klamm_model::ErrorCode;
use klamm_protocol::messages::join_group::JoinGroupResponse;

use super::classic::{Group, Member, State};
use super::join::update_member;
use super::message::{Effects, Join, Now, Reply, Then, Ticket, Write};
use super::record::GroupRecord;
use super::{GroupShard, Turn, rebalance};

/// The first version that can tell a leader to make no assignment (KIP-814).
const FIRST_VERSION_WITH_SKIP: i16 = 9;

/// A static member that was given a new id while its group was stable.
#[derive(Debug)]
pub struct ReplacedMember {
    group: Arc<str>,
    new_id: Arc<str>,
    /// The member as it was.
    before: Member,
    leader_before: String,
    may_skip: bool,
}

/// Gives the member that holds the instance id a new member id. Whoever still uses the old one is fenced.
/// While the group is stable and the protocol does not change, the others are left in peace.
pub(super) fn replace(
    turn: &mut Turn<'_>,
    group: &mut Group,
    ticket: Ticket,
    join: &Join,
    old: &str,
    new_id: Arc<str>,
) {
    let leader_before = group.leader.as_deref().unwrap_or_default().to_owned();
    let Some(before) = group.rename(old, new_id.clone()) else { return };
    tracing::info!(group = &*group.id, member = &*new_id, before = old, "a static member came back");
    turn.cancel_session(group, old);
    rebalance::answer_removed(turn, Some(before.clone()), ErrorCode::FencedInstanceId);
    update_member(turn, group, &new_id, ticket, join);
    turn.restart_session(group, &new_id);
    if group.state == State::Stable && group.select_protocol() == group.protocol {
        let value = group.to_stored(|member| member.assignment.clone());
        let record = GroupRecord::Group { group: group.id.clone(), value: Some(value) };
        let may_skip = join.version >= FIRST_VERSION_WITH_SKIP;
        let group = group.id.clone();
        let replaced = ReplacedMember { group, new_id, before, leader_before, may_skip };
        let then = Then::StaticMemberStored(Box::new(replaced));
        turn.effects.writes.push(Write::plain(vec![record], then));
        return;
    }
    let reason = join.request.reason.as_deref().unwrap_or("not provided");
    let reason = format!("static member {new_id} joins; client reason: {reason}");
    rebalance::begin_or_finish(turn, group, &reason);
}

impl GroupShard {
    /// The new id of a static member is written, or not: then the old one holds again.
    pub(super) fn static_member_stored(
        &mut self,
        now: Now,
        replaced: ReplacedMember,
        outcome: Result<(), ErrorCode>,
    ) -> Effects {
        let Some((group, mut turn)) = self.turn(now, &replaced.group) else { return Effects::default() };
        let new_id = &*replaced.new_id;
        let Some(ticket) = group.take_join(new_id) else { return Effects::default() };
        let mut reply = rebalance::joined(group, new_id);
        match outcome {
            Ok(()) if replaced.may_skip => reply.skip_assignment = group.is_leader(new_id),
            Ok(()) => {
                // Without the flag, the member must not take itself for the leader and assign anew.
                reply.members.clear();
                reply.leader = replaced.leader_before;
            }
            Err(error) => {
                tracing::warn!(group = &*group.id, member = new_id, %error, "the new id could not be written");
                reply = JoinGroupResponse {
                    error_code: error.code(),
                    members: Vec::new(),
                    member_id: String::new(),
                    leader: replaced.leader_before,
                    ..reply
                };
                let old_id = replaced.before.id.clone();
                turn.cancel_session(group, new_id);
                group.rename(new_id, old_id.clone());
                group.set_protocols(&old_id, replaced.before.protocols);
                if let Some(member) = group.member_mut(&old_id) {
                    member.rebalance_timeout_ms = replaced.before.rebalance_timeout_ms;
                    member.session_timeout_ms = replaced.before.session_timeout_ms;
                }
                turn.restart_session(group, &old_id);
            }
        }
        turn.reply(ticket, Reply::Join(reply));
        turn.effects
    }
}
