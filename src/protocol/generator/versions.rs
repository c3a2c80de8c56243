//! Ranges of versions as the schema writes them: `0+`, `3-12`, `7`, `none`.

use serde::{Deserialize, Deserializer};

/// The versions from `low` to `high`, both included; empty when `low > high`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Versions {
    pub(crate) low: i16,
    pub(crate) high: i16,
}

impl Versions {
    pub(crate) const NONE: Versions = Versions { low: 0, high: -1 };

    pub(crate) fn parse(text: &str) -> Option<Versions> {
        let text = text.trim();
        if text == "none" {
            return Some(Versions::NONE);
        }
        if let Some(low) = text.strip_suffix('+') {
            return Some(Versions { low: low.parse().ok()?, high: i16::MAX });
        }
        if let Some((low, high)) = text.split_once('-') {
            return Some(Versions { low: low.parse().ok()?, high: high.parse().ok()? });
        }
        let only = text.parse().ok()?;
        Some(Versions { low: only, high: only })
    }

    pub(crate) fn is_empty(self) -> bool {
        self.low > self.high
    }

    pub(crate) fn contains(self, version: i16) -> bool {
        self.low <= version && version <= self.high
    }

    pub(crate) fn intersect(self, other: Versions) -> Versions {
        Versions { low: self.low.max(other.low), high: self.high.min(other.high) }
    }

    /// A Rust expression that says whether `version`, which is known to be in `known`, is in this range.
    pub(crate) fn condition(self, known: Versions) -> String {
        let at_least = self.low > known.low;
        let at_most = self.high < known.high;
        match (at_least, at_most) {
            _ if self.intersect(known).is_empty() => "false".to_owned(),
            (false, false) => "true".to_owned(),
            (true, false) => format!("version >= {}", self.low),
            (false, true) => format!("version <= {}", self.high),
            (true, true) if self.low == self.high => format!("version == {}", self.low),
            (true, true) => format!("({}..={}).contains(&version)", self.low, self.high),
        }
    }

    /// As a reader of the documentation wants it: `3+`, `3-12`, `7`.
    pub(crate) fn text(self, known: Versions) -> String {
        let range = self.intersect(known);
        match range {
            _ if range.is_empty() => "none".to_owned(),
            Versions { low, high } if high == known.high => format!("{low}+"),
            Versions { low, high } if low == high => format!("{low}"),
            Versions { low, high } => format!("{low}-{high}"),
        }
    }
}

impl<'de> Deserialize<'de> for Versions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Versions, D::Error> {
        let text = String::deserialize(deserializer)?;
        Versions::parse(&text)
            .ok_or_else(|| serde::de::Error::custom(format!("{text:?} is no version range")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_become_conditions_only_where_they_cut() {
        let known = Versions::parse("0-12").unwrap();
        let condition = |text: &str| Versions::parse(text).unwrap().condition(known);
        assert_eq!(condition("0+"), "true");
        assert_eq!(condition("4+"), "version >= 4");
        assert_eq!(condition("0-3"), "version <= 3");
        assert_eq!(condition("7"), "version == 7");
        assert_eq!(condition("7-9"), "(7..=9).contains(&version)");
        assert_eq!(condition("13+"), "false");
        assert_eq!(condition("none"), "false");
        assert!(Versions::parse("x").is_none());
    }
}
