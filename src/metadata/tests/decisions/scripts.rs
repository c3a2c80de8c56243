//! Runs the scripts.

use std::fmt::Write as _;
use std::path::Path;

use crate::stage::Stage;

macro_rules! scripts {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            check(concat!(stringify!($name), ".txt"));
        }
    )*};
}

scripts! { elections eligible_leaders reassignments features directories }

fn check(name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/decisions/scripts").join(name);
    let expected = std::fs::read_to_string(&path).expect("a script");
    let found = play(&expected);
    if std::env::var_os("KLAMM_UPDATE").is_some() {
        std::fs::write(&path, found).expect("to write");
        return;
    }
    for (number, (expected, found)) in expected.lines().zip(found.lines()).enumerate() {
        assert_eq!(expected, found, "{name}, line {}", number + 1);
    }
    assert_eq!(expected.lines().count(), found.lines().count(), "{name} is longer or shorter");
}

/// Runs the scripts of a file; returns the file as it should be.
fn play(content: &str) -> String {
    let mut out = String::new();
    let mut stage = Stage::new();
    for line in content.lines().filter(|line| !line.starts_with("  ")) {
        writeln!(out, "{line}").expect("to memory");
        if line.starts_with("==") {
            stage = Stage::new();
        } else if !line.is_empty() && !line.starts_with('#') {
            for answer in stage.run(line) {
                writeln!(out, "  {answer}").expect("to memory");
            }
        }
    }
    out
}
