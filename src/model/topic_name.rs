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

/// Says what is wrong with a name, or nothing.
pub fn validate(name: &str) -> Result<(), String> {
    if name.is_empty() {
        return Err("A topic needs a name, and this one is empty".to_owned());
    }
    if name == "." || name == ".." {
        return Err(format!("A topic cannot be called '{name}', which names a folder"));
    }
    if name.len() > LENGTH_MAX {
        let (found, shown) = (name.chars().count(), name.chars().take(40).collect::<String>());
        return Err(format!("The topic name '{shown}…' has {found} letters; {LENGTH_MAX} is the most"));
    }
    match name.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))) {
        Some(letter) => Err(format!(
            "The topic name '{name}' holds {letter:?}; ASCII letters, digits, '.', '_' and '-' are allowed"
        )),
        None => Ok(()),
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
