//! The nodes of a scenario: one that is complete in itself, or several that are brokers and controllers of one cluster.

use crate::broker::{Broker, Flavor, Programs, free_ports};
use crate::scenario::Scenario;
use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use std::path::Path;

/// What the topics of Kafka's own get where there are several nodes.
const REPLICATED: [&str; 4] = [
    "offsets.topic.replication.factor=3",
    "transaction.state.log.replication.factor=3",
    "transaction.state.log.min.isr=2",
    "controller.listener.names=CONTROLLER",
];

pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Broker>,
    /// How many of them, the first, start with the cluster.
    founders: usize,
}

impl Cluster {
    /// The nodes that a scenario asks for, none of them running. A single one has its data in `folder`, several in
    /// folders with their numbers. Those that join later are only brokers.
    pub(crate) fn new(
        flavor: Flavor,
        folder: &Path,
        scenario: &Scenario,
        programs: &Programs,
    ) -> Result<Cluster> {
        let founders = scenario.nodes;
        let ports = free_ports(founders + scenario.joining)?;
        if let [port] = ports[..] {
            let settings = scenario.broker_settings.clone();
            return Ok(Cluster {
                nodes: vec![Broker::new(flavor, port, folder, settings, programs)],
                founders,
            });
        }
        let voters: Vec<String> = (ports.iter().zip(1..).take(founders))
            .map(|(port, id)| format!("{id}@127.0.0.1:{}", port + 1))
            .collect();
        let node = |(port, id): (&u16, usize)| {
            let (roles, own_listener) = if id <= founders {
                ("broker,controller", format!(",CONTROLLER://127.0.0.1:{}", port + 1))
            } else {
                ("broker", String::new())
            };
            let mut settings: Vec<String> = REPLICATED.map(str::to_owned).into();
            settings.extend([
                format!("node.id={id}"),
                format!("process.roles={roles}"),
                format!("controller.quorum.voters={}", voters.join(",")),
                format!("listeners=PLAINTEXT://127.0.0.1:{port}{own_listener}"),
            ]);
            settings.extend(scenario.broker_settings.iter().cloned());
            Broker::new(flavor, *port, &folder.join(id.to_string()), settings, programs)
        };
        Ok(Cluster { nodes: ports.iter().zip(1..).map(node).collect(), founders })
    }

    /// Starts the founders at once, since none serves before most of them are there, and returns when all listen.
    pub(crate) fn start(&mut self) -> Result<()> {
        let founders = self.nodes.iter_mut().take(self.founders);
        std::thread::scope(|threads| {
            let starts: Vec<_> = founders.map(|node| threads.spawn(|| node.start())).collect();
            starts.into_iter().zip(1..).try_for_each(|(start, id)| match start.join() {
                Ok(started) => started.with_context(|| format!("node {id}")),
                Err(_) => bail!("node {id}: its thread panicked"),
            })
        })
    }

    /// `host:port` of the founders, as clients take it.
    pub(crate) fn bootstrap(&self) -> String {
        let founders = self.nodes.iter().take(self.founders);
        let addresses: Vec<String> = founders.map(|node| format!("127.0.0.1:{}", node.port)).collect();
        addresses.join(",")
    }

    /// Does what a client asks for: a word, and the number of the node where there are several.
    pub(crate) fn obey(&mut self, request: &str) -> Result<String> {
        let (word, number) = request.split_once(' ').unwrap_or((request, "1"));
        let index = number.trim().parse::<usize>().ok().and_then(|number| number.checked_sub(1));
        let node = index.and_then(|index| self.nodes.get_mut(index));
        let node = node.with_context(|| format!("there is no node {number:?}"))?;
        match word {
            "restart" => node.stop().and_then(|()| node.start())?,
            "kill" => node.kill().and_then(|()| node.start())?,
            "stop" => node.stop()?,
            "crash" => node.kill()?,
            "start" => node.start()?,
            "pause" => node.signal(Signal::STOP)?,
            "continue" => node.signal(Signal::CONT)?,
            "pid" => return Ok(node.pid()?.to_string()),
            other => bail!("the runner knows no request {other:?}"),
        }
        Ok(String::new())
    }
}
