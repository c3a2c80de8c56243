//! A member of a consumer group: it joins, commits rising offsets of the partitions that it gets, and is slow at times,
//! so that the group goes on without it and it speaks of a generation that is over.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use klamm_model::{ErrorCode, Offset};
use klamm_protocol::messages::join_group::{JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse};
use klamm_protocol::messages::offset_commit::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use klamm_protocol::messages::offset_fetch::{
    OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics,
};
use klamm_protocol::messages::sync_group::{SyncGroupRequest, SyncGroupRequestAssignment};
use klamm_protocol::messages::{HeartbeatRequest, LeaveGroupRequest, leave_group::MemberIdentity};

use super::{Client, Coordinated};
use crate::history::{Commit, Committed, Committer, Fate, Generation};

/// `session.timeout.ms`, the least that a broker allows by default.
const SESSION_TIMEOUT: Duration = Duration::from_secs(6);

/// `max.poll.interval.ms`: how long the others wait for a member that is to join again.
const REBALANCE_TIMEOUT: Duration = Duration::from_secs(8);

/// How long a member waits for the answer to a join, which comes when all others have joined.
const JOIN_PATIENCE: Duration = Duration::from_secs(15);

const PROTOCOL_TYPE: &str = "walk";
const PROTOCOL: &str = "turns";

/// A group and what it reads.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) committer: Committer,
    pub(crate) topic: String,
    pub(crate) partitions: i32,
}

impl Group {
    pub(crate) fn name(&self) -> String {
        match self.committer {
            Committer::Members(number) => format!("group-{number}"),
            Committer::Transactions(number) => format!("offsets-{number}"),
        }
    }
}

struct Member {
    client: Client,
    number: u32,
    group: Group,
    member_id: String,
    joins: u64,
}

/// What a member has in one generation.
struct Membership {
    coordinator: SocketAddr,
    generation: i32,
    owned: Vec<i32>,
}

/// Whether a member goes on in its generation.
#[derive(PartialEq, Eq)]
enum Next {
    GoOn,
    JoinAgain,
}

/// Takes part in a group until it is asked to stop.
pub(crate) async fn take_part(client: Client, number: u32, group: Group) {
    let mut member = Member { client, number, group, member_id: String::new(), joins: 0 };
    while !member.client.surroundings.is_stopping() {
        match member.join().await {
            Some(membership) => member.work(&membership).await,
            None => member.client.rest(500).await,
        }
        if member.client.random.chance(1, 8) {
            member.leave().await;
        }
    }
    member.leave().await;
}

/// What a group has committed for its partitions; `None` if that cannot be told now.
pub(crate) async fn committed(client: &mut Client, group: &Group, asked: &[i32]) -> Option<Vec<Offset>> {
    let coordinator = client.coordinator(Coordinated::Group, &group.name()).await?;
    let topic = OffsetFetchRequestTopics {
        name: group.topic.clone(),
        partition_indexes: asked.to_vec(),
        ..Default::default()
    };
    let wanted = OffsetFetchRequestGroup {
        group_id: group.name(),
        member_id: None,
        member_epoch: -1,
        topics: Some(vec![topic]),
    };
    let request = OffsetFetchRequest { groups: vec![wanted], require_stable: true, ..Default::default() };
    let began = client.surroundings.now();
    let answer = client.ask(coordinator, 8, &request).await.ok()?;
    let found = answer.groups.first().filter(|found| found.error_code == 0)?;
    let found = &found.topics.first()?.partitions;
    if found.iter().any(|found| found.error_code != 0) || found.len() != asked.len() {
        return None;
    }
    client.surroundings.recorder.note(|history| {
        history.committed.extend(found.iter().map(|found| Committed {
            group: group.committer,
            partition: found.partition_index,
            began,
            ended: client.surroundings.now(),
            offset: found.committed_offset,
        }));
    });
    let offset_of = |partition| found.iter().find(|found| found.partition_index == partition);
    asked.iter().map(|partition| Some(offset_of(*partition)?.committed_offset)).collect()
}

impl Member {
    /// Joins, and waits for what it is to own. What it brings differs each time: a join that brings what is known
    /// begins no generation, and a commit whose answer was lost could come behind one of the same generation.
    async fn join(&mut self) -> Option<Membership> {
        let coordinator = self.client.coordinator(Coordinated::Group, &self.group.name()).await?;
        self.joins += 1;
        let metadata = Bytes::copy_from_slice(&self.joins.to_be_bytes());
        let request = JoinGroupRequest {
            group_id: self.group.name(),
            session_timeout_ms: SESSION_TIMEOUT.as_millis() as i32,
            rebalance_timeout_ms: REBALANCE_TIMEOUT.as_millis() as i32,
            member_id: self.member_id.clone(),
            protocol_type: PROTOCOL_TYPE.to_owned(),
            protocols: vec![JoinGroupRequestProtocol { name: PROTOCOL.to_owned(), metadata }],
            ..Default::default()
        };
        let answer = self.client.ask_patiently(coordinator, 7, &request, JOIN_PATIENCE).await.ok()?;
        match ErrorCode::from_code(answer.error_code) {
            Some(ErrorCode::None | ErrorCode::MemberIdRequired) => self.member_id = answer.member_id.clone(),
            Some(ErrorCode::UnknownMemberId) => self.member_id.clear(),
            _ => {}
        }
        if answer.error_code != 0 {
            return None;
        }
        self.sync(coordinator, &answer).await
    }

    async fn sync(&mut self, coordinator: SocketAddr, joined: &JoinGroupResponse) -> Option<Membership> {
        let request = SyncGroupRequest {
            group_id: self.group.name(),
            generation_id: joined.generation_id,
            member_id: self.member_id.clone(),
            protocol_type: Some(PROTOCOL_TYPE.to_owned()),
            protocol_name: Some(PROTOCOL.to_owned()),
            assignments: assignments(joined, self.group.partitions),
            ..Default::default()
        };
        let answer = self.client.ask_patiently(coordinator, 5, &request, JOIN_PATIENCE).await.ok()?;
        if answer.error_code != 0 {
            return None;
        }
        let mut bytes = answer.assignment;
        let owned: Vec<i32> = (0..bytes.len() / 4).map(|_| bytes.get_i32()).collect();
        let generation = joined.generation_id;
        let begun = Generation {
            group: self.group.committer,
            generation,
            member: self.number,
            at: self.client.surroundings.now(),
            owned: owned.clone(),
        };
        self.client.surroundings.recorder.note(|history| history.generations.push(begun));
        Some(Membership { coordinator, generation, owned })
    }

    /// Commits and beats until the generation is over.
    async fn work(&mut self, membership: &Membership) {
        let mut offsets = loop {
            if let Some(offsets) = committed(&mut self.client, &self.group, &membership.owned).await {
                break offsets;
            }
            if self.beat(membership).await == Next::JoinAgain {
                return;
            }
            self.client.rest(400).await;
        };
        while !self.client.surroundings.is_stopping() {
            // Slower than its session allows, and then it commits before it hears of that.
            let is_slow = self.client.random.chance(1, 40);
            if is_slow {
                let most = Duration::from_millis(self.client.random.below(9000));
                tokio::time::sleep(SESSION_TIMEOUT + most).await;
            }
            let next = if is_slow || self.client.random.chance(1, 2) {
                self.commit(membership, &mut offsets).await
            } else {
                self.beat(membership).await
            };
            if next == Next::JoinAgain || self.client.random.chance(1, 60) {
                return;
            }
            self.client.rest(1000).await;
        }
    }

    async fn beat(&mut self, membership: &Membership) -> Next {
        let request = HeartbeatRequest {
            group_id: self.group.name(),
            generation_id: membership.generation,
            member_id: self.member_id.clone(),
            ..Default::default()
        };
        let answer = self.client.ask(membership.coordinator, 4, &request).await;
        self.judge(answer.map_or(ErrorCode::NotCoordinator.code(), |answer| answer.error_code))
    }

    /// Commits an offset for each partition that it owns. If it cannot tell what came of that, it begins another
    /// generation: in this one nobody can tell which of two commits comes last.
    async fn commit(&mut self, membership: &Membership, offsets: &mut [Offset]) -> Next {
        let mut partitions = Vec::new();
        for (partition, offset) in membership.owned.iter().zip(offsets.iter_mut()) {
            *offset = (*offset).max(0) + 1 + self.client.random.below(3) as Offset;
            partitions.push(OffsetCommitRequestPartition {
                partition_index: *partition,
                committed_offset: *offset,
                committed_leader_epoch: -1,
                ..Default::default()
            });
        }
        if partitions.is_empty() {
            return self.beat(membership).await;
        }
        let topic =
            OffsetCommitRequestTopic { name: self.group.topic.clone(), partitions, ..Default::default() };
        let request = OffsetCommitRequest {
            group_id: self.group.name(),
            generation_id_or_member_epoch: membership.generation,
            member_id: self.member_id.clone(),
            topics: vec![topic],
            ..Default::default()
        };
        let began = self.client.surroundings.now();
        let answer = self.client.ask(membership.coordinator, 8, &request).await;
        let codes = answer.ok().and_then(|answer| answer.topics.into_iter().next());
        let code_of = |partition: i32| {
            let codes = &codes.as_ref()?.partitions;
            codes.iter().find(|code| code.partition_index == partition).map(|code| code.error_code)
        };
        let mut next = Next::GoOn;
        for (partition, offset) in membership.owned.iter().zip(offsets.iter()) {
            let code = code_of(*partition);
            let fate = fate_of(code);
            let commit = Commit {
                group: self.group.committer,
                partition: *partition,
                generation: membership.generation,
                member: self.number,
                began,
                ended: self.client.surroundings.now(),
                offset: *offset,
                fate,
            };
            self.client.surroundings.recorder.note(|history| history.commits.push(commit));
            if fate != Fate::Done {
                next = self.judge(code.unwrap_or(ErrorCode::NotCoordinator.code()));
            }
        }
        next
    }

    /// What an answer means for the membership.
    fn judge(&mut self, code: i16) -> Next {
        match ErrorCode::from_code(code) {
            Some(ErrorCode::None) => return Next::GoOn,
            Some(ErrorCode::UnknownMemberId) => self.member_id.clear(),
            _ => {}
        }
        Next::JoinAgain
    }

    async fn leave(&mut self) {
        let Some(coordinator) = self.client.coordinator(Coordinated::Group, &self.group.name()).await else {
            return;
        };
        let member = MemberIdentity { member_id: self.member_id.clone(), ..Default::default() };
        let request =
            LeaveGroupRequest { group_id: self.group.name(), members: vec![member], ..Default::default() };
        // Whoever does not hear of it sees the session end.
        let _ = self.client.ask(coordinator, 4, &request).await;
        self.member_id.clear();
    }
}

/// What the leader of a group gives to each member; nothing, for one that does not lead.
fn assignments(joined: &JoinGroupResponse, partitions: i32) -> Vec<SyncGroupRequestAssignment> {
    let count = joined.members.len();
    let give = |(index, member): (usize, &klamm_protocol::messages::join_group::JoinGroupResponseMember)| {
        let mut assignment = BytesMut::new();
        let own = (0..partitions).filter(|partition| *partition as usize % count == index);
        own.for_each(|partition| assignment.put_i32(partition));
        SyncGroupRequestAssignment { member_id: member.member_id.clone(), assignment: assignment.freeze() }
    };
    joined.members.iter().enumerate().map(give).collect()
}

fn fate_of(code: Option<i16>) -> Fate {
    match code.and_then(ErrorCode::from_code) {
        Some(ErrorCode::None) => Fate::Done,
        Some(
            ErrorCode::IllegalGeneration
            | ErrorCode::UnknownMemberId
            | ErrorCode::RebalanceInProgress
            | ErrorCode::CoordinatorLoadInProgress,
        ) => Fate::Refused,
        _ => Fate::Unknown,
    }
}
