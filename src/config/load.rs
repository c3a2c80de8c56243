//! Puts the sources together into one config: the file, then the environment, then the command line. All mistakes
//! are found in one go, so that nobody mends a file one line a start.

mod quorum;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use klamm_model::NodeId;

use crate::broker::BrokerConfig;
use crate::environment::{nearest_variable, settings_of_environment};
use crate::key::{DefaultValue, Kind, Scope};
use crate::legacy;
use crate::listeners::{
    Address, AdvertisedListener, Listener, SecurityProtocol, check_ports, is_wildcard, parse_addresses,
    parse_protocol_map,
};
use crate::properties::parse_properties;
use crate::roles::Roles;
use crate::source::{ConfigError, Source, Sources, Warning};
use crate::table;
use crate::validate::listener_key;
use crate::value::{list_items, parse_connections_per_host, validate};

/// Where a broker that nobody told anything listens: only this machine can connect. `localhost` is often ::1.
const LOOPBACK: &str = "PLAINTEXT://127.0.0.1:9092,PLAINTEXT://[::1]:9092";

/// Reads all sources.
///
/// # Errors
/// Every mistake in them, in the order of the keys; one that asks for what this version does not have is a mistake
/// too, because a broker must not run less protected than its owner believes.
pub fn load(sources: &Sources) -> Result<(BrokerConfig, Vec<Warning>), Vec<ConfigError>> {
    let mut loading = Loading::default();
    loading.gather(sources);
    legacy::translate(&mut loading);
    loading.check_values();
    loading.refuse_what_is_not_built();
    let mut defaults = loading.own_defaults(sources.file.is_some());
    let node_id = loading.node_id();
    let roles = loading.roles();
    let quorum_voters = loading.quorum_voters(node_id, roles);
    let listeners = loading.listeners(&defaults, roles);
    let bootstrap_servers = loading.bootstrap_servers(&quorum_voters, &listeners, roles);
    let http_listener = loading.http_listener();
    let log_dirs = loading.log_dirs(&defaults);
    let per_ip = loading.connection_overrides();
    let cluster_id = loading.cluster_id(sources);
    if !loading.errors.is_empty() {
        loading.errors.sort_by(|one, other| one.key.cmp(&other.key));
        return Err(loading.errors);
    }
    loading.tell_what_has_no_effect();
    let rack = loading.value("broker.rack");
    let is_cluster = quorum_voters.iter().any(|voter| voter.id != node_id) || !bootstrap_servers.is_empty();
    if is_cluster {
        // A cluster keeps Kafka's own topics as safe as Kafka does.
        defaults.retain(|key, _| !REPLICATION_OF_ONE_NODE.contains(key));
    }
    let mut config = BrokerConfig::read(loading.settings.clone(), defaults);
    config.node_id = node_id;
    config.cluster_id = cluster_id;
    config.rack = rack;
    config.roles = roles;
    config.quorum_voters = quorum_voters;
    config.quorum_bootstrap_servers = bootstrap_servers;
    let advertised = if is_cluster { listeners.advertised_in_cluster() } else { listeners.advertised };
    for listener in
        listeners.listeners.iter().filter(|it| is_cluster && !it.is_controller && it.is_wildcard())
    {
        if advertised.iter().all(|known| known.name != listener.name) {
            let name = &listener.name;
            loading.error(
                "advertised.listeners",
                format!("{name} listens on every interface: the other nodes and clients need one name of it, as {name}://host:9092"),
            );
        }
    }
    config.listeners = listeners.listeners;
    config.advertised_listeners =
        advertised.iter().filter(|it| !listeners.controllers.contains(&it.name)).cloned().collect();
    config.all_advertised = advertised;
    config.inter_broker_listener_name = listeners.inter_broker;
    config.controller_listener_names = listeners.controllers;
    config.http_listener = http_listener;
    config.log_dirs = log_dirs;
    config.max_connections_per_ip_overrides = per_ip;
    for (key, problem) in config.contradictions() {
        loading.error(key, problem);
    }
    if loading.errors.is_empty() { Ok((config, loading.warnings)) } else { Err(loading.errors) }
}

/// What a node that is alone has by default, for it could not keep more replicas.
const REPLICATION_OF_ONE_NODE: [&str; 5] = [
    "offsets.topic.replication.factor",
    "share.coordinator.state.topic.min.isr",
    "share.coordinator.state.topic.replication.factor",
    "transaction.state.log.min.isr",
    "transaction.state.log.replication.factor",
];

/// What was found so far.
#[derive(Default)]
pub(crate) struct Loading {
    pub(crate) settings: BTreeMap<String, (String, Source)>,
    pub(crate) warnings: Vec<Warning>,
    pub(crate) errors: Vec<ConfigError>,
}

/// The parts of the config that have to do with listeners.
#[derive(Default)]
struct Listeners {
    listeners: Vec<Listener>,
    advertised: Vec<AdvertisedListener>,
    inter_broker: String,
    controllers: Vec<String>,
}

impl Listeners {
    /// What the nodes of a cluster tell of this one: what is advertised, else where it listens, as in Kafka. All of them have
    /// to tell the same, for a client that hears of two names of one broker lets go of what it has asked the first.
    fn advertised_in_cluster(&self) -> Vec<AdvertisedListener> {
        let mut advertised = self.advertised.clone();
        for listener in self.listeners.iter().filter(|it| !it.is_controller && it.port != 0) {
            let is_known = advertised.iter().any(|known| known.name == listener.name);
            if let (false, false, Some(host)) = (is_known, listener.is_wildcard(), &listener.host) {
                let (name, port) = (listener.name.clone(), listener.port);
                advertised.push(AdvertisedListener { name, host: host.clone(), port });
            }
        }
        advertised
    }
}

impl Loading {
    /// The value that was set, without blanks around it.
    pub(crate) fn value(&self, key: &str) -> Option<String> {
        self.settings.get(key).map(|(value, _)| value.trim().to_owned())
    }

    pub(crate) fn source(&self, key: &str) -> Option<Source> {
        self.settings.get(key).map(|(_, source)| source.clone())
    }

    pub(crate) fn error(&mut self, key: &str, problem: impl Into<String>) {
        let secret = table::broker_key(key).is_some_and(|key| key.is_sensitive());
        self.errors.push(ConfigError {
            source_of_value: self.source(key),
            key: key.to_owned(),
            found: self.value(key).filter(|_| !secret),
            problem: problem.into() + comment_hint(self.value(key).as_deref()),
        });
    }

    fn gather(&mut self, sources: &Sources) {
        if let Some((path, text)) = &sources.file {
            let path = Arc::new(path.clone());
            let at = |line| Source::File { path: Arc::clone(&path), line };
            let (properties, mistakes) = parse_properties(text);
            for property in properties {
                self.set_from_file(property.key, property.value, at(property.line));
            }
            self.errors.extend(mistakes.into_iter().map(|(line, problem)| ConfigError {
                source_of_value: Some(at(line)),
                key: String::new(),
                found: None,
                problem,
            }));
        }
        for (variable, key, value) in settings_of_environment(&sources.environment) {
            self.settings.insert(key, (value, Source::Variable(variable)));
        }
        for (key, value) in &sources.overrides {
            self.settings.insert(key.trim().to_owned(), (value.clone(), Source::Override));
        }
    }

    /// As in Java, the last of several lines with one key counts; Java says nothing about it.
    fn set_from_file(&mut self, key: String, value: String, source: Source) {
        if let Some((_, Source::File { line, .. })) = self.settings.get(&key) {
            let message = format!("{key} stands on line {line} too; this later line counts");
            self.warnings.push(Warning { source: Some(source.clone()), message });
        }
        self.settings.insert(key, (value, source));
    }

    /// Checks each value by its key; unknown keys are told with the name that was probably meant.
    fn check_values(&mut self) {
        for (name, (value, source)) in self.settings.clone() {
            let base = listener_key(&name).unwrap_or(&name);
            match table::broker_key(base) {
                Some(key) => {
                    if let Err(expected) = validate(key, &value) {
                        match legacy::was_allowed(base, &value) {
                            true => self.warnings.push(Warning {
                                message: format!(
                                    "{name}={value} is taken as older Kafkas take it; Kafka 4 {}",
                                    expected.replacen("expected", "expects", 1)
                                ),
                                source: Some(source),
                            }),
                            false => self.error(&name, expected),
                        }
                    }
                }
                None => {
                    self.warnings.push(Warning { message: unknown_key(&name, &source), source: Some(source) })
                }
            }
        }
    }

    /// A broker that a config wants to be protected, and that would run open, must not start.
    fn refuse_what_is_not_built(&mut self) {
        const CLASSES: &[(&str, &str)] = &[
            ("authorizer.class.name", "this version of Klamm has no access control lists yet"),
            ("alter.config.policy.class.name", "Klamm cannot load Java classes"),
            ("client.quota.callback.class", "Klamm cannot load Java classes"),
            ("config.providers", "Klamm cannot load Java classes; write the values themselves"),
            ("create.topic.policy.class.name", "Klamm cannot load Java classes"),
        ];
        for (key, reason) in CLASSES {
            if self.value(key).is_some_and(|value| !value.is_empty()) {
                self.error(key, format!("{reason}. Remove this line to start without"));
            }
        }
        if self
            .value("remote.log.storage.system.enable")
            .is_some_and(|value| value.eq_ignore_ascii_case("true"))
        {
            self.error("remote.log.storage.system.enable", "Klamm has no tiered storage");
        }
    }

    /// Klamm's defaults that are not Apache Kafka's; README.md lists them all.
    fn own_defaults(&self, has_file: bool) -> BTreeMap<&'static str, String> {
        let mut defaults: BTreeMap<&'static str, String> = [
            ("broker.id", "1"),
            ("controller.listener.names", ""),
            ("log.dir", "./klamm-data"),
            ("node.id", "1"),
            ("process.roles", "broker,controller"),
        ]
        .map(|(key, value)| (key, value.to_owned()))
        .into();
        defaults.extend(REPLICATION_OF_ONE_NODE.map(|key| (key, "1".to_owned())));
        if !has_file {
            defaults.insert("listeners", LOOPBACK.to_owned());
        }
        if let Some(derived) = self.listeners_of_advertised() {
            defaults.insert("listeners", derived);
        }
        defaults
    }

    /// Where only `advertised.listeners` is set, and names what the default of `listeners` lacks, Apache Kafka
    /// refuses to start, and some images of it listen on the advertised ports instead. So does Klamm.
    fn listeners_of_advertised(&self) -> Option<String> {
        if self.settings.contains_key("listeners") {
            return None;
        }
        let advertised = parse_addresses(&self.value("advertised.listeners")?).ok()?;
        if advertised.iter().all(|address| address.name == "PLAINTEXT") {
            return None;
        }
        let listeners: Vec<String> =
            advertised.iter().map(|address| format!("{}://:{}", address.name, address.port)).collect();
        Some(listeners.join(","))
    }

    /// `node.id`, or `broker.id` as it was called with ZooKeeper. Of two that differ, the one from the stronger
    /// source counts.
    fn node_id(&mut self) -> NodeId {
        let read = |loading: &Loading, key: &str| {
            let value: i32 = loading.value(key)?.parse().ok()?;
            Some((value, loading.source(key)?))
        };
        let by_node = read(self, "node.id");
        // -1 asked old Kafkas to make an id up.
        let by_broker = read(self, "broker.id").filter(|(id, _)| *id != -1);
        if by_broker.as_ref().is_some_and(|(id, _)| *id < 0) {
            self.error("broker.id", "expected a whole number from 0 to 2147483647");
        }
        let (id, source) = match (by_node, by_broker) {
            (None, None) => {
                self.settings.remove("broker.id");
                return NodeId(1);
            }
            (Some(found), None) | (None, Some(found)) => found,
            (Some(node), Some(broker)) => match strength(&node.1).cmp(&strength(&broker.1)) {
                std::cmp::Ordering::Greater => node,
                std::cmp::Ordering::Less => broker,
                std::cmp::Ordering::Equal => {
                    if node.0 != broker.0 {
                        let problem =
                            format!("it must be the same as node.id={}, whose old name it is", node.0);
                        self.error("broker.id", problem);
                    }
                    node
                }
            },
        };
        for key in ["node.id", "broker.id"] {
            self.settings.insert(key.to_owned(), (id.to_string(), source.clone()));
        }
        NodeId(id)
    }

    fn listeners(&mut self, defaults: &BTreeMap<&'static str, String>, roles: Roles) -> Listeners {
        let controllers: Vec<String> = self
            .value("controller.listener.names")
            .map(|names| list_items(&names).iter().map(|name| name.to_uppercase()).collect())
            .unwrap_or_default();
        let Some(addresses) = self.listener_addresses(defaults) else {
            return Listeners { controllers, ..Listeners::default() };
        };
        let is_default = !self.settings.contains_key("listeners");
        let protocols = self.protocols(&addresses, &controllers);
        let listeners: Vec<Listener> = addresses
            .iter()
            .zip(protocols)
            .map(|(address, security_protocol)| Listener {
                name: address.name.clone(),
                host: address.host.clone(),
                port: address.port,
                security_protocol,
                is_controller: controllers.contains(&address.name),
                is_optional: is_default && address.host.as_deref() == Some("::1"),
            })
            .collect();
        self.check_listeners_of_roles(&listeners, roles);
        self.warn_of_missing_controller_listener(&listeners, &controllers, roles);
        let advertised = self.advertised(&listeners);
        let inter_broker = if roles.broker { self.inter_broker_listener(&listeners) } else { String::new() };
        Listeners { listeners, advertised, inter_broker, controllers }
    }

    /// Where metrics and health are served. It is no listener of Kafka's protocol and advertised to nobody.
    fn http_listener(&mut self) -> Option<Listener> {
        let text = self.value("klamm.http.listener").filter(|text| !text.is_empty())?;
        match parse_addresses(&format!("HTTP://{text}")).as_deref() {
            Ok([Address { name, host, port }]) => Some(Listener {
                name: name.clone(),
                host: host.clone(),
                port: *port,
                security_protocol: SecurityProtocol::Plaintext,
                is_controller: false,
                is_optional: false,
            }),
            _ => {
                self.error("klamm.http.listener", "it has to be host:port, or :port for all interfaces");
                None
            }
        }
    }

    fn listener_addresses(&mut self, defaults: &BTreeMap<&'static str, String>) -> Option<Vec<Address>> {
        let text = self
            .value("listeners")
            .or_else(|| defaults.get("listeners").cloned())
            .or_else(|| table::broker_key("listeners")?.default_text().map(str::to_owned))?;
        let checked = parse_addresses(&text).and_then(|addresses| {
            check_ports(&addresses)?;
            Ok(addresses)
        });
        checked.map_err(|problem| self.error("listeners", problem)).ok()
    }

    /// The protocol of each address. Where nobody set a map, controllers' listeners are plaintext, as in Kafka.
    fn protocols(&mut self, addresses: &[Address], controllers: &[String]) -> Vec<SecurityProtocol> {
        let text = self.value("listener.security.protocol.map");
        let map = match text.as_deref().map(parse_protocol_map) {
            Some(Ok(map)) => Some(map),
            Some(Err(problem)) => {
                self.error("listener.security.protocol.map", problem);
                return addresses.iter().map(|_| SecurityProtocol::Plaintext).collect();
            }
            None => None,
        };
        let mut protocols = Vec::new();
        for address in addresses {
            let found = match &map {
                Some(map) => map.get(&address.name).copied(),
                None if controllers.contains(&address.name) => Some(SecurityProtocol::Plaintext),
                None => SecurityProtocol::from_name(&address.name),
            };
            let protocol = found.unwrap_or(SecurityProtocol::Plaintext);
            if found.is_none() {
                let name = &address.name;
                let or = match controllers.iter().find(|it| addresses.iter().all(|other| other.name != **it))
                {
                    Some(missing) => format!(
                        "; if it is meant by controller.listener.names={missing}, which no listener is called, \
                         let both have one name"
                    ),
                    None => String::new(),
                };
                self.error(
                    "listeners",
                    format!(
                        "listener {name} has no protocol; add {name}:PLAINTEXT to listener.security.protocol.map{or}"
                    ),
                );
            } else if protocol != SecurityProtocol::Plaintext {
                self.error(
                    "listeners",
                    format!(
                        "listener {} asks for {}, and this version of Klamm has neither TLS nor SASL yet; it does \
                         not start rather than run open",
                        address.name,
                        protocol.name()
                    ),
                );
            }
            protocols.push(protocol);
        }
        protocols
    }

    fn advertised(&mut self, listeners: &[Listener]) -> Vec<AdvertisedListener> {
        let Some(text) = self.value("advertised.listeners").filter(|text| !text.is_empty()) else {
            return Vec::new();
        };
        let addresses = match parse_addresses(&text) {
            Ok(addresses) => addresses,
            Err(problem) => {
                self.error("advertised.listeners", problem);
                return Vec::new();
            }
        };
        let mut advertised = Vec::new();
        for Address { name, host, port } in addresses {
            if listeners.iter().all(|listener| listener.name != name) {
                let names: Vec<&str> = listeners.iter().map(|listener| listener.name.as_str()).collect();
                let problem = format!("no listener has the name {name}; listeners has {}", names.join(", "));
                self.error("advertised.listeners", problem);
                continue;
            }
            match host {
                Some(host) if !is_wildcard(&host) => {
                    advertised.push(AdvertisedListener { name, host, port });
                }
                _ => self.error(
                    "advertised.listeners",
                    format!("{name} needs a host name or address that clients can connect to"),
                ),
            }
        }
        advertised
    }

    fn inter_broker_listener(&mut self, listeners: &[Listener]) -> String {
        let protocol = self.value("security.inter.broker.protocol");
        let is_plaintext = |name: &String| {
            SecurityProtocol::from_name(name).is_none_or(|it| it == SecurityProtocol::Plaintext)
        };
        if !protocol.as_ref().is_none_or(is_plaintext) {
            self.error(
                "security.inter.broker.protocol",
                "this version of Klamm has neither TLS nor SASL yet",
            );
        }
        let first = listeners.iter().find(|listener| !listener.is_controller);
        let Some(name) = self.value("inter.broker.listener.name").filter(|name| !name.is_empty()) else {
            let plain = listeners.iter().find(|listener| listener.name == "PLAINTEXT");
            return plain.or(first).map(|listener| listener.name.clone()).unwrap_or_default();
        };
        let name = name.to_uppercase();
        if protocol.is_some() {
            self.error(
                "inter.broker.listener.name",
                "set either this or security.inter.broker.protocol, not both",
            );
        }
        if !listeners.iter().any(|listener| listener.name == name && !listener.is_controller) {
            self.error("inter.broker.listener.name", "no listener for clients and brokers has this name");
        }
        name
    }

    fn log_dirs(&mut self, defaults: &BTreeMap<&'static str, String>) -> Vec<PathBuf> {
        let key = if self.settings.contains_key("log.dirs") { "log.dirs" } else { "log.dir" };
        let text = self.value(key).or_else(|| defaults.get(key).cloned()).unwrap_or_default();
        let items = list_items(&text);
        let mut once: Vec<&str> = items.clone();
        once.sort_unstable();
        once.dedup();
        if items.is_empty() || items.iter().any(|item| item.is_empty()) {
            self.error(key, "expected one or more directories with commas between them");
        } else if once.len() < items.len() {
            self.error(key, "a directory stands twice");
        }
        items.into_iter().map(PathBuf::from).collect()
    }

    fn connection_overrides(&mut self) -> BTreeMap<String, i32> {
        // A text that is none was told with the other values.
        let text = self.value("max.connections.per.ip.overrides").unwrap_or_default();
        parse_connections_per_host(&text).unwrap_or_default()
    }

    fn cluster_id(&mut self, sources: &Sources) -> Option<String> {
        let (_, id) = sources.environment.iter().find(|(name, _)| name == "CLUSTER_ID")?;
        let id = id.trim();
        if id.is_empty() {
            return None;
        }
        if !id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_=+/.".contains(&byte)) || id.len() > 255
        {
            self.errors.push(ConfigError {
                source_of_value: Some(Source::Variable("CLUSTER_ID".to_owned())),
                key: "CLUSTER_ID".to_owned(),
                found: Some(id.to_owned()),
                problem: "expected letters and digits, as MkU3OEVBNTcwNTJENDM2Qk".to_owned(),
            });
        }
        Some(id.to_owned())
    }

    /// One warning for all keys that were set, are known, and change nothing here.
    fn tell_what_has_no_effect(&mut self) {
        let without: Vec<&str> = self
            .settings
            .iter()
            .filter(|(name, (value, _))| {
                let base = listener_key(name).unwrap_or(name);
                table::broker_key(base).is_some_and(|key| {
                    let is_default = match key.default {
                        DefaultValue::Value(default) => same_value(key.kind, default, value.trim()),
                        DefaultValue::Null => value.trim().is_empty(),
                        DefaultValue::Required => false,
                    };
                    !key.acted_on && !is_default && !base.starts_with("zookeeper.")
                })
            })
            .map(|(name, _)| name.as_str())
            .collect();
        if !without.is_empty() {
            let message =
                format!("known to Kafka and without effect in this version of Klamm: {}", without.join(", "));
            self.warnings.push(Warning { source: None, message });
        }
    }
}

fn same_value(kind: Kind, one: &str, other: &str) -> bool {
    match kind {
        Kind::Boolean => one.eq_ignore_ascii_case(other),
        Kind::List => list_items(one) == list_items(other),
        _ => one == other,
    }
}

/// In Java's format of properties a comment is a line of its own.
fn comment_hint(value: Option<&str>) -> &'static str {
    match value {
        Some(value) if value.contains(" #") => "; a comment has to stand on a line of its own",
        _ => "",
    }
}

fn strength(source: &Source) -> u8 {
    match source {
        Source::File { .. } => 0,
        Source::Variable(_) => 1,
        Source::Override => 2,
    }
}

fn unknown_key(name: &str, source: &Source) -> String {
    let meant = match source {
        Source::Variable(_) => nearest_variable(name),
        Source::File { .. } | Source::Override => table::nearest(Scope::Broker, name).map(str::to_owned),
    };
    match meant {
        Some(meant) => format!("{name} is no setting that Klamm knows; did you mean {meant}?"),
        None => format!("{name} is no setting that Klamm knows; it has no effect"),
    }
}

#[cfg(test)]
mod tests;
