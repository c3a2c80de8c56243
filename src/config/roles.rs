//! What a node is for, and who decides for the cluster.

use klamm_model::NodeId;

use crate::value::list_items;

/// What a node does (`process.roles`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Roles {
    /// It holds partitions and serves clients.
    pub broker: bool,
    /// It is a voter of the metadata quorum.
    pub controller: bool,
}

impl Roles {
    /// From a list of `broker` and `controller`; `None` for anything else.
    pub(crate) fn parse(text: &str) -> Option<Roles> {
        let mut roles = Roles { broker: false, controller: false };
        for role in list_items(text) {
            match role {
                "broker" => roles.broker = true,
                "controller" => roles.controller = true,
                _ => return None,
            }
        }
        (roles.broker || roles.controller).then_some(roles)
    }
}

/// A voter of the metadata quorum, as `controller.quorum.voters` names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QuorumVoter {
    /// Its `node.id`.
    pub id: NodeId,
    /// The host of its controller listener.
    pub host: String,
    /// The port of its controller listener.
    pub port: u16,
}

impl QuorumVoter {
    /// From `id@host:port`.
    fn parse(text: &str) -> Option<QuorumVoter> {
        let (id, address) = text.split_once('@')?;
        let (host, port) = address.rsplit_once(':')?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let id = id.trim().parse().ok().filter(|id| *id >= 0)?;
        (!host.is_empty()).then_some(())?;
        Some(QuorumVoter { id: NodeId(id), host: host.to_owned(), port: port.parse().ok()? })
    }

    /// From a list of `id@host:port`; says what is wrong with it.
    pub(crate) fn parse_all(text: &str) -> Result<Vec<QuorumVoter>, String> {
        let voters: Option<Vec<QuorumVoter>> = list_items(text).into_iter().map(QuorumVoter::parse).collect();
        let voters = voters.ok_or_else(|| "expected id@host:port, as 1@localhost:9093".to_owned())?;
        match voters.iter().enumerate().find(|(at, voter)| voters[..*at].iter().any(|it| it.id == voter.id)) {
            Some((_, twice)) => Err(format!("node {} stands in it twice", twice.id)),
            None => Ok(voters),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn voters_have_an_id_a_host_and_a_port() {
        let voters = QuorumVoter::parse_all("1@a:9093, 2@[::1]:9094").unwrap();
        let shown: Vec<_> = voters.iter().map(|it| (it.id.0, it.host.as_str(), it.port)).collect();
        assert_eq!(shown, [(1, "a", 9093), (2, "::1", 9094)]);
        for wrong in ["a:9093", "1@a", "1@:9093", "-1@a:9093", "1@a:70000"] {
            assert!(QuorumVoter::parse_all(wrong).is_err(), "{wrong}");
        }
        assert!(QuorumVoter::parse_all("1@a:1,1@b:2").unwrap_err().contains("twice"));
    }

    #[test]
    fn a_node_is_broker_or_controller_or_both() {
        assert_eq!(Roles::parse("controller , broker"), Some(Roles { broker: true, controller: true }));
        assert_eq!(Roles::parse("broker"), Some(Roles { broker: true, controller: false }));
        assert_eq!(Roles::parse(""), None);
        assert_eq!(Roles::parse("broker,zookeeper"), None);
    }
}
