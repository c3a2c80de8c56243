//! Where the process logs to, and how much: as `KLAMM_LOG` says at start, and then as operators do while it runs.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::sync::Arc;

use klamm_server::{LogLevel, Loggers, ROOT_LOGGER};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

/// The quorum's library, which speaks of each of its steps, and of each message to a member that is down: it logs errors
/// alone where nobody names it.
const QUORUM_LOGGER: &str = "openraft";

/// Logs to stderr, so that stdout holds the start line alone. `KLAMM_LOG` says how much, as `debug` or
/// `klamm_server=debug,warn`; what is returned changes it.
pub(crate) fn to_stderr() -> Arc<Loggers> {
    let asked = std::env::var("KLAMM_LOG").unwrap_or_default();
    let (levels, unreadable) = levels_of(&asked);
    let (filter, handle) = reload::Layer::new(Targets::new());
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    tracing_subscriber::registry().with(filter).with(lines).init();
    let apply = move |levels: &BTreeMap<String, LogLevel>| {
        // It fails only where logging is over, at the end of the process.
        let _ = handle.reload(targets(levels));
    };
    let loggers = Arc::new(Loggers::new(levels, Box::new(apply)));
    for part in unreadable {
        tracing::warn!(
            "KLAMM_LOG={asked}: {part} is neither a level nor a part's level, as klamm_server=debug; the levels are off, \
             error, warn, info, debug, trace"
        );
    }
    loggers
}

/// The levels at start, and which words of `KLAMM_LOG` could not be read: the default, and over it what was asked for.
fn levels_of(asked: &str) -> (BTreeMap<String, LogLevel>, Vec<&str>) {
    let default = [(ROOT_LOGGER, LogLevel::Info), (QUORUM_LOGGER, LogLevel::Error)];
    let mut levels = BTreeMap::from(default.map(|(logger, level)| (logger.to_owned(), level)));
    let mut unreadable = Vec::new();
    for part in asked.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (logger, level) = part.split_once('=').unwrap_or((ROOT_LOGGER, part));
        match level.parse() {
            Ok(filter) if !logger.is_empty() && !level.is_empty() => {
                levels.insert(logger.replace("::", "."), level_of(filter));
            }
            _ => unreadable.push(part),
        }
    }
    (levels, unreadable)
}

fn targets(levels: &BTreeMap<String, LogLevel>) -> Targets {
    let named = levels.iter().filter(|(logger, _)| *logger != ROOT_LOGGER);
    let root = levels.get(ROOT_LOGGER).map_or(LevelFilter::INFO, |level| filter_of(*level));
    let named = named.map(|(logger, level)| (logger.replace('.', "::"), filter_of(*level)));
    Targets::new().with_default(root).with_targets(named)
}

fn filter_of(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Off | LogLevel::Fatal => LevelFilter::OFF,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

fn level_of(filter: LevelFilter) -> LogLevel {
    const LEVELS: [LogLevel; 5] =
        [LogLevel::Error, LogLevel::Warn, LogLevel::Info, LogLevel::Debug, LogLevel::Trace];
    LEVELS.into_iter().find(|level| filter_of(*level) == filter).unwrap_or(LogLevel::Off)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn klamm_log_says_who_logs_how_much() {
        let default = [("openraft", LogLevel::Error), ("root", LogLevel::Info)];
        let read = |asked: &str, changes: &[(&str, LogLevel)]| {
            let (levels, unreadable) = levels_of(asked);
            let all = default.iter().chain(changes);
            let wanted = BTreeMap::from_iter(all.map(|(logger, level)| (logger.to_string(), *level)));
            assert_eq!((levels, unreadable), (wanted, Vec::new()), "{asked}");
        };
        read("", &[]);
        read(" , ", &[]);
        read("debug", &[("root", LogLevel::Debug)]);
        read("klamm_server=debug, warn", &[("root", LogLevel::Warn), ("klamm_server", LogLevel::Debug)]);
        read("klamm_server::api=WARN", &[("klamm_server.api", LogLevel::Warn)]);
        read("off,openraft=trace", &[("root", LogLevel::Off), ("openraft", LogLevel::Trace)]);
    }

    /// Whoever mistypes a level must not be left without errors in the log.
    #[test]
    fn what_cannot_be_read_is_told_and_changes_nothing() {
        for asked in ["warning", "klamm_server", "a=b=c", "a=", "=debug", "klamm_server=loud"] {
            let (levels, unreadable) = levels_of(asked);
            assert_eq!((levels, unreadable), (levels_of("").0, vec![asked]));
        }
        assert_eq!(levels_of("loud,debug").1, ["loud"]);
        assert_eq!(levels_of("loud,debug").0["root"], LogLevel::Debug);
    }

    /// A module whose name begins as another's is not in it.
    #[test]
    fn each_logger_has_its_own_level() {
        let loggers = [("root", LogLevel::Info), ("a.b", LogLevel::Debug), ("a.bc", LogLevel::Info)];
        let levels = loggers.map(|(logger, level)| (logger.to_owned(), level));
        let targets = targets(&BTreeMap::from(levels));
        let debug = tracing::Level::DEBUG;
        assert!(targets.would_enable("a::b", &debug) && targets.would_enable("a::b::d", &debug));
        assert!(!targets.would_enable("a::bc", &debug) && !targets.would_enable("x", &debug));
        assert!(targets.would_enable("x", &tracing::Level::INFO));
    }
}
