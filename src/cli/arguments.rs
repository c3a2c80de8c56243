//! The arguments of `klamm`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Parser, Subcommand};
use klamm_metadata::ReplicaKey;

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

        /// The other nodes of its cluster are lost for good: make it a cluster of this node alone, with a new id. Whatever
        /// only the others had is lost. Klamm takes it over, too
        #[arg(long)]
        alone: bool,
    },
    /// Prepare the directories of a node with controller.quorum.bootstrap.servers and without
    /// controller.quorum.voters; other nodes need none of this
    Format(FormatArguments),
}

/// For whom directories are prepared.
#[derive(clap::Args, Clone, PartialEq, Debug)]
pub(crate) struct FormatArguments {
    /// The settings of the node, as it will be started with
    #[arg(value_name = "server.properties")]
    pub(crate) file: PathBuf,

    /// Set KEY to VALUE, as when it will be started
    #[arg(long = "override", value_name = "KEY=VALUE", value_parser = key_and_value)]
    pub(crate) overrides: Vec<(String, String)>,

    /// The id of the cluster, the same for all nodes; one is made up if it is left out with --standalone
    #[arg(short = 't', long, value_name = "ID")]
    pub(crate) cluster_id: Option<String>,

    #[command(flatten)]
    pub(crate) voters: InitialVoters,
}

/// Who votes in the cluster when it begins.
#[derive(clap::Args, Clone, PartialEq, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct InitialVoters {
    /// This controller alone begins the cluster
    #[arg(short = 's', long)]
    pub(crate) standalone: bool,

    /// These controllers begin the cluster: ID@HOST:PORT:DIRECTORY-ID, with commas between them; each is formatted with
    /// the same list
    #[arg(short = 'I', long, value_name = "CONTROLLERS", value_parser = initial_controllers)]
    pub(crate) initial_controllers: Option<InitialControllers>,

    /// The node joins a cluster that is there
    #[arg(short = 'N', long)]
    pub(crate) no_initial_controllers: bool,
}

/// Controllers by their nodes and directories, with the host and port of each.
pub(crate) type InitialControllers = BTreeMap<ReplicaKey, (String, u16)>;

fn initial_controllers(text: &str) -> Result<InitialControllers, String> {
    let mut controllers = InitialControllers::new();
    for item in text.split(',').map(str::trim) {
        let expected = || {
            format!(
                "expected ID@HOST:PORT:DIRECTORY-ID, as 1@localhost:9093:JEXY6aqzQY-32P5TStzaFg, and not {item}"
            )
        };
        let (id, rest) = item.split_once('@').ok_or_else(expected)?;
        let (address, directory_id) = rest.rsplit_once(':').ok_or_else(expected)?;
        let (host, port) = address.rsplit_once(':').ok_or_else(expected)?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let port = port.parse().map_err(|_| expected())?;
        let key: ReplicaKey = format!("{id}-{directory_id}").parse().map_err(|_| expected())?;
        if controllers.keys().any(|known| known.id == key.id) {
            return Err(format!("controller {id} stands in it twice"));
        }
        controllers.insert(key, (host.to_owned(), port));
    }
    Ok(controllers)
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
        let expected =
            Arguments { command: Some(Command::Release { log_dirs, alone: false }), ..Arguments::default() };
        assert_eq!(parse(&["release", "/a", "b"]).unwrap(), expected);
        assert_eq!(parse(&["release"]).unwrap_err().exit_code(), 2);
        assert_eq!(parse(&["release", "/a", "--override", "a=b"]).unwrap_err().exit_code(), 2);
        // A file of that name can still be meant.
        assert_eq!(parse(&["./release"]).unwrap().file, Some("./release".into()));
    }

    #[test]
    fn a_format_says_who_votes() {
        let list = "1@a:9093:AAAAAAAAAAAAAAAAAAAAAQ,2@[::1]:9094:AAAAAAAAAAAAAAAAAAAAAg";
        let arguments = parse(&["format", "-t", "c", "-I", list, "a.properties"]).unwrap();
        let Some(Command::Format(format)) = arguments.command else { panic!("it is a format") };
        assert_eq!(format.cluster_id.as_deref(), Some("c"));
        let voters: Vec<_> = format.voters.initial_controllers.unwrap().into_iter().collect();
        let shown: Vec<_> = voters.iter().map(|(key, address)| (key.to_string(), address.clone())).collect();
        assert_eq!(shown[0], ("1-AAAAAAAAAAAAAAAAAAAAAQ".to_owned(), ("a".to_owned(), 9093)));
        assert_eq!(shown[1], ("2-AAAAAAAAAAAAAAAAAAAAAg".to_owned(), ("::1".to_owned(), 9094)));
        assert!(parse(&["format", "--standalone", "a.properties"]).is_ok());
        for wrong in [
            &["format", "a.properties"][..],
            &["format", "--standalone", "--no-initial-controllers", "a.properties"],
            &["format", "--standalone"],
            &["format", "-I", "1@a:9093", "a.properties"],
            &["format", "-I", "1@a:1:AAAAAAAAAAAAAAAAAAAAAQ,1@a:1:AAAAAAAAAAAAAAAAAAAAAg", "a.properties"],
        ] {
            assert_eq!(parse(wrong).unwrap_err().exit_code(), 2, "{wrong:?}");
        }
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
