//! What a node is for, and where the controllers of its cluster are.

use klamm_model::NodeId;

use super::{Listeners, Loading};
use crate::listeners::{Listener, parse_addresses};
use crate::roles::{QuorumVoter, Roles};
use crate::source::Warning;
use crate::value::list_items;

const VOTERS: &str = "controller.quorum.voters";
const SERVERS: &str = "controller.quorum.bootstrap.servers";

impl Loading {
    /// `process.roles`, or both.
    pub(super) fn roles(&mut self) -> Roles {
        let both = Roles { broker: true, controller: true };
        let Some(text) = self.value("process.roles").filter(|text| !text.is_empty()) else { return both };
        Roles::parse(&text).unwrap_or_else(|| {
            self.error("process.roles", "expected broker, controller, or both");
            both
        })
    }

    /// `controller.quorum.voters`. As in Kafka, a controller stands in it, and a node that is only a broker does not.
    pub(super) fn quorum_voters(&mut self, node_id: NodeId, roles: Roles) -> Vec<QuorumVoter> {
        let voters = self.value(VOTERS).filter(|voters| !voters.is_empty());
        let voters = match voters.map_or(Ok(Vec::new()), |voters| QuorumVoter::parse_all(&voters)) {
            Ok(voters) => voters,
            Err(problem) => {
                self.error(VOTERS, problem);
                return Vec::new();
            }
        };
        let stands_in_it = voters.iter().any(|voter| voter.id == node_id);
        if !voters.is_empty() && roles.controller && !stands_in_it {
            self.error(
                VOTERS,
                format!(
                    "process.roles has controller, so this node, {node_id} (node.id), has to stand in it"
                ),
            );
        } else if !roles.controller && stands_in_it {
            self.error(
                VOTERS,
                format!(
                    "process.roles is broker only, so this node, {node_id} (node.id), must not stand in it"
                ),
            );
        }
        voters
    }

    /// `controller.quorum.bootstrap.servers`. A list that names only this node, which is a controller, is none: it
    /// is Kafka's own file for a single node.
    pub(super) fn bootstrap_servers(
        &mut self,
        voters: &[QuorumVoter],
        listeners: &Listeners,
        roles: Roles,
    ) -> Vec<(String, u16)> {
        let text = self.value(SERVERS).unwrap_or_default();
        let mut servers = Vec::new();
        for item in list_items(&text).into_iter().filter(|item| !item.is_empty()) {
            match parse_addresses(&format!("CONTROLLER://{item}")).as_deref() {
                Ok([address]) if address.port != 0 && address.host.is_some() => {
                    servers.push((address.host.clone().unwrap_or_default(), address.port));
                }
                _ => self.error(SERVERS, format!("expected host:port, as localhost:9093, and not {item}")),
            }
        }
        let names_nobody = voters.is_empty() && servers.is_empty();
        if names_nobody && !roles.controller && !self.errors.iter().any(|error| error.key == SERVERS) {
            self.error("process.roles", format!("a node that is only a broker needs {SERVERS} or {VOTERS}"));
        }
        let is_own = |server: &(String, u16)| roles.controller && listeners.is_own_controller(server);
        if servers.iter().all(is_own) {
            servers.clear();
        }
        let is_cluster = !servers.is_empty() || voters.len() > 1 || !roles.broker;
        if is_cluster && roles.controller && !listeners.listeners.iter().any(|it| it.is_controller) {
            self.error(
                "controller.listener.names",
                "a controller of several nodes needs a listener for them: name one of `listeners`, as CONTROLLER",
            );
        }
        servers
    }

    /// Each role needs listeners of its kind.
    pub(super) fn check_listeners_of_roles(&mut self, listeners: &[Listener], roles: Roles) {
        let has_clients = listeners.iter().any(|listener| !listener.is_controller);
        let has_controllers = listeners.iter().any(|listener| listener.is_controller);
        if roles.broker && !has_clients {
            self.error("listeners", "at least one listener has to be for clients, not for controllers");
        }
        if !roles.broker && has_clients && has_controllers {
            self.error(
                "listeners",
                "process.roles is controller only: all listeners have to stand in controller.listener.names",
            );
        }
        if !roles.controller && has_controllers {
            self.error(
                "listeners",
                "process.roles is broker only: a listener that stands in controller.listener.names must not stand here",
            );
        }
    }
}

impl Loading {
    /// A controller alone is asked through the listeners for clients, so that a typing error would go unnoticed.
    pub(super) fn warn_of_missing_controller_listener(
        &mut self,
        listeners: &[Listener],
        controllers: &[String],
        roles: Roles,
    ) {
        if !roles.controller || controllers.is_empty() || listeners.iter().any(|it| it.is_controller) {
            return;
        }
        let (there, key) =
            (listeners.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), "controller.listener.names");
        let message = format!(
            "{key}={}: no listener has this name; listeners has {}",
            controllers.join(","),
            there.join(", ")
        );
        self.warnings.push(Warning { source: self.source(key), message });
    }
}

impl Listeners {
    /// Whether a server is surely this node's own listener for controllers.
    fn is_own_controller(&self, (host, port): &(String, u16)) -> bool {
        let is_local = matches!(host.as_str(), "localhost" | "127.0.0.1" | "::1");
        let advertised = self
            .advertised
            .iter()
            .any(|it| self.controllers.contains(&it.name) && it.host == *host && it.port == *port);
        let listener = self.listeners.iter().any(|it| {
            it.is_controller && it.port == *port && (is_local || it.host.as_deref() == Some(host.as_str()))
        });
        advertised || listener
    }
}
