//! Which names a topic may have: 1 to 249 letters of `[a-zA-Z0-9._-]`, neither `.` nor `..`.

/// The longest name, in letters: `<name>-<partition>` and a suffix for deletion must fit a file name.
pub const LENGTH_MAX: usize = 249;

/// The topic that holds committed offsets and group metadata.
pub const GROUP_METADATA: &str = "__consumer_offsets";
/// The topic that holds the state of transactions.
pub const TRANSACTION_STATE: &str = "__transaction_state";
/// The topic that holds the state of share groups.
pub const SHARE_GROUP_STATE: &str = "__share_group_state";

/// Whether the brokers own this topic, so that clients may read but not write or delete it lightly.
pub fn is_internal(name: &str) -> bool {
    matches!(name, GROUP_METADATA | TRANSACTION_STATE | SHARE_GROUP_STATE)
}

/// Says in Kafka's words what is wrong with a name, or nothing.
pub fn validate(name: &str) -> Result<(), String> {
    if name.is_empty() {
        return Err("Topic name is invalid: the empty string is not allowed".to_owned());
    }
    if name == "." || name == ".." {
        return Err(format!("Topic name is invalid: '{name}' is not allowed"));
    }
    if name.len() > LENGTH_MAX {
        return Err(format!(
            "Topic name is invalid: the length of '{name}' is longer than the max allowed length {LENGTH_MAX}"
        ));
    }
    if name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')) {
        Ok(())
    } else {
        Err(format!(
            "Topic name is invalid: '{name}' contains one or more characters other than ASCII alphanumerics, \
             '.', '_' and '-'"
        ))
    }
}

/// Whether two different names would give the same metric name, since `.` and `_` are the same there. Kafka
/// refuses to create the second.
pub fn collides(one: &str, other: &str) -> bool {
    one != other && one.len() == other.len() && one.replace('.', "_") == other.replace('.', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_judged_as_kafka_judges_them() {
        for good in ["a", "a.b_c-D9", "__consumer_offsets", &"x".repeat(249)] {
            assert_eq!(validate(good), Ok(()), "{good}");
        }
        for bad in ["", ".", "..", "a b", "a/b", "ä", "a\0", &"x".repeat(250)] {
            assert!(validate(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn dots_and_underscores_collide() {
        assert!(collides("a.b", "a_b"));
        assert!(!collides("a.b", "a.b"));
        assert!(!collides("a.b", "a-b"));
    }
}
