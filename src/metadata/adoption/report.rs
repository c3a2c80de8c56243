//! What was taken over, in lines for whoever starts the node.

use std::collections::BTreeMap;

use super::folders::Folders;
use super::quorum_log::QuorumLog;
use crate::image::{ConfigResource, Image};

/// Lines of what is there, and of what has to be known about it.
type Report = (Vec<String>, Vec<String>);

/// The report on a directory of KRaft.
pub(super) fn kraft(image: &Image, log: &QuorumLog, folders: &Folders) -> Report {
    let mut lines = vec![format!(
        "Apache Kafka's metadata up to offset {} was read: cluster {}, metadata.version {}",
        log.end_offset,
        image.cluster_id,
        image.feature("metadata.version")
    )];
    lines.extend(contents(image, folders));
    lines.push(kept(image));
    let mut warnings = unknown_folders(image, folders);
    let entries = image.kept.access_control_entries.len();
    if entries > 0 {
        warnings.push(format!(
            "{entries} access control entries are kept and NOT ENFORCED: whoever reaches a listener can read and write \
             everything"
        ));
    }
    let is_of_address = |entity: &&crate::QuotaEntity| entity.iter().any(|(kind, _)| kind == "ip");
    let addresses = image.kept.client_quotas.keys().filter(is_of_address).count();
    if addresses > 0 {
        warnings.push(format!(
            "limits on the connections of {addresses} addresses are kept and not enforced yet \
             (connection_creation_rate)"
        ));
    }
    if !image.kept.scram_credentials.is_empty() {
        let count = image.kept.scram_credentials.len();
        warnings.push(format!("{count} SCRAM passwords are kept; this version of Klamm has no SASL yet"));
    }
    if !image.kept.delegation_tokens.is_empty() {
        let count = image.kept.delegation_tokens.len();
        warnings.push(format!("{count} delegation tokens are kept and cannot be used yet"));
    }
    (lines, warnings)
}

/// Topics, partitions, bytes and formats.
pub(super) fn contents(image: &Image, folders: &Folders) -> Vec<String> {
    let partitions: usize = image.topics.values().map(|topic| topic.partitions.len()).sum();
    let formats: Vec<String> = folders.formats.iter().map(|magic| format!("V{magic}")).collect();
    let formats = if formats.is_empty() { "none yet".to_owned() } else { formats.join(", ") };
    vec![
        format!(
            "topics: {}, partitions: {partitions}, in folders of {} bytes; message formats: {formats}",
            image.topics.len(),
            folders.bytes
        ),
        format!("settings: {}; next producer id: {}", settings(image), image.next_producer_id),
    ]
}

fn settings(image: &Image) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (resource, configs) in &image.configs {
        let kind = match resource {
            ConfigResource::Topic(_) => "of topics",
            ConfigResource::Broker(_) => "of brokers",
            ConfigResource::ClientMetrics(_) => "of client metrics",
            ConfigResource::Group(_) => "of groups",
        };
        *counts.entry(kind).or_default() += configs.len();
    }
    let counts: Vec<String> = counts.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    if counts.is_empty() { "none".to_owned() } else { counts.join(", ") }
}

fn kept(image: &Image) -> String {
    let kept = &image.kept;
    format!(
        "kept: {} SCRAM passwords, {} access control entries, quotas of {} entities, {} delegation tokens",
        kept.scram_credentials.len(),
        kept.access_control_entries.len(),
        kept.client_quotas.len(),
        kept.delegation_tokens.len()
    )
}

/// A line for each folder that no topic needs.
pub(super) fn unknown_folders(image: &Image, folders: &Folders) -> Vec<String> {
    let line = |path: &std::path::Path| {
        format!("{} belongs to no topic of the metadata; it is kept, but not served", path.display())
    };
    folders.unknown_to(image).iter().map(|folder| line(&folder.path)).collect()
}
