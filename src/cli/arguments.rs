//! The arguments of `klamm`.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

const AFTER_HELP: &str = "\
Without a file, the broker listens on localhost:9092 for this machine alone and keeps its data in ./klamm-data.
Environment variables named KAFKA_… are settings too, as in the apache/kafka image: KAFKA_NUM_PARTITIONS=3 means
num.partitions=3. The environment wins over the file, and --override over both. KLAMM_LOG=debug logs more.";

/// A broker that speaks the protocol of Apache Kafka.
#[derive(Parser, Clone, PartialEq, Debug, Default)]
#[command(name = "klamm", version, about, after_help = AFTER_HELP, args_conflicts_with_subcommands = true)]
pub(crate) struct Arguments {
    /// What to do instead of running a broker.
    #[command(subcommand)]
    pub(crate) command: Option<Command>,

    /// Settings with Kafka's own names, one KEY=VALUE a line
    #[arg(value_name = "server.properties")]
    pub(crate) file: Option<PathBuf>,

    /// Set KEY to VALUE, whatever the file and the environment say; may be given several times
    #[arg(long = "override", value_name = "KEY=VALUE", value_parser = key_and_value)]
    pub(crate) overrides: Vec<(String, String)>,

    /// Take over a directory of Apache Kafka although its access control entries are not enforced
    #[arg(long)]
    pub(crate) without_access_control: bool,
}

/// What the program does beside running a broker.
#[derive(Subcommand, Clone, PartialEq, Debug)]
pub(crate) enum Command {
    /// Give the data of a stopped broker back to Apache Kafka 4.4
    Release {
        /// All directories of the broker, in the order of log.dirs
        #[arg(value_name = "DIR", required = true)]
        log_dirs: Vec<PathBuf>,
    },
}

fn key_and_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE, as num.partitions=3".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from(["klamm"].iter().chain(words))
    }

    #[test]
    fn a_file_and_overrides_in_any_order() {
        let expected = Arguments {
            file: Some("a.properties".into()),
            overrides: vec![("x.y".to_owned(), "1=2".to_owned()), ("z".to_owned(), String::new())],
            ..Arguments::default()
        };
        for words in [
            &["a.properties", "--override", "x.y=1=2", "--override", "z="][..],
            &["--override", "x.y=1=2", "a.properties", "--override=z="],
        ] {
            assert_eq!(parse(words).unwrap(), expected);
        }
        assert_eq!(parse(&[]).unwrap(), Arguments::default());
    }

    #[test]
    fn a_release_names_all_directories() {
        let log_dirs = vec!["/a".into(), "b".into()];
        let expected = Arguments { command: Some(Command::Release { log_dirs }), ..Arguments::default() };
        assert_eq!(parse(&["release", "/a", "b"]).unwrap(), expected);
        assert_eq!(parse(&["release"]).unwrap_err().exit_code(), 2);
        assert_eq!(parse(&["release", "/a", "--override", "a=b"]).unwrap_err().exit_code(), 2);
        // A file of that name can still be meant.
        assert_eq!(parse(&["./release"]).unwrap().file, Some("./release".into()));
    }

    #[test]
    fn what_is_no_setting_is_refused() {
        for words in [&["--override", "x"][..], &["--override", "=1"], &["a", "b"], &["--port", "1"]] {
            let error = parse(words).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{words:?}");
        }
        assert_eq!(parse(&["--version"]).unwrap_err().kind(), clap::error::ErrorKind::DisplayVersion);
        assert_eq!(parse(&["--help"]).unwrap_err().kind(), clap::error::ErrorKind::DisplayHelp);
    }
}
