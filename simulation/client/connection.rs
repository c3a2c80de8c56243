//! A connection to a broker. Requests may follow each other before their answers come, which are in order.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use klamm_io::{Network, Stream};
use klamm_protocol::{Request, RequestHeader, decode_response, encode_request};
use klamm_testing::SimulatedHost;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Why there is no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoAnswer {
    /// The request did not leave.
    NotSent,
    /// The connection broke, or it took too long: the request may have been served.
    Lost,
}

#[derive(Default)]
struct Waiting {
    answers: VecDeque<oneshot::Sender<Bytes>>,
    is_broken: bool,
}

/// An open connection; dropping it closes it.
pub(crate) struct Connection {
    stream: Arc<dyn Stream>,
    waiting: Arc<Mutex<Waiting>>,
    reading: JoinHandle<()>,
    correlation_last: Mutex<i32>,
}

/// An answer that is under way.
pub(crate) struct Pending(oneshot::Receiver<Bytes>, i16);

impl Connection {
    /// Opens one within a time.
    pub(crate) async fn open(host: &SimulatedHost, address: SocketAddr) -> Result<Connection, NoAnswer> {
        let opened = tokio::time::timeout(Duration::from_secs(3), host.connect(address)).await;
        let stream = opened.map_err(|_| NoAnswer::NotSent)?.map_err(|_| NoAnswer::NotSent)?;
        let waiting = Arc::new(Mutex::new(Waiting::default()));
        let reading = tokio::spawn(read(stream.clone(), waiting.clone()));
        Ok(Connection { stream, waiting, reading, correlation_last: Mutex::new(0) })
    }

    /// Sends a request, after those that were sent before.
    pub(crate) async fn send<R: Request>(&self, version: i16, request: &R) -> Result<Pending, NoAnswer> {
        let correlation_id = {
            let mut next = self.correlation_last.lock().unwrap_or_else(PoisonError::into_inner);
            *next += 1;
            *next
        };
        let client_id = Some("simulation".to_owned());
        let header =
            RequestHeader { api_key: R::KEY as i16, api_version: version, correlation_id, client_id };
        let frame = encode_request(&header, request).expect("the simulation's own requests can be written");
        let (sender, receiver) = oneshot::channel();
        {
            let mut waiting = lock(&self.waiting);
            if waiting.is_broken {
                return Err(NoAnswer::NotSent);
            }
            waiting.answers.push_back(sender);
        }
        self.stream.write_all(&frame, false).await.map_err(|_| NoAnswer::Lost)?;
        Ok(Pending(receiver, version))
    }

    /// Sends a request and waits for its answer. After a failure the connection is of no use any more.
    pub(crate) async fn ask<R: Request>(
        &self,
        version: i16,
        request: &R,
        timeout: Duration,
    ) -> Result<R::Response, NoAnswer> {
        let answer = async { self.send(version, request).await?.answer::<R>().await };
        tokio::time::timeout(timeout, answer).await.map_err(|_| NoAnswer::Lost)?
    }
}

impl Pending {
    pub(crate) async fn answer<R: Request>(self) -> Result<R::Response, NoAnswer> {
        let frame = self.0.await.map_err(|_| NoAnswer::Lost)?;
        let (_, answer) = decode_response::<R>(frame, self.1)
            .unwrap_or_else(|error| panic!("a broker's answer to {:?} cannot be read: {error}", R::KEY));
        Ok(answer)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

fn lock(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Hands answers to those who wait for them, until the connection ends.
async fn read(stream: Arc<dyn Stream>, waiting: Arc<Mutex<Waiting>>) {
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(64 * 1024);
        if !matches!(stream.read(&mut buffer).await, Ok(1..)) {
            break;
        }
        while buffer.len() >= 4 {
            let len = buffer.chunk().get_i32() as usize;
            if buffer.len() < 4 + len {
                break;
            }
            buffer.advance(4);
            let frame = buffer.split_to(len).freeze();
            if let Some(sender) = lock(&waiting).answers.pop_front() {
                // Nobody waits any more for an answer that came too late.
                let _ = sender.send(frame);
            }
        }
    }
    let mut waiting = lock(&waiting);
    waiting.is_broken = true;
    waiting.answers.clear();
}
