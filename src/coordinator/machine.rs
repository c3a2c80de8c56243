//! What the state machines of all coordinators have in common: how the runtime drives one, and what comes out.
//!
//! A machine holds what the records of one partition of its topic say. It takes a request and the time and
//! returns [`Effects`]. Only its `replay` changes what the log persists, with the same code while loading and
//! while serving.

use std::sync::Arc;

use bytes::Bytes;
use klamm_metadata::Image;
use klamm_model::{ErrorCode, Offset, ProducerEpoch, ProducerId, TimestampMs};
use klamm_partition::{TransactionMarker, VerificationGuard};
use klamm_protocol::EncodeError;

/// The time, as the caller read it.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Time of the wall, which records carry.
    pub wall_ms: TimestampMs,
    /// Time that never goes back, which deadlines are measured in.
    pub monotonic_ms: u64,
}

/// Whom a reply goes to. The caller gives each request its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Ticket(pub u64);

/// Where a record that is replayed came from.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// Its offset.
    pub offset: Offset,
    /// The producer, for a record of a transaction; else [`ProducerId::NONE`].
    pub transaction_of: ProducerId,
    /// When it was written, as the record says.
    pub written_ms: TimestampMs,
}

/// A state machine over one partition of a coordinator's topic.
pub trait Machine: Send + Sync + Sized + 'static {
    /// What is written, one record at a time.
    type Record: Send;
    /// What it is asked.
    type Request: Send + Sync;
    /// What it answers.
    type Reply: Send;
    /// What it wants to be told when a write is committed.
    type Then: Send + Sync;
    /// What is to be done outside of this partition.
    type Command: Send;

    /// The topic.
    const TOPIC: &'static str;

    /// Key and value of a record.
    fn encode(record: &Self::Record) -> Result<(Bytes, Option<Bytes>), EncodeError>;

    /// Applies a record that was appended.
    fn replay(&mut self, origin: Origin, record: Self::Record);

    /// Applies a record that is loaded. One that cannot be read is told to the log.
    fn load(&mut self, origin: Origin, key: &[u8], value: Option<&[u8]>);

    /// Applies the end of a transaction that had records in this partition.
    fn replay_transaction_end(&mut self, producer: ProducerId, is_commit: bool);

    /// Starts to serve what was loaded.
    fn start(&mut self, now: Now, image: &Image) -> Effects<Self>;

    /// Serves one request.
    fn handle(&mut self, now: Now, ticket: Ticket, request: Self::Request) -> Effects<Self>;

    /// The records of a write are committed, or could not be.
    fn completed(&mut self, now: Now, then: Self::Then, outcome: Result<(), ErrorCode>) -> Effects<Self>;

    /// The monotonic time of the next deadline.
    fn next_deadline_ms(&self) -> Option<u64>;

    /// Handles one deadline that has passed; to be called until it returns `None`.
    fn expire(&mut self, now: Now) -> Option<Effects<Self>>;

    /// Nothing but an error.
    fn refusal(error: ErrorCode) -> Self::Reply;

    /// Lets an answer wait for the records that it rests on.
    fn reply_when_committed(ticket: Ticket, reply: Self::Reply) -> Self::Then;

    /// Whether an answer that is given at once may rest on records that could still be lost.
    fn reads(request: &Self::Request) -> bool;

    /// Whether requests of this kind that wait together go into one append.
    fn is_batched(request: &Self::Request) -> bool;

    /// What was loaded, in a word and a number, for the log.
    fn size(&self) -> (&'static str, usize);
}

/// What a machine lives in: where a new one comes from, and where its commands go.
pub(crate) trait Host<M: Machine>: Send + Sync + 'static {
    /// A machine without any state, for a partition that is led in an epoch.
    fn machine(&self, coordinator_epoch: i32) -> M;

    /// The cluster as this node knows it.
    fn image(&self) -> Arc<Image>;

    /// Does what is to be done outside of the partition; must not wait.
    fn carry_out(&self, command: M::Command);
}

/// What a call of a state machine leaves to do.
pub struct Effects<M: Machine> {
    /// Answers that rest on nothing that must be written first.
    pub replies: Vec<(Ticket, M::Reply)>,
    /// To be appended in this order; each is replayed as soon as it is appended.
    pub writes: Vec<Write<M>>,
    /// To be done outside of this partition, at once.
    pub commands: Vec<M::Command>,
}

impl<M: Machine> Default for Effects<M> {
    fn default() -> Effects<M> {
        Effects { replies: Vec::new(), writes: Vec::new(), commands: Vec::new() }
    }
}

impl<M: Machine> Effects<M> {
    pub(crate) fn reply(ticket: Ticket, reply: M::Reply) -> Effects<M> {
        Effects { replies: vec![(ticket, reply)], ..Effects::default() }
    }

    pub(crate) fn write(records: Vec<M::Record>, then: M::Then) -> Effects<M> {
        Effects::write_as(Form::Plain, records, then)
    }

    pub(crate) fn write_as(form: Form, records: Vec<M::Record>, then: M::Then) -> Effects<M> {
        Effects { writes: vec![Write { records, form, then }], ..Effects::default() }
    }

    /// Adds what another call has left to do, behind this.
    pub(crate) fn extend(&mut self, more: Effects<M>) {
        self.replies.extend(more.replies);
        self.writes.extend(more.writes);
        self.commands.extend(more.commands);
    }
}

/// Records to be appended, and what to tell the machine when they are committed.
pub struct Write<M: Machine> {
    /// The records; may be empty, then only the order counts.
    pub records: Vec<M::Record>,
    /// In which batches they stand.
    pub form: Form,
    /// Handed to [`Machine::completed`].
    pub then: M::Then,
}

impl<M: Machine> Write<M> {
    pub(crate) fn plain(records: Vec<M::Record>, then: M::Then) -> Write<M> {
        Write { records, form: Form::Plain, then }
    }
}

/// In which batches records are written.
pub enum Form {
    /// Together with those of other writes.
    Plain,
    /// In a batch of a transaction, alone. It counts when the transaction is committed.
    OfTransaction {
        /// Whose transaction it is.
        producer_id: ProducerId,
        /// The epoch of the producer.
        producer_epoch: ProducerEpoch,
        /// Shows that the coordinator of the transaction was asked, where that was necessary.
        guard: Option<VerificationGuard>,
    },
    /// No records, but the end of a transaction.
    End(TransactionMarker),
}
