//! Scripts in, golden text out: the state machine of groups, without clock, log or tasks.
//!
//! Each file in `scripts/` holds scripts. A script begins with `== ` and its story; then come commands, and
//! behind each, indented, what the machine did. `KLAMM_UPDATE=1` writes the files anew; read the
//! difference before you commit it. The commands are listed in `Stage::run`.
//!
//! After every command the records written so far are replayed into a second machine, which must know the
//! same offsets and the same stored generation: what a restart would find.
#![allow(clippy::disallowed_methods, reason = "scripts are read and written with std")]

mod stage;

use std::fmt::Write as _;
use std::path::Path;

use stage::Stage;

/// Runs the scripts of a file; returns the file as it should be.
fn run_all(content: &str) -> String {
    let mut out = String::new();
    let mut stage = Stage::new();
    for line in content.lines() {
        if line.starts_with("  ") {
            continue;
        }
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

fn check(name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts").join(name);
    let expected = std::fs::read_to_string(&path).expect("a script");
    let found = run_all(&expected);
    if std::env::var_os("KLAMM_UPDATE").is_some() {
        std::fs::write(&path, found).expect("to write");
        return;
    }
    for (number, (expected, found)) in expected.lines().zip(found.lines()).enumerate() {
        assert_eq!(expected, found, "{name}, line {}", number + 1);
    }
    assert_eq!(expected.lines().count(), found.lines().count(), "{name} is longer or shorter");
}

macro_rules! scripts {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            check(concat!(stringify!($name), ".txt"));
        }
    )*};
}

scripts! { joining rebalancing syncing static_members leaving committing expiring loading failing admin }
