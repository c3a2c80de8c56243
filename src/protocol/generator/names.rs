//! From the schema's names to Rust's.

const KEYWORDS: [&str; 4] = ["type", "match", "ref", "move"];

/// `TopicId` and `topicId` become `topic_id`. A run of capitals is one word, and so is KRaft.
pub(crate) fn field(name: &str) -> String {
    let name = name.replace("KRaft", "Kraft");
    let letters: Vec<char> = name.chars().collect();
    let mut snake = String::new();
    for (index, letter) in letters.iter().enumerate() {
        let after_small = index > 0 && !letters[index - 1].is_uppercase();
        let before_small = index > 0 && letters.get(index + 1).is_some_and(|l| l.is_lowercase());
        if letter.is_uppercase() && (after_small || before_small) {
            snake.push('_');
        }
        snake.extend(letter.to_lowercase());
    }
    if KEYWORDS.contains(&snake.as_str()) { format!("r#{snake}") } else { snake }
}

/// `001-fetch` becomes `fetch`, `offset-commit-key` becomes `offset_commit_key`.
pub(crate) fn module(stem: &str) -> String {
    stem.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start_matches('-').replace('-', "_")
}

/// The name of a field in the JSON view, as Kafka's own request log writes it: `TopicId` becomes `topicId`.
pub(crate) fn json(name: &str) -> String {
    let mut letters = name.chars();
    letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_rust() {
        assert_eq!(field("TopicId"), "topic_id");
        assert_eq!(field("currentStateTimestamp"), "current_state_timestamp");
        assert_eq!(field("KRaftVersion"), "kraft_version");
        assert_eq!(field("SupportedISRSize"), "supported_isr_size");
        assert_eq!(field("Type"), "r#type");
        assert_eq!(module("001-fetch"), "fetch");
        assert_eq!(module("k-raft-version-record"), "k_raft_version_record");
        assert_eq!(json("TopicId"), "topicId");
    }
}
