//! What goes into the state machine of transactions and what comes out of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use klamm_model::{ErrorCode, ProducerEpoch, ProducerId};
use klamm_protocol::messages::describe_transactions::TransactionState;
use klamm_protocol::messages::list_transactions;

use super::TransactionShard;
use super::id_pattern::IdPattern;
use super::state::TransactionVersion;
use crate::machine;

pub use machine::{Now, Ticket};

/// What a call of the state machine leaves to do.
pub type Effects = machine::Effects<TransactionShard>;

/// Records to be appended.
pub type Write = machine::Write<TransactionShard>;

/// Partitions by topic.
pub type Partitions = BTreeMap<Arc<str>, BTreeSet<i32>>;

/// A producer, as it names itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Producer {
    /// The name of its transactions, which outlives the process.
    pub transactional_id: String,
    /// Its id.
    pub id: ProducerId,
    /// Its epoch.
    pub epoch: ProducerEpoch,
}

/// InitProducerId with a transactional id.
#[derive(Clone, Debug)]
pub struct Init {
    /// The transactional id.
    pub transactional_id: String,
    /// How long a transaction may take, in milliseconds.
    pub timeout_ms: i32,
    /// The id and epoch that the producer has, if it goes on after an error (KIP-360).
    pub has: Option<(ProducerId, ProducerEpoch)>,
    /// An id that no producer ever had; needed only after [`Reply::NeedsProducerId`].
    pub unused: Option<ProducerId>,
}

/// EndTxn.
#[derive(Clone, Debug)]
pub struct End {
    /// Whose transaction.
    pub producer: Producer,
    /// Whether it is committed.
    pub is_commit: bool,
    /// The version of transactions that the producer speaks.
    pub version: TransactionVersion,
    /// As in [`Init`].
    pub unused: Option<ProducerId>,
}

/// Which transactions are listed. Empty filters take all.
#[derive(Clone, Default, Debug)]
pub struct Filter {
    /// Names of states; all if empty.
    pub states: Arc<BTreeSet<String>>,
    /// Ids of producers; all if empty.
    pub producer_ids: Arc<BTreeSet<i64>>,
    /// Only those that have run for longer, in milliseconds; all if negative.
    pub longer_than_ms: i64,
    /// What ids must match; all if there is none.
    pub pattern: Option<IdPattern>,
}

/// A request to the transactions of one partition.
#[derive(Clone, Debug)]
pub enum Request {
    /// InitProducerId
    Init(Init),
    /// AddPartitionsToTxn, and AddOffsetsToTxn with the partition of the group
    Add {
        /// Whose transaction.
        producer: Producer,
        /// The partitions, which exist.
        partitions: Partitions,
        /// The version of transactions that the producer speaks.
        version: TransactionVersion,
    },
    /// AddPartitionsToTxn that only asks (KIP-890)
    Verify {
        /// Whose transaction.
        producer: Producer,
        /// The partitions.
        partitions: Partitions,
    },
    /// EndTxn
    End(End),
    /// All markers of a transaction stand in their partitions
    MarkersWritten {
        /// The transactional id, with the id and epoch of the markers.
        producer: Producer,
        /// As in [`Init`].
        unused: Option<ProducerId>,
    },
    /// DescribeTransactions for one id
    Describe {
        /// The transactional id.
        transactional_id: String,
    },
    /// ListTransactions
    List(Filter),
}

impl Request {
    /// The one transactional id that it is about.
    pub fn transactional_id(&self) -> Option<&str> {
        match self {
            Request::Init(init) => Some(&init.transactional_id),
            Request::Add { producer, .. }
            | Request::Verify { producer, .. }
            | Request::End(End { producer, .. })
            | Request::MarkersWritten { producer, .. } => Some(&producer.transactional_id),
            Request::Describe { transactional_id } => Some(transactional_id),
            Request::List(_) => None,
        }
    }
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// Init and End: the id and epoch to go on with.
    Producer(ProducerId, ProducerEpoch),
    /// Add and MarkersWritten.
    Done,
    /// Verify: an answer for each partition.
    Verified(Vec<(Arc<str>, i32, ErrorCode)>),
    /// Describe.
    Described(TransactionState),
    /// List.
    Listed(Vec<list_transactions::TransactionState>),
    /// Init, End and MarkersWritten: the same again, with an id that is not used.
    NeedsProducerId,
    /// Nothing but an error.
    Refused(ErrorCode),
}

/// What follows when a write is committed, or has failed.
#[derive(Clone, Debug)]
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
    /// The end of a transaction is decided: the markers go out, and an answer.
    Prepared {
        /// The transactional id, with the id and epoch of the markers.
        producer: Producer,
        /// Who waits for it.
        reply: Option<(Ticket, Reply)>,
    },
}

/// The markers of one transaction, to be written into each of its partitions until all have them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WriteMarkers {
    /// The transactional id, with the id and epoch of the markers.
    pub producer: Producer,
    /// The epoch of this coordinator.
    pub coordinator_epoch: i32,
    /// Whether the transaction is committed.
    pub is_commit: bool,
    /// The version of transactions in which it is ended.
    pub version: TransactionVersion,
    /// Where.
    pub partitions: Partitions,
}
