//! Running scripts of a state machine: commands in, golden text out.
#![allow(clippy::disallowed_methods, reason = "scripts are files of the tree")]

use std::fmt::Write as _;
use std::path::Path;

/// What a script plays on.
pub trait Play {
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

/// Runs the scripts of a file and compares, or writes the file anew where KLAMM_UPDATE is set.
///
/// # Panics
/// At the first line that is another one.
pub fn check_script<P: Play>(path: &Path) {
    let name = path.display();
    let expected = std::fs::read_to_string(path).expect("a script");
    let found = run_all::<P>(&expected);
    if std::env::var_os("KLAMM_UPDATE").is_some() {
        std::fs::write(path, found).expect("to write");
        return;
    }
    for (number, (expected, found)) in expected.lines().zip(found.lines()).enumerate() {
        assert_eq!(expected, found, "{name}, line {}", number + 1);
    }
    assert_eq!(expected.lines().count(), found.lines().count(), "{name} is longer or shorter");
}
