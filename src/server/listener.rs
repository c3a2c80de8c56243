//! Listeners: sockets that take connections, within the limits of the configuration.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::stop::Stop;
use klamm_config::BrokerConfig;
use klamm_io::{Listener, Network};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::connection;
use crate::context::Context;

/// A listener as clients know it.
#[derive(Debug)]
pub struct Endpoint {
    /// The listener's name, as `PLAINTEXT`.
    pub name: String,
    /// What clients are told to connect to; without a host they are told the address that they came by.
    pub advertised: Option<(String, u16)>,
    /// The port that it listens on.
    pub port: u16,
    /// How its connections are protected, as Kafka numbers it.
    pub security_protocol: i16,
    /// It is for controllers and their tools.
    pub is_controller: bool,
    /// Other members of the metadata quorum reach this node here.
    pub serves_quorum: bool,
    /// Whether requests of Kafka's protocol are taken. Before the node is ready, those that come wait.
    pub is_ready: watch::Receiver<bool>,
}

impl Endpoint {
    /// Returns when requests of Kafka's protocol are taken. Ready or not, the node may be stopping.
    pub(crate) async fn ready(&self) {
        // An error means that nobody will say any more: the node is going down, as others tell.
        let _ = self.is_ready.clone().wait_for(|is_ready| *is_ready).await;
    }
}

/// A socket that is bound but not served yet.
pub struct Bound {
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) socket: Arc<dyn Listener>,
}

impl Bound {
    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.socket.local_addr()
    }

    /// The listener as clients know it.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }
}

/// A listener that could not be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} (listener {listener}): {error}{hint}")]
pub struct BindError {
    listener: String,
    address: String,
    error: io::Error,
    hint: String,
}

/// The key of the listeners for clients and nodes.
const LISTENERS: &str = "listeners";

/// The key of the listener for metrics and health.
const HTTP_LISTENER: &str = "klamm.http.listener";

/// How long accepting pauses when the process has no descriptor left.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Binds all listeners of the configuration, before anything on disk is touched.
/// `is_ready` tells when clients are served.
pub async fn bind(
    config: &BrokerConfig,
    network: &dyn Network,
    is_ready: &watch::Receiver<bool>,
) -> Result<Vec<Bound>, BindError> {
    let has_controllers = config.listeners.iter().any(|listener| listener.is_controller);
    let (_, at_once) = watch::channel(true);
    let mut bound: Vec<Bound> = Vec::new();
    for listener in &config.listeners {
        for address in addresses(listener, LISTENERS, network).await? {
            // Both loopback addresses of one listener share the port that the first was given.
            let same = bound.iter().find(|other| other.endpoint.name == listener.name);
            let port = if address.port() == 0 {
                same.map_or(0, |other| other.endpoint.port)
            } else {
                address.port()
            };
            let address = SocketAddr::new(address.ip(), port);
            let socket = match network.listen(address) {
                Ok(socket) => socket,
                // A machine without IPv6 has no [::1]; nobody asked for it by name.
                Err(error) if listener.is_optional && error.kind() == io::ErrorKind::AddrNotAvailable => {
                    continue;
                }
                Err(error) => return Err(bind_error(listener, LISTENERS, address, error)),
            };
            let port = socket.local_addr().port();
            let advertised = config.advertised_listeners.iter().find(|other| other.name == listener.name);
            let advertised =
                advertised.map(|other| (other.host.clone(), if other.port == 0 { port } else { other.port }));
            let endpoint = Endpoint {
                name: listener.name.clone(),
                advertised,
                port,
                security_protocol: listener.security_protocol.id(),
                is_controller: listener.is_controller,
                serves_quorum: match has_controllers {
                    true => listener.is_controller,
                    // Nobody has a reason to speak of the quorum to a node that is alone.
                    false => !config.is_alone() && listener.name == config.inter_broker_listener_name,
                },
                is_ready: if listener.is_controller { at_once.clone() } else { is_ready.clone() },
            };
            bound.push(Bound { endpoint: Arc::new(endpoint), socket });
        }
    }
    Ok(bound)
}

/// Binds the listener of metrics and health, if there is to be one. Of the addresses that a host name has, it
/// takes the first.
pub(crate) async fn bind_http(
    config: &BrokerConfig,
    network: &dyn Network,
) -> Result<Option<Arc<dyn Listener>>, BindError> {
    let Some(listener) = &config.http_listener else { return Ok(None) };
    let addresses = addresses(listener, HTTP_LISTENER, network).await?;
    let Some(address) = addresses.first().copied() else { return Ok(None) };
    network.listen(address).map(Some).map_err(|error| bind_error(listener, HTTP_LISTENER, address, error))
}

/// The addresses of a listener, which a key's value names.
async fn addresses(
    listener: &klamm_config::Listener,
    key: &str,
    network: &dyn Network,
) -> Result<Vec<SocketAddr>, BindError> {
    let Some(host) = &listener.host else {
        return Ok(vec![SocketAddr::new(IpAddr::from([0u16; 8]), listener.port)]);
    };
    let found = network.resolve(host, listener.port).await;
    found.map_err(|error| BindError {
        listener: listener.name.clone(),
        address: format!("{host}:{}", listener.port),
        error,
        hint: format!("; the host in `{}` must be a name or address of this machine", key),
    })
}

fn bind_error(
    listener: &klamm_config::Listener,
    key: &str,
    address: SocketAddr,
    error: io::Error,
) -> BindError {
    let hint = match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!(
                "; another process, or another listener of this one, listens there: stop it, or set another port in `{key}`"
            )
        }
        io::ErrorKind::AddrNotAvailable => format!("; the host in `{key}` is no address of this machine"),
        io::ErrorKind::PermissionDenied => "; ports below 1024 need a privilege".to_owned(),
        _ => String::new(),
    };
    BindError { listener: listener.name.clone(), address: address.to_string(), error, hint }
}

/// Takes connections until `stop`, then waits for those that are open to end.
pub(crate) async fn serve(bound: Bound, context: Arc<Context>, mut stop: Stop) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.requested() => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            accepted = bound.socket.accept() => accepted,
        };
        let stream = match accepted {
            Ok(stream) => stream,
            Err(error) => {
                if context.refused_log.permit(context.clock.monotonic()).is_some() {
                    tracing::warn!("cannot take a connection on {}: {error}", bound.address());
                }
                tokio::select! {
                    biased;
                    () = stop.requested() => break,
                    () = tokio::time::sleep(ACCEPT_PAUSE) => continue,
                }
            }
        };
        let peer = stream.peer_addr();
        let Some(place) = context.connections.admit(peer.ip()) else {
            context.metrics.refused_connections.fetch_add(1, Ordering::Relaxed);
            if let Some(held_back) = context.refused_log.permit(context.clock.monotonic()) {
                tracing::warn!(
                    "refused the connection from {peer}: max.connections or max.connections.per.ip is reached \
                     ({held_back} such lines were left out)"
                );
            }
            continue;
        };
        let (context, endpoint, stop) = (context.clone(), bound.endpoint.clone(), stop.clone());
        connections.spawn(async move {
            let _place = place;
            if let Err(closed) = connection::serve(stream, context.clone(), endpoint, stop).await {
                connection::report(peer, &closed, &context);
            }
        });
    }
    while connections.join_next().await.is_some() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who reads it must change the setting that is wrong, and not another.
    #[tokio::test]
    async fn a_port_that_is_taken_is_told_with_its_setting() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let mut config = BrokerConfig::defaults();
        let listener = klamm_config::Listener {
            name: "HTTP".to_owned(),
            host: Some("127.0.0.1".to_owned()),
            port: address.port(),
            ..config.listeners[0].clone()
        };
        config.http_listener = Some(listener.clone());
        config.listeners = vec![listener];
        let (network, (_, is_ready)) = (klamm_io::SystemNetwork, watch::channel(true));
        let http = bind_http(&config, &network).await.err().unwrap().to_string();
        assert!(http.contains("another port in `klamm.http.listener`"), "{http}");
        let clients = bind(&config, &network, &is_ready).await.err().unwrap().to_string();
        assert!(clients.contains("another port in `listeners`"), "{clients}");
    }
}
