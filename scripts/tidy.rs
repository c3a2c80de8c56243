//! The rules of this tree that neither the compiler nor clippy holds. Each test is one rule; it lists every
//! place that breaks it. The tables below are the rules' data: the import table of `ARCHITECTURE.md`, and the
//! exceptions, which are named with their reason and may only become fewer.
#![allow(clippy::disallowed_methods, reason = "it reads the source tree, not a broker's data")]

#[path = "tidy/syntax.rs"]
mod syntax;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use syntax::{Found, Source, is_test_file};

/// A file without its tests has at most so many lines.
const FILE_LINES_MAX: usize = 600;

/// A function that is no test has at most so many lines, signature and braces included.
const FUNCTION_LINES_MAX: usize = 70;

/// What is longer, as `path` or `path::function`, the lines that it has now, and why it is better so. The
/// number must be exact: whoever makes the place shorter lowers it, and nothing makes it longer.
const LONGER: &[(&str, usize, &str)] = &[];

/// The places that may hold `unsafe`, with the reason.
const UNSAFE: &[(&str, &str)] = &[];

/// Which of our packages a package may import. Tests may import the test doubles beside these, and what these
/// import.
const IMPORTS: &[(&str, &[&str])] = &[
    ("klamm-model", &[]),
    ("klamm-io", &["model"]),
    ("klamm-protocol-generator", &["model"]),
    ("klamm-protocol", &["model", "protocol-generator"]),
    ("klamm-records", &["model"]),
    ("klamm-security", &["model"]),
    ("klamm-config", &["model"]),
    ("klamm-storage", &["model", "io", "records"]),
    ("klamm-partition", &["model", "io", "records", "storage"]),
    ("klamm-metadata", &["model", "io", "records", "config", "security", "protocol", "storage"]),
    ("klamm-coordinator", &["model", "io", "records", "protocol", "partition", "metadata"]),
    (
        "klamm-server",
        &[
            "model",
            "io",
            "records",
            "protocol",
            "security",
            "config",
            "storage",
            "partition",
            "metadata",
            "coordinator",
        ],
    ),
    ("klamm-cli", &["server", "config", "io", "metadata", "storage"]),
    ("klamm", &["cli"]),
    ("klamm-testing", &["model", "io"]),
    ("klamm-tidy", &[]),
    (
        "klamm-simulation",
        &[
            "model",
            "io",
            "records",
            "protocol",
            "config",
            "storage",
            "partition",
            "metadata",
            "coordinator",
            "server",
            "testing",
        ],
    ),
    // They talk to a process as any client does, so that no code of ours judges itself.
    ("klamm-compat-tests", &[]),
    ("klamm-benches", &[]),
];

/// Crates that are pure functions of bytes and settings, and what no pure function calls.
const PURE: &[&str] = &[
    "src/model/",
    "src/records/",
    "src/protocol/",
    "src/security/",
    "src/config/",
    "src/coordinator/group/",
];
const IMPURE: &[&str] =
    &["tokio", "fs", "TcpStream", "TcpListener", "UdpSocket", "Instant", "SystemTime", "klamm_io"];

/// Names that say nothing of what is inside.
const EMPTY_NAMES: &[&str] = &["common", "util", "utils", "helpers", "misc", "types", "manager"];

/// Hosts that text in this tree may name: documents that a reader can open, and this machine.
const HOSTS: &[&str] = &[
    "localhost",
    "127.0.0.1",
    "[::1]",
    "github.com",
    "kafka.apache.org",
    "cwiki.apache.org",
    "issues.apache.org",
    "maven.apache.org",
    "www.apache.org",
    "www.w3.org",
];

/// Data that others wrote and that is kept as it is.
const FOREIGN: &[&str] = &["LICENSE", "fixtures/", "src/protocol/wire/"];

/// The files of the tree: tracked, or new and not ignored.
fn files() -> Vec<String> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"])
        .current_dir(root())
        .output()
        .expect("git lists the files of the tree");
    assert!(output.status.success(), "git does not list the files of {}", root().display());
    let listed = String::from_utf8(output.stdout).expect("paths are UTF-8");
    let mut paths: Vec<String> = listed.split_terminator('\0').map(str::to_owned).collect();
    paths.retain(|path| root().join(path).is_file());
    paths.sort();
    paths.dedup();
    assert!(paths.len() > 50, "the tree has only {} files: is this a whole checkout?", paths.len());
    paths
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn sources() -> Vec<Source> {
    let rust = files().into_iter().filter(|path| path.ends_with(".rs"));
    rust.map(|path| {
        let text = read(&path);
        let syntax = syn::parse_file(&text).unwrap_or_else(|error| panic!("{path}: {error}"));
        Source { path, text, syntax }
    })
    .collect()
}

fn report(rule: &str, mut broken: Vec<String>) {
    broken.dedup();
    assert!(broken.is_empty(), "{rule}:\n  {}\n", broken.join("\n  "));
}

// The rules.

#[test]
fn crates_import_only_what_the_table_allows() {
    let table: BTreeMap<&str, &[&str]> = IMPORTS.iter().copied().collect();
    let mut broken = Vec::new();
    for path in files().iter().filter(|path| path.ends_with("Cargo.toml") && !path.starts_with("fuzz/")) {
        let manifest = Manifest::parse(&read(path));
        let allowed = table.get(manifest.name.as_str()).copied().unwrap_or_else(|| {
            if path.starts_with("src/") || manifest.name.starts_with("klamm") {
                broken.push(format!("{path}: package {} is not in the table", manifest.name));
            }
            // A client of its own, as an application would write it: it knows nothing of ours.
            &[]
        });
        for (name, is_for_tests) in manifest.imports {
            let short = name.trim_start_matches("klamm-");
            // Tests build what they try from the layers below it.
            let below = || allowed.iter().any(|import| table[&*format!("klamm-{import}")].contains(&short));
            let may_in_tests = is_for_tests && (short == "testing" || name == manifest.name || below());
            if !may_in_tests && !allowed.contains(&short) {
                broken.push(format!("{path}: {} may not import {name}", manifest.name));
            }
        }
    }
    report("the import table (IMPORTS in scripts/tidy.rs, explained in ARCHITECTURE.md)", broken);
}

struct Manifest {
    name: String,
    /// Our packages that it imports, and whether only its tests do.
    imports: Vec<(String, bool)>,
}

impl Manifest {
    /// Reads the lines that this tree's manifests are made of, not all of TOML.
    fn parse(text: &str) -> Manifest {
        let mut manifest = Manifest { name: String::new(), imports: Vec::new() };
        let mut table = "";
        for line in text.lines().map(str::trim) {
            if let Some(header) = line.strip_prefix('[') {
                table = header.trim_matches(|letter| letter == '[' || letter == ']');
                if let Some((above, name)) = table.rsplit_once("dependencies.") {
                    manifest.import(name, above);
                }
                continue;
            }
            let key = line.split(['=', '.', ' ']).next().unwrap_or_default().trim_matches('"');
            if table == "package" && key == "name" {
                manifest.name = line.split('"').nth(1).unwrap_or_default().to_owned();
            } else if table.ends_with("dependencies") && table != "workspace.dependencies" {
                manifest.import(key, table);
            }
        }
        manifest
    }

    fn import(&mut self, name: &str, table: &str) {
        if name.starts_with("klamm-") {
            self.imports.push((name.to_owned(), table.contains("dev-")));
        }
    }
}

#[test]
fn pure_crates_call_nothing_of_the_machine() {
    let mut broken = Vec::new();
    for source in sources() {
        let is_pure = PURE.iter().any(|folder| source.path.starts_with(folder));
        if !is_pure
            || source.path.starts_with("src/protocol/generator/")
            || source.path.ends_with("/build.rs")
        {
            continue;
        }
        for (line, path) in Found::in_file(&source).paths {
            if let Some(name) = path.iter().find(|name| IMPURE.contains(&name.as_str())) {
                broken.push(format!("{}:{line}: {name}", source.path));
            }
        }
    }
    report("crates and state machines that must not know files, sockets, clocks or tasks", broken);
}

#[test]
fn every_file_says_what_it_is_for() {
    let mut broken = Vec::new();
    for source in sources() {
        if !source.text.starts_with("//!") {
            broken.push(format!("{}: does not open with //!", source.path));
        }
        let opening: String = source.text.lines().take_while(|line| line.starts_with("//!")).collect();
        let is_crate = source.path.starts_with("src/") && source.path.ends_with("/lib.rs");
        if is_crate && !opening.contains("never") {
            broken.push(format!("{}: does not say what the crate must never do", source.path));
        }
    }
    report("files open with what they are for", broken);
}

#[test]
fn files_and_functions_stay_short() {
    let mut longer: BTreeMap<&str, usize> = LONGER.iter().map(|(place, lines, _)| (*place, *lines)).collect();
    let mut broken = Vec::new();
    let mut check = |place: String, lines: usize, most: usize| {
        let allowed = longer.remove(place.as_str());
        if lines > allowed.unwrap_or(most) {
            broken.push(format!("{place}: {lines} lines, at most {}", allowed.unwrap_or(most)));
        } else if allowed.is_some_and(|allowed| lines < allowed) {
            broken.push(format!("{place}: now {lines} lines; say so in LONGER, or take it off"));
        }
    };
    for source in sources().iter().filter(|source| !is_test_file(&source.path)) {
        let found = Found::in_file(source);
        check(source.path.clone(), source.text.lines().count() - found.test_lines, FILE_LINES_MAX);
        // Functions of one name in one file count as the longest of them.
        let mut longest: BTreeMap<String, usize> = BTreeMap::new();
        for (name, lines) in found.functions {
            let most = longest.entry(name).or_insert(0);
            *most = lines.max(*most);
        }
        for (name, lines) in longest {
            check(format!("{}::{name}", source.path), lines, FUNCTION_LINES_MAX);
        }
    }
    broken.extend(longer.keys().map(|place| format!("{place}: is in LONGER and not in the tree")));
    report("a file or function that is too long to read in one sitting", broken);
}

#[test]
fn names_say_what_is_inside() {
    let mut broken: BTreeSet<String> = BTreeSet::new();
    for path in files() {
        for part in path.split('/').map(|part| part.split('.').next().unwrap_or(part)) {
            if EMPTY_NAMES.contains(&part) || part.split('-').any(|word| EMPTY_NAMES.contains(&word)) {
                broken.insert(format!("{path}: {part}"));
            }
        }
    }
    for source in sources() {
        for module in Found::in_file(&source).modules {
            if EMPTY_NAMES.contains(&module.as_str()) {
                broken.insert(format!("{}: mod {module}", source.path));
            }
        }
    }
    report("names that say nothing of what is inside", Vec::from_iter(broken));
}

#[test]
fn one_handler_file_per_api_key() {
    let schema = "src/protocol/schema/wire/";
    let keys: BTreeSet<String> = files()
        .iter()
        .filter_map(|path| path.strip_prefix(schema)?.strip_suffix(".json")?.split_once('-'))
        .filter(|(number, _)| number.parse::<i16>().is_ok())
        .map(|(_, name)| name.replace('-', "_"))
        .collect();
    assert!(keys.contains("produce") && keys.len() > 90, "the schema is not where it was: {schema}");
    let mut broken = Vec::new();
    for source in sources() {
        let Some(handler) = source.path.strip_prefix("src/server/api/") else { continue };
        let stem = handler.split(['/', '.']).next().unwrap_or_default();
        if stem == "mod" || is_test_file(&source.path) {
            continue;
        }
        if !keys.contains(stem) {
            broken.push(format!("{}: no API key has this name", source.path));
        }
        for (line, path) in Found::in_file(&source).paths {
            let called = match path.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
                ["super", name, ..] | ["crate", "api", name, ..] => (*name).to_owned(),
                _ => continue,
            };
            if called != stem && keys.contains(&called) {
                broken.push(format!("{}:{line}: a handler reaches into {called}", source.path));
            }
        }
    }
    report("src/server/api holds one file per API key, named after it, and none calls another", broken);
}

#[test]
fn only_the_table_switches_on_api_keys() {
    let mut broken = Vec::new();
    for source in sources() {
        let may = source.path.starts_with("src/protocol/") || source.path == "src/server/api/mod.rs";
        if source.path.starts_with("src/") && !may {
            let lines = Found::in_file(&source).key_switches;
            broken.extend(lines.iter().map(|line| format!("{}:{line}", source.path)));
        }
    }
    report("what differs by API key stands in the table of src/server/api/mod.rs", broken);
}

/// Operators set the levels of loggers by name; one that is not listed cannot be set.
#[test]
fn all_modules_that_log_are_listed() {
    let mut loggers = BTreeSet::from(["openraft".to_owned()]);
    for source in sources() {
        let logs = ["error", "warn", "info", "debug", "trace"];
        let Some(path) = source.path.strip_prefix("src/").filter(|_| !is_test_file(&source.path)) else {
            continue;
        };
        if !logs.iter().any(|level| source.text.contains(&format!("tracing::{level}!"))) {
            continue;
        }
        let parts = path.trim_end_matches(".rs").split('/').filter(|part| !["lib", "mod"].contains(part));
        let module = format!("klamm_{}", Vec::from_iter(parts).join("."));
        let ends = module.match_indices('.').map(|(at, _)| at).chain([module.len()]);
        loggers.extend(ends.map(|end| module[..end].to_owned()));
    }
    let listed: BTreeSet<String> = read("src/server/loggers.txt").lines().map(str::to_owned).collect();
    let broken = listed.symmetric_difference(&loggers).map(|logger| {
        let what = if listed.contains(logger) { "does not log" } else { "logs" };
        format!("{logger} {what}")
    });
    report("src/server/loggers.txt names all modules that log, with those around them", broken.collect());
}

#[test]
fn unsafe_stands_only_where_it_is_listed() {
    let mut broken = Vec::new();
    for source in sources() {
        if UNSAFE.iter().any(|(path, _)| *path == source.path) {
            continue;
        }
        let lines = Found::in_file(&source).unsafe_lines;
        broken.extend(lines.iter().map(|line| format!("{}:{line}", source.path)));
        if source.text.contains(concat!("allow(", "unsafe_code")) {
            broken.push(format!("{}: allows unsafe code", source.path));
        }
    }
    report("unsafe outside the modules that UNSAFE lists", broken);
}

/// A run must repeat from its seed, and every wait list has a limit.
#[test]
fn waiting_is_ordered_and_bounded() {
    let mut broken = Vec::new();
    for source in sources().iter().filter(|source| source.path.starts_with("src/")) {
        let found = Found::in_file(source);
        let unbiased = found.unbiased_selects.iter();
        broken.extend(unbiased.map(|line| format!("{}:{line}: select! without biased", source.path)));
        let unbounded = found.paths.iter().filter(|(_, path)| {
            path.iter().any(|name| matches!(name.as_str(), "unbounded_channel" | "UnboundedSender"))
        });
        broken.extend(unbounded.map(|(line, _)| format!("{}:{line}: a queue without a limit", source.path)));
    }
    report("select! is biased and queues are bounded", broken);
}

#[test]
fn no_test_is_switched_off() {
    let mut broken = Vec::new();
    for source in sources() {
        let lines = Found::in_file(&source).ignored_tests;
        broken.extend(lines.iter().map(|line| format!("{}:{line}", source.path)));
    }
    report("a test that does not run shows nothing", broken);
}

/// The tree stands alone: it names no machine that it was written on, no tracker, no host but public documents,
/// and it promises nothing.
#[test]
fn text_speaks_of_the_product_alone() {
    let mut broken = Vec::new();
    for path in files() {
        if FOREIGN.iter().any(|foreign| path.starts_with(foreign)) {
            continue;
        }
        // What is not UTF-8 is data.
        let Ok(text) = std::fs::read_to_string(root().join(&path)) else { continue };
        for (number, line) in text.lines().enumerate() {
            if let Some(found) = foreign_word(&path, line) {
                broken.push(format!("{path}:{}: {found}", number + 1));
            }
        }
    }
    report("paths of a machine, numbers of issues, hosts, or notes of what is missing", broken);
}

fn foreign_word(path: &str, line: &str) -> Option<String> {
    let machine = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];
    if let Some(found) = machine.iter().find(|folder| line.contains(**folder)) {
        return Some(format!("a path of one machine: {found}"));
    }
    let missing = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X ")];
    if let Some(found) = missing.iter().find(|word| line.contains(**word)) {
        return Some(format!("a note of what is missing: {found}"));
    }
    let lower = line.to_lowercase();
    for (at, word) in lower.match_indices(concat!("iss", "ue")) {
        let rest = lower[at + word.len()..].trim_start_matches(['s', ' ', '#']);
        let is_number = rest.starts_with(|letter: char| letter.is_ascii_digit());
        if is_number && rest.len() < lower.len() - at - word.len() {
            return Some("a number of an issue".to_owned());
        }
    }
    for scheme in ["http://", "https://"] {
        for (at, _) in line.match_indices(scheme) {
            let rest = &line[at + scheme.len()..];
            let host =
                rest.split(['/', '"', '\'', ' ', '`', ')', '>', '<', ',', '#']).next().unwrap_or_default();
            let name = if host.starts_with('[') { host } else { host.split(':').next().unwrap_or(host) };
            let is_variable = name.is_empty() || name.contains(['$', '{', '%']);
            if !is_variable && !HOSTS.contains(&name) {
                return Some(format!("a host that HOSTS does not list: {name}"));
            }
        }
    }
    let is_lock = path.ends_with("-lock.json") || path.ends_with(".lock");
    let names_source = line.contains("\"resolved\"") || line.trim_start().starts_with("source = ");
    let is_public = line.contains("registry+https://github.com/rust-lang/crates.io-index");
    (is_lock && names_source && !is_public).then(|| "where a package came from".to_owned())
}

/// The rules above must be able to fail: each is tried on a text that breaks it.
#[test]
fn the_rules_catch_what_they_are_for() {
    let text = "//! x\nfn f() { unsafe { g() } match k { ApiKey::Fetch => 1 } ; k == ApiKey::Fetch;\n\
        matches!(k, ApiKey::Fetch); select! { a => b } }\n#[test] #[ignore] fn t() { let x = ApiKey::Fetch; }\n\
        mod misc {} use tokio::{net, time}; #[cfg(test)] mod tests {\n fn long() {}\n }";
    let syntax = syn::parse_file(text).expect("it is Rust");
    let source = Source { path: "src/x.rs".to_owned(), text: text.to_owned(), syntax };
    let found = Found::in_file(&source);
    assert_eq!(found.unsafe_lines, [2]);
    assert_eq!(found.key_switches, [2, 2, 3]);
    assert_eq!(found.unbiased_selects, [3]);
    assert_eq!(found.ignored_tests, [4]);
    assert_eq!(found.modules, ["misc", "tests"]);
    assert_eq!(found.functions, [("f".to_owned(), 2)]);
    assert!(found.paths.contains(&(5, vec!["tokio".to_owned(), "net".to_owned()])));
    assert_eq!(found.test_lines, 4);

    let manifest = Manifest::parse(
        "[package]\nname = \"a\"\n[dependencies]\nklamm-io.workspace = true\n\
        [dependencies.klamm-server]\npath = \"x\"\n[dev-dependencies]\nklamm-testing = { path = \"y\" }",
    );
    let expected = [("klamm-io", false), ("klamm-server", false), ("klamm-testing", true)];
    assert_eq!(manifest.imports, expected.map(|(name, for_tests)| (name.to_owned(), for_tests)));

    for bad in [
        concat!("see /wo", "rk/x"),
        concat!("// TO", "DO: later"),
        concat!("fixes iss", "ue #12"),
        concat!("iss", "ues 3 and 4"),
        concat!("curl ht", "tps://example.invalid/x"),
    ] {
        assert!(foreign_word("a.md", bad).is_some(), "{bad}");
    }
    assert!(foreign_word("package-lock.json", "\"resolved\": \"x\"").is_some());
    for good in ["see KAFKA-3160 and KIP-74", concat!("the iss", "ue is old"), "http://localhost:9092/x"] {
        assert_eq!(foreign_word("a.md", good), None, "{good}");
    }
}
