//! JoinGroup: becoming a member, or telling that something about one's membership changed.

use std::fmt::Write as _;
use std::sync::Arc;

use klamm_model::ErrorCode;
use klamm_protocol::messages::join_group::JoinGroupResponse;

use super::classic::{Group, Member, State, copied};
use super::message::{Effects, Join, Now, Reply, Then, Ticket, Write};
use super::record::GroupRecord;
use super::timer::Timer;
use super::{GroupShard, Turn, rebalance, static_member};

/// How long a new member waits for the end of its first rebalance. It cannot heartbeat meanwhile, and if
/// its client is gone nobody tells; if it is alive, it asks again.
const NEW_MEMBER_JOIN_TIMEOUT_MS: i32 = 5 * 60 * 1000;

/// The first version whose members must come back with the id that they are given (KIP-394).
const FIRST_VERSION_WITH_REQUIRED_ID: i16 = 4;

impl GroupShard {
    pub(super) fn join(&mut self, now: Now, ticket: Ticket, join: Box<Join>) -> Effects {
        let request = &join.request;
        let is_unknown = request.member_id.is_empty();
        let refuse = |error| Effects::reply(ticket, refusal(&request.member_id, error));
        let is_made = !self.groups.contains_key(&*request.group_id);
        if is_made && !is_unknown {
            return refuse(ErrorCode::UnknownMemberId);
        }
        let id: Arc<str> = request.group_id.as_str().into();
        if is_made {
            let mut group = Group::new(id.clone());
            group.state_since_ms = Some(now.wall_ms);
            self.groups.insert(id.clone(), group);
        }
        let Some((group, mut turn)) = self.turn(now, &id) else {
            return refuse(ErrorCode::UnknownMemberId);
        };
        if !group.accepts(known_id(group, &join), turn.settings.group_max_size) {
            rebalance::remove_member(&mut turn, group, &request.member_id);
            turn.reply(ticket, refusal("", ErrorCode::GroupMaxSizeReached));
            rebalance::finish_if_everyone_joined(&mut turn, group);
            return turn.effects;
        }
        if !group.supports(&request.protocol_type, &request.protocols) {
            turn.reply(ticket, refusal(&request.member_id, ErrorCode::InconsistentGroupProtocol));
        } else if is_unknown {
            join_new(&mut turn, group, ticket, &join);
        } else {
            join_known(&mut turn, group, ticket, &join);
        }
        let effects = turn.effects;
        if is_made { self.write_first_record(id, effects) } else { effects }
    }

    /// A group that came into being is written before anyone is told of it, as Kafka does; one that no
    /// member came to is forgotten.
    fn write_first_record(&mut self, id: Arc<str>, mut effects: Effects) -> Effects {
        let Some(group) = self.groups.get(&id) else { return effects };
        let member = group.members().map(|member| &member.id).chain(&group.pending_join).next();
        let Some(member) = member.cloned() else {
            self.groups.remove(&id);
            return effects;
        };
        let mut value = group.to_stored(|member| member.assignment.clone());
        value.protocol_type.clear();
        value.leader = None;
        value.members.clear();
        let record = GroupRecord::Group { group: id.clone(), value: Some(value) };
        let then = Then::GroupMade { group: id, member, reply: effects.replies.pop() };
        effects.writes.insert(0, Write::plain(vec![record], then));
        effects
    }

    /// The first record of a group is written, or not: then the group is unmade.
    pub(super) fn group_made(
        &mut self,
        now: Now,
        id: Arc<str>,
        member: Arc<str>,
        reply: Option<(Ticket, Reply)>,
        outcome: Result<(), ErrorCode>,
    ) -> Effects {
        let Err(error) = outcome else {
            return Effects { replies: reply.into_iter().collect(), ..Effects::default() };
        };
        tracing::warn!(group = &*id, %error, "the group could not be written");
        let has_offsets = self.offsets.has(&id);
        let Some((group, mut turn)) = self.turn(now, &id) else {
            return Effects { replies: reply.into_iter().collect(), ..Effects::default() };
        };
        turn.cancel_session(group, &member);
        let removed = group.remove(&member);
        rebalance::answer_removed(&mut turn, removed, error);
        if let Some((ticket, _)) = reply {
            turn.reply(ticket, refusal("", error));
        }
        let is_unused =
            group.size() == 0 && group.pending_join.is_empty() && !has_offsets && group.stored.is_none();
        if is_unused {
            turn.deadlines.cancel(&Timer::Join { group: id.clone() });
        }
        let effects = turn.effects;
        if is_unused {
            self.groups.remove(&id);
        }
        effects
    }
}

/// The id under which the group knows who asks. A static member that restarts is known by its instance id:
/// it takes nobody's place, so a full group takes it back. (Kafka refuses it.)
fn known_id<'a>(group: &'a Group, join: &'a Join) -> &'a str {
    let instance_id = join.request.group_instance_id.as_deref();
    match instance_id.and_then(|instance_id| group.static_member(instance_id)) {
        Some(holder) if join.request.member_id.is_empty() => holder,
        _ => &join.request.member_id,
    }
}

fn refusal(member_id: &str, error: ErrorCode) -> Reply {
    Reply::Join(JoinGroupResponse {
        error_code: error.code(),
        member_id: member_id.to_owned(),
        ..JoinGroupResponse::default()
    })
}

/// One who comes without a member id.
fn join_new(turn: &mut Turn<'_>, group: &mut Group, ticket: Ticket, join: &Join) {
    let instance_id = join.request.group_instance_id.as_deref();
    let id = new_member_id(instance_id.unwrap_or(&join.client_id), join.random);
    match instance_id {
        Some(instance_id) => match group.static_member(instance_id).cloned() {
            Some(old) => static_member::replace(turn, group, ticket, join, &old, id),
            None => add(turn, group, ticket, join, id),
        },
        None if join.version >= FIRST_VERSION_WITH_REQUIRED_ID => {
            group.pending_join.insert(id.clone());
            turn.reply(ticket, refusal(&id, ErrorCode::MemberIdRequired));
            let timer = Timer::Session { group: group.id.clone(), member: id };
            turn.set_timer(timer, join.request.session_timeout_ms);
        }
        None => add(turn, group, ticket, join, id),
    }
}

/// One who comes with a member id.
fn join_known(turn: &mut Turn<'_>, group: &mut Group, ticket: Ticket, join: &Join) {
    let request = &join.request;
    let id = request.member_id.as_str();
    if group.pending_join.contains(id) && request.group_instance_id.is_none() {
        return add(turn, group, ticket, join, id.into());
    }
    if let Err(error) = group.check_member(id, request.group_instance_id.as_deref()) {
        return turn.reply(ticket, refusal(id, error));
    }
    let is_same = group.member(id).is_some_and(|member| member.offers(&request.protocols));
    let must_rebalance = match group.state {
        State::Empty => return turn.reply(ticket, refusal(id, ErrorCode::UnknownMemberId)),
        State::PreparingRebalance => true,
        // With the same metadata it is one who lost the answer of this generation.
        State::CompletingRebalance => !is_same,
        // The leader may ask because topics changed, which no metadata shows.
        State::Stable => !is_same || group.is_leader(id),
    };
    if must_rebalance {
        update(turn, group, ticket, join);
        let reason = request.reason.as_deref().unwrap_or("not provided");
        rebalance::begin_or_finish(turn, group, &format!("{id} joins again; client reason: {reason}"));
        return;
    }
    let mut reply = rebalance::joined(group, id);
    if group.state == State::Stable {
        reply.members.clear();
    }
    turn.reply(ticket, Reply::Join(reply));
}

fn add(turn: &mut Turn<'_>, group: &mut Group, ticket: Ticket, join: &Join, id: Arc<str>) {
    if let Some(initial) = &mut group.initial {
        initial.another_came = true;
    }
    group.add(Member::joining(id.clone(), join), &join.request.protocol_type);
    group.park_join(&id, ticket);
    let timer = Timer::Session { group: group.id.clone(), member: id.clone() };
    turn.set_timer(timer, NEW_MEMBER_JOIN_TIMEOUT_MS);
    let reason = join.request.reason.as_deref().unwrap_or("not provided");
    rebalance::begin_or_finish(turn, group, &format!("{id} joins; client reason: {reason}"));
}

/// Takes over what a member that joins again brings.
pub(super) fn update(turn: &mut Turn<'_>, group: &mut Group, ticket: Ticket, join: &Join) {
    let request = &join.request;
    update_member(turn, group, &request.member_id, ticket, join);
}

/// The same for a member whose id is not the one in the request.
pub(super) fn update_member(turn: &mut Turn<'_>, group: &mut Group, id: &str, ticket: Ticket, join: &Join) {
    let request = &join.request;
    group.set_protocols(id, copied(&request.protocols));
    if let Some(member) = group.member_mut(id) {
        member.rebalance_timeout_ms = request.rebalance_timeout_ms;
        member.session_timeout_ms = request.session_timeout_ms;
    }
    if let Some(earlier) = group.park_join(id, ticket) {
        // The same member asks twice; whoever still listens to the first call must ask again.
        turn.reply(earlier, refusal(id, ErrorCode::RebalanceInProgress));
    }
}

/// `prefix-` and a random UUID of version 4, as Java writes it.
fn new_member_id(prefix: &str, random: [u8; 16]) -> Arc<str> {
    let mut id = prefix.to_owned();
    for (index, byte) in klamm_model::Uuid::from_random(random).0.iter().enumerate() {
        if matches!(index, 0 | 4 | 6 | 8 | 10) {
            id.push('-');
        }
        let _ = write!(id, "{byte:02x}");
    }
    id.into()
}
