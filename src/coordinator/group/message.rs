//! What goes into the state machine and what comes out of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use klamm_metadata::Image;
use klamm_model::{ErrorCode, ProducerEpoch, ProducerId};
use klamm_partition::{TransactionMarker, VerificationGuard};
use klamm_protocol::messages::delete_groups::DeletableGroupResult;
use klamm_protocol::messages::describe_groups::DescribedGroup;
use klamm_protocol::messages::heartbeat::{HeartbeatRequest, HeartbeatResponse};
use klamm_protocol::messages::join_group::{JoinGroupRequest, JoinGroupResponse};
use klamm_protocol::messages::leave_group::{LeaveGroupRequest, LeaveGroupResponse};
use klamm_protocol::messages::list_groups::ListedGroup;
use klamm_protocol::messages::offset_commit::{OffsetCommitRequest, OffsetCommitResponse};
use klamm_protocol::messages::offset_delete::{OffsetDeleteRequest, OffsetDeleteResponse};
use klamm_protocol::messages::offset_fetch::{OffsetFetchRequestGroup, OffsetFetchResponseGroup};
use klamm_protocol::messages::sync_group::{SyncGroupRequest, SyncGroupResponse};

use super::GroupShard;
use super::static_member::ReplacedMember;
use crate::machine;

pub use machine::{Now, Ticket};

/// What a call of the state machine leaves to do.
pub type Effects = machine::Effects<GroupShard>;

/// Records to be appended.
pub type Write = machine::Write<GroupShard>;

/// A JoinGroup and what it does not carry itself.
#[derive(Clone, Debug)]
pub struct Join {
    /// The version of the request.
    pub version: i16,
    /// The client's id, from the request's header.
    pub client_id: String,
    /// The client's address, as Kafka writes it: `/127.0.0.1`.
    pub client_host: String,
    /// Random bytes for a new member id.
    pub random: [u8; 16],
    /// The request.
    pub request: JoinGroupRequest,
}

/// The offsets of one group that are asked for. Topics carry name and id; an id of zero is not compared.
#[derive(Clone, Debug)]
pub struct Fetch {
    /// The group, and its topics or all of them.
    pub group: OffsetFetchRequestGroup,
    /// Whether a pending transactional offset hides the committed one (KIP-447).
    pub require_stable: bool,
    /// The cluster as it was when the request came: which topics exist.
    pub image: Arc<Image>,
}

/// The transaction that a commit is part of.
#[derive(Clone, Debug)]
pub struct InTransaction {
    /// The producer.
    pub producer_id: ProducerId,
    /// Its epoch.
    pub producer_epoch: ProducerEpoch,
    /// Shows that the transaction was found to include this partition, where that had to be asked.
    pub guard: Option<VerificationGuard>,
}

/// A request to the groups of one partition.
#[derive(Clone, Debug)]
pub enum Request {
    /// JoinGroup
    Join(Box<Join>),
    /// SyncGroup
    Sync(SyncGroupRequest),
    /// Heartbeat
    Heartbeat(HeartbeatRequest),
    /// LeaveGroup, the member of versions below 3 in the list of members like the others
    Leave(LeaveGroupRequest),
    /// OffsetCommit; each topic carries its name and, if known, its id
    Commit {
        /// The version of the request.
        version: i16,
        /// The request, which the asker keeps too.
        request: Arc<OffsetCommitRequest>,
    },
    /// TxnOffsetCommit, as the commit that it will be
    CommitInTransaction {
        /// The version of the request.
        version: i16,
        /// The commit, which the asker keeps too.
        request: Arc<OffsetCommitRequest>,
        /// Its transaction.
        transaction: InTransaction,
    },
    /// The end of a transaction that committed offsets in this partition
    EndTransaction(TransactionMarker),
    /// OffsetFetch for one group
    Fetch(Fetch),
    /// DescribeGroups for one group
    Describe {
        /// The version of the request.
        version: i16,
        /// The group.
        group: String,
    },
    /// ListGroups; empty filters take all
    List {
        /// Names of states.
        states: Vec<String>,
        /// Names of group types.
        types: Vec<String>,
    },
    /// DeleteGroups for one group
    Delete {
        /// The group.
        group: String,
    },
    /// OffsetDelete
    DeleteOffsets(OffsetDeleteRequest),
    /// Topics were deleted; their offsets go
    TopicsDeleted {
        /// The names.
        names: Vec<String>,
        /// The cluster behind the deletion, in which a name may belong to a new topic already.
        image: Arc<Image>,
    },
}

impl Request {
    /// The one group that it is about.
    pub fn group(&self) -> Option<&str> {
        match self {
            Request::Join(join) => Some(&join.request.group_id),
            Request::Sync(request) => Some(&request.group_id),
            Request::Heartbeat(request) => Some(&request.group_id),
            Request::Leave(request) => Some(&request.group_id),
            Request::Commit { request, .. } | Request::CommitInTransaction { request, .. } => {
                Some(&request.group_id)
            }
            Request::Fetch(fetch) => Some(&fetch.group.group_id),
            Request::Describe { group, .. } | Request::Delete { group } => Some(group),
            Request::DeleteOffsets(request) => Some(&request.group_id),
            Request::List { .. } | Request::TopicsDeleted { .. } | Request::EndTransaction(_) => None,
        }
    }
}

/// The answer to the request of the same name.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// JoinGroup
    Join(JoinGroupResponse),
    /// SyncGroup
    Sync(SyncGroupResponse),
    /// Heartbeat
    Heartbeat(HeartbeatResponse),
    /// LeaveGroup, in the form of version 3 and later
    Leave(LeaveGroupResponse),
    /// OffsetCommit, in a transaction or not
    Commit(OffsetCommitResponse),
    /// The marker is written
    TransactionEnded,
    /// OffsetFetch for one group
    Fetch(OffsetFetchResponseGroup),
    /// DescribeGroups for one group
    Describe(DescribedGroup),
    /// ListGroups
    List(Vec<ListedGroup>),
    /// DeleteGroups for one group
    Delete(DeletableGroupResult),
    /// OffsetDelete
    DeleteOffsets(OffsetDeleteResponse),
    /// The offsets of deleted topics are gone
    TopicsDeleted,
    /// Nothing but an error, to a request of any kind
    Refused(ErrorCode),
}

impl Reply {
    /// The answer in place of this one when its records could not be written.
    pub fn failed(self, error: ErrorCode) -> Reply {
        match self {
            Reply::Commit(_) if error == ErrorCode::UnknownServerError => {
                Reply::Refused(ErrorCode::InvalidCommitOffsetSize)
            }
            // Consumers take any other code of an OffsetFetch for the end of the world.
            Reply::Fetch(_) => Reply::Refused(ErrorCode::NotCoordinator),
            _ => Reply::Refused(error),
        }
    }
}

/// What follows when a write is committed, or has failed.
#[derive(Debug)]
pub enum Then {
    /// Nothing.
    Nothing,
    /// The answer goes out.
    Reply {
        /// To whom.
        ticket: Ticket,
        /// The answer.
        reply: Reply,
    },
    /// The first record of a group: without it the group is unmade.
    GroupMade {
        /// The group.
        group: Arc<str>,
        /// The member that asked.
        member: Arc<str>,
        /// Its answer, unless it waits for the rebalance.
        reply: Option<(Ticket, Reply)>,
    },
    /// The leader's assignments: the generation becomes stable.
    AssignmentStored {
        /// The group.
        group: Arc<str>,
        /// The generation that they were made for.
        generation: i32,
        /// Assignment by member.
        assignments: BTreeMap<Arc<str>, Bytes>,
    },
    /// A static member came back under a new id.
    StaticMemberStored(Box<ReplacedMember>),
}
