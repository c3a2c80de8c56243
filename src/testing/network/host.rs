//! The network as the process on one host sees it.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::{Poll, Waker};

use bytes::{Bytes, BytesMut};
use klamm_io::{BoxFuture, File, Listener, Network, Stream};

use super::connection::{Connection, Content, Side};
use super::{SimulatedNetwork, State};

/// How many connections may wait to be accepted.
const BACKLOG: usize = 128;

/// How much of a file is sent in one message.
const SEND_FILE_BYTES: u64 = 64 * 1024;

/// The sockets of one host.
#[derive(Clone)]
pub struct SimulatedHost {
    network: SimulatedNetwork,
    address: IpAddr,
}

/// A port on which somebody listens.
#[derive(Default)]
pub(super) struct Listening {
    /// Which listener has the port.
    id: u64,
    waiting: VecDeque<u64>,
    acceptor: Option<Waker>,
}

impl Listening {
    pub(super) fn has_room(&self) -> bool {
        self.waiting.len() < BACKLOG
    }

    /// A connection waits; returns who is to be woken.
    pub(super) fn push(&mut self, connection: u64) -> Option<Waker> {
        self.waiting.push_back(connection);
        self.acceptor.take()
    }
}

struct HostListener {
    host: SimulatedHost,
    address: SocketAddr,
    id: u64,
}

struct HostStream {
    network: SimulatedNetwork,
    connection: u64,
    side: Side,
    local: SocketAddr,
    peer: SocketAddr,
}

impl SimulatedHost {
    pub(super) fn new(network: SimulatedNetwork, address: IpAddr) -> SimulatedHost {
        SimulatedHost { network, address }
    }

    fn stream(&self, connection: u64, side: Side) -> io::Result<Arc<dyn Stream>> {
        let state = self.network.state();
        let found = state.connections.get(&connection).ok_or(io::ErrorKind::ConnectionReset)?;
        let (local, peer) = match side {
            Side::Client => (found.client, found.server),
            Side::Server => (found.server, found.client),
        };
        drop(state);
        Ok(Arc::new(HostStream { network: self.network.clone(), connection, side, local, peer }))
    }
}

impl State {
    /// A port that nobody on the host listens on.
    fn unused_port(&mut self, address: IpAddr) -> io::Result<u16> {
        let host = self.hosts.get_mut(&address).ok_or(io::ErrorKind::NetworkDown)?;
        loop {
            let port = host.port_next;
            host.port_next = if port == u16::MAX { 32_768 } else { port + 1 };
            if !host.listening.contains_key(&port) {
                return Ok(port);
            }
        }
    }
}

impl Network for SimulatedHost {
    fn resolve<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
        Box::pin(async move {
            let parsed = host.parse::<IpAddr>();
            parsed.map(|ip| vec![SocketAddr::new(ip, port)]).map_err(|_| io::ErrorKind::NotFound.into())
        })
    }

    fn listen(&self, address: SocketAddr) -> io::Result<Arc<dyn Listener>> {
        let mut state = self.network.state();
        if address.ip() != self.address && !address.ip().is_unspecified() {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        }
        let port = if address.port() == 0 { state.unused_port(self.address)? } else { address.port() };
        state.sequence += 1;
        let id = state.sequence;
        let host = state.hosts.get_mut(&self.address).ok_or(io::ErrorKind::NetworkDown)?;
        if host.listening.contains_key(&port) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        host.listening.insert(port, Listening { id, ..Listening::default() });
        let address = SocketAddr::new(self.address, port);
        Ok(Arc::new(HostListener { host: self.clone(), address, id }))
    }

    fn connect(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Arc<dyn Stream>>> {
        Box::pin(async move {
            let stream = {
                let mut state = self.network.state();
                let local = SocketAddr::new(self.address, state.unused_port(self.address)?);
                state.connection_next += 1;
                let connection = state.connection_next;
                state.connections.insert(connection, Connection::new(local, address));
                state.send(connection, Side::Server, Content::Open);
                let (network, side) = (self.network.clone(), Side::Client);
                // Given up before it is open, it is closed by its drop.
                HostStream { network, connection, side, local, peer: address }
            };
            poll_fn(|cx| {
                let mut state = self.network.state();
                let Some(connection) = state.connections.get_mut(&stream.connection) else {
                    return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
                };
                match connection.poll_opened(cx) {
                    Ok(true) => Poll::Ready(Ok(())),
                    Ok(false) => Poll::Pending,
                    Err(error) => Poll::Ready(Err(error)),
                }
            })
            .await?;
            Ok(Arc::new(stream) as Arc<dyn Stream>)
        })
    }
}

impl Listener for HostListener {
    fn accept(&self) -> BoxFuture<'_, io::Result<Arc<dyn Stream>>> {
        Box::pin(async move {
            loop {
                let next = poll_fn(|cx| {
                    let mut state = self.host.network.state();
                    let host = state.hosts.get_mut(&self.address.ip());
                    let listening = host.and_then(|host| host.listening.get_mut(&self.address.port()));
                    let Some(listening) = listening.filter(|listening| listening.id == self.id) else {
                        return Poll::Ready(Err(io::Error::from(io::ErrorKind::NetworkDown)));
                    };
                    let Some(next) = listening.waiting.pop_front() else {
                        listening.acceptor = Some(cx.waker().clone());
                        return Poll::Pending;
                    };
                    Poll::Ready(Ok(next))
                });
                // One that is over already is no fault of the listener.
                if let Ok(stream) = self.host.stream(next.await?, Side::Server) {
                    return Ok(stream);
                }
            }
        })
    }

    fn local_addr(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for HostListener {
    fn drop(&mut self) {
        let mut state = self.host.network.state();
        let Some(host) = state.hosts.get_mut(&self.address.ip()) else { return };
        let port = self.address.port();
        if host.listening.get(&port).is_some_and(|listening| listening.id == self.id) {
            let waiting = host.listening.remove(&port).map(|listening| listening.waiting);
            for connection in waiting.unwrap_or_default() {
                state.close(connection, Side::Server, true);
            }
        }
    }
}

impl Stream for HostStream {
    fn read<'a>(&'a self, buffer: &'a mut BytesMut) -> BoxFuture<'a, io::Result<usize>> {
        Box::pin(poll_fn(move |cx| {
            let mut woken = Vec::new();
            let read = {
                let mut state = self.network.state();
                let Some(connection) = state.connections.get_mut(&self.connection) else {
                    return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
                };
                connection.poll_read(self.side, buffer, cx, &mut woken)
            };
            woken.into_iter().for_each(Waker::wake);
            match read {
                Ok(Some(count)) => Poll::Ready(Ok(count)),
                Ok(None) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            }
        }))
    }

    fn write_all<'a>(&'a self, bytes: &'a [u8], _more: bool) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(poll_fn(move |cx| {
            let mut state = self.network.state();
            let Some(connection) = state.connections.get_mut(&self.connection) else {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            };
            match connection.poll_writable(self.side, cx) {
                Ok(true) => {
                    // What is longer than the window goes out at once: nobody can tell.
                    let content = Content::Data(Bytes::copy_from_slice(bytes));
                    state.send(self.connection, self.side.other(), content);
                    Poll::Ready(Ok(()))
                }
                Ok(false) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            }
        }))
    }

    fn send_file<'a>(
        &'a self,
        file: &'a Arc<dyn File>,
        mut position: u64,
        len: u64,
    ) -> BoxFuture<'a, io::Result<()>> {
        let end = position + len;
        Box::pin(async move {
            while position < end {
                let mut part = vec![0; (end - position).min(SEND_FILE_BYTES) as usize];
                file.read_exact_at(&mut part, position)?;
                position += part.len() as u64;
                self.write_all(&part, position < end).await?;
            }
            Ok(())
        })
    }

    fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    fn local_addr(&self) -> SocketAddr {
        self.local
    }
}

impl Drop for HostStream {
    fn drop(&mut self) {
        self.network.state().close(self.connection, self.side, false);
    }
}
