//! Where settings come from, and how mistakes in them are told.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// Everything that can say something about a broker's settings, as texts. Later ones win: the file, the
/// environment, the command line.
#[derive(Clone, Default, Debug)]
pub struct Sources {
    /// A properties file: its path, for messages, and what stands in it.
    pub file: Option<(PathBuf, String)>,
    /// Environment variables by name; those that do not begin with `KAFKA_` are passed over, but for
    /// `CLUSTER_ID`.
    pub environment: Vec<(String, String)>,
    /// `--override key=value` of the command line.
    pub overrides: Vec<(String, String)>,
}

/// Where a setting was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// A line of the properties file, counted from 1.
    File {
        /// The file.
        path: Arc<PathBuf>,
        /// The line on which the setting begins.
        line: usize,
    },
    /// An environment variable.
    Variable(String),
    /// The command line.
    Override,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::File { path, line } => write!(f, "{}:{line}", path.display()),
            Source::Variable(name) => write!(f, "environment variable {name}"),
            Source::Override => f.write_str("command line"),
        }
    }
}

/// One mistake that keeps the broker from starting.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}{}{problem}", prefix(.source_of_value.as_ref()), setting(.key, .found.as_deref()))]
pub struct ConfigError {
    /// Where it stands; `None` where nobody wrote it down.
    pub source_of_value: Option<Source>,
    /// The key; empty for a line that could not be read.
    pub key: String,
    /// The value that was found there, unless it is secret.
    pub found: Option<String>,
    /// What is wrong and what would be right.
    pub problem: String,
}

/// Something that a person should look at although the broker starts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Warning {
    /// Where it stands, if it stands anywhere.
    pub source: Option<Source>,
    /// What to know.
    pub message: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", prefix(self.source.as_ref()), self.message)
    }
}

fn prefix(source: Option<&Source>) -> String {
    source.map(|source| format!("{source}: ")).unwrap_or_default()
}

fn setting(key: &str, found: Option<&str>) -> String {
    match (key, found) {
        ("", _) => String::new(),
        (key, Some(found)) => format!("{key}={found}: "),
        (key, None) => format!("{key}: "),
    }
}
