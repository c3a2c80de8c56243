//! What the broker says when it is ready.

use std::net::SocketAddr;
use std::path::Path;

use klamm_config::BrokerConfig;

/// A listener that is open, with the port that it really has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BoundListener {
    /// Its name in the config.
    pub name: String,
    /// Where it listens.
    pub address: SocketAddr,
    /// It is for controllers, not for clients.
    pub is_controller: bool,
}

/// The one line that says where the broker listens and where its data is. If it takes connections from other
/// machines without `advertised.listeners`, it also says what clients there may need.
pub fn start_line(
    version: &str,
    config: &BrokerConfig,
    bound: &[BoundListener],
    working_dir: &Path,
) -> String {
    let clients: Vec<&BoundListener> = bound.iter().filter(|listener| !listener.is_controller).collect();
    let dirs: Vec<String> =
        config.log_dirs.iter().map(|dir| working_dir.join(tidy(dir)).display().to_string()).collect();
    let mut line =
        format!("Klamm {version} listens on {}; its data is in {}", addresses(&clients), dirs.join(", "));
    if config.advertised_listeners.is_empty()
        && let Some(open) = clients.iter().find(|listener| listener.address.ip().is_unspecified())
    {
        let port = open.address.port();
        line.push_str(&format!(
            "; clients get the address that they connect to: behind port forwarding or in a container, set \
             advertised.listeners={}://<host that clients reach>:{port}",
            open.name
        ));
    }
    line
}

/// `./klamm-data` without the dot, so that the whole path reads well.
fn tidy(dir: &Path) -> &Path {
    dir.strip_prefix(".").unwrap_or(dir)
}

/// Both loopback addresses with one port are what people call localhost.
fn addresses(clients: &[&BoundListener]) -> String {
    let is_localhost = clients.iter().all(|listener| listener.address.ip().is_loopback())
        && clients.iter().all(|listener| {
            listener.address.port() == clients[0].address.port() && listener.name == clients[0].name
        });
    match clients.first() {
        Some(first) if is_localhost => format!("localhost:{}", first.address.port()),
        _ => {
            let names: Vec<String> = clients
                .iter()
                .map(|listener| {
                    let host = listener.address.ip();
                    let port = listener.address.port();
                    let place = if host.is_unspecified() {
                        format!("all interfaces, port {port}")
                    } else {
                        listener.address.to_string()
                    };
                    if clients.len() > 1 { format!("{place} ({})", listener.name) } else { place }
                })
                .collect();
            names.join(" and ")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use klamm_config::{Sources, load};

    fn line(overrides: &[(&str, &str)], bound: &[(&str, &str)]) -> String {
        let overrides = overrides.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        let (config, _) = load(&Sources { overrides, ..Sources::default() }).unwrap();
        let bound: Vec<BoundListener> = bound
            .iter()
            .map(|(name, address)| BoundListener {
                name: name.to_string(),
                address: address.parse().unwrap(),
                is_controller: *name == "CONTROLLER",
            })
            .collect();
        start_line("1.2.3", &config, &bound, Path::new("/srv"))
    }

    #[test]
    fn the_default_is_localhost() {
        let expected = "Klamm 1.2.3 listens on localhost:9092; its data is in /srv/klamm-data";
        let (four, six) = (("PLAINTEXT", "127.0.0.1:9092"), ("PLAINTEXT", "[::1]:9092"));
        assert_eq!(line(&[], &[four, six]), expected);
        // A machine without IPv6.
        assert_eq!(line(&[], &[four]), expected);
    }

    #[test]
    fn several_listeners_and_directories_are_all_named() {
        let settings = [
            ("listeners", "IN://10.0.0.1:1,OUT://:2,CONTROLLER://:3"),
            ("listener.security.protocol.map", "IN:PLAINTEXT,OUT:PLAINTEXT,CONTROLLER:PLAINTEXT"),
            ("controller.listener.names", "CONTROLLER"),
            ("advertised.listeners", "IN://10.0.0.1:1,OUT://kafka.example.com:2"),
            ("log.dirs", "/a,b"),
        ];
        assert_eq!(
            line(&settings, &[("IN", "10.0.0.1:1"), ("OUT", "[::]:2"), ("CONTROLLER", "[::]:3")]),
            "Klamm 1.2.3 listens on 10.0.0.1:1 (IN) and all interfaces, port 2 (OUT); its data is in /a, /srv/b"
        );
    }

    /// In a container, clients would be told the container's address and fail later, with an error that says
    /// nothing of advertised.listeners.
    #[test]
    fn open_to_all_without_an_advertised_address_says_what_clients_need() {
        let open = line(&[("listeners", "PLAINTEXT://:0")], &[("PLAINTEXT", "0.0.0.0:4711")]);
        assert!(
            open.ends_with("set advertised.listeners=PLAINTEXT://<host that clients reach>:4711"),
            "{open}"
        );
        assert_eq!(open.lines().count(), 1);
        let set = [
            ("listeners", "PLAINTEXT://:9092"),
            ("advertised.listeners", "PLAINTEXT://kafka.example.com:9092"),
        ];
        assert!(!line(&set, &[("PLAINTEXT", "0.0.0.0:9092")]).contains("advertised"));
    }
}
