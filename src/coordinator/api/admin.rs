//! DescribeGroups, ListGroups and DeleteGroups.

use std::collections::BTreeSet;

use klamm_model::ErrorCode;
use klamm_protocol::messages::delete_groups::{
    DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse,
};
use klamm_protocol::messages::describe_groups::{
    DescribeGroupsRequest, DescribeGroupsResponse, DescribedGroup, DescribedGroupMember,
};
use klamm_protocol::messages::list_groups::{ListGroupsRequest, ListGroupsResponse};

use super::repeats::Repeats;
use super::{error_of, incomplete};
use crate::coordinator::{Client, GroupCoordinator};
use crate::group::{Reply, Request};

impl GroupCoordinator {
    /// DescribeGroups. What the client may do with each group is for the caller to add.
    pub async fn describe_groups(
        &self,
        client: &Client,
        request: DescribeGroupsRequest,
    ) -> DescribeGroupsResponse {
        let mut response = DescribeGroupsResponse::default();
        let mut repeats = Repeats::default();
        for group in request.groups {
            let described = self.describe_group(client.api_version, group.clone());
            response.groups.extend(repeats.answer(group, described, bytes_of).await);
        }
        response
    }

    async fn describe_group(&self, version: i16, group: String) -> DescribedGroup {
        match self.ask(&group, Request::Describe { version, group: group.clone() }).await {
            Reply::Describe(described) => described,
            other => DescribedGroup {
                error_code: error_of(&other).code(),
                group_id: group,
                ..DescribedGroup::default()
            },
        }
    }

    /// ListGroups: the groups whose coordinator is this node, by name; nothing but an error while it does not know
    /// all of them.
    pub async fn list_groups(&self, _client: &Client, request: ListGroupsRequest) -> ListGroupsResponse {
        let (states, types) = (request.states_filter, request.types_filter);
        let list = || Request::List { states: states.clone(), types: types.clone() };
        let replies = match self.mailboxes.ask_all(list).await {
            Ok(replies) => replies,
            Err(error) => return no_groups(error),
        };
        let mut response = ListGroupsResponse::default();
        for reply in replies {
            match reply {
                Reply::List(groups) => response.groups.extend(groups),
                other => return no_groups(incomplete(error_of(&other))),
            }
        }
        response.groups.sort_by(|a, b| a.group_id.cmp(&b.group_id));
        response
    }

    /// DeleteGroups. Only a group without members goes. A group that is named twice is answered once.
    pub async fn delete_groups(
        &self,
        _client: &Client,
        request: DeleteGroupsRequest,
    ) -> DeleteGroupsResponse {
        let mut response = DeleteGroupsResponse::default();
        let mut named = BTreeSet::new();
        for group in request.groups_names {
            if !named.insert(group.clone()) {
                continue;
            }
            let reply = self.ask(&group, Request::Delete { group: group.clone() }).await;
            response.results.push(match reply {
                Reply::Delete(result) => result,
                other => DeletableGroupResult {
                    error_code: error_of(&other).code(),
                    group_id: group,
                    ..DeletableGroupResult::default()
                },
            });
        }
        response
    }
}

fn no_groups(error: ErrorCode) -> ListGroupsResponse {
    ListGroupsResponse { error_code: error.code(), ..ListGroupsResponse::default() }
}

fn bytes_of(group: &DescribedGroup) -> usize {
    let member = |member: &DescribedGroupMember| {
        let strings = member.member_id.len() + member.client_id.len() + member.client_host.len();
        size_of::<DescribedGroupMember>()
            + strings
            + member.member_metadata.len()
            + member.member_assignment.len()
    };
    size_of::<DescribedGroup>() + group.group_id.len() + group.members.iter().map(member).sum::<usize>()
}
