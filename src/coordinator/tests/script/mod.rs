//! Running scripts: commands in, golden text out.

use std::fmt::Write as _;
use std::path::Path;

/// What a script plays on.
pub(crate) trait Play {
    /// An empty stage.
    fn new() -> Self;

    /// Runs one command; returns what happened, in lines.
    fn run(&mut self, line: &str) -> Vec<String>;
}

/// Runs the scripts of a file; returns the file as it should be.
fn run_all<P: Play>(content: &str) -> String {
    let mut out = String::new();
    let mut stage = P::new();
    for line in content.lines() {
        if line.starts_with("  ") {
            continue;
        }
        writeln!(out, "{line}").expect("to memory");
        if line.starts_with("==") {
            stage = P::new();
        } else if !line.is_empty() && !line.starts_with('#') {
            for answer in stage.run(line) {
                writeln!(out, "  {answer}").expect("to memory");
            }
        }
    }
    out
}

/// Runs the scripts of a file in a folder beside this, and compares; or writes the file anew.
pub(crate) fn check<P: Play>(folder: &str, name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder).join(name);
    let expected = std::fs::read_to_string(&path).expect("a script");
    let found = run_all::<P>(&expected);
    if std::env::var_os("KLAMM_UPDATE").is_some() {
        std::fs::write(&path, found).expect("to write");
        return;
    }
    for (number, (expected, found)) in expected.lines().zip(found.lines()).enumerate() {
        assert_eq!(expected, found, "{name}, line {}", number + 1);
    }
    assert_eq!(expected.lines().count(), found.lines().count(), "{name} is longer or shorter");
}

/// A command's words: `name positional… key=value…`.
pub(crate) struct Words<'a> {
    pub(crate) plain: Vec<&'a str>,
    pub(crate) named: std::collections::BTreeMap<&'a str, &'a str>,
}

impl<'a> Words<'a> {
    pub(crate) fn of(line: &'a str) -> Words<'a> {
        let (mut plain, mut named) = (Vec::new(), std::collections::BTreeMap::new());
        for word in line.split_whitespace() {
            match word.split_once('=') {
                Some((key, value)) if key.chars().all(|c| c.is_ascii_lowercase() || c == '_') => {
                    named.insert(key, value);
                }
                _ => plain.push(word),
            }
        }
        Words { plain, named }
    }

    pub(crate) fn text(&self, key: &str) -> Option<String> {
        self.named.get(key).map(|value| (*value).to_owned())
    }

    pub(crate) fn number<N: std::str::FromStr>(&self, key: &str, otherwise: N) -> N {
        self.named.get(key).map_or(otherwise, |text| text.parse().ok().expect("a number"))
    }
}
