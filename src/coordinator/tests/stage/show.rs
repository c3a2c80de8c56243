//! Replies and records as one line of text. A member id `a-<uuid>` is shown as `a#7`: the tests draw the
//! same byte for a whole UUID.

use std::fmt::Write as _;

use bytes::Bytes;
use klamm_coordinator::group::{GroupRecord, GroupShard, Reply};
use klamm_model::ErrorCode;

/// `a#7` for the id that is made of the byte 7, and back.
pub(crate) fn long_member_id(short: &str) -> String {
    if short == "-" {
        return String::new();
    }
    let Some((prefix, number)) = short.split_once('#') else { return short.to_owned() };
    let number: u8 = number.parse().expect("a number");
    let (version, variant) = (number & 0x0f | 0x40, number & 0x3f | 0x80);
    let n = format!("{number:02x}");
    format!("{prefix}-{n}{n}{n}{n}-{n}{n}-{version:02x}{n}-{variant:02x}{n}-{n}{n}{n}{n}{n}{n}")
}

fn short_member_id(long: &str) -> String {
    if long.is_empty() {
        return "-".to_owned();
    }
    let at = long.len().checked_sub(37).filter(|at| long.as_bytes()[*at] == b'-');
    let number = at.and_then(|at| Some((at, u8::from_str_radix(long.get(at + 1..at + 3)?, 16).ok()?)));
    match number {
        Some((at, number)) => format!("{}#{number}", &long[..at]),
        None => long.to_owned(),
    }
}

/// The metadata of a consumer that reads one topic.
pub(crate) fn subscription(topic: &str) -> Bytes {
    let mut bytes = vec![0, 0, 0, 0, 0, 1, 0, topic.len() as u8];
    bytes.extend_from_slice(topic.as_bytes());
    bytes.into()
}

fn text(bytes: &[u8]) -> String {
    match bytes {
        [] => "-".to_owned(),
        [0, 0, 0, 0, 0, 1, 0, _, topic @ ..] => format!("+{}", String::from_utf8_lossy(topic)),
        bytes => String::from_utf8_lossy(bytes).into_owned(),
    }
}

fn error(code: i16) -> &'static str {
    ErrorCode::from_code(code).map_or("?", ErrorCode::name)
}

pub(crate) fn reply(reply: &Reply) -> String {
    let mut out = String::new();
    match reply {
        Reply::Refused(code) => write!(out, "refused {code}"),
        Reply::Join(reply) if reply.error_code != 0 => {
            write!(out, "join {} member {}", error(reply.error_code), short_member_id(&reply.member_id))
        }
        Reply::Join(reply) => {
            let members = reply.members.iter().map(|member| {
                let instance = member.group_instance_id.as_ref().map(|id| format!("({id})"));
                let (id, instance) = (short_member_id(&member.member_id), instance.unwrap_or_default());
                format!("{id}{instance}:{}", text(&member.metadata))
            });
            write!(
                out,
                "joined generation {} as {} leader {} {}/{}{} members [{}]",
                reply.generation_id,
                short_member_id(&reply.member_id),
                short_member_id(&reply.leader),
                reply.protocol_type.as_deref().unwrap_or("null"),
                reply.protocol_name.as_deref().unwrap_or("null"),
                if reply.skip_assignment { " skip assignment" } else { "" },
                members.collect::<Vec<_>>().join(" ")
            )
        }
        Reply::Sync(reply) if reply.error_code != 0 => write!(out, "sync {}", error(reply.error_code)),
        Reply::Sync(reply) => write!(
            out,
            "assigned {} {}/{}",
            text(&reply.assignment),
            reply.protocol_type.as_deref().unwrap_or("null"),
            reply.protocol_name.as_deref().unwrap_or("null")
        ),
        Reply::Heartbeat(reply) => write!(out, "heartbeat {}", error(reply.error_code)),
        Reply::Leave(reply) => {
            let members = reply.members.iter().map(|member| {
                let instance = member.group_instance_id.as_ref().map(|id| format!("({id})"));
                let (id, instance) = (short_member_id(&member.member_id), instance.unwrap_or_default());
                format!("{id}{instance} {}", error(member.error_code))
            });
            write!(out, "leave {} [{}]", error(reply.error_code), members.collect::<Vec<_>>().join(", "))
        }
        Reply::Commit(reply) => {
            let answers = reply.topics.iter().flat_map(|topic| {
                let answer = |p: &klamm_protocol::messages::offset_commit::OffsetCommitResponsePartition| {
                    format!("{}-{} {}", topic.name, p.partition_index, error(p.error_code))
                };
                topic.partitions.iter().map(answer)
            });
            write!(out, "commit {}", answers.collect::<Vec<_>>().join(", "))
        }
        Reply::Fetch(reply) => {
            let answers = reply.topics.iter().flat_map(|topic| {
                topic.partitions.iter().map(|partition| {
                    let metadata = partition.metadata.as_deref().filter(|text| !text.is_empty());
                    let metadata = metadata.map_or_else(String::new, |text| format!(" {text:?}"));
                    let failed = Some(partition.error_code).filter(|code| *code != 0);
                    let failed = failed.map_or_else(String::new, |code| format!(" {}", error(code)));
                    let (index, offset) = (partition.partition_index, partition.committed_offset);
                    format!("{}-{index}={offset}{metadata}{failed}", topic.name)
                })
            });
            write!(out, "offsets [{}]", answers.collect::<Vec<_>>().join(", "))
        }
        Reply::Describe(group) => {
            let members = group.members.iter().map(|member| {
                let instance = member.group_instance_id.as_ref().map(|id| format!("({id})"));
                let (id, instance) = (short_member_id(&member.member_id), instance.unwrap_or_default());
                let (metadata, assignment) = (text(&member.member_metadata), text(&member.member_assignment));
                format!("{id}{instance} of {} {metadata} has {assignment}", member.client_id)
            });
            write!(
                out,
                "group {} {} {}/{} [{}]",
                error(group.error_code),
                group.group_state,
                group.protocol_type,
                group.protocol_data,
                members.collect::<Vec<_>>().join(", ")
            )
        }
        Reply::List(groups) => {
            let groups = groups.iter().map(|group| {
                format!(
                    "{} {} {} {}",
                    group.group_id, group.protocol_type, group.group_state, group.group_type
                )
            });
            write!(out, "groups [{}]", groups.collect::<Vec<_>>().join(", "))
        }
        Reply::Delete(reply) => write!(out, "delete {}", error(reply.error_code)),
        Reply::DeleteOffsets(reply) => {
            let answers = reply.topics.iter().flat_map(|topic| {
                topic.partitions.iter().map(|partition| {
                    format!("{}-{} {}", topic.name, partition.partition_index, error(partition.error_code))
                })
            });
            let answers = answers.collect::<Vec<_>>().join(", ");
            write!(out, "offset-delete {} [{answers}]", error(reply.error_code))
        }
        Reply::TopicsDeleted => write!(out, "offsets of deleted topics are gone"),
        Reply::TransactionEnded => write!(out, "transaction ended"),
    }
    .expect("to memory");
    out
}

pub(crate) fn record(record: &GroupRecord) -> String {
    match record {
        GroupRecord::Group { group, value: None } => format!("group {group} is deleted"),
        GroupRecord::Group { group, value: Some(value) } => {
            let members = value.members.iter().map(|member| {
                let instance = member.group_instance_id.as_ref().map(|id| format!("({id})"));
                let (id, instance) = (short_member_id(&member.member_id), instance.unwrap_or_default());
                format!("{id}{instance} {} has {}", text(&member.subscription), text(&member.assignment))
            });
            format!(
                "group {group} generation {} {}/{} leader {} since {} [{}]",
                value.generation,
                value.protocol_type,
                value.protocol.as_deref().unwrap_or("null"),
                value.leader.as_deref().map_or_else(|| "null".to_owned(), short_member_id),
                value.current_state_timestamp,
                members.collect::<Vec<_>>().join(", ")
            )
        }
        GroupRecord::Offset { group, topic, partition, value: None } => {
            format!("offset {group} {topic}-{partition} is deleted")
        }
        GroupRecord::Offset { group, topic, partition, value: Some(value) } => {
            let expiry = value.expire_timestamp_ms.map(|at| format!(" expires at {at}")).unwrap_or_default();
            let metadata = Some(&value.metadata).filter(|text| !text.is_empty());
            let metadata = metadata.map(|text| format!(" {text:?}")).unwrap_or_default();
            let (offset, at) = (value.offset, value.commit_timestamp_ms);
            format!("offset {group} {topic}-{partition}={offset}{metadata} at {at}{expiry}")
        }
        GroupRecord::Foreign { group, exists } => format!("foreign {group} {exists}"),
    }
}

/// All that is persisted, as the machine knows it.
pub(crate) fn persisted(shard: &GroupShard) -> String {
    shard.persisted().iter().map(record).collect::<Vec<_>>().join("\n")
}
