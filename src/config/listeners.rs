//! Listeners: where the broker is reached, by name, address and protocol.

use std::collections::BTreeMap;
use std::fmt;

use crate::value::list_items;

/// How a connection is protected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SecurityProtocol {
    /// Neither encrypted nor authenticated.
    Plaintext,
    /// TLS.
    Ssl,
    /// SASL without encryption.
    SaslPlaintext,
    /// SASL over TLS.
    SaslSsl,
}

impl SecurityProtocol {
    /// By the name that configs use.
    pub fn from_name(name: &str) -> Option<SecurityProtocol> {
        match name.to_ascii_uppercase().as_str() {
            "PLAINTEXT" => Some(SecurityProtocol::Plaintext),
            "SSL" => Some(SecurityProtocol::Ssl),
            "SASL_PLAINTEXT" => Some(SecurityProtocol::SaslPlaintext),
            "SASL_SSL" => Some(SecurityProtocol::SaslSsl),
            _ => None,
        }
    }

    /// The name that configs use.
    pub fn name(self) -> &'static str {
        match self {
            SecurityProtocol::Plaintext => "PLAINTEXT",
            SecurityProtocol::Ssl => "SSL",
            SecurityProtocol::SaslPlaintext => "SASL_PLAINTEXT",
            SecurityProtocol::SaslSsl => "SASL_SSL",
        }
    }

    /// Its number in metadata records and in the answers of DescribeCluster's kind.
    pub fn id(self) -> i16 {
        match self {
            SecurityProtocol::Plaintext => 0,
            SecurityProtocol::Ssl => 1,
            SecurityProtocol::SaslPlaintext => 2,
            SecurityProtocol::SaslSsl => 3,
        }
    }
}

/// An address to listen on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listener {
    /// Its name in upper case. Two listeners may have one name if one is an IPv4 address and the other an IPv6
    /// address; they count as one then.
    pub name: String,
    /// The address or host name, without the brackets of IPv6; `None` means all interfaces.
    pub host: Option<String>,
    /// The port; 0 lets the system choose one.
    pub port: u16,
    /// How its connections are protected.
    pub security_protocol: SecurityProtocol,
    /// It is for controllers, not for clients.
    pub is_controller: bool,
    /// The broker starts without it if the machine has no such address: true only for `[::1]` of the defaults.
    pub is_optional: bool,
}

impl Listener {
    /// Whether it takes connections on every interface, so that its own address is none that clients can use.
    pub fn is_wildcard(&self) -> bool {
        self.host.as_deref().is_none_or(is_wildcard)
    }
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = Address { name: self.name.clone(), host: self.host.clone(), port: self.port };
        address.fmt(f)
    }
}

/// What clients are told for a listener.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AdvertisedListener {
    /// The listener's name in upper case.
    pub name: String,
    /// The host or address that clients connect to.
    pub host: String,
    /// The port that clients connect to.
    pub port: u16,
}

/// Whether this address means "every interface".
pub(crate) fn is_wildcard(host: &str) -> bool {
    matches!(host, "0.0.0.0" | "::" | "0:0:0:0:0:0:0:0")
}

/// `NAME://host:port` taken apart.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Address {
    pub(crate) name: String,
    pub(crate) host: Option<String>,
    pub(crate) port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = self.host.as_deref().unwrap_or_default();
        if host.contains(':') {
            write!(f, "{}://[{host}]:{}", self.name, self.port)
        } else {
            write!(f, "{}://{host}:{}", self.name, self.port)
        }
    }
}

/// Reads `listeners` or `advertised.listeners`. All mistakes are told at once.
pub(crate) fn parse_addresses(text: &str) -> Result<Vec<Address>, String> {
    let mut addresses: Vec<Address> = Vec::new();
    for item in list_items(text) {
        let address = parse_address(item)?;
        if let Some(same) = addresses.iter().find(|other| other.name == address.name)
            && !is_other_family(same, &address)
        {
            return Err(format!(
                "the name {} stands twice; each listener needs a name of its own (but one IPv4 and one IPv6 \
                 address may share it)",
                address.name
            ));
        }
        addresses.push(address);
    }
    if addresses.is_empty() {
        return Err("expected at least one listener as PLAINTEXT://localhost:9092".to_owned());
    }
    Ok(addresses)
}

/// Refuses two listeners on one port, unless the port is chosen by the system or their addresses differ.
pub(crate) fn check_ports(addresses: &[Address]) -> Result<(), String> {
    for (index, address) in addresses.iter().enumerate() {
        if let Some(same) = addresses[..index]
            .iter()
            .find(|other| other.port == address.port && address.port != 0 && !is_other_family(other, address))
        {
            return Err(format!(
                "{same} and {address} have the same port; each listener needs its own (but one IPv4 and one IPv6 \
                 address may share it)"
            ));
        }
    }
    Ok(())
}

/// Whether one is an IPv4 address and the other an IPv6 address.
fn is_other_family(one: &Address, other: &Address) -> bool {
    let family = |address: &Address| {
        let host: std::net::IpAddr = address.host.as_deref()?.parse().ok()?;
        Some(host.is_ipv4())
    };
    matches!((family(one), family(other)), (Some(one), Some(other)) if one != other)
}

fn parse_address(text: &str) -> Result<Address, String> {
    let wrong =
        |what: &str| format!("{text:?} {what}; expected NAME://host:port, as PLAINTEXT://localhost:9092");
    let (name, rest) = text.split_once("://").ok_or_else(|| wrong("has no ://"))?;
    if name.is_empty() || name.contains(|letter: char| letter.is_whitespace() || letter == ':') {
        return Err(wrong("has no name before ://"));
    }
    let (host, port) = rest.rsplit_once(':').ok_or_else(|| wrong("has no port"))?;
    let port: u16 = port.parse().map_err(|_| wrong("has no port from 0 to 65535"))?;
    let host = match host.strip_prefix('[') {
        Some(inside) => {
            let inside = inside.strip_suffix(']').ok_or_else(|| wrong("has [ without ]"))?;
            let address = inside.split('%').next().unwrap_or_default();
            if address.parse::<std::net::Ipv6Addr>().is_err() {
                return Err(wrong("has no IPv6 address between [ and ]"));
            }
            inside
        }
        // Kafka takes an IPv6 address without brackets too.
        None if host.contains(':') && host.parse::<std::net::Ipv6Addr>().is_err() => {
            return Err(wrong("has no host name or address"));
        }
        None if !host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-%._:".contains(&byte)) => {
            return Err(wrong("has letters that no host name has"));
        }
        None => host,
    };
    let host = (!host.is_empty()).then(|| host.to_owned());
    Ok(Address { name: name.to_uppercase(), host, port })
}

/// Reads `listener.security.protocol.map`.
pub(crate) fn parse_protocol_map(text: &str) -> Result<BTreeMap<String, SecurityProtocol>, String> {
    let mut map = BTreeMap::new();
    for item in list_items(text) {
        let (name, protocol) = item
            .rsplit_once(':')
            .ok_or_else(|| format!("{item:?} has no colon; expected NAME:PROTOCOL, as INTERNAL:PLAINTEXT"))?;
        let protocol = SecurityProtocol::from_name(protocol.trim()).ok_or_else(|| {
            format!(
                "{:?} is no protocol; expected PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL",
                protocol.trim()
            )
        })?;
        if map.insert(name.trim().to_uppercase(), protocol).is_some() {
            return Err(format!("{} stands twice", name.trim().to_uppercase()));
        }
    }
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(text: &str) -> Vec<(String, Option<String>, u16)> {
        let addresses = parse_addresses(text).unwrap();
        addresses.into_iter().map(|address| (address.name, address.host, address.port)).collect()
    }

    #[test]
    fn addresses_are_read_in_every_form() {
        let host = |host: &str| Some(host.to_owned());
        for (text, expected) in [
            ("PLAINTEXT://:9092", ("PLAINTEXT".to_owned(), None, 9092)),
            ("plaintext://localhost:9092", ("PLAINTEXT".to_owned(), host("localhost"), 9092)),
            ("IN-SIDE_1://0.0.0.0:0", ("IN-SIDE_1".to_owned(), host("0.0.0.0"), 0)),
            ("A://[::1]:65535", ("A".to_owned(), host("::1"), 65535)),
            ("A://[fe80::1%eth0]:1", ("A".to_owned(), host("fe80::1%eth0"), 1)),
            ("A://::1:9092", ("A".to_owned(), host("::1"), 9092)),
            (" A://kafka-1.example.com:9092 ", ("A".to_owned(), host("kafka-1.example.com"), 9092)),
        ] {
            assert_eq!(hosts(text), [expected], "{text}");
        }
        assert_eq!(hosts("A://:1, B://:2").len(), 2);
        assert_eq!(hosts("A://127.0.0.1:1,A://[::1]:1").len(), 2);
    }

    #[test]
    fn a_wrong_address_is_told_with_what_would_be_right() {
        for (text, part) in [
            ("", "at least one"),
            ("localhost:9092", "has no ://"),
            ("://localhost:9092", "no name"),
            ("A://localhost", "no port"),
            ("A://localhost:", "no port from"),
            ("A://localhost:65536", "no port from"),
            ("A://localhost:-1", "no port from"),
            ("A://[::1:9092", "[ without ]"),
            ("A://[localhost]:9092", "no IPv6 address"),
            ("A://a:b:9092", "no host name"),
            ("A://my host:9092", "letters"),
            ("A://:1,A://:2", "stands twice"),
            ("A://:1,", "has no ://"),
        ] {
            let error = parse_addresses(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn one_port_serves_one_listener_but_both_families() {
        let check = |text: &str| check_ports(&parse_addresses(text).unwrap());
        assert!(check("A://:1,B://:1").unwrap_err().contains("same port"));
        assert!(check("A://a:1,B://b:1").is_err());
        assert!(check("A://:0,B://:0").is_ok());
        assert!(check("A://127.0.0.1:1,B://[::1]:1").is_ok());
    }

    #[test]
    fn the_protocol_map_is_read() {
        let map = parse_protocol_map("internal:PLAINTEXT, EXTERNAL:sasl_ssl").unwrap();
        assert_eq!(map["INTERNAL"], SecurityProtocol::Plaintext);
        assert_eq!(map["EXTERNAL"], SecurityProtocol::SaslSsl);
        assert!(parse_protocol_map("A").unwrap_err().contains("no colon"));
        assert!(parse_protocol_map("A:TLS").unwrap_err().contains("no protocol"));
        assert!(parse_protocol_map("A:SSL,a:SSL").unwrap_err().contains("twice"));
    }
}
