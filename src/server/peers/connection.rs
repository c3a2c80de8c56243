//! A connection to another node: requests go out as they come, answers find who waits for them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use bytes::{Buf, Bytes, BytesMut};
use klamm_io::Stream;
use klamm_protocol::{Request, RequestHeader, decode_response, encode_request};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::{Address, LostConnections, PeerError};

/// The largest answer that is taken from another node.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// How much is asked of the allocator at once for an answer that was announced but has not arrived.
const READ_AHEAD_BYTES: usize = 128 * 1024;

/// An open connection. Dropping it closes it; whoever waits for an answer then is told.
pub(super) struct Connection {
    stream: Arc<dyn Stream>,
    client_id: String,
    next_id: AtomicI32,
    /// Whether a request was cut off while it was written, so that nothing can follow it.
    is_cut: tokio::sync::Mutex<bool>,
    waiting: Arc<Mutex<Waiting>>,
    reading: JoinHandle<()>,
}

/// Who waits for which answer.
#[derive(Default)]
struct Waiting {
    by_id: BTreeMap<i32, oneshot::Sender<Bytes>>,
    /// Why no answer comes any more.
    ended: Option<String>,
}

impl Connection {
    /// Takes over a stream that was just opened, and tells `lost` of its address should the other side end it.
    pub(super) fn new(
        stream: Arc<dyn Stream>,
        client_id: String,
        lost: Option<(Arc<LostConnections>, Address)>,
    ) -> Connection {
        let waiting = Arc::new(Mutex::new(Waiting::default()));
        let (read_from, answered) = (stream.clone(), waiting.clone());
        let reading = tokio::spawn(async move {
            read(read_from, answered).await;
            if let Some((lost, address)) = lost {
                lost.tell(&address);
            }
        });
        Connection {
            stream,
            client_id,
            next_id: AtomicI32::new(0),
            is_cut: tokio::sync::Mutex::new(false),
            waiting,
            reading,
        }
    }

    /// Whether requests can still be sent, as far as can be told.
    pub(super) fn is_open(&self) -> bool {
        let is_cut = self.is_cut.try_lock().is_ok_and(|is_cut| *is_cut);
        !is_cut && self.waiting.lock().ended.is_none()
    }

    /// Sends a request of Kafka's protocol and returns its answer.
    pub(super) async fn ask<R: Request>(&self, version: i16, request: &R) -> Result<R::Response, PeerError> {
        let correlation_id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let header = RequestHeader {
            api_key: R::KEY as i16,
            api_version: version,
            correlation_id,
            client_id: Some(self.client_id.clone()),
        };
        let frame = encode_request(&header, request).map_err(|error| PeerError::Broken(error.to_string()))?;
        let answer = self.exchange(correlation_id, &frame).await?;
        let (_, answer) = decode_response::<R>(answer, version)
            .map_err(|error| PeerError::Broken(format!("an answer that cannot be read: {error}")))?;
        Ok(answer)
    }

    /// Sends a frame of the nodes' own protocol, whose body has no schema of Kafka's, and returns the body of
    /// the answer.
    pub(super) async fn ask_private(&self, key: i16, body: &[u8]) -> Result<Bytes, PeerError> {
        let correlation_id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let mut frame = BytesMut::with_capacity(4 + 10 + body.len());
        let len = 10 + body.len();
        let len = i32::try_from(len).map_err(|_| PeerError::Broken(format!("a message of {len} bytes")))?;
        frame.extend_from_slice(&len.to_be_bytes());
        frame.extend_from_slice(&key.to_be_bytes());
        frame.extend_from_slice(&0i16.to_be_bytes());
        frame.extend_from_slice(&correlation_id.to_be_bytes());
        frame.extend_from_slice(&(-1i16).to_be_bytes());
        frame.extend_from_slice(body);
        let answer = self.exchange(correlation_id, &frame).await?;
        Ok(answer.slice(4..))
    }

    /// Writes a frame and waits for the one that answers it.
    async fn exchange(&self, correlation_id: i32, frame: &[u8]) -> Result<Bytes, PeerError> {
        let answer = self.expect(correlation_id)?;
        let _forget = Forget { waiting: &self.waiting, correlation_id };
        {
            let mut is_cut = self.is_cut.lock().await;
            if *is_cut {
                return Err(PeerError::Broken("an earlier request was cut off".to_owned()));
            }
            // Should this future be dropped while it writes, half a frame is out and no other may follow.
            *is_cut = true;
            self.stream
                .write_all(frame, false)
                .await
                .map_err(|error| PeerError::Broken(error.to_string()))?;
            *is_cut = false;
        }
        answer.await.map_err(|_| {
            let ended = self.waiting.lock().ended.clone();
            PeerError::Broken(ended.unwrap_or_else(|| "the connection ended".to_owned()))
        })
    }

    fn expect(&self, correlation_id: i32) -> Result<oneshot::Receiver<Bytes>, PeerError> {
        let mut waiting = self.waiting.lock();
        if let Some(reason) = &waiting.ended {
            return Err(PeerError::Broken(reason.clone()));
        }
        let (sender, receiver) = oneshot::channel();
        waiting.by_id.insert(correlation_id, sender);
        Ok(receiver)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

/// Forgets who waited, however the wait ends.
struct Forget<'a> {
    waiting: &'a Mutex<Waiting>,
    correlation_id: i32,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.waiting.lock().by_id.remove(&self.correlation_id);
    }
}

/// Reads answers and hands them out until the stream ends.
async fn read(stream: Arc<dyn Stream>, waiting: Arc<Mutex<Waiting>>) {
    let mut buffer = BytesMut::new();
    let reason = loop {
        match take(&mut buffer) {
            Err(reason) => break reason,
            Ok(Some(answer)) => {
                let id = answer.first_chunk::<4>().map(|id| i32::from_be_bytes(*id));
                let waiter = id.and_then(|id| waiting.lock().by_id.remove(&id));
                // Whoever asked may have given up.
                if let Some(waiter) = waiter {
                    let _ = waiter.send(answer);
                }
            }
            Ok(None) => {
                buffer.reserve(READ_AHEAD_BYTES.min(buffer.len().max(1024)));
                match stream.read(&mut buffer).await {
                    Ok(0) => break "the other side closed the connection".to_owned(),
                    Ok(_) => {}
                    Err(error) => break error.to_string(),
                }
            }
        }
    };
    let mut waiting = waiting.lock();
    waiting.ended = Some(reason);
    waiting.by_id.clear();
}

/// The next answer if all of it has arrived, without its length.
fn take(buffer: &mut BytesMut) -> Result<Option<Bytes>, String> {
    let Some(prefix) = buffer.first_chunk::<4>() else { return Ok(None) };
    let len = i32::from_be_bytes(*prefix);
    match usize::try_from(len) {
        Ok(len @ 4..=ANSWER_BYTES_MAX) => {
            if buffer.len() < 4 + len {
                return Ok(None);
            }
            buffer.advance(4);
            Ok(Some(buffer.split_to(len).freeze()))
        }
        _ => Err(format!("an answer of {len} bytes")),
    }
}
