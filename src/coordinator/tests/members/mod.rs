//! The world of the walk: the real state machine, its log in memory, and members as a client library makes them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use klamm_coordinator::GroupSettings;
use klamm_coordinator::group::{Effects, Fetch, GroupShard, Join, Now, Origin, Reply, Request, Then, Ticket};
use klamm_coordinator::machine::Machine;
use klamm_metadata::Image;
use klamm_model::{ErrorCode, ProducerId, Uuid};
use klamm_protocol::messages::heartbeat::HeartbeatRequest;
use klamm_protocol::messages::join_group::{JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse};
use klamm_protocol::messages::leave_group::{LeaveGroupRequest, MemberIdentity};
use klamm_protocol::messages::offset_commit::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use klamm_protocol::messages::offset_fetch::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopics, OffsetFetchResponseGroup,
};
use klamm_protocol::messages::sync_group::{SyncGroupRequest, SyncGroupRequestAssignment};

const GROUP: &str = "g";
const TOPIC: &str = "t";
const PARTITIONS: i32 = 4;
const RETENTION_MS: u64 = 60_000;
/// Longer than the retention: a group lives on while its offsets grow old.
const SESSION_MS: i32 = 300_000;

/// What happens next.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// A client asks to join, whatever it did before.
    Join(usize),
    /// A client does what comes next: it joins, asks for its assignment, or heartbeats.
    GoOn(usize),
    /// A member commits an offset of each partition that it owns; perhaps the request is under way for long. Then the
    /// client waits no longer and joins again.
    Commit { client: usize, is_late: bool },
    /// A commit that was under way arrives.
    Arrive(usize),
    /// A member leaves.
    Leave(usize),
    /// All that was appended is committed, and answers go out.
    Settle,
    /// What was committed is read.
    Fetch,
    /// The coordinator dies, and another loads what was committed.
    Restart,
    /// Somebody deletes the group, if it is empty.
    Delete,
    /// So many milliseconds pass.
    Wait(u64),
}

/// How often things happened.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Tally {
    /// Commits that were answered.
    pub(crate) commits: u64,
    /// Commits that were refused.
    pub(crate) refused: u64,
    /// Generations that a member was told of.
    pub(crate) generations: u64,
    /// Offsets that have expired.
    pub(crate) expired: u64,
    /// Groups that were deleted.
    pub(crate) deleted: u64,
    /// Records that died with a coordinator.
    pub(crate) lost: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Tally) {
        self.commits += other.commits;
        self.refused += other.refused;
        self.generations += other.generations;
        self.expired += other.expired;
        self.deleted += other.deleted;
        self.lost += other.lost;
    }
}

/// How far a client is with the group.
#[derive(PartialEq, Eq)]
enum Stage {
    /// It has to join.
    Outside,
    /// It waits for an answer.
    Waiting,
    /// It may ask for its assignment.
    Joined,
    /// It knows what it owns.
    Member,
}

struct Client {
    member_id: String,
    stage: Stage,
    generation: i32,
    /// All members of the generation, if it leads.
    members: Vec<String>,
    owned: Vec<i32>,
}

/// What somebody waits for.
enum Asked {
    Join { client: usize },
    Sync { client: usize },
    Commit { client: usize, generation: i32, newest: Option<i32>, offsets: Vec<(i32, i64)> },
    Beat { client: usize },
    Delete,
}

/// A commit that was sent.
struct UnderWay {
    client: usize,
    request: OffsetCommitRequest,
    offsets: Vec<(i32, i64)>,
}

/// What is known of a partition's offset.
struct Known {
    offset: i64,
    /// The group was empty for so long since that it may have expired.
    may_be_gone: bool,
}

pub(crate) struct World {
    settings: Arc<GroupSettings>,
    shard: GroupShard,
    log: Vec<(Bytes, Option<Bytes>)>,
    /// How much of the log survives.
    committed: usize,
    held: Vec<Then>,
    now: Now,
    tickets: u64,
    asked: BTreeMap<Ticket, Asked>,
    clients: Vec<Client>,
    under_way: Vec<UnderWay>,
    offsets: i64,
    known: BTreeMap<i32, Known>,
    /// Who owned what in which generation, as the members were told.
    owners: BTreeMap<(i32, i32), usize>,
    begun: BTreeSet<i32>,
    /// Since when no generation has begun in the empty group.
    empty_since_ms: Option<u64>,
    wrong: Option<String>,
    pub(crate) tally: Tally,
}

/// Nothing here is part of a transaction, and nothing that is written so may count by its time.
fn origin(offset: i64) -> Origin {
    Origin { offset, transaction_of: ProducerId::NONE, written_ms: 0 }
}

impl World {
    pub(crate) fn new() -> World {
        let settings = GroupSettings {
            offsets_retention_minutes: (RETENTION_MS / 60_000) as i32,
            offsets_retention_check_interval_ms: 10_000,
            ..GroupSettings::default()
        };
        let client = |_| Client {
            member_id: String::new(),
            stage: Stage::Outside,
            generation: -1,
            members: Vec::new(),
            owned: Vec::new(),
        };
        let settings = Arc::new(settings);
        let mut world = World {
            shard: GroupShard::new(settings.clone()),
            settings,
            log: Vec::new(),
            committed: 0,
            held: Vec::new(),
            now: Now { wall_ms: 1_000_000, monotonic_ms: 0 },
            tickets: 0,
            asked: BTreeMap::new(),
            clients: (0..3).map(client).collect(),
            under_way: Vec::new(),
            offsets: 0,
            known: BTreeMap::new(),
            owners: BTreeMap::new(),
            begun: BTreeSet::new(),
            empty_since_ms: None,
            wrong: None,
            tally: Tally::default(),
        };
        let effects = world.shard.finish_loading(world.now);
        world.carry_out(effects);
        world
    }

    pub(crate) fn take(&mut self, step: &Step) -> Result<(), String> {
        match *step {
            Step::Join(client) => self.join(client),
            Step::GoOn(client) => match self.clients[client].stage {
                Stage::Outside => self.join(client),
                Stage::Joined => self.sync(client),
                Stage::Member => self.beat(client),
                Stage::Waiting => {}
            },
            Step::Commit { client, is_late } => self.commit(client, is_late),
            Step::Arrive(which) if !self.under_way.is_empty() => {
                let commit = self.under_way.remove(which % self.under_way.len());
                self.arrive(commit);
            }
            Step::Arrive(_) => {}
            Step::Leave(client) => self.leave(client),
            Step::Settle => self.settle(),
            Step::Fetch => self.fetch(),
            Step::Restart => self.restart(),
            Step::Delete => self.ask(Asked::Delete, Request::Delete { group: GROUP.to_owned() }),
            Step::Wait(millis) => self.wait(millis),
        }
        self.observe();
        self.wrong.take().map_or(Ok(()), Err)
    }

    fn join(&mut self, index: usize) {
        let client = &mut self.clients[index];
        client.stage = Stage::Waiting;
        let member_id = client.member_id.clone();
        let number = self.tickets;
        // What it brings differs each time: a join that brings what is known begins no generation.
        let metadata = Bytes::copy_from_slice(&number.to_be_bytes());
        let mut random = [0; 16];
        random[..8].copy_from_slice(&number.to_be_bytes());
        let request = JoinGroupRequest {
            group_id: GROUP.to_owned(),
            session_timeout_ms: SESSION_MS,
            rebalance_timeout_ms: 60_000,
            member_id,
            protocol_type: "walk".to_owned(),
            protocols: vec![JoinGroupRequestProtocol { name: "turns".to_owned(), metadata }],
            ..Default::default()
        };
        let (client_id, client_host) = (format!("c{index}"), "/127.0.0.1".to_owned());
        let join = Join { version: 9, client_id, client_host, random, request };
        self.ask(Asked::Join { client: index }, Request::Join(Box::new(join)));
    }

    /// Asks for its assignment; the leader brings all of them.
    fn sync(&mut self, index: usize) {
        let client = &mut self.clients[index];
        client.stage = Stage::Waiting;
        let count = client.members.len();
        let give = |(index, member): (usize, &String)| {
            let own = (0..PARTITIONS).filter(|partition| *partition as usize % count == index);
            SyncGroupRequestAssignment {
                member_id: member.clone(),
                assignment: own.map(|partition| partition as u8).collect(),
            }
        };
        let request = SyncGroupRequest {
            group_id: GROUP.to_owned(),
            generation_id: client.generation,
            member_id: client.member_id.clone(),
            assignments: client.members.iter().enumerate().map(give).collect(),
            ..Default::default()
        };
        self.ask(Asked::Sync { client: index }, Request::Sync(request));
    }

    fn commit(&mut self, index: usize, is_late: bool) {
        let client = &mut self.clients[index];
        if client.stage != Stage::Member || client.owned.is_empty() {
            return;
        }
        self.offsets += 1;
        let offset = self.offsets;
        let partition = |partition: &i32| OffsetCommitRequestPartition {
            partition_index: *partition,
            committed_offset: offset,
            ..Default::default()
        };
        let partitions = client.owned.iter().map(partition).collect();
        let topic = OffsetCommitRequestTopic { name: TOPIC.to_owned(), partitions, ..Default::default() };
        let request = OffsetCommitRequest {
            group_id: GROUP.to_owned(),
            generation_id_or_member_epoch: client.generation,
            member_id: client.member_id.clone(),
            topics: vec![topic],
            ..Default::default()
        };
        let offsets = client.owned.iter().map(|partition| (*partition, offset)).collect();
        let commit = UnderWay { client: index, request, offsets };
        if is_late {
            client.stage = Stage::Outside;
            self.under_way.push(commit);
        } else {
            // Until it hears the answer it does nothing else.
            client.stage = Stage::Waiting;
            self.arrive(commit);
        }
    }

    fn arrive(&mut self, commit: UnderWay) {
        let UnderWay { client, request, offsets } = commit;
        let generation = request.generation_id_or_member_epoch;
        let newest = self.begun.last().copied();
        let asked = Asked::Commit { client, generation, newest, offsets };
        self.ask(asked, Request::Commit { version: 9, request: Arc::new(request) });
    }

    fn beat(&mut self, index: usize) {
        let client = &self.clients[index];
        let request = HeartbeatRequest {
            group_id: GROUP.to_owned(),
            generation_id: client.generation,
            member_id: client.member_id.clone(),
            ..Default::default()
        };
        self.ask(Asked::Beat { client: index }, Request::Heartbeat(request));
    }

    fn leave(&mut self, index: usize) {
        let client = &mut self.clients[index];
        client.stage = Stage::Outside;
        let member_id = std::mem::take(&mut client.member_id);
        let members = vec![MemberIdentity { member_id, ..Default::default() }];
        let request = LeaveGroupRequest { group_id: GROUP.to_owned(), members, ..Default::default() };
        let ticket = self.next_ticket();
        let effects = self.shard.handle(self.now, ticket, Request::Leave(request));
        self.carry_out(effects);
    }

    fn settle(&mut self) {
        while !self.held.is_empty() {
            self.committed = self.log.len();
            for then in std::mem::take(&mut self.held) {
                let effects = self.shard.completed(self.now, then, Ok(()));
                self.carry_out(effects);
            }
        }
        self.committed = self.log.len();
    }

    /// Reads as the runtime lets requests read: nothing that could still be lost.
    fn fetch(&mut self) {
        self.settle();
        let mut image = Image::empty("cluster");
        let topic_id = Uuid([1; 16]);
        image.topic_ids.insert(TOPIC.into(), topic_id);
        let partition_indexes = (0..PARTITIONS).collect();
        let topic = OffsetFetchRequestTopics { name: TOPIC.to_owned(), topic_id, partition_indexes };
        let group = OffsetFetchRequestGroup {
            group_id: GROUP.to_owned(),
            topics: Some(vec![topic]),
            ..Default::default()
        };
        let fetch = Fetch { group, require_stable: true, image: Arc::new(image) };
        let ticket = self.next_ticket();
        let effects = self.shard.handle(self.now, ticket, Request::Fetch(fetch));
        match effects.replies.into_iter().next() {
            Some((_, Reply::Fetch(found))) => self.judge_offsets(&found),
            other => self.fail(format!("no offsets but {other:?}")),
        }
    }

    fn judge_offsets(&mut self, found: &OffsetFetchResponseGroup) {
        for found in found.topics.iter().flat_map(|topic| &topic.partitions) {
            let (partition, offset) = (found.partition_index, found.committed_offset);
            match (self.known.get(&partition), offset) {
                (None, _) => {}
                (Some(known), -1) if known.may_be_gone => {
                    self.known.remove(&partition);
                    self.tally.expired += 1;
                }
                (Some(Known { offset, .. }), -1) => {
                    self.fail(format!("{offset} of partition {partition} is gone, though the group lives"));
                }
                (Some(known), offset) if offset < known.offset => {
                    let known = known.offset;
                    self.fail(format!("partition {partition} was at {known}, and is at {offset}"));
                }
                (Some(_), _) => {}
            }
            if offset > self.offsets {
                self.fail(format!("partition {partition} is at {offset}, which nobody has committed"));
            }
        }
    }

    fn restart(&mut self) {
        self.tally.lost += (self.log.len() - self.committed) as u64;
        self.log.truncate(self.committed);
        self.held.clear();
        self.asked.clear();
        for client in self.clients.iter_mut().filter(|client| client.stage == Stage::Waiting) {
            client.stage = Stage::Outside;
        }
        self.shard = GroupShard::new(self.settings.clone());
        for (offset, (key, value)) in (0..).zip(&self.log) {
            self.shard.load(origin(offset), key, value.as_deref());
        }
        let effects = self.shard.finish_loading(self.now);
        self.carry_out(effects);
    }

    fn wait(&mut self, by_ms: u64) {
        let end = self.now.monotonic_ms + by_ms;
        while let Some(at) = self.shard.next_deadline_ms().filter(|at| *at <= end) {
            self.move_to(at.max(self.now.monotonic_ms));
            self.observe();
            while let Some(effects) = self.shard.expire(self.now) {
                self.carry_out(effects);
                self.observe();
            }
        }
        self.move_to(end);
    }

    fn move_to(&mut self, monotonic_ms: u64) {
        self.now.wall_ms += (monotonic_ms - self.now.monotonic_ms) as i64;
        self.now.monotonic_ms = monotonic_ms;
    }

    /// Sees whether the group is empty, and what that allows.
    fn observe(&mut self) {
        let (ticket, version) = (self.next_ticket(), 5);
        let describe = Request::Describe { version, group: GROUP.to_owned() };
        let effects = self.shard.handle(self.now, ticket, describe);
        let state = match effects.replies.into_iter().next() {
            Some((_, Reply::Describe(described))) => described.group_state,
            other => return self.fail(format!("no description but {other:?}")),
        };
        if matches!(&*state, "Empty" | "Dead") {
            self.empty_since_ms.get_or_insert(self.now.monotonic_ms);
        }
        if state == "Dead" {
            // The next of this name counts its generations anew.
            self.begun.clear();
            self.owners.clear();
        }
        if self.may_expire() {
            self.known.values_mut().for_each(|known| known.may_be_gone = true);
        }
    }

    fn may_expire(&self) -> bool {
        self.empty_since_ms.is_some_and(|since| since + RETENTION_MS <= self.now.monotonic_ms)
    }

    fn next_ticket(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket(self.tickets)
    }

    fn ask(&mut self, asked: Asked, request: Request) {
        let ticket = self.next_ticket();
        self.asked.insert(ticket, asked);
        let effects = self.shard.handle(self.now, ticket, request);
        self.carry_out(effects);
    }

    fn carry_out(&mut self, effects: Effects) {
        for (ticket, reply) in effects.replies {
            if let Some(asked) = self.asked.remove(&ticket) {
                self.hear(asked, reply);
            }
        }
        for write in effects.writes {
            for record in write.records {
                let offset = self.log.len() as i64;
                self.log.push(record.encode().expect("encodes"));
                self.shard.replay(origin(offset), record);
            }
            self.held.push(write.then);
        }
    }

    fn hear(&mut self, asked: Asked, reply: Reply) {
        match (asked, reply) {
            (Asked::Join { client }, Reply::Join(joined)) => self.hear_of_join(client, joined),
            (Asked::Sync { client }, Reply::Sync(synced)) if synced.error_code == 0 => {
                let owned = synced.assignment.iter().map(|partition| i32::from(*partition)).collect();
                self.begin(client, owned);
            }
            (Asked::Sync { client }, Reply::Sync(synced)) => self.send_out(client, synced.error_code),
            (Asked::Beat { client }, Reply::Heartbeat(beat)) if beat.error_code != 0 => {
                self.send_out(client, beat.error_code);
            }
            (Asked::Beat { .. }, Reply::Heartbeat(_)) => {}
            (Asked::Commit { client, generation, newest, offsets }, Reply::Commit(_)) => {
                if newest.is_some_and(|newest| newest > generation) {
                    let newest = newest.unwrap_or(-1);
                    self.fail(format!(
                        "a commit in generation {generation} was taken; with {newest} that generation was over"
                    ));
                }
                self.tally.commits += 1;
                // The answer may have waited for long.
                let may_be_gone = self.may_expire();
                for (partition, offset) in offsets {
                    self.known.insert(partition, Known { offset, may_be_gone });
                }
                let client = &mut self.clients[client];
                if client.stage == Stage::Waiting && client.generation == generation {
                    client.stage = Stage::Member;
                }
            }
            (Asked::Commit { client, generation, .. }, Reply::Refused(code)) => {
                self.tally.refused += 1;
                if self.clients[client].generation == generation {
                    self.send_out(client, code.code());
                }
            }
            (Asked::Delete, Reply::Delete(deleted)) => {
                if deleted.error_code == 0 {
                    self.tally.deleted += 1;
                    self.known.clear();
                }
            }
            (
                Asked::Join { client } | Asked::Sync { client } | Asked::Beat { client },
                Reply::Refused(code),
            ) => {
                self.send_out(client, code.code());
            }
            (_, reply) => self.fail(format!("this answers nothing that was asked: {reply:?}")),
        }
    }

    fn hear_of_join(&mut self, index: usize, joined: JoinGroupResponse) {
        let client = &mut self.clients[index];
        match ErrorCode::from_code(joined.error_code) {
            Some(ErrorCode::None) => {
                client.members = joined.members.into_iter().map(|member| member.member_id).collect();
                client.member_id = joined.member_id;
                client.generation = joined.generation_id;
                client.stage = Stage::Joined;
            }
            Some(ErrorCode::MemberIdRequired) => {
                client.member_id = joined.member_id;
                client.stage = Stage::Outside;
            }
            _ => self.send_out(index, joined.error_code),
        }
    }

    /// A client knows what it owns, and so that earlier generations are over.
    fn begin(&mut self, index: usize, owned: Vec<i32>) {
        let client = &mut self.clients[index];
        client.stage = Stage::Member;
        client.owned = owned.clone();
        let generation = client.generation;
        self.tally.generations += u64::from(self.begun.insert(generation));
        self.empty_since_ms = None;
        for partition in owned {
            let first = *self.owners.entry((generation, partition)).or_insert(index);
            if first != index {
                self.fail(format!(
                    "in generation {generation} {first} and {index} own partition {partition}"
                ));
            }
        }
    }

    /// A client has to join again.
    fn send_out(&mut self, index: usize, code: i16) {
        let client = &mut self.clients[index];
        client.stage = Stage::Outside;
        if ErrorCode::from_code(code) == Some(ErrorCode::UnknownMemberId) {
            client.member_id.clear();
        }
    }

    fn fail(&mut self, wrong: String) {
        self.wrong.get_or_insert(wrong);
    }
}
