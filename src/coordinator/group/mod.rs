//! The state machine of one partition of `__consumer_offsets`: its groups and their committed offsets.
//!
//! [`GroupShard::handle`] takes one request and the time and returns [`Effects`]: replies, and writes whose
//! own replies wait until they are committed. Only [`GroupShard::replay`] changes what the log persists
//! (the groups' stored records and offsets), with the same code while loading and while serving. What is
//! not persisted (who has joined, who waits, deadlines) changes in `handle`, `expire` and `completed`.

mod classic;
mod commit;
mod describe;
mod expiry;
mod fetch;
mod join;
mod machine;
mod membership;
mod message;
mod offset_table;
mod offsets;
mod rebalance;
pub mod record;
mod replay;
mod shortcuts;
mod static_member;
mod sync;
mod timer;
mod unreadable;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use klamm_model::ErrorCode;

use crate::deadlines::Deadlines;
use crate::machine::Form;
use crate::settings::GroupSettings;
use classic::Group;
use offset_table::OffsetTable;
use offsets::PendingOffsets;
use timer::Timer;
use unreadable::UnreadableRecords;

pub use crate::machine::Origin;
pub use message::{Effects, Fetch, InTransaction, Join, Now, Reply, Request, Then, Ticket, Write};
pub use offsets::CommittedOffset;
pub use record::GroupRecord;
pub use unreadable::RecordKey;

/// All groups of one partition of `__consumer_offsets`.
pub struct GroupShard {
    settings: Arc<GroupSettings>,
    groups: BTreeMap<Arc<str>, Group>,
    /// What the groups have committed; each group with an offset is one of `groups`.
    offsets: OffsetTable,
    /// Groups of protocols that are not served, and whether the log has told of a request for each.
    foreign: BTreeMap<Arc<str>, bool>,
    /// What is known of these groups is not the newest.
    unreadable: UnreadableRecords,
    pending: PendingOffsets,
    /// The names of all topics that have offsets, so that each is held once; those that have none any more are
    /// forgotten when groups are looked through.
    topics: BTreeSet<Arc<str>>,
    deadlines: Deadlines<Timer>,
}

impl GroupShard {
    /// A shard without groups; [`GroupShard::replay`] fills it, [`GroupShard::finish_loading`] starts it.
    pub fn new(settings: Arc<GroupSettings>) -> GroupShard {
        GroupShard {
            settings,
            groups: BTreeMap::new(),
            offsets: OffsetTable::default(),
            foreign: BTreeMap::new(),
            unreadable: UnreadableRecords::default(),
            pending: PendingOffsets::default(),
            topics: BTreeSet::new(),
            deadlines: Deadlines::default(),
        }
    }

    /// Serves one request.
    pub fn handle(&mut self, now: Now, ticket: Ticket, request: Request) -> Effects {
        if let Some(group) = request.group()
            && (self.is_foreign(group) || self.is_unreadable_for(&request, group))
        {
            return Effects::reply(ticket, Reply::Refused(ErrorCode::CoordinatorNotAvailable));
        }
        match request {
            Request::Join(join) => self.join(now, ticket, join),
            Request::Sync(request) => self.sync(now, ticket, request),
            Request::Heartbeat(request) => self.heartbeat(now, ticket, request),
            Request::Leave(request) => self.leave(now, ticket, request),
            Request::Commit { version, request } => self.commit(now, ticket, version, &request),
            Request::CommitInTransaction { version, request, transaction } => {
                self.commit_in_transaction(now, ticket, version, &request, transaction)
            }
            Request::EndTransaction(marker) => {
                let then = Then::Reply { ticket, reply: Reply::TransactionEnded };
                Effects::write_as(Form::End(marker), Vec::new(), then)
            }
            Request::Fetch(fetch) => Effects::reply(ticket, Reply::Fetch(self.fetch(fetch))),
            Request::Describe { version, group } => {
                Effects::reply(ticket, Reply::Describe(self.describe(version, &group)))
            }
            Request::List { states, types } => {
                Effects::reply(ticket, Reply::List(self.list(&states, &types)))
            }
            Request::Delete { group } => self.delete(ticket, &group),
            Request::DeleteOffsets(request) => self.delete_offsets(ticket, request),
            Request::TopicsDeleted { names, image } => self.drop_topics(ticket, &names, &image),
        }
    }

    /// The monotonic time of the next deadline.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        self.deadlines.next_ms()
    }

    /// Handles one deadline that has passed; to be called until it returns `None`.
    pub fn expire(&mut self, now: Now) -> Option<Effects> {
        let timer = self.deadlines.pop_due(now.monotonic_ms)?;
        if timer == Timer::CleanUp {
            return Some(self.clean_up(now));
        }
        let Some((group, mut turn)) = self.turn(now, timer.group()) else {
            return Some(Effects::default());
        };
        match &timer {
            Timer::Session { member, .. } => rebalance::expire_session(&mut turn, group, member),
            Timer::Join { .. } => rebalance::expire_join(&mut turn, group),
            Timer::Sync { .. } => rebalance::expire_sync(&mut turn, group),
            Timer::CleanUp => {}
        }
        Some(turn.effects)
    }

    /// To be called when the records of a write are committed, or could not be.
    pub fn completed(&mut self, now: Now, then: Then, outcome: Result<(), ErrorCode>) -> Effects {
        match then {
            Then::Nothing => {
                if let Err(error) = outcome {
                    tracing::warn!(%error, "records of a group could not be written");
                }
                Effects::default()
            }
            Then::Reply { ticket, reply } => match outcome {
                Ok(()) => Effects::reply(ticket, reply),
                Err(error) => Effects::reply(ticket, reply.failed(error)),
            },
            Then::GroupMade { group, member, reply } => self.group_made(now, group, member, reply, outcome),
            Then::AssignmentStored { group, generation, assignments } => {
                self.assignment_stored(now, &group, generation, assignments, outcome)
            }
            Then::StaticMemberStored(replaced) => self.static_member_stored(now, *replaced, outcome),
        }
    }

    /// Whether the group has members or offsets here; for tests and metrics.
    pub fn group_count(&self) -> usize {
        self.groups.len()
    }

    /// How many names of topics are held; for tests and metrics.
    pub fn topic_count(&self) -> usize {
        self.topics.len()
    }

    /// A group and what a transition of it needs, borrowed apart from each other.
    fn turn(&mut self, now: Now, group: &str) -> Option<(&mut Group, Turn<'_>)> {
        let group = self.groups.get_mut(group)?;
        let deadlines = &mut self.deadlines;
        Some((group, Turn { now, settings: &self.settings, deadlines, effects: Effects::default() }))
    }
}

/// What a transition of one group reads and leaves behind.
struct Turn<'a> {
    now: Now,
    settings: &'a GroupSettings,
    deadlines: &'a mut Deadlines<Timer>,
    effects: Effects,
}

impl Turn<'_> {
    fn reply(&mut self, ticket: Ticket, reply: Reply) {
        self.effects.replies.push((ticket, reply));
    }

    /// Replies when all writes of this turn are committed; at once where there are none.
    fn reply_after_writes(&mut self, ticket: Ticket, reply: Reply) {
        match self.effects.writes.last_mut() {
            Some(write) if matches!(write.then, Then::Nothing) => write.then = Then::Reply { ticket, reply },
            Some(_) => {
                self.effects.writes.push(Write::plain(Vec::new(), Then::Reply { ticket, reply }));
            }
            None => self.reply(ticket, reply),
        }
    }

    /// Sets a timer that many milliseconds from now.
    fn set_timer(&mut self, timer: Timer, after_ms: i32) {
        let at = self.now.monotonic_ms + u64::try_from(after_ms).unwrap_or(0);
        self.deadlines.set(timer, at);
    }

    /// Gives a member a whole session time-out from now.
    fn restart_session(&mut self, group: &Group, member: &str) {
        if let Some(member) = group.member(member) {
            let timer = Timer::Session { group: group.id.clone(), member: member.id.clone() };
            self.set_timer(timer, member.session_timeout_ms);
        }
    }

    fn cancel_session(&mut self, group: &Group, member: &str) {
        self.deadlines.cancel(&Timer::Session { group: group.id.clone(), member: member.into() });
    }
}
