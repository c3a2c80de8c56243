//! A regular expression that a transactional id must match as a whole (KIP-1152).

use regex_automata::meta::Regex;
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Hir, Look};

/// How much memory a compiled pattern may take, in bytes.
const COMPILED_BYTES_MAX: usize = 64 << 10;

/// How deep groups may be nested.
const NESTED_MAX: u32 = 100;

/// A pattern, which costs time in proportion to the ids that it looks at.
///
/// Its language is that of RE2, as in Kafka, with these differences: it knows bytes only, so that `.` and `[^a]` stand for one
/// byte of a letter that is not ASCII, and `\p{…}` is refused; comments (`(?x)`) and counts beyond 1000 are taken.
#[derive(Clone, Debug)]
pub struct IdPattern(Regex);

impl IdPattern {
    /// `None` if it is no regular expression, or one that would take too much memory.
    pub fn new(pattern: &str) -> Option<IdPattern> {
        let mut parser = ParserBuilder::new().unicode(false).utf8(false).nest_limit(NESTED_MAX).build();
        let whole =
            Hir::concat(vec![Hir::look(Look::Start), parser.parse(pattern).ok()?, Hir::look(Look::End)]);
        let config = Regex::config().utf8_empty(false).nfa_size_limit(Some(COMPILED_BYTES_MAX));
        Regex::builder().configure(config).build_from_hir(&whole).ok().map(IdPattern)
    }

    /// Whether the whole id matches.
    pub(super) fn matches(&self, id: &str) -> bool {
        self.0.is_match(id.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::IdPattern;

    fn matches(pattern: &str, id: &str) -> bool {
        IdPattern::new(pattern).unwrap_or_else(|| panic!("{pattern:?} is one")).matches(id)
    }

    #[test]
    fn a_pattern_matches_whole_ids() {
        assert!(matches("copy-.*", "copy-1") && matches("a|ab", "ab") && matches("(?i)COPY", "copy"));
        assert!(!matches("copy", "copy-1") && !matches("1", "copy-1") && !matches("a|b", "ab"));
        // A comment, or a line's end, must not take away what holds the pattern together.
        assert!(matches("(?x)copy # all", "copy") && !matches("(?x)copy # all", "copy-1"));
        assert!(!matches("(?m)a$", "a\nb") && !matches("(?m)^b", "a\nb"));
        // What may be left out is no lazy repetition.
        assert!(
            matches("app(?:[0-9]+)?", "app")
                && matches("app(?:[0-9]+)?", "app12")
                && matches("(?:a{2})?b", "b")
        );
        assert!(matches("é+", "éé") && matches(r"\w\d", "a1") && !matches(r"\d", "٣"));
    }

    #[test]
    fn what_is_no_pattern_or_too_large_is_refused() {
        for wrong in ["(", "a)(b", "[", "*", "a{2,1}", r"\q", r"\p{Greek}", "(?=a)", r"(a)\1"] {
            assert!(IdPattern::new(wrong).is_none(), "{wrong}");
        }
        for large in ["(a{1000}){1000}".to_owned(), "(".repeat(5000) + &")".repeat(5000)] {
            assert!(IdPattern::new(&large).is_none());
        }
    }
}
