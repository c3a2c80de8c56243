//! How the state of one partition changes: who leads it, who is in sync, and who may be elected safely
//! (KIP-497, KIP-841, KIP-966). Every decision of the controller about a partition that exists is made here.
//!
//! What becomes of leader, ISR and eligible leaders in each case was observed on Kafka 4.4.0.

use klamm_model::{NodeId, Uuid};
use klamm_protocol::records::cluster_metadata::PartitionChangeRecord;

use super::ControllerContext;
use super::features::ELIGIBLE_LEADERS_VERSION;
use super::reassignment::Assignment;
use crate::apply::LEADER_UNCHANGED;
use crate::image::{
    ConfigResource, DIRECTORY_MIGRATING, DIRECTORY_UNASSIGNED, Image, PartitionState, RecoveryState,
};
use crate::planted::{Planted, planted};

/// How many replicas must be in sync for a record to be acknowledged to a producer that wants all of them.
pub(super) const MIN_IN_SYNC_REPLICAS: &str = "min.insync.replicas";

/// Whether a replica may lead that lacks acknowledged records, when no other is left.
pub(super) const UNCLEAN_ELECTION: &str = "unclean.leader.election.enable";

/// How far an election may go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Election {
    /// The preferred leader takes over if it may; else what leads goes on.
    Preferred,
    /// What leads goes on if it may; else another of the ISR, or an eligible leader.
    Online,
    /// As online; if nobody is left, any replica that is alive, whatever it lacks.
    Unclean,
}

/// What elections of a topic's partitions go by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ElectionRules {
    /// `min.insync.replicas`.
    pub(super) in_sync_replicas_min: usize,
    /// `unclean.leader.election.enable`.
    pub(super) allows_unclean: bool,
    /// Whether `eligible.leader.replicas.version` is at 1.
    pub(super) eligible_leaders: bool,
}

impl ElectionRules {
    /// What is in force for a topic.
    pub(super) fn of(image: &Image, context: &ControllerContext<'_>, topic: &str) -> ElectionRules {
        let (own, cluster) = (image.topic_config(topic), image.config_of(&ConfigResource::Broker(None)));
        let setting = |key| context.rules.topic_setting(key, &own, &cluster);
        ElectionRules {
            in_sync_replicas_min: setting(MIN_IN_SYNC_REPLICAS)
                .and_then(|text| text.parse().ok())
                .unwrap_or(1),
            allows_unclean: setting(UNCLEAN_ELECTION).is_some_and(|text| text == "true"),
            eligible_leaders: image.feature(ELIGIBLE_LEADERS_VERSION) > 0,
        }
    }

    /// The election that a partition gets without being asked for.
    pub(super) fn election(&self) -> Election {
        if self.allows_unclean { Election::Unclean } else { Election::Online }
    }
}

/// Who may lead. The image does not know yet what the decision under way does to a broker.
#[derive(Clone, Copy, Default)]
pub(super) struct Candidates {
    /// A broker that is unfenced by this decision.
    pub(super) arriving: Option<NodeId>,
    /// A broker that leaves with this decision.
    pub(super) leaving: Option<NodeId>,
    /// A broker that comes back after an unclean stop: what it had acknowledged may be gone.
    pub(super) unclean: Option<NodeId>,
}

impl Candidates {
    fn accept(&self, image: &Image, id: NodeId, directory: Uuid, planted: Planted) -> bool {
        if self.leaving == Some(id) || self.unclean == Some(id) {
            return false;
        }
        let Some(broker) = image.brokers.get(&id) else { return false };
        let is_alive = self.arriving == Some(id) || broker.is_active() || planted!(planted, ElectFenced);
        is_alive && broker.has_directory(directory)
    }
}

/// The log directory of a new replica: a broker with one has no choice; with several, it says later where it
/// put the replica.
pub(super) fn default_directory(image: &Image, id: NodeId) -> Uuid {
    match image.brokers.get(&id).map(|broker| &broker.directories[..]) {
        Some([only]) => *only,
        Some([]) => DIRECTORY_MIGRATING,
        _ => DIRECTORY_UNASSIGNED,
    }
}

/// What is wanted of a partition. [`PartitionTarget::plan`] makes of it what is allowed.
pub(super) struct PartitionTarget<'a> {
    image: &'a Image,
    state: &'a PartitionState,
    rules: ElectionRules,
    pub(super) candidates: Candidates,
    pub(super) election: Election,
    pub(super) isr: Vec<NodeId>,
    pub(super) assignment: Assignment,
    pub(super) recovery: RecoveryState,
    pub(super) directories: Vec<(NodeId, Uuid)>,
    eligible: Vec<NodeId>,
    planted: Planted,
}

/// A leader that was found.
struct Elected {
    leader: Option<NodeId>,
    is_unclean: bool,
}

impl<'a> PartitionTarget<'a> {
    /// Nothing but an election where one is needed.
    pub(super) fn new(
        image: &'a Image,
        context: &ControllerContext<'_>,
        state: &'a PartitionState,
        rules: ElectionRules,
    ) -> Self {
        PartitionTarget {
            image,
            planted: context.planted,
            state,
            rules,
            candidates: Candidates::default(),
            election: rules.election(),
            isr: state.isr.clone(),
            assignment: Assignment::of(state),
            recovery: state.recovery,
            directories: Vec::new(),
            eligible: state.eligible_leaders.clone(),
        }
    }

    /// Whether the topic lets a replica lead that may lack acknowledged records.
    pub(super) fn allows_unclean(&self) -> bool {
        self.rules.allows_unclean
    }

    /// The record that brings the partition as close to the target as the rules allow; nothing if it is there.
    /// Topic and partition are for the caller to fill in.
    pub(super) fn plan(mut self) -> Option<PartitionChangeRecord> {
        let mut record = PartitionChangeRecord::default();
        self.assignment.complete(&mut self.isr);
        self.find_eligible();
        self.elect(&mut record);
        let is_unclean = record.isr.is_some();
        if is_unclean || !self.rules.eligible_leaders {
            self.eligible.clear();
        }
        if !same(&self.eligible, &self.state.eligible_leaders) {
            record.eligible_leader_replicas = Some(ids(&self.eligible));
        }
        // Without eligible leaders the last member of an ISR stays in it, since nobody else is safe to elect.
        let may_be_set = !self.isr.is_empty() || self.rules.eligible_leaders;
        if !is_unclean && may_be_set && self.isr != self.state.isr {
            record.isr = Some(ids(&self.isr));
        }
        self.end_epoch_of_removed(&mut record);
        self.set_assignment(&mut record);
        if self.recovery != self.state.recovery && record.leader_recovery_state < 0 {
            record.leader_recovery_state = i8::from(self.recovery == RecoveryState::Recovering);
        }
        self.note_last_leader(&mut record);
        (!changes_nothing(&record)).then_some(record)
    }

    /// While fewer are in sync than `min.insync.replicas`, nothing new is acknowledged; so whoever left the ISR
    /// since then has all that is, unless it stopped uncleanly.
    fn find_eligible(&mut self) {
        if !self.rules.eligible_leaders {
            return;
        }
        if self.isr.len() >= self.in_sync_replicas_min() {
            self.eligible.clear();
            return;
        }
        let unclean = self.candidates.unclean.filter(|_| !planted!(self.planted, KeepUncleanEligible));
        let mut eligible = std::mem::take(&mut self.eligible);
        eligible.extend(&self.state.isr);
        eligible.retain(|id| {
            !self.isr.contains(id) && unclean != Some(*id) && self.assignment.replicas.contains(id)
        });
        eligible.sort();
        eligible.dedup();
        self.eligible = eligible;
    }

    /// `min.insync.replicas`, but never more than there are replicas.
    fn in_sync_replicas_min(&self) -> usize {
        self.rules.in_sync_replicas_min.min(self.assignment.replicas.len())
    }

    fn elect(&mut self, record: &mut PartitionChangeRecord) {
        let elected = match self.election {
            Election::Preferred => self.preferred(),
            Election::Online | Election::Unclean => self.any(),
        };
        if elected.leader == self.state.leader {
            return;
        }
        record.leader = elected.leader.map_or(-1, |leader| leader.0);
        let Some(leader) = elected.leader else { return };
        if elected.is_unclean {
            // What the others have beyond this leader is lost, so they must not be taken for in sync.
            record.isr = Some(vec![leader.0]);
            if self.state.recovery != RecoveryState::Recovering {
                record.leader_recovery_state = 1;
            }
        } else if self.eligible.contains(&leader) {
            self.isr = vec![leader];
            self.eligible.retain(|id| *id != leader);
            if self.isr.len() >= self.in_sync_replicas_min() {
                self.eligible.clear();
            }
        }
    }

    fn preferred(&self) -> Elected {
        let replicas = &self.assignment.replicas;
        let first = replicas.first().copied().filter(|id| self.is_valid(*id));
        let present = self.state.leader.filter(|id| self.is_valid(*id));
        let other = || replicas.iter().copied().find(|id| self.is_valid(*id));
        match first.or(present).or_else(other) {
            Some(leader) => Elected { leader: Some(leader), is_unclean: false },
            None => self.last_known(),
        }
    }

    fn any(&self) -> Elected {
        let present = self.state.leader.filter(|id| self.is_valid(*id));
        let other = || self.assignment.replicas.iter().copied().find(|id| self.is_valid(*id));
        if let Some(leader) = present.or_else(other) {
            return Elected { leader: Some(leader), is_unclean: false };
        }
        let last = self.last_known();
        if last.leader.is_some() || self.election != Election::Unclean {
            return last;
        }
        let leader = self.assignment.replicas.iter().copied().find(|id| self.is_acceptable(*id));
        Elected { leader, is_unclean: true }
    }

    /// The last leader may go on when all who were safer stopped uncleanly too: nobody has more than it.
    fn last_known(&self) -> Elected {
        let nobody = Elected { leader: None, is_unclean: false };
        if !self.rules.eligible_leaders || !self.isr.is_empty() || !self.eligible.is_empty() {
            return nobody;
        }
        match self.state.last_known_eligible_leaders[..] {
            [last] if self.assignment.replicas.contains(&last) && self.is_acceptable(last) => {
                Elected { leader: Some(last), is_unclean: true }
            }
            _ => nobody,
        }
    }

    /// Whether a replica has all that was acknowledged, and may lead.
    fn is_valid(&self, id: NodeId) -> bool {
        let is_eligible = self.rules.eligible_leaders && self.isr.is_empty() && self.eligible.contains(&id);
        let has_all = self.isr.contains(&id) || is_eligible || planted!(self.planted, ElectOutsideIsr);
        has_all && self.is_acceptable(id)
    }

    fn is_acceptable(&self, id: NodeId) -> bool {
        self.candidates.accept(self.image, id, self.directory_of(id), self.planted)
    }

    /// A replica that is taken away must not go on fetching and count as one, so the leader's epoch ends too.
    fn end_epoch_of_removed(&self, record: &mut PartitionChangeRecord) {
        let keeps_all = self.state.replicas.iter().all(|id| self.assignment.replicas.contains(id));
        if record.leader == LEADER_UNCHANGED && !keeps_all {
            record.leader = self.state.leader.map_or(-1, |leader| leader.0);
        }
    }

    fn set_assignment(&self, record: &mut PartitionChangeRecord) {
        let Assignment { replicas, removing, adding } = &self.assignment;
        if *replicas != self.state.replicas {
            record.replicas = Some(ids(replicas));
        }
        if *removing != self.state.removing {
            record.removing_replicas = Some(ids(removing));
        }
        if *adding != self.state.adding {
            record.adding_replicas = Some(ids(adding));
        }
        let directories: Vec<Uuid> = replicas.iter().map(|id| self.directory_of(*id)).collect();
        if directories != self.state.directories {
            record.directories = Some(directories);
        }
    }

    fn directory_of(&self, id: NodeId) -> Uuid {
        let told = self.directories.iter().find(|(replica, _)| *replica == id);
        match told {
            Some((_, directory)) => *directory,
            None if self.state.replicas.contains(&id) => self.state.directory_of(id),
            None => default_directory(self.image, id),
        }
    }

    /// Remembers who led when the partition lost its last leader, until it has one again.
    fn note_last_leader(&self, record: &mut PartitionChangeRecord) {
        if !self.rules.eligible_leaders {
            return;
        }
        let known = &self.state.last_known_eligible_leaders;
        let is_emptied = record.isr.as_ref().is_some_and(Vec::is_empty);
        let has_leader =
            record.leader >= 0 || record.leader == LEADER_UNCHANGED && self.state.leader.is_some();
        // A member that stayed in the ISR when it was the last one led last.
        let last = self.state.leader.or(self.state.isr.first().copied());
        if let Some(last) = last.filter(|last| is_emptied && known[..] != [*last]) {
            record.last_known_elr = Some(vec![last.0]);
        } else if has_leader && !known.is_empty() {
            record.last_known_elr = Some(Vec::new());
        }
    }
}

fn same(one: &[NodeId], other: &[NodeId]) -> bool {
    one.len() == other.len() && one.iter().all(|id| other.contains(id))
}

fn changes_nothing(record: &PartitionChangeRecord) -> bool {
    let untouched = PartitionChangeRecord::default();
    *record == untouched
}

pub(super) fn ids(nodes: &[NodeId]) -> Vec<i32> {
    nodes.iter().map(|node| node.0).collect()
}
