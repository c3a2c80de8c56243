//! A group: its members, its generation, and what the log has of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use klamm_model::{ErrorCode, TimestampMs};
use klamm_protocol::messages::join_group::{JoinGroupRequestProtocol, JoinGroupResponseMember};
use klamm_protocol::records::consumer_offsets::group_metadata_value::{GroupMetadataValue, MemberMetadata};

use super::message::Ticket;

/// The protocol type of consumers, the one whose subscriptions a broker may look into.
pub(super) const CONSUMER: &str = "consumer";

/// The state of a classic group. A group that does not exist is what Kafka calls Dead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// No members; perhaps offsets.
    Empty,
    /// Members are joining.
    PreparingRebalance,
    /// All have joined, and the leader makes the assignment.
    CompletingRebalance,
    /// Each member can have its assignment.
    Stable,
}

impl State {
    /// Kafka's name of it.
    pub(super) fn name(self) -> &'static str {
        match self {
            State::Empty => "Empty",
            State::PreparingRebalance => "PreparingRebalance",
            State::CompletingRebalance => "CompletingRebalance",
            State::Stable => "Stable",
        }
    }
}

/// An assignment protocol that a member offers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Protocol {
    pub(super) name: String,
    pub(super) metadata: Bytes,
}

/// Copies the protocols out of a request, so that they do not keep its whole frame in memory.
pub(super) fn copied(protocols: &[JoinGroupRequestProtocol]) -> Vec<Protocol> {
    let copy = |protocol: &JoinGroupRequestProtocol| Protocol {
        name: protocol.name.clone(),
        metadata: Bytes::copy_from_slice(&protocol.metadata),
    };
    protocols.iter().map(copy).collect()
}

/// A member of a group.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) id: Arc<str>,
    pub(super) instance_id: Option<Arc<str>>,
    pub(super) client_id: String,
    pub(super) client_host: String,
    pub(super) rebalance_timeout_ms: i32,
    pub(super) session_timeout_ms: i32,
    pub(super) protocols: Vec<Protocol>,
    pub(super) assignment: Bytes,
    /// Whether it waits for the end of its first rebalance; it has had no chance to heartbeat.
    pub(super) is_new: bool,
    /// Its JoinGroup that waits.
    join: Option<Ticket>,
    /// Its SyncGroup that waits.
    pub(super) sync: Option<Ticket>,
}

impl Member {
    pub(super) fn awaits_join(&self) -> bool {
        self.join.is_some()
    }

    pub(super) fn join_ticket(&self) -> Option<Ticket> {
        self.join
    }

    /// Whether these are its protocols, in its order and with its metadata.
    pub(super) fn offers(&self, protocols: &[JoinGroupRequestProtocol]) -> bool {
        let same = |(ours, theirs): (&Protocol, &JoinGroupRequestProtocol)| {
            ours.name == theirs.name && ours.metadata == theirs.metadata
        };
        self.protocols.len() == protocols.len() && self.protocols.iter().zip(protocols).all(same)
    }

    pub(super) fn metadata(&self, protocol: &str) -> Bytes {
        let found = self.protocols.iter().find(|offered| offered.name == protocol);
        found.map(|offered| offered.metadata.clone()).unwrap_or_default()
    }
}

/// The delay of a group's first rebalance, in which more members may come.
#[derive(Clone, Copy, Debug)]
pub(super) struct InitialDelay {
    pub(super) delay_ms: i32,
    pub(super) remaining_ms: i32,
    pub(super) another_came: bool,
}

/// A group.
pub(super) struct Group {
    pub(super) id: Arc<str>,
    pub(super) state: State,
    pub(super) state_since_ms: Option<TimestampMs>,
    pub(super) generation: i32,
    pub(super) protocol_type: Option<String>,
    pub(super) protocol: Option<String>,
    pub(super) leader: Option<Arc<str>>,
    members: BTreeMap<Arc<str>, Member>,
    static_members: BTreeMap<Arc<str>, Arc<str>>,
    /// Ids that were given out and not yet used to join (KIP-394).
    pub(super) pending_join: BTreeSet<Arc<str>>,
    /// Members that have not asked for their assignment in this generation.
    pub(super) pending_sync: BTreeSet<Arc<str>>,
    /// How many members offer each protocol.
    offered: BTreeMap<String, usize>,
    awaiting_join: usize,
    pub(super) initial: Option<InitialDelay>,
    /// Of a consumer group whose members' metadata could be read.
    pub(super) subscribed_topics: Option<BTreeSet<String>>,
    /// The newest record of the group in the log.
    pub(super) stored: Option<GroupMetadataValue>,
}

impl Group {
    pub(super) fn new(id: Arc<str>) -> Group {
        Group {
            id,
            state: State::Empty,
            state_since_ms: None,
            generation: 0,
            protocol_type: None,
            protocol: None,
            leader: None,
            members: BTreeMap::new(),
            static_members: BTreeMap::new(),
            pending_join: BTreeSet::new(),
            pending_sync: BTreeSet::new(),
            offered: BTreeMap::new(),
            awaiting_join: 0,
            initial: None,
            subscribed_topics: None,
            stored: None,
        }
    }

    pub(super) fn enter(&mut self, state: State, now_ms: TimestampMs) {
        self.state = state;
        self.state_since_ms = Some(now_ms);
    }

    pub(super) fn member(&self, id: &str) -> Option<&Member> {
        self.members.get(id)
    }

    pub(super) fn member_mut(&mut self, id: &str) -> Option<&mut Member> {
        self.members.get_mut(id)
    }

    pub(super) fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    pub(super) fn members_mut(&mut self) -> impl Iterator<Item = &mut Member> {
        self.members.values_mut()
    }

    pub(super) fn size(&self) -> usize {
        self.members.len()
    }

    pub(super) fn static_member(&self, instance_id: &str) -> Option<&Arc<str>> {
        self.static_members.get(instance_id)
    }

    pub(super) fn is_leader(&self, member: &str) -> bool {
        self.leader.as_deref() == Some(member)
    }

    /// Whether there is room for one who asks to join. While members join, those who have joined count,
    /// so that a group that is too large loses the last ones.
    pub(super) fn accepts(&self, member: &str, size_max: i32) -> bool {
        let size_max = usize::try_from(size_max).unwrap_or(0);
        let known = self.members.get(member);
        match self.state {
            State::Empty => true,
            State::PreparingRebalance => {
                known.is_some_and(Member::awaits_join) || self.awaiting_join < size_max
            }
            State::CompletingRebalance | State::Stable => known.is_some() || self.size() < size_max,
        }
    }

    /// Whether one who offers these protocols can be a member beside the others.
    pub(super) fn supports(&self, protocol_type: &str, protocols: &[JoinGroupRequestProtocol]) -> bool {
        if self.state == State::Empty {
            return !protocol_type.is_empty() && !protocols.is_empty();
        }
        let shared = |name: &str| self.offered.get(name).copied().unwrap_or(0) == self.size();
        self.protocol_type.as_deref() == Some(protocol_type)
            && protocols.iter().any(|protocol| shared(&protocol.name))
    }

    /// Checks that a member id is that of a member, and that no other holds its instance id (KIP-345).
    pub(super) fn check_member(&self, member: &str, instance_id: Option<&str>) -> Result<(), ErrorCode> {
        if let Some(instance_id) = instance_id {
            match self.static_members.get(instance_id) {
                None => return Err(ErrorCode::UnknownMemberId),
                Some(holder) if &**holder != member => return Err(ErrorCode::FencedInstanceId),
                Some(_) => {}
            }
        }
        if self.members.contains_key(member) { Ok(()) } else { Err(ErrorCode::UnknownMemberId) }
    }

    pub(super) fn add(&mut self, member: Member, protocol_type: &str) {
        if self.members.is_empty() {
            self.protocol_type = Some(protocol_type.to_owned());
        }
        self.leader.get_or_insert_with(|| member.id.clone());
        self.pending_join.remove(&member.id);
        self.put(member);
    }

    /// Takes a member out. The caller answers what it waits for.
    pub(super) fn remove(&mut self, id: &str) -> Option<Member> {
        self.pending_join.remove(id);
        self.pending_sync.remove(id);
        let member = self.take(id)?;
        if let Some(instance_id) = &member.instance_id {
            self.static_members.remove(instance_id);
        }
        if self.is_leader(id) {
            self.leader = self.members.keys().next().cloned();
        }
        Some(member)
    }

    /// Gives a static member another id; returns it as it was, with what it waited for.
    pub(super) fn rename(&mut self, old: &str, new: Arc<str>) -> Option<Member> {
        let before = self.take(old)?;
        let mut after = before.clone();
        after.id = new.clone();
        after.join = None;
        after.sync = None;
        if self.is_leader(old) {
            self.leader = Some(new);
        }
        self.pending_sync.remove(old);
        self.put(after);
        Some(before)
    }

    /// Replaces what a member offers.
    pub(super) fn set_protocols(&mut self, id: &str, protocols: Vec<Protocol>) {
        if let Some(mut member) = self.take(id) {
            member.protocols = protocols;
            self.put(member);
        }
    }

    /// Parks a JoinGroup; returns the one that was parked before.
    pub(super) fn park_join(&mut self, id: &str, ticket: Ticket) -> Option<Ticket> {
        let member = self.members.get_mut(id)?;
        let before = member.join.replace(ticket);
        self.awaiting_join += usize::from(before.is_none());
        before
    }

    /// Takes the JoinGroup that a member has parked.
    pub(super) fn take_join(&mut self, id: &str) -> Option<Ticket> {
        let ticket = self.members.get_mut(id)?.join.take()?;
        self.awaiting_join -= 1;
        Some(ticket)
    }

    pub(super) fn everyone_joined(&self) -> bool {
        self.awaiting_join == self.size() && self.pending_join.is_empty()
    }

    /// How long a rebalance may take: as long as the most patient member allows.
    pub(super) fn rebalance_timeout_ms(&self) -> i32 {
        self.members.values().map(|member| member.rebalance_timeout_ms).max().unwrap_or(0)
    }

    /// Makes sure that the leader is one who has joined; false if nobody has.
    pub(super) fn elect_joined_leader(&mut self) -> bool {
        let joined = |id: &Arc<str>| self.members.get(id).is_some_and(Member::awaits_join);
        if !self.leader.as_ref().is_some_and(joined) {
            let first = self.members.values().find(|member| member.awaits_join());
            match first {
                Some(member) => self.leader = Some(member.id.clone()),
                None => return false,
            }
        }
        true
    }

    /// Begins the next generation with the members as they are.
    pub(super) fn begin_generation(&mut self, now_ms: TimestampMs) {
        self.generation = self.generation.checked_add(1).unwrap_or(1);
        self.pending_sync.clear();
        self.protocol = self.select_protocol();
        self.update_subscribed_topics();
        let state = if self.members.is_empty() { State::Empty } else { State::CompletingRebalance };
        self.enter(state, now_ms);
    }

    /// The protocol that all members offer and most prefer; the first by name among equals.
    pub(super) fn select_protocol(&self) -> Option<String> {
        let mut votes: BTreeMap<&str, usize> = BTreeMap::new();
        for member in self.members.values() {
            let favourite = member
                .protocols
                .iter()
                .find(|protocol| self.offered.get(&protocol.name).copied().unwrap_or(0) == self.size());
            if let Some(favourite) = favourite {
                *votes.entry(&favourite.name).or_default() += 1;
            }
        }
        let most = votes.values().copied().max()?;
        votes.into_iter().find(|(_, count)| *count == most).map(|(name, _)| name.to_owned())
    }

    /// Whether the group reads a topic. Where that is not known, a consumer group is taken to.
    pub(super) fn is_subscribed_to(&self, topic: &str) -> bool {
        match &self.subscribed_topics {
            Some(topics) => topics.contains(topic),
            None => self.protocol_type.as_deref() == Some(CONSUMER),
        }
    }

    pub(super) fn update_subscribed_topics(&mut self) {
        self.subscribed_topics = self.read_subscriptions();
    }

    fn read_subscriptions(&self) -> Option<BTreeSet<String>> {
        if self.protocol_type.as_deref() != Some(CONSUMER) {
            return None;
        }
        let mut topics = BTreeSet::new();
        for member in self.members.values() {
            read_subscription(&member.metadata(self.protocol.as_deref()?), &mut topics)?;
        }
        Some(topics)
    }

    /// What the leader is told of all members.
    pub(super) fn members_for_leader(&self) -> Vec<JoinGroupResponseMember> {
        let protocol = self.protocol.as_deref().unwrap_or_default();
        let view = |member: &Member| JoinGroupResponseMember {
            member_id: member.id.to_string(),
            group_instance_id: member.instance_id.as_deref().map(str::to_owned),
            metadata: member.metadata(protocol),
        };
        self.members.values().map(view).collect()
    }

    /// The group as its record says it.
    pub(super) fn to_stored(&self, assignment_of: impl Fn(&Member) -> Bytes) -> GroupMetadataValue {
        let protocol = self.protocol.as_deref().unwrap_or_default();
        let store = |member: &Member| MemberMetadata {
            member_id: member.id.to_string(),
            group_instance_id: member.instance_id.as_deref().map(str::to_owned),
            client_id: member.client_id.clone(),
            client_host: member.client_host.clone(),
            rebalance_timeout: member.rebalance_timeout_ms,
            session_timeout: member.session_timeout_ms,
            subscription: member.metadata(protocol),
            assignment: assignment_of(member),
        };
        GroupMetadataValue {
            protocol_type: self.protocol_type.clone().unwrap_or_default(),
            generation: self.generation,
            protocol: self.protocol.clone(),
            leader: self.leader.as_deref().map(str::to_owned),
            current_state_timestamp: self.state_since_ms.unwrap_or(-1),
            members: self.members.values().map(store).collect(),
        }
    }

    /// Puts the group in the state that its newest record tells of.
    pub(super) fn restore(&mut self) {
        let Some(stored) = self.stored.clone() else { return };
        self.generation = stored.generation;
        self.protocol_type = Some(stored.protocol_type).filter(|name| !name.is_empty());
        self.protocol = stored.protocol;
        self.leader = stored.leader.map(Arc::from);
        self.state_since_ms = Some(stored.current_state_timestamp).filter(|since| *since >= 0);
        let protocol = self.protocol.clone().unwrap_or_default();
        for member in stored.members {
            let timeout = member.rebalance_timeout;
            self.put(Member {
                id: member.member_id.into(),
                instance_id: member.group_instance_id.map(Arc::from),
                client_id: member.client_id,
                client_host: member.client_host,
                rebalance_timeout_ms: if timeout < 0 { member.session_timeout } else { timeout },
                session_timeout_ms: member.session_timeout,
                protocols: vec![Protocol { name: protocol.clone(), metadata: member.subscription }],
                assignment: member.assignment,
                is_new: false,
                join: None,
                sync: None,
            });
        }
        self.state = if self.members.is_empty() { State::Empty } else { State::Stable };
        self.update_subscribed_topics();
    }

    fn put(&mut self, member: Member) {
        for name in distinct_names(&member.protocols) {
            *self.offered.entry(name.to_owned()).or_default() += 1;
        }
        if let Some(instance_id) = &member.instance_id {
            self.static_members.insert(instance_id.clone(), member.id.clone());
        }
        self.awaiting_join += usize::from(member.join.is_some());
        self.members.insert(member.id.clone(), member);
    }

    fn take(&mut self, id: &str) -> Option<Member> {
        let member = self.members.remove(id)?;
        for name in distinct_names(&member.protocols) {
            match self.offered.get_mut(name) {
                Some(count) if *count > 1 => *count -= 1,
                _ => drop(self.offered.remove(name)),
            }
        }
        self.awaiting_join -= usize::from(member.join.is_some());
        Some(member)
    }
}

impl Member {
    /// A member that is about to join.
    pub(super) fn joining(id: Arc<str>, join: &super::message::Join) -> Member {
        let request = &join.request;
        Member {
            id,
            instance_id: request.group_instance_id.as_deref().map(Arc::from),
            client_id: join.client_id.clone(),
            client_host: join.client_host.clone(),
            rebalance_timeout_ms: request.rebalance_timeout_ms,
            session_timeout_ms: request.session_timeout_ms,
            protocols: copied(&request.protocols),
            assignment: Bytes::new(),
            is_new: true,
            join: None,
            sync: None,
        }
    }
}

fn distinct_names(protocols: &[Protocol]) -> BTreeSet<&str> {
    protocols.iter().map(|protocol| protocol.name.as_str()).collect()
}

/// Reads the topics of a consumer's subscription: version, then names. Whatever later versions have
/// stands behind them.
fn read_subscription(metadata: &Bytes, topics: &mut BTreeSet<String>) -> Option<()> {
    let mut reader = super::record::FieldReader::new(metadata);
    if reader.int16()? < 0 {
        return None;
    }
    for _ in 0..reader.int32()?.max(0) {
        topics.insert(reader.string()?.to_owned());
    }
    Some(())
}
