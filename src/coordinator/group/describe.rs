//! DescribeGroups, ListGroups and DeleteGroups.

use bytes::Bytes;
use klamm_model::ErrorCode;
use klamm_protocol::messages::delete_groups::DeletableGroupResult;
use klamm_protocol::messages::describe_groups::{DescribedGroup, DescribedGroupMember};
use klamm_protocol::messages::list_groups::ListedGroup;

use super::GroupShard;
use super::classic::{Group, Member, State};
use super::message::{Effects, Reply, Then, Ticket};
use super::record::GroupRecord;

/// The first version of DescribeGroups that can say that there is no such group (KIP-1043).
const FIRST_VERSION_WITH_NOT_FOUND: i16 = 6;

/// The type of all groups here, as ListGroups names it.
const CLASSIC: &str = "classic";

/// The state of a group of which not all can be read, as Kafka's tools show one that they cannot tell.
const UNKNOWN: &str = "Unknown";

impl GroupShard {
    fn state_name(&self, group: &Group) -> &'static str {
        if self.unreadable.has(&group.id) { UNKNOWN } else { group.state.name() }
    }

    pub(super) fn describe(&self, version: i16, id: &str) -> DescribedGroup {
        let Some(group) = self.groups.get(id) else {
            let is_told = version >= FIRST_VERSION_WITH_NOT_FOUND;
            let error = if is_told { ErrorCode::GroupIdNotFound } else { ErrorCode::None };
            return DescribedGroup {
                error_code: error.code(),
                error_message: is_told.then(|| format!("Group {id} not found.")),
                group_id: id.to_owned(),
                group_state: "Dead".to_owned(),
                ..DescribedGroup::default()
            };
        };
        let protocol = Some(group).filter(|group| group.state == State::Stable);
        let protocol = protocol.and_then(|group| group.protocol.as_deref());
        DescribedGroup {
            group_id: id.to_owned(),
            group_state: self.state_name(group).to_owned(),
            protocol_type: group.protocol_type.clone().unwrap_or_default(),
            protocol_data: protocol.unwrap_or_default().to_owned(),
            members: group.members().map(|member| describe_member(member, protocol)).collect(),
            ..DescribedGroup::default()
        }
    }

    pub(super) fn list(&self, states: &[String], types: &[String]) -> Vec<ListedGroup> {
        if !types.is_empty() && !types.iter().any(|kind| kind.eq_ignore_ascii_case(CLASSIC)) {
            return Vec::new();
        }
        let is_asked = |group: &&Group| {
            states.is_empty() || states.iter().any(|state| state.eq_ignore_ascii_case(self.state_name(group)))
        };
        let served = self.groups.iter().filter(|(id, _)| !self.foreign.contains_key(*id));
        let listed = |group: &Group| ListedGroup {
            group_id: group.id.to_string(),
            protocol_type: group.protocol_type.clone().unwrap_or_default(),
            group_state: self.state_name(group).to_owned(),
            group_type: CLASSIC.to_owned(),
        };
        served.map(|(_, group)| group).filter(is_asked).map(listed).collect()
    }

    pub(super) fn delete(&mut self, ticket: Ticket, id: &str) -> Effects {
        let result = |error: ErrorCode, message: Option<String>| {
            Reply::Delete(DeletableGroupResult {
                group_id: id.to_owned(),
                error_code: error.code(),
                error_message: message,
            })
        };
        let Some(group) = self.groups.get(id) else {
            let message = format!("Group {id} not found.");
            return Effects::reply(ticket, result(ErrorCode::GroupIdNotFound, Some(message)));
        };
        if group.state != State::Empty {
            let message = format!("The group is {}: it has members.", group.state.name());
            return Effects::reply(ticket, result(ErrorCode::NonEmptyGroup, Some(message)));
        }
        let mut records = self.all_offset_tombstones(group);
        records.push(GroupRecord::Group { group: group.id.clone(), value: None });
        Effects::write(records, Then::Reply { ticket, reply: result(ErrorCode::None, None) })
    }

    fn all_offset_tombstones(&self, group: &Group) -> Vec<GroupRecord> {
        let mut places = std::collections::BTreeSet::new();
        for (topic, partitions) in self.offsets.of_group(&group.id) {
            places.extend(partitions.map(|(partition, _)| (topic.clone(), partition)));
        }
        places.extend(self.pending.places_of(&group.id).map(|place| (place.1.clone(), place.2)));
        places.extend(self.unreadable.keys_of(&group.id).filter_map(|key| key.place.clone()));
        let tombstone = |(topic, partition)| GroupRecord::Offset {
            group: group.id.clone(),
            topic,
            partition,
            value: None,
        };
        places.into_iter().map(tombstone).collect()
    }
}

/// A member; what it offers and was given is shown only while that is settled.
fn describe_member(member: &Member, protocol: Option<&str>) -> DescribedGroupMember {
    DescribedGroupMember {
        member_id: member.id.to_string(),
        group_instance_id: member.instance_id.as_deref().map(str::to_owned),
        client_id: member.client_id.clone(),
        client_host: member.client_host.clone(),
        member_metadata: protocol.map_or_else(Bytes::new, |protocol| member.metadata(protocol)),
        member_assignment: protocol.map_or_else(Bytes::new, |_| member.assignment.clone()),
    }
}
