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
//! ```
//!
//! `each` makes one scenario per word, named `<name>/<word>`; the word replaces `$WITH` in `needs` and is in the
//! environment as WITH. `each of all` has further words, whose scenarios are of the tier `all`. `broker: none` means that the scenario starts its own; `nodes` that several form a cluster, `joining` that
//! further ones, brokers only, have their place in it and are not started with the others. In `broker`, `$PORT` is the
//! broker's port and `$CONTROLLER` its controller's. Against what it cannot run, it is not listed. A scenario with a `soak
//! limit` repeats itself many times when SOAK is set in its environment, and has that limit then.

use crate::broker::Flavor;
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
}

/// Reads every scenario under `folder`, quick ones first, else by name.
pub(crate) fn read_all(folder: &Path) -> Result<Vec<Scenario>> {
    let mut scenarios = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).with_context(|| format!("read {}", folder.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(text) = std::fs::read_to_string(&path) {
                scenarios.extend(parse(&path, &text).with_context(|| format!("{}", path.display()))?);
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

/// The scenarios that one file declares: none when its head has no line `scenario:`.
fn parse(file: &Path, text: &str) -> Result<Vec<Scenario>> {
    let (mut each, mut each_of_all) = (Vec::new(), Vec::new());
    let mut scenario: Option<Scenario> = None;
    for line in text.lines().take(30) {
        let Some((key, value)) = line.trim_start_matches(['#', '/', '!', '*', ' ']).split_once(": ") else {
            continue;
        };
        let value = value.trim();
        if key == "scenario" {
            let (name, summary) =
                value.split_once(": ").context("a scenario's line is `scenario: name: what it shows`")?;
            scenario = Some(Scenario {
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
            });
            continue;
        }
        let Some(scenario) = &mut scenario else { continue };
        match key {
            "tier" => {
                scenario.tier = [Tier::Quick, Tier::Normal, Tier::All]
                    .into_iter()
                    .find(|tier| tier.to_string() == value)
                    .with_context(|| format!("tier {value:?} is none of quick, normal, all"))?;
            }
            "limit" => scenario.limit = seconds(value)?,
            "soak limit" => scenario.soak_limit = Some(seconds(value)?),
            "needs" => scenario.needs = words(value),
            "against" => {
                scenario.against = value
                    .split_whitespace()
                    .map(str::parse)
                    .collect::<Result<_, String>>()
                    .map_err(anyhow::Error::msg)?
            }
            "broker" if value == "none" => scenario.starts_its_own_broker = true,
            "broker" => scenario.broker_settings.extend(words(value)),
            "nodes" => scenario.nodes = value.parse().with_context(|| format!("{value:?} nodes"))?,
            "joining" => {
                scenario.joining = value.parse().with_context(|| format!("{value:?} nodes join"))?;
            }
            "each" => each = words(value),
            "each of all" => each_of_all = words(value),
            _ => {}
        }
    }
    let Some(scenario) = scenario else { return Ok(Vec::new()) };
    if each.is_empty() {
        return Ok(vec![scenario]);
    }
    let all = Scenario { tier: Tier::All, ..scenario.clone() };
    let one_per_word = each.iter().map(|word| with(&scenario, word));
    Ok(one_per_word.chain(each_of_all.iter().map(|word| with(&all, word))).collect())
}

fn with(scenario: &Scenario, word: &str) -> Scenario {
    let mut one = scenario.clone();
    one.name = format!("{}/{word}", scenario.name);
    one.with = word.to_owned();
    for need in &mut one.needs {
        *need = need.replace("$WITH", word);
    }
    one
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

    /// A misread head would silently drop a scenario from the suite, or run it without what it needs.
    #[test]
    fn the_head_of_a_file_says_how_to_run_it() {
        let text = "#!/usr/bin/env bash\n# scenario: topics: create and delete\n# tier: quick\n# limit: 7\n# soak limit: 70\n# needs: kafka-$WITH kcat\n# each: 2.2.2\n# each of all: 4.4.0\n# against: klamm 4.4.0\n# broker: a=b c=d\n# nodes: 3\n# joining: 1\ntrue\n";
        let scenarios = parse(Path::new("topics.sh"), text).unwrap();
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
        assert_eq!(one.against, [Flavor::Klamm, Flavor::Kafka("4.4.0")]);
    }

    #[test]
    fn a_file_without_the_line_is_no_scenario_and_a_wrong_tier_is_an_error() {
        assert!(parse(Path::new("a.py"), "import x\n# tier: quick\n").unwrap().is_empty());
        assert!(
            parse(Path::new("a.py"), "# scenario: a: b\n# tier: slow\n")
                .unwrap_err()
                .to_string()
                .contains("slow")
        );
    }
}
