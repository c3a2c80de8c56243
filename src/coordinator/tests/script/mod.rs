//! The words of a script's commands.

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
