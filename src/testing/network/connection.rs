//! A connection: two ends, each with what is under way to it and what has arrived there and was not read.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::task::{Context, Waker};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};

/// How much may be under way to a reader before who writes has to wait.
const WINDOW_BYTES: usize = 256 * 1024;

/// One of the two ends of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Side {
    Client,
    Server,
}

impl Side {
    pub(super) fn other(self) -> Side {
        match self {
            Side::Client => Side::Server,
            Side::Server => Side::Client,
        }
    }
}

/// What one kernel sends the other.
#[derive(Hash, Debug)]
pub(super) enum Content {
    /// The client's asks the server's for a connection.
    Open,
    /// The server's has agreed.
    Opened,
    Data(Bytes),
    /// Who sends this writes no more.
    End,
    Reset,
}

/// A message that has not arrived yet.
pub(super) struct UnderWay {
    pub(super) due: Duration,
    pub(super) sent: Duration,
    pub(super) content: Content,
}

pub(super) struct Connection {
    pub(super) client: SocketAddr,
    pub(super) server: SocketAddr,
    ends: [End; 2],
}

/// What the kernel of one end knows.
#[derive(Default)]
pub(super) struct End {
    /// In the order in which it arrives; each is due no sooner than the one before.
    pub(super) incoming: VecDeque<UnderWay>,
    /// Nothing is tried before: what is under way was found held up.
    pub(super) held_until: Duration,
    received: VecDeque<Bytes>,
    unread_bytes: usize,
    is_open: bool,
    has_ended: bool,
    failure: Option<io::ErrorKind>,
    /// No process has this socket any more.
    pub(super) is_gone: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// What a step of a connection has for those who use it: tasks to wake when nothing is locked any more.
pub(super) type Woken = Vec<Waker>;

impl Connection {
    pub(super) fn new(client: SocketAddr, server: SocketAddr) -> Connection {
        Connection { client, server, ends: [End::default(), End { is_open: true, ..End::default() }] }
    }

    pub(super) fn end(&self, side: Side) -> &End {
        &self.ends[side as usize]
    }

    pub(super) fn end_mut(&mut self, side: Side) -> &mut End {
        &mut self.ends[side as usize]
    }

    /// From which host to which the messages go that one side gets.
    pub(super) fn way_to(&self, side: Side) -> (IpAddr, IpAddr) {
        match side {
            Side::Client => (self.server.ip(), self.client.ip()),
            Side::Server => (self.client.ip(), self.server.ip()),
        }
    }

    /// Whether nobody can notice any more what becomes of it.
    pub(super) fn is_over(&self) -> bool {
        self.ends.iter().all(|end| end.is_gone)
    }

    /// Whether one side may write: not as long as the other has not read what it was sent before.
    fn has_room_to(&self, side: Side) -> bool {
        let end = self.end(side);
        let under_way = end.incoming.iter().map(|message| match &message.content {
            Content::Data(bytes) => bytes.len(),
            _ => 0,
        });
        end.unread_bytes + under_way.sum::<usize>() < WINDOW_BYTES
    }

    /// Whether a side may write now; if not, its task is woken when it may.
    pub(super) fn poll_writable(&mut self, side: Side, cx: &mut Context<'_>) -> io::Result<bool> {
        let has_room = self.has_room_to(side.other());
        let end = self.end_mut(side);
        end.check()?;
        if !has_room {
            end.writer = Some(cx.waker().clone());
        }
        Ok(has_room)
    }

    /// Moves what has arrived into `buffer`, at most its spare capacity. `None` if nothing has yet.
    pub(super) fn poll_read(
        &mut self,
        side: Side,
        buffer: &mut BytesMut,
        cx: &mut Context<'_>,
        woken: &mut Woken,
    ) -> io::Result<Option<usize>> {
        let end = self.end_mut(side);
        let mut count = 0;
        while let Some(first) = end.received.front_mut() {
            let most = first.len().min(buffer.capacity() - buffer.len());
            buffer.extend_from_slice(&first[..most]);
            first.advance(most);
            count += most;
            if !first.is_empty() {
                break;
            }
            end.received.pop_front();
        }
        end.unread_bytes -= count;
        if count > 0 {
            woken.extend(self.end_mut(side.other()).writer.take());
            return Ok(Some(count));
        }
        end.check()?;
        if end.has_ended {
            return Ok(Some(0));
        }
        end.reader = Some(cx.waker().clone());
        Ok(None)
    }

    /// Whether the server's kernel has agreed; if it has not answered, the task is woken when it has.
    pub(super) fn poll_opened(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let end = self.end_mut(Side::Client);
        if let Some(failure) = end.failure {
            let refused = failure == io::ErrorKind::ConnectionReset && !end.is_open;
            return Err(if refused { io::ErrorKind::ConnectionRefused } else { failure }.into());
        }
        if !end.is_open {
            end.reader = Some(cx.waker().clone());
        }
        Ok(end.is_open)
    }
}

impl End {
    /// A message has arrived.
    pub(super) fn take(&mut self, content: Content, woken: &mut Woken) {
        if self.failure.is_some() {
            return;
        }
        match content {
            Content::Open => {}
            Content::Opened => self.is_open = true,
            Content::Data(bytes) => {
                self.unread_bytes += bytes.len();
                self.received.push_back(bytes);
            }
            Content::End => self.has_ended = true,
            Content::Reset => return self.fail(io::ErrorKind::ConnectionReset, woken),
        }
        woken.extend(self.reader.take());
    }

    /// The connection is of no use any more; what was not read is lost.
    pub(super) fn fail(&mut self, failure: io::ErrorKind, woken: &mut Woken) {
        self.failure.get_or_insert(failure);
        self.received.clear();
        self.unread_bytes = 0;
        woken.extend(self.reader.take());
        woken.extend(self.writer.take());
    }

    pub(super) fn has_unread(&self) -> bool {
        !self.received.is_empty()
    }

    fn check(&self) -> io::Result<()> {
        match self.failure {
            Some(failure) => Err(failure.into()),
            None if self.is_gone => Err(io::ErrorKind::NotConnected.into()),
            None => Ok(()),
        }
    }
}
