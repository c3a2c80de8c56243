//! A leader's word that a replica has caught up, which reaches the controller late: meanwhile the replica's host has lost
//! its power, and is there again with fewer records, under a new broker epoch, by which the controller knows (KIP-903).
//!
//! Chance alone hardly ever brings that about, so that it is led there. It takes five nodes: the controller has to keep its
//! majority without the leader and the replica.

use std::time::Duration;

use klamm_metadata::Image;
use klamm_model::NodeId;

use super::{Later, Troublemaker};
use crate::observer::Observer;
use crate::world::World;

/// How far it has come.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// The replica is not in sync: its process was killed.
    Away,
    /// It catches up, and what the leader says of it is held up.
    CatchesUp,
    /// It has caught up; the leader has said so by then.
    Said { at: Duration },
    /// Its host has lost its power since, under this broker epoch.
    Lost { epoch: i64 },
    /// The controller knows it under a new one, and hears the leader's word.
    Told { at: Duration },
}

/// Who takes part, by index.
#[derive(Clone, Copy)]
pub(super) struct LateWord {
    replica: usize,
    leader: usize,
    controller: usize,
    stage: Stage,
    until: Duration,
}

/// How long all of it may take.
const TOGETHER_MAX: Duration = Duration::from_secs(12);

/// How long a leader may take to say that a replica has caught up, and that word to arrive.
const SAYING: Duration = Duration::from_millis(100);

/// How long the replica cannot fetch what it lacks after that.
const LACKING: Duration = Duration::from_millis(500);

impl Troublemaker {
    /// Kills a replica of a partition that a node leads which is not the controller.
    pub(super) fn begin_late_word(&mut self, world: &mut World, observer: &Observer, replica: usize) {
        let Some(image) = observer.newest_image().filter(|_| world.nodes.len() >= 5) else { return };
        let Some(controller) = image.controller else { return };
        let is_apt = |leader: NodeId| leader != controller && leader.0 != world.nodes[replica].id;
        let is_replica = NodeId(world.nodes[replica].id);
        let partitions = image.topics.values().flat_map(|topic| &topic.partitions);
        let mut leaders = partitions
            .filter(|partition| partition.replicas.contains(&is_replica))
            .filter_map(|partition| partition.leader.filter(|leader| is_apt(*leader)));
        let is_apt_itself = controller.0 != world.nodes[replica].id && self.later.is_empty();
        let Some(leader) = leaders.next().filter(|_| is_apt_itself) else { return };
        let index_of = |node: NodeId| world.nodes.iter().position(|host| host.id == node.0);
        let (Some(leader), Some(controller)) = (index_of(leader), index_of(controller)) else { return };
        let down = Duration::from_millis(1500);
        world.trace.line(&format!("node {} is killed for {down:?}", replica + 1));
        world.nodes[replica].kill(&world.network);
        self.note_crash(world, replica, down);
        let until = world.now() + TOGETHER_MAX;
        self.late_word = Some(LateWord { replica, leader, controller, stage: Stage::Away, until });
    }

    /// Takes the next step when it is time. Nothing else is begun meanwhile.
    pub(super) fn go_on_with_late_word(&mut self, world: &mut World, observer: &Observer, word: LateWord) {
        let LateWord { replica, leader, controller, stage, until } = word;
        let [replica_at, leader_at, controller_at] =
            [replica, leader, controller].map(|index| world.nodes[index].address);
        let next = match stage {
            _ if world.now() > until => None,
            // It may say so from now on, and no word is under way for less than a step.
            Stage::Away if serves_again(world, replica, leader) => {
                world.network.cut(leader_at, controller_at);
                self.counts.cuts += 1;
                Some(Stage::CatchesUp)
            }
            Stage::CatchesUp if has_caught_up(world, replica, leader) => {
                Some(Stage::Said { at: world.now() })
            }
            Stage::Said { at } if world.now() > at + SAYING => {
                match observer.registration(world, replica).filter(|_| observer.is_spare(replica, world)) {
                    Some(registration) => {
                        self.power_off(world, observer, replica, Duration::from_millis(50));
                        world.network.cut(replica_at, leader_at);
                        world.network.cut(leader_at, replica_at);
                        Some(Stage::Lost { epoch: registration.epoch })
                    }
                    None => None,
                }
            }
            Stage::Lost { epoch } if is_back(observer.newest_image(), world.nodes[replica].id, epoch) => {
                world.network.heal(leader_at, controller_at);
                self.counts.late_words += 1;
                Some(Stage::Told { at: world.now() })
            }
            Stage::Told { at } if world.now() > at + LACKING => None,
            _ => Some(stage),
        };
        if next.map(|next| std::mem::discriminant(&next)) != Some(std::mem::discriminant(&stage)) {
            let (leader, replica) = (leader + 1, replica + 1);
            let now = next.map_or_else(|| "is over".to_owned(), |next| format!("{next:?}"));
            world.trace.line(&format!("a late word of node {leader} about node {replica}: {now}"));
        }
        self.late_word = next.map(|stage| LateWord { stage, ..word });
        if self.late_word.is_none() {
            for (from, to) in [(leader_at, controller_at), (replica_at, leader_at), (leader_at, replica_at)] {
                self.end(world, Later::Heal(from, to));
            }
        }
    }
}

/// Whether the leader knows of the process that the replica is now, and that it serves.
fn serves_again(world: &World, replica: usize, leader: usize) -> bool {
    let id = NodeId(world.nodes[replica].id);
    let (Some(own), Some(leads)) = (world.nodes[replica].view(), world.nodes[leader].view()) else {
        return false;
    };
    let image = leads.image();
    image.brokers.get(&id).is_some_and(|known| !known.fenced && known.epoch == own.broker_epoch())
}

/// Whether a replica has what the leader has of a partition that it follows.
fn has_caught_up(world: &World, replica: usize, leader: usize) -> bool {
    let (Some(follows), Some(leads)) = (world.nodes[replica].view(), world.nodes[leader].view()) else {
        return false;
    };
    let (led, followed) = (leads.replicas(), follows.replicas());
    let mut pairs = led.iter().filter(|led| led.is_leader()).filter_map(|led| {
        followed.iter().find(|own| own.topic_partition() == led.topic_partition()).map(|own| (led, own))
    });
    pairs.any(|(led, own)| own.offsets().log_end >= led.offsets().high_watermark)
}

/// Whether the cluster has a broker again, and under another epoch.
fn is_back(image: Option<&std::sync::Arc<Image>>, id: i32, epoch: i64) -> bool {
    let known = image.and_then(|image| image.brokers.get(&NodeId(id)));
    known.is_some_and(|known| !known.fenced && known.epoch != epoch)
}
