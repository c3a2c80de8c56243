//! The network: streams that can send a part of a file, listeners, and the machine's sockets.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream};

use crate::{File, cold_reads};

/// A future behind a pointer, so that the traits here can be objects.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A connection. Reading and writing take `&self`, so that one task can wait for both at once; there must be
/// one reader and one writer at a time.
pub trait Stream: Send + Sync {
    /// Appends what has arrived to `buffer`, at least one byte, at most its spare capacity (which must not be
    /// zero); 0 means that the peer has ended its side.
    fn read<'a>(&'a self, buffer: &'a mut bytes::BytesMut) -> BoxFuture<'a, io::Result<usize>>;

    /// Writes all bytes. `more` says that further bytes follow at once, so that the kernel may wait for them
    /// before it sends a packet.
    fn write_all<'a>(&'a self, bytes: &'a [u8], more: bool) -> BoxFuture<'a, io::Result<()>>;

    /// Writes `len` bytes of a file from `position` on, without copying them where the kernel can do that.
    /// `UnexpectedEof` if the file ends before.
    fn send_file<'a>(
        &'a self,
        file: &'a Arc<dyn File>,
        position: u64,
        len: u64,
    ) -> BoxFuture<'a, io::Result<()>>;

    /// The other end.
    fn peer_addr(&self) -> SocketAddr;

    /// This end.
    fn local_addr(&self) -> SocketAddr;
}

/// A socket that takes connections.
pub trait Listener: Send + Sync {
    /// The next connection. An error is about the listener, as when the process has no descriptor left.
    fn accept(&self) -> BoxFuture<'_, io::Result<Arc<dyn Stream>>>;

    /// The address that it listens on, with the port that was given where 0 was asked for.
    fn local_addr(&self) -> SocketAddr;
}

/// A network.
pub trait Network: Send + Sync + 'static {
    /// The addresses of a host name.
    fn resolve<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>>;

    /// Listens on an address.
    fn listen(&self, address: SocketAddr) -> io::Result<Arc<dyn Listener>>;

    /// Connects to an address.
    fn connect(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Arc<dyn Stream>>>;
}

/// The machine's network.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemNetwork;

/// How many connections may wait to be accepted.
const BACKLOG: i32 = 1024;

/// How much `sendfile` is asked for in one call. It blocks on pages that are not in memory, so they are looked
/// for first, and a call stays short in case they are dropped in between.
const SEND_FILE_BYTES_MAX: u64 = 1024 * 1024;

struct SystemListener {
    socket: TcpListener,
    address: SocketAddr,
}

struct SystemStream {
    socket: TcpStream,
    peer: SocketAddr,
    local: SocketAddr,
}

impl SystemStream {
    fn wrap(socket: TcpStream, peer: SocketAddr) -> io::Result<Arc<dyn Stream>> {
        socket.set_nodelay(true)?;
        let local = socket.local_addr()?;
        Ok(Arc::new(SystemStream { socket, peer, local }))
    }
}

impl Stream for SystemStream {
    fn read<'a>(&'a self, buffer: &'a mut bytes::BytesMut) -> BoxFuture<'a, io::Result<usize>> {
        Box::pin(async move {
            loop {
                self.socket.readable().await?;
                match self.socket.try_read_buf(buffer) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    done => return done,
                }
            }
        })
    }

    fn write_all<'a>(&'a self, mut bytes: &'a [u8], more: bool) -> BoxFuture<'a, io::Result<()>> {
        let flags = if more {
            rustix::net::SendFlags::NOSIGNAL | rustix::net::SendFlags::MORE
        } else {
            rustix::net::SendFlags::NOSIGNAL
        };
        Box::pin(async move {
            while !bytes.is_empty() {
                let send = || rustix::net::send(&self.socket, bytes, flags).map_err(io::Error::from);
                let sent = self.socket.async_io(Interest::WRITABLE, send).await?;
                bytes = &bytes[sent..];
            }
            Ok(())
        })
    }

    fn send_file<'a>(
        &'a self,
        file: &'a Arc<dyn File>,
        mut position: u64,
        len: u64,
    ) -> BoxFuture<'a, io::Result<()>> {
        let end = position + len;
        Box::pin(async move {
            let Some(descriptor) = file.descriptor() else {
                return copy(self, file, position, len).await;
            };
            let mut cached_up_to = position;
            while position < end {
                let most = (end - position).min(SEND_FILE_BYTES_MAX) as usize;
                if position >= cached_up_to {
                    if !file.is_cached(position, most as u64) {
                        cold_reads::into_cache(file.clone(), position, most).await?;
                    }
                    cached_up_to = position + most as u64;
                }
                let send = || {
                    rustix::fs::sendfile(&self.socket, descriptor, Some(&mut position), most)
                        .map_err(io::Error::from)
                };
                if self.socket.async_io(Interest::WRITABLE, send).await? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
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

/// Sends a part of a file through memory, for files that have no descriptor.
async fn copy(stream: &dyn Stream, file: &Arc<dyn File>, mut position: u64, len: u64) -> io::Result<()> {
    let end = position + len;
    let mut buffer = vec![0; len.min(128 * 1024) as usize];
    while position < end {
        let most = (end - position).min(buffer.len() as u64) as usize;
        file.read_exact_at(&mut buffer[..most], position)?;
        position += most as u64;
        stream.write_all(&buffer[..most], position < end).await?;
    }
    Ok(())
}

impl Listener for SystemListener {
    fn accept(&self) -> BoxFuture<'_, io::Result<Arc<dyn Stream>>> {
        Box::pin(async move {
            loop {
                let (socket, peer) = self.socket.accept().await?;
                // A connection that its client has reset already is no fault of the listener.
                if let Ok(stream) = SystemStream::wrap(socket, peer) {
                    return Ok(stream);
                }
            }
        })
    }

    fn local_addr(&self) -> SocketAddr {
        self.address
    }
}

#[allow(clippy::disallowed_methods, reason = "this is the one place that may open sockets")]
impl Network for SystemNetwork {
    fn resolve<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
        Box::pin(async move { Ok(tokio::net::lookup_host((host, port)).await?.collect()) })
    }

    fn listen(&self, address: SocketAddr) -> io::Result<Arc<dyn Listener>> {
        let socket = socket2::Socket::new(
            socket2::Domain::for_address(address),
            socket2::Type::STREAM,
            Some(socket2::Protocol::TCP),
        )?;
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        if address.is_ipv6() && !address.ip().is_unspecified() {
            socket.set_only_v6(true)?;
        }
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        let socket = TcpListener::from_std(socket.into())?;
        let address = socket.local_addr()?;
        Ok(Arc::new(SystemListener { socket, address }))
    }

    fn connect(&self, address: SocketAddr) -> BoxFuture<'_, io::Result<Arc<dyn Stream>>> {
        Box::pin(async move { SystemStream::wrap(TcpStream::connect(address).await?, address) })
    }
}
