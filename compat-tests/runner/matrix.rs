//! The clients and features that the report's matrix has (`matrix.tsv`), and what a scenario's head says of them.

use anyhow::{Context, Result, bail};
use std::path::Path;

/// The words that a head may use in `shows:`.
pub(crate) struct Matrix {
    features: Vec<String>,
    clients: Vec<Client>,
}

struct Client {
    word: String,
    needs: Vec<String>,
}

/// What one client shows in a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) client: String,
    pub(crate) features: Vec<String>,
}

impl Matrix {
    pub(crate) fn read(file: &Path) -> Result<Matrix> {
        let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
        Matrix::parse(&text).with_context(|| format!("{}", file.display()))
    }

    pub(crate) fn parse(text: &str) -> Result<Matrix> {
        let mut matrix = Matrix { features: Vec::new(), clients: Vec::new() };
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            match line.split('\t').collect::<Vec<_>>()[..] {
                ["feature", word, _title, _seen] => matrix.features.push(word.to_owned()),
                ["client", word, _title, needs, _file, _name, _served] => {
                    let needs = needs.split(' ').map(str::to_owned).collect();
                    matrix.clients.push(Client { word: word.to_owned(), needs });
                }
                _ => bail!("{line:?} is neither a feature with 4 columns nor a client with 7"),
            }
        }
        Ok(matrix)
    }

    /// What a line `shows:` means, `CLIENT…: FEATURE…`. Each client must be brought by one of the scenario's needs, so that
    /// its version is the one that ran; `java-*` is every version that the scenario needs.
    pub(crate) fn shown(&self, line: &str, needs: &[String]) -> Result<Vec<Shown>> {
        let (clients, features) = line.split_once(": ").context("`shows: CLIENT…: FEATURE…` is wanted")?;
        let features: Vec<String> = features.split_whitespace().map(str::to_owned).collect();
        if let Some(unknown) = features.iter().find(|feature| !self.features.contains(feature)) {
            bail!("the feature {unknown:?} is not in matrix.tsv");
        }
        let mut shown = Vec::new();
        for named in clients.split_whitespace() {
            let mut client = |client| shown.push(Shown { client, features: features.clone() });
            let candidates: Vec<_> =
                self.clients.iter().filter_map(|c| Some((c, between(&c.word, named)?))).collect();
            if candidates.is_empty() {
                bail!("the client {named:?} is not in matrix.tsv");
            }
            let brought: Vec<_> = candidates.iter().flat_map(|(c, of)| c.brought(of, needs)).collect();
            if brought.is_empty() {
                bail!("no need of the scenario brings the client {named}");
            }
            brought.into_iter().for_each(&mut client);
        }
        Ok(shown)
    }
}

impl Client {
    /// The client by its full name, once for each need that brings it in the version that `of` stands for (or in any: `*`).
    fn brought(&self, of: &str, needs: &[String]) -> Vec<String> {
        let mut names: Vec<String> = needs
            .iter()
            .filter_map(|need| {
                self.needs.iter().find_map(|wanted| {
                    if wanted.contains('*') {
                        between(wanted, need).filter(|version| of == "*" || *version == of)
                    } else {
                        (need == wanted || need.starts_with(&format!("{wanted}-"))).then_some("")
                    }
                })
            })
            .map(|version| self.word.replace('*', version))
            .collect();
        names.sort();
        names.dedup();
        names
    }
}

/// What the pattern's `*` stands for in a word; an empty text where there is none and both are equal.
fn between<'a>(pattern: &str, word: &'a str) -> Option<&'a str> {
    match pattern.split_once('*') {
        Some((before, after)) => word.strip_prefix(before)?.strip_suffix(after),
        None => (pattern == word).then_some(""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(line: &str, needs: &[&str]) -> Result<Vec<String>> {
        let matrix = Matrix::parse(
            "# a comment\nfeature\tcodecs\tC\tx\nfeature\tkill\tK\tx\n\
             client\tjava-*\tJava {}\tkafka-*\t-\t-\t-\nclient\tfranz-go\tf\tgo\tgo.mod\tfranz\t-\n",
        )?;
        let needs: Vec<_> = needs.iter().map(|need| (*need).to_owned()).collect();
        let shown = matrix.shown(line, &needs)?;
        Ok(shown.iter().map(|one| format!("{} {}", one.client, one.features.join("+"))).collect())
    }

    /// A client whose version is not the one that ran would make the report lie.
    #[test]
    fn a_client_is_what_a_need_brings() {
        let needs = ["kafka-2.8.2", "kafka-4.4.0", "go-copier"];
        assert_eq!(shown("java-4.4.0: codecs kill", &needs).unwrap(), ["java-4.4.0 codecs+kill"]);
        assert_eq!(
            shown("java-* franz-go: kill", &needs).unwrap(),
            ["java-2.8.2 kill", "java-4.4.0 kill", "franz-go kill"]
        );
        for (line, wrong) in [
            ("java-3.9.1: kill", "no need of the scenario brings the client java-3.9.1"),
            ("sarama: kill", "the client \"sarama\" is not"),
            ("franz-go: codecs magic", "the feature \"magic\" is not"),
            ("franz-go", "is wanted"),
        ] {
            let said = shown(line, &needs).unwrap_err().to_string();
            assert!(said.contains(wrong), "{line}: {said}");
        }
    }

    /// The report says which test holds a difference that was found; the test may not go without a word.
    #[test]
    fn what_was_found_is_held() {
        let home = Path::new(env!("CARGO_MANIFEST_DIR"));
        let found = std::fs::read_to_string(home.join("found.tsv")).unwrap();
        for line in found.lines().skip(1) {
            let [_found, file, there] = line.split('\t').collect::<Vec<_>>()[..] else { panic!("{line}") };
            let text = std::fs::read_to_string(home.join("..").join(file)).unwrap();
            assert!(text.contains(there), "{file} has no {there}");
        }
    }
}
