//! Versions of Apache Kafka as `message.format.version` and `inter.broker.protocol.version` name them.
//!
//! A version is a release, `0.10.2` or `2.8`, or one of its steps, `2.8-IV1`. What follows the release, as in
//! `2.8.2`, says nothing more, so it may be anything. The releases and steps are those that Kafka 3.9.1 knows, the
//! last one with these keys.

/// Each release with the number of its named steps, oldest first.
const RELEASES: &[(&str, u32)] = &[
    ("0.8.0", 0),
    ("0.8.1", 0),
    ("0.8.2", 0),
    ("0.9.0", 0),
    ("0.10.0", 2),
    ("0.10.1", 3),
    ("0.10.2", 1),
    ("0.11.0", 3),
    ("1.0", 1),
    ("1.1", 1),
    ("2.0", 2),
    ("2.1", 3),
    ("2.2", 2),
    ("2.3", 2),
    ("2.4", 2),
    ("2.5", 1),
    ("2.6", 1),
    ("2.7", 3),
    ("2.8", 2),
    ("3.0", 2),
    ("3.1", 1),
    ("3.2", 1),
    ("3.3", 4),
    ("3.4", 1),
    ("3.5", 3),
    ("3.6", 3),
    ("3.7", 5),
    ("3.8", 1),
    ("3.9", 1),
];

/// Format V1 came with 0.10.0 (KIP-31, KIP-32), V2 with 0.11.0 (KIP-98).
const V1_SINCE: &str = "0.10.0";
const V2_SINCE: &str = "0.11.0";

/// The message format that a version of Kafka writes, as its magic number: 0, 1 or 2. `None` for what is no
/// version.
pub(crate) fn magic_of(version: &str) -> Option<i8> {
    let at = position(version)?;
    let since = |release: &str| position(release).is_some_and(|first| at >= first);
    Some(if since(V2_SINCE) {
        2
    } else if since(V1_SINCE) {
        1
    } else {
        0
    })
}

/// Where the release stands in the table.
fn position(version: &str) -> Option<usize> {
    let significant = if version.starts_with("0.") { 3 } else { 2 };
    let end = version.match_indices('.').nth(significant - 1).map_or(version.len(), |(at, _)| at);
    let version = &version[..end];
    let (release, step) = match version.split_once("-IV") {
        Some((release, step)) => (release, Some(step)),
        None => (version, None),
    };
    let at = RELEASES.iter().position(|(known, _)| *known == release)?;
    let is_known_step = |step: &str| (0..RELEASES[at].1).any(|known| known.to_string() == step);
    step.is_none_or(is_known_step).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Kafka 3.9.1 answers to each of these. A version that is read as another one would store records in a
    /// format that the clients of the topic cannot read.
    #[test]
    fn versions_are_read_as_kafka_reads_them() {
        for (magic, versions) in [
            (Some(0), "0.8.0 0.8.1 0.8.2 0.8.2.2 0.9.0 0.9.0.1"),
            (Some(1), "0.10.0 0.10.0-IV0 0.10.0-IV1 0.10.0.1 0.10.1 0.10.2 0.10.2-IV0"),
            (
                Some(2),
                "0.11.0 0.11.0-IV2 0.11.0.3 1.0 1.0.0 1.0-IV0 1.1 2.0 2.0-IV1 2.1 2.2 2.3 2.4 2.5 2.6 2.7",
            ),
            (Some(2), "2.8 2.8.2 2.8-IV1 2.8.x 2.8-IV1.3 3.0 3.0-IV1 3.0.1 3.1 3.9 3.9.1 3.9-IV0"),
            (
                None,
                "0.9 0.10.0-IV2 0.11 2.8-IV9 2.8-IV 2.8-IV01 4.0 4.0-IV3 4.1 9.9 2 2. .2 0.8 0.7.0 1.5 v2.8",
            ),
        ] {
            for version in versions.split(' ') {
                assert_eq!(magic_of(version), magic, "{version}");
            }
        }
        assert_eq!(magic_of(""), None);
    }
}
