//! What a scenario is: one file in a client's own language whose first comment lines say how to run it.
//!
//! ```text
//! # scenario: kcat: produces, consumes in a group, goes on after a restart
//! # tier: normal
//! # limit: 60
//! # soak limit: 3600
//! # needs: kcat
//! # against: klamm 2.8.2 4.4.0
//! # broker: message.max.bytes=2000000
//! # nodes: 3
//! # joining: 1
//! # each: 3.5.7 4.0.7
//! # shows: kcat: codecs groups restart
//! ```
//!
//! `each` makes one scenario per word, named `<name>/<word>`; the word replaces `$WITH` in `needs` and is in the
//! environment as WITH. `each of all` has further words, whose scenarios are of the tier `all`. A key with such words behind it is
//! for their scenarios only: `against of 0.11.0.3 1.1.1: klamm 2.8.2`. `shows: CLIENT…: FEATURE…`, also several times, is for the
//! report's matrix; its words are those of `matrix.tsv`, and $WITH. `broker: none` means that the scenario starts its own; `nodes` that several form a cluster, `joining` that
//! further ones, brokers only, have their place in it and are not started with the others. In `broker`, `$PORT` is the
//! broker's port and `$CONTROLLER` its controller's. Against what it cannot run, it is not listed. A scenario with a `soak
//! limit` repeats itself many times when SOAK is set in its environment, and has that limit then.

use crate::broker::Flavor;
use crate::matrix::{Matrix, Shown};
use anyhow::{Context, Result, bail};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How much of the suite must be asked for before a scenario runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tier {
    Quick,
    Normal,
    All,
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Tier::Quick => "quick",
            Tier::Normal => "normal",
            Tier::All => "all",
        })
    }
}

/// One thing to do and what must be seen.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) name: String,
    pub(crate) summary: String,
    pub(crate) file: PathBuf,
    pub(crate) tier: Tier,
    pub(crate) limit: Duration,
    pub(crate) soak_limit: Option<Duration>,
    pub(crate) needs: Vec<String>,
    pub(crate) against: Vec<Flavor>,
    pub(crate) broker_settings: Vec<String>,
    pub(crate) nodes: usize,
    pub(crate) joining: usize,
    pub(crate) starts_its_own_broker: bool,
    pub(crate) with: String,
    pub(crate) shows: Vec<Shown>,
}

/// Reads every scenario under `folder`, quick ones first, else by name.
pub(crate) fn read_all(folder: &Path, matrix: &Matrix) -> Result<Vec<Scenario>> {
    let mut scenarios = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).with_context(|| format!("read {}", folder.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(text) = std::fs::read_to_string(&path) {
                scenarios.extend(parse(&path, &text, matrix).with_context(|| format!("{}", path.display()))?);
            }
        }
    }
    scenarios.sort_by(|a, b| (a.tier, &a.name).cmp(&(b.tier, &b.name)));
    for pair in scenarios.windows(2) {
        if pair[0].name == pair[1].name {
            bail!("two scenarios are named {}", pair[0].name);
        }
    }
    Ok(scenarios)
}

/// The keys that may be for some words of `each` only.
const OF_A_WORD: [&str; 5] = ["against", "limit", "needs", "shows", "tier"];

/// A line of a head, `key: value`, or `key of word…: value` for the scenarios of these words of `each` only.
struct Line<'a> {
    key: &'a str,
    of: Vec<&'a str>,
    value: &'a str,
}

/// The lines of a file's head from its line `scenario:` on.
fn head(text: &str) -> Vec<Line<'_>> {
    let lines = text.lines().take(30).filter_map(|line| {
        let (key, value) = line.trim_start_matches(['#', '/', '!', '*', ' ']).split_once(": ")?;
        let (key, of) = match key.split_once(" of ") {
            Some((key, of)) if OF_A_WORD.contains(&key) => (key, of.split_whitespace().collect()),
            _ => (key, Vec::new()),
        };
        Some(Line { key, of, value: value.trim() })
    });
    lines.skip_while(|line| line.key != "scenario").collect()
}

/// The scenarios that one file declares: none when its head has no line `scenario:`.
fn parse(file: &Path, text: &str, matrix: &Matrix) -> Result<Vec<Scenario>> {
    let head = head(text);
    let Some(first) = head.first() else { return Ok(Vec::new()) };
    let (name, summary) =
        first.value.split_once(": ").context("a scenario's line is `scenario: name: what it shows`")?;
    let common = Scenario {
        name: name.to_owned(),
        summary: summary.to_owned(),
        file: file.to_path_buf(),
        tier: Tier::Normal,
        limit: Duration::from_secs(60),
        soak_limit: None,
        needs: Vec::new(),
        against: Flavor::ALL.to_vec(),
        broker_settings: Vec::new(),
        nodes: 1,
        joining: 0,
        starts_its_own_broker: false,
        with: String::new(),
        shows: Vec::new(),
    };
    let each = |key: &str| -> Vec<&str> {
        head.iter().filter(|line| line.key == key).flat_map(|line| line.value.split_whitespace()).collect()
    };
    let (each, each_of_all) = (each("each"), each("each of all"));
    let known = |word: &&&str| each.contains(*word) || each_of_all.contains(*word);
    if let Some(unknown) = head.iter().flat_map(|line| &line.of).find(|word| !known(word)) {
        bail!("{unknown:?} is no word of `each`");
    }
    if each.is_empty() {
        return Ok(vec![one(common, "", &head, matrix)?]);
    }
    let mut scenarios = Vec::new();
    for word in each.iter().chain(&each_of_all) {
        let mut scenario = one(common.clone(), word, &head, matrix)?;
        scenario.name = format!("{name}/{word}");
        if each_of_all.contains(word) {
            scenario.tier = Tier::All;
        }
        scenarios.push(scenario);
    }
    Ok(scenarios)
}

/// What the head says of the scenario of one word of `each`, or of the only one.
fn one(mut scenario: Scenario, word: &str, head: &[Line<'_>], matrix: &Matrix) -> Result<Scenario> {
    scenario.with = word.to_owned();
    for line in head.iter().filter(|line| line.of.is_empty() || line.of.contains(&word)) {
        scenario.take(line.key, &line.value.replace("$WITH", word))?;
    }
    for line in head.iter().filter(|line| line.key == "shows") {
        if line.of.is_empty() || line.of.contains(&word) {
            let shown = matrix.shown(&line.value.replace("$WITH", word), &scenario.needs)?;
            scenario.shows.extend(shown);
        }
    }
    Ok(scenario)
}

impl Scenario {
    /// Its columns for the report, with tabs between; the last is `CLIENT FEATURE…` for each client, with commas between.
    pub(crate) fn row(&self) -> String {
        let against: Vec<_> = self.against.iter().map(Flavor::to_string).collect();
        let shows: Vec<_> =
            self.shows.iter().map(|one| format!("{} {}", one.client, one.features.join(" "))).collect();
        [&self.name, &self.with, &self.summary, &against.join(" "), &shows.join(",")]
            .map(String::as_str)
            .join("\t")
    }

    fn take(&mut self, key: &str, value: &str) -> Result<()> {
        match key {
            "tier" => {
                self.tier = [Tier::Quick, Tier::Normal, Tier::All]
                    .into_iter()
                    .find(|tier| tier.to_string() == value)
                    .with_context(|| format!("tier {value:?} is none of quick, normal, all"))?;
            }
            "limit" => self.limit = seconds(value)?,
            "soak limit" => self.soak_limit = Some(seconds(value)?),
            "needs" => self.needs = words(value),
            "against" => {
                self.against = value
                    .split_whitespace()
                    .map(str::parse)
                    .collect::<Result<_, String>>()
                    .map_err(anyhow::Error::msg)?
            }
            "broker" if value == "none" => self.starts_its_own_broker = true,
            "broker" => self.broker_settings.extend(words(value)),
            "nodes" => self.nodes = value.parse().with_context(|| format!("{value:?} nodes"))?,
            "joining" => {
                self.joining = value.parse().with_context(|| format!("{value:?} nodes join"))?;
            }
            _ => {}
        }
        Ok(())
    }
}

fn seconds(value: &str) -> Result<Duration> {
    Ok(Duration::from_secs(
        value.parse().with_context(|| format!("limit {value:?} is no number of seconds"))?,
    ))
}

fn words(value: &str) -> Vec<String> {
    value.split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix() -> Matrix {
        Matrix::parse("feature\tadmin\tA\tx\nfeature\tkill\tK\tx\nclient\tjava-*\tJava {}\tkafka-*\t-\t-\t-")
            .unwrap()
    }

    /// A misread head would silently drop a scenario from the suite, or run it without what it needs.
    #[test]
    fn the_head_of_a_file_says_how_to_run_it() {
        let text = "#!/usr/bin/env bash\n# scenario: topics: create and delete\n# tier: quick\n# limit: 7\n# soak limit: 70\n# needs: kafka-$WITH kcat\n# each: 2.2.2\n# each of all: 4.4.0\n# against: klamm 4.4.0\n# against of 2.2.2: klamm\n# broker: a=b c=d\n# nodes: 3\n# joining: 1\n# shows: java-$WITH: admin\n# shows of 4.4.0: java-$WITH: kill\ntrue\n";
        let scenarios = parse(Path::new("topics.sh"), text, &matrix()).unwrap();
        assert_eq!(
            scenarios.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(),
            ["topics/2.2.2", "topics/4.4.0"]
        );
        assert_eq!(scenarios[1].tier, Tier::All);
        let one = &scenarios[0];
        assert_eq!(
            (one.tier, one.limit.as_secs(), one.summary.as_str()),
            (Tier::Quick, 7, "create and delete")
        );
        assert_eq!(one.soak_limit, Some(Duration::from_secs(70)));
        assert_eq!(one.needs, ["kafka-2.2.2", "kcat"]);
        assert_eq!(one.broker_settings, ["a=b", "c=d"]);
        assert_eq!((one.nodes, one.joining), (3, 1));
        assert_eq!(one.against, [Flavor::Klamm]);
        assert_eq!(scenarios[1].against, [Flavor::Klamm, Flavor::Kafka("4.4.0")]);
        let shown = |s: &Scenario| s.shows.iter().map(|one| format!("{one:?}")).collect::<Vec<_>>();
        let admin = |v: &str| format!("Shown {{ client: \"java-{v}\", features: [\"admin\"] }}");
        assert_eq!(shown(one), [admin("2.2.2")]);
        assert_eq!(shown(&scenarios[1]), [admin("4.4.0"), admin("4.4.0").replace("admin", "kill")]);
    }

    #[test]
    fn a_file_without_the_line_is_no_scenario_and_a_wrong_word_is_an_error() {
        let parse = |text: &str| parse(Path::new("a.py"), text, &matrix());
        assert!(parse("import x\n# tier: quick\n").unwrap().is_empty());
        for wrong in ["tier: slow", "shows: java-9: kill", "limit: long", "tier of fast: quick"] {
            let text = format!("# scenario: a: b\n# {wrong}\n");
            assert!(parse(&text).is_err(), "{wrong}");
        }
    }

    /// What stands in the matrix comes from the heads; what is not in the report was forgotten.
    #[test]
    fn each_scenario_has_a_row_in_the_report() {
        let home = Path::new(env!("CARGO_MANIFEST_DIR"));
        let matrix = Matrix::read(&home.join("matrix.tsv")).unwrap();
        let scenarios = read_all(&home.join("scenarios"), &matrix).unwrap();
        let report = std::fs::read_to_string(home.join("../COMPATIBILITY.md")).unwrap();
        let row = |s: &Scenario| {
            let scenario = s.name.strip_suffix(&format!("/{}", s.with)).unwrap_or(&s.name);
            format!("\n| {scenario} | {} |", s.with)
        };
        let missing: Vec<_> =
            scenarios.iter().filter(|s| !report.contains(&row(s))).map(|s| &s.name).collect();
        assert!(
            missing.is_empty(),
            "compat-tests/report writes COMPATIBILITY.md anew; not there: {missing:?}"
        );
    }
}
