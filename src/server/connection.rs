//! One connection: frames in, answers out, in the order of the requests.
//!
//! One task owns the connection. Requests are handled one after the other, as Kafka does it, but for Produce:
//! its records are appended at once and in order, and while it waits for its acknowledgement the next one is
//! appended already, so that five requests in flight cost one round trip to the replicas.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{self, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use klamm_io::{BoxFuture, Stream};
use klamm_protocol::{ApiKey, Chunk, Reader};

use crate::api::{self, Answer, Begun, Call, Closed, Handler, Reply};
use crate::client_quotas::{ConnectionQuotas, Limit, Quota};
use crate::context::Context;
use crate::listener::Endpoint;
use crate::peers::{QUORUM_BYTES_MAX, QUORUM_KEY};
use crate::pipeline::{Pipeline, Step};
use crate::stop::Stop;

/// How much is written before the limits of [`Outlet`] begin anew.
const PIECE_BYTES: usize = 1024 * 1024;

/// How long a stop waits for a client to read its answer.
const STOP_GRACE: Duration = Duration::from_secs(2);

/// How much is read at once while a request waits: most clients send nothing then.
const READ_WHILE_WAITING_BYTES: usize = 1024;

/// How much is asked of the allocator at once for a frame that has been announced but has not arrived.
const READ_AHEAD_BYTES: usize = 128 * 1024;

/// Serves a connection until either side ends it. `Err` says why this side did.
pub(crate) async fn serve(
    stream: Arc<dyn Stream>,
    context: Arc<Context>,
    endpoint: Arc<Endpoint>,
    mut stop: Stop,
) -> Result<(), Closed> {
    let mut frames = Frames {
        stream: stream.clone(),
        buffer: BytesMut::new(),
        bytes_max: usize::try_from(context.config().socket_request_max_bytes).unwrap_or(0),
        serves_quorum: endpoint.serves_quorum,
        idle_max: u64::try_from(context.config().connections_max_idle_ms).ok().map(Duration::from_millis),
    };
    let mut outlet = Outlet::new(&frames, &context, &stop);
    let quotas = Arc::new(ConnectionQuotas::default());
    let mut pipeline = Pipeline::new();
    loop {
        // A frame that is taken must be handled, so the limits come first.
        let muted = quotas.mute.left(context.clock.monotonic_ms());
        let is_heard = muted.is_zero();
        let next = if pipeline.has_room() && is_heard { frames.buffered()? } else { None };
        let frame = match next {
            Some(frame) => frame,
            None => {
                // Wait for whichever comes first: a step of what is under way, more bytes, or the end.
                let (is_idle, is_beginning) = (pipeline.is_idle(), pipeline.is_beginning());
                let reads = !is_heard || pipeline.has_room() || is_beginning && frames.has_room_ahead();
                tokio::select! {
                    biased;
                    step = pipeline.step() => if let Step::Answered(answer) = step? {
                        outlet.send(answer?).await?;
                    },
                    more = frames.listen(muted, is_beginning), if reads => if !more? { return Ok(()) },
                    () = stop.requested(), if is_idle => return Ok(()),
                }
                continue;
            }
        };
        if api::quorum_message(&frame, &endpoint).is_none() {
            tokio::select! {
                biased;
                () = endpoint.ready() => {}
                () = stop.requested() => return Ok(()),
            }
        }
        match dispatch(frame, &context, &endpoint, &stream, &quotas)? {
            Dispatched::Pipelined(answer) => pipeline.push(answer),
            Dispatched::Begins(beginning) => pipeline.begin(beginning),
            Dispatched::Serial(answer) => {
                outlet.send_all(&mut pipeline).await?;
                outlet.send(answer.await?).await?;
            }
            Dispatched::Waiting(mut answer) => {
                outlet.send_all(&mut pipeline).await?;
                let answer = loop {
                    tokio::select! {
                        biased;
                        answer = &mut answer => break answer?,
                        here = frames.client_is_here(), if frames.has_room_ahead() => if !here { return Ok(()) },
                        () = stop.requested() => return Ok(()),
                    }
                };
                outlet.send(answer).await?;
            }
        }
    }
}

enum Dispatched {
    Pipelined(UnderWay),
    Begins(Beginning),
    Serial(UnderWay),
    Waiting(UnderWay),
}

/// A request that asks somebody before it begins.
type Beginning = BoxFuture<'static, Result<UnderWay, Closed>>;

/// An answer under way; it counts its request when it is ready.
struct UnderWay {
    answer: Answer,
    counted: Counted,
}

/// What is counted of a request.
struct Counted {
    /// None for what is not of Kafka's protocol.
    key: Option<ApiKey>,
    since: Duration,
    /// How long it was worked on, where that is limited.
    work: Option<Work>,
    context: Arc<Context>,
}

/// The work on a request of a client whose work is limited.
struct Work {
    limit: Limit,
    quotas: Arc<ConnectionQuotas>,
    taken: Duration,
}

impl Counted {
    /// Runs the first stage of a request, which is most of the work on records.
    fn begin(
        &mut self,
        begin: fn(Arc<Context>, Call, Reader) -> Result<Begun, Closed>,
        call: Call,
        reader: Reader,
    ) -> Result<Begun, Closed> {
        let context = self.context.clone();
        let Some(work) = &mut self.work else { return begin(context, call, reader) };
        let begun = context.clock.monotonic();
        let result = begin(context.clone(), call, reader);
        work.taken += context.clock.monotonic().saturating_sub(begun);
        result
    }

    fn of(self, answer: Answer) -> UnderWay {
        UnderWay { answer, counted: self }
    }
}

impl Future for UnderWay {
    type Output = Result<Option<Reply>, Closed>;

    fn poll(mut self: Pin<&mut UnderWay>, cx: &mut task::Context<'_>) -> Poll<Self::Output> {
        let UnderWay { answer, counted: Counted { key, since, work, context } } = &mut *self;
        let begun = work.as_ref().map(|_| context.clock.monotonic());
        let polled = answer.as_mut().poll(cx);
        if let (Some(work), Some(begun)) = (work.as_mut(), begun) {
            work.taken += context.clock.monotonic().saturating_sub(begun);
        }
        if let (true, Some(key)) = (polled.is_ready(), *key) {
            let duration = context.clock.monotonic().saturating_sub(*since);
            context.metrics.requests(key).count(duration);
        }
        if let (Poll::Ready(Ok(reply)), Some(work)) = (&polled, work)
            && !reply.as_ref().is_some_and(|reply| reply.is_for_broker)
        {
            work.count(context);
        }
        polled
    }
}

impl Work {
    /// A request that counts, of a client that is limited. What brokers ask each other does not.
    fn of(call: &Call, context: &Context) -> Option<Work> {
        if call.endpoint.is_controller || api::is_of_brokers(call.key) {
            return None;
        }
        let client = call.client_id.as_deref();
        let limit = context.client_quotas.limit(&call.quotas, client, Quota::Request)?;
        Some(Work { limit, quotas: call.quotas.clone(), taken: Duration::ZERO })
    }

    /// Counts it once the answer is ready.
    fn count(&self, context: &Context) {
        let percent = self.taken.as_secs_f64() * 100.0;
        let throttle = context.client_quotas.count_in(&self.limit, percent);
        self.quotas.mute.extend(context.clock.monotonic_ms(), throttle);
    }
}

/// Reads the header, looks the API up and starts it. What cannot be parsed or is not served ends the
/// connection without an answer, as in Kafka.
fn dispatch(
    frame: Bytes,
    context: &Arc<Context>,
    endpoint: &Arc<Endpoint>,
    stream: &Arc<dyn Stream>,
    quotas: &Arc<ConnectionQuotas>,
) -> Result<Dispatched, Closed> {
    let (since, context) = (context.clock.monotonic(), context.clone());
    context.metrics.received_bytes.fetch_add(4 + frame.len() as u64, Ordering::Relaxed);
    if let Some((correlation_id, message)) = api::quorum_message(&frame, endpoint) {
        let answer = api::answer_quorum(context.clone(), correlation_id, message);
        let counted = Counted { key: None, since, work: None, context };
        return Ok(Dispatched::Pipelined(counted.of(answer)));
    }
    let (call, reader, entry) =
        api::open(frame, endpoint.clone(), stream.peer_addr(), stream.local_addr(), quotas.clone())?;
    let work = Work::of(&call, &context);
    let mut counted = Counted { key: Some(entry.key), since, work, context: context.clone() };
    Ok(match entry.handler {
        Handler::Pipelined(begin) => match counted.begin(begin, call, reader)? {
            Begun::Done(answer) => Dispatched::Pipelined(counted.of(answer)),
            Begun::Waits(begun) => Dispatched::Begins(Box::pin(async move { Ok(counted.of(begun.await?)) })),
        },
        Handler::Serial(handle) => Dispatched::Serial(counted.of(handle(context, call, reader))),
        Handler::Waiting(handle) => Dispatched::Waiting(counted.of(handle(context, call, reader))),
    })
}

/// The way out. A client that does not read is not waited for longer than for one that does not write, and hardly
/// at all when the node stops.
struct Outlet {
    stream: Arc<dyn Stream>,
    context: Arc<Context>,
    idle_max: Option<Duration>,
    stop: Stop,
}

impl Outlet {
    /// The way out of the connection that these frames come in by.
    fn new(frames: &Frames, context: &Arc<Context>, stop: &Stop) -> Outlet {
        let (context, stop) = (context.clone(), stop.clone());
        Outlet { stream: frames.stream.clone(), context, idle_max: frames.idle_max, stop }
    }

    /// Sends what is under way, oldest first, and waits for it.
    async fn send_all(&mut self, pipeline: &mut Pipeline<UnderWay, Beginning>) -> Result<(), Closed> {
        while let Some(answer) = pipeline.pop() {
            self.send(answer.await?).await?;
        }
        Ok(())
    }

    /// Writes an answer: its bytes from memory, its records straight from their files.
    async fn send(&mut self, reply: Option<Reply>) -> Result<(), Closed> {
        let Some(reply) = reply else {
            return Ok(());
        };
        let stream = self.stream.clone();
        let last = reply.frame.chunks.len().saturating_sub(1);
        for (index, chunk) in reply.frame.chunks.iter().enumerate() {
            match chunk {
                Chunk::Bytes(bytes) => {
                    let mut pieces = bytes.chunks(PIECE_BYTES).peekable();
                    while let Some(piece) = pieces.next() {
                        let more = index != last || pieces.peek().is_some();
                        self.progress(stream.write_all(piece, more), piece.len() as u64).await?;
                    }
                }
                Chunk::External { index, len } => {
                    let slice = &reply.slices[*index as usize];
                    assert_eq!(
                        slice.len,
                        u64::from(*len),
                        "an answer announces another length than its slice"
                    );
                    let end = slice.position + slice.len;
                    let mut position = slice.position;
                    while position < end {
                        let len = (end - position).min(PIECE_BYTES as u64);
                        self.progress(stream.send_file(&slice.file, position, len), len).await?;
                        position += len;
                    }
                }
            }
        }
        Ok(())
    }

    /// Waits for one piece to be written, within the limits.
    async fn progress(
        &mut self,
        write: impl Future<Output = io::Result<()>>,
        bytes: u64,
    ) -> Result<(), Closed> {
        let idle_max = self.idle_max.unwrap_or(Duration::MAX);
        tokio::select! {
            biased;
            written = write => {
                written?;
                self.context.metrics.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
                Ok(())
            }
            () = tokio::time::sleep(idle_max) => Err(Closed::NotRead),
            () = async { self.stop.requested().await; tokio::time::sleep(STOP_GRACE).await } => Err(Closed::NotRead),
        }
    }
}

/// The frames that arrive. Its memory grows with the bytes that came, not with the length that they claim.
struct Frames {
    stream: Arc<dyn Stream>,
    buffer: BytesMut,
    bytes_max: usize,
    /// Whether frames of the quorum are taken, which have a limit of their own.
    serves_quorum: bool,
    idle_max: Option<Duration>,
}

impl Frames {
    /// The next frame if all of it has arrived, without its length.
    fn buffered(&mut self) -> Result<Option<Bytes>, Closed> {
        let Some(len) = self.announced()? else {
            return Ok(None);
        };
        if self.buffer.len() < 4 + len {
            return Ok(None);
        }
        self.buffer.advance(4);
        Ok(Some(self.buffer.split_to(len).freeze()))
    }

    /// Whether more may be read while a request waits: enough to notice that the client goes, and no more.
    fn has_room_ahead(&self) -> bool {
        self.buffer.len() < READ_AHEAD_BYTES
    }

    /// Reads ahead while a request waits; false when the client has gone. May be dropped at any await.
    async fn client_is_here(&mut self) -> bool {
        self.buffer.reserve(READ_WHILE_WAITING_BYTES);
        matches!(self.stream.read(&mut self.buffer).await, Ok(1..))
    }

    /// Reads on, or waits while the client is not heard. May be dropped at any await.
    async fn listen(&mut self, muted: Duration, is_ahead: bool) -> Result<bool, Closed> {
        if muted.is_zero() { self.read_on(is_ahead).await } else { Ok(self.stay_muted(muted).await) }
    }

    /// Waits while the client is not heard; false when it has gone meanwhile, or for longer than a client may be idle.
    /// May be dropped at any await.
    async fn stay_muted(&mut self, muted: Duration) -> bool {
        let idle_max = self.idle_max.unwrap_or(Duration::MAX);
        let waited = async {
            tokio::time::sleep(muted.min(idle_max)).await;
            muted <= idle_max
        };
        let has_room = self.has_room_ahead();
        tokio::select! {
            biased;
            here = self.client_is_here(), if has_room => here,
            is_over = waited => is_over,
        }
    }

    /// Reads what has arrived, or ahead while a request asks before it begins; false when the client has gone or
    /// was idle for too long. May be dropped at any await.
    async fn read_on(&mut self, is_ahead: bool) -> Result<bool, Closed> {
        match is_ahead {
            true => Ok(self.client_is_here().await),
            false => self.fill().await,
        }
    }

    fn announced(&self) -> Result<Option<usize>, Closed> {
        let Some(prefix) = self.buffer.first_chunk::<4>() else {
            return Ok(None);
        };
        let len = i32::from_be_bytes(*prefix);
        match usize::try_from(len) {
            Ok(0) | Err(_) => Err(Closed::Malformed(format!("a frame of {len} bytes{}", hint(*prefix)))),
            Ok(len @ ..=QUORUM_BYTES_MAX) if self.serves_quorum && len > self.bytes_max => {
                match self.buffer.get(4..6) {
                    Some(key) if key == QUORUM_KEY.to_be_bytes() => Ok(Some(len)),
                    Some(_) => Err(self.too_long(len, *prefix)),
                    None => Ok(None),
                }
            }
            Ok(len) if len > self.bytes_max => Err(self.too_long(len, *prefix)),
            Ok(len) => Ok(Some(len)),
        }
    }

    fn too_long(&self, len: usize, prefix: [u8; 4]) -> Closed {
        let (allowed, hint) = (self.bytes_max, hint(prefix));
        Closed::Malformed(format!("a frame of {len} bytes; socket.request.max.bytes allows {allowed}{hint}"))
    }

    /// Reads what has arrived; false at the end of the stream. May be dropped at any await.
    async fn fill(&mut self) -> Result<bool, Closed> {
        let missing = self.announced()?.map_or(4, |len| (4 + len).saturating_sub(self.buffer.len()));
        let ahead = self.buffer.len().max(READ_AHEAD_BYTES);
        self.buffer.reserve(missing.clamp(1024, ahead));
        let read = self.stream.read(&mut self.buffer);
        let count = match self.idle_max {
            None => read.await?,
            Some(idle_max) => match tokio::time::timeout(idle_max, read).await {
                Ok(count) => count?,
                Err(_) => return Ok(false),
            },
        };
        if count == 0 && !self.buffer.is_empty() {
            let held = self.buffer.len();
            return Err(Closed::Malformed(format!("a frame that ended after {held} bytes")));
        }
        Ok(count > 0)
    }
}

/// What the first bytes look like, for the person who pointed the wrong client at the port.
fn hint(prefix: [u8; 4]) -> &'static str {
    match &prefix {
        b"GET " | b"POST" | b"PUT " | b"HEAD" | b"OPTI" | b"DELE" => " (this looks like an HTTP request)",
        [0x16, 3, ..] => " (this looks like TLS, and the listener is plaintext)",
        _ => "",
    }
}

impl From<io::Error> for Closed {
    fn from(error: io::Error) -> Closed {
        Closed::Io(error)
    }
}

/// Tells the log why a connection was closed, one line a second at the most for each reason.
pub(crate) fn report(peer: SocketAddr, closed: &Closed, context: &Context) {
    match closed {
        Closed::Malformed(what) => {
            context.metrics.malformed.fetch_add(1, Ordering::Relaxed);
            let line = || format!("closed the connection from {peer}: it sent {what}");
            if let Some(line) = context.malformed_log.line(context.clock.monotonic(), line) {
                tracing::warn!("{line}");
            }
        }
        Closed::Io(error) => tracing::debug!("the connection from {peer} broke: {error}"),
        Closed::NotRead => tracing::info!("closed the connection from {peer}: it did not read its answer"),
        Closed::Refused => tracing::debug!("closed the connection from {peer}: a request with acks=0 failed"),
    }
}
