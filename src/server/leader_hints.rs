//! Where a client is sent that asked a node which does not lead (KIP-951).

use std::collections::BTreeSet;

use klamm_model::{NodeId, TopicId};

use crate::api::Call;
use crate::context::{Context, reach};

/// The leaders that an answer names, each once.
pub(crate) struct LeaderHints<'a> {
    context: &'a Context,
    call: &'a Call,
    named: BTreeSet<NodeId>,
}

/// Where a broker is reached.
pub(crate) struct Reached {
    pub(crate) node_id: i32,
    pub(crate) host: String,
    pub(crate) port: i32,
    pub(crate) rack: Option<String>,
}

impl<'a> LeaderHints<'a> {
    pub(crate) fn new(context: &'a Context, call: &'a Call) -> LeaderHints<'a> {
        LeaderHints { context, call, named: BTreeSet::new() }
    }

    /// The leader of a partition and its epoch as this node knows them, -1 where there is none. The topic is named by
    /// its id, or by its name where the id is zero.
    pub(crate) fn leader_of(&mut self, id: TopicId, name: &str, partition: i32) -> (i32, i32) {
        let image = self.context.image();
        let topic = if id.is_zero() { image.topic_by_name(name) } else { image.topic(id) };
        let Some(state) = topic.and_then(|topic| topic.partition(partition)) else { return (-1, -1) };
        self.named.extend(state.leader);
        (state.leader.map_or(-1, |leader| leader.0), state.leader_epoch.0)
    }

    /// The leaders that were named, as far as they are reached on the client's listener.
    pub(crate) fn reached(self) -> impl Iterator<Item = Reached> {
        let image = self.context.image();
        self.named.into_iter().filter_map(move |node| {
            let broker = image.brokers.get(&node).filter(|broker| !broker.fenced)?;
            let (host, port) = reach(broker, self.context.node_id, &self.call.endpoint, self.call.local)?;
            Some(Reached { node_id: node.0, host, port: i32::from(port), rack: broker.rack.clone() })
        })
    }
}
