//! Where the process logs to, and how much: as `KLAMM_LOG` says at start, and then as operators do while it runs.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::sync::Arc;

use klamm_server::{LogLevel, Loggers, ROOT_LOGGER};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

/// What is logged where nobody says otherwise. The quorum's library speaks of each of its steps, and of each message
/// to a member that is down.
const LOG_FILTER: &str = "info,openraft=error";

/// Logs to stderr, so that stdout holds the start line alone. `KLAMM_LOG` says how much, as `debug` or
/// `klamm_server=debug,warn`; what is returned changes it.
pub(crate) fn to_stderr() -> Arc<Loggers> {
    let asked = std::env::var("KLAMM_LOG").unwrap_or_default();
    let (filter, handle) = reload::Layer::new(Targets::new());
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    tracing_subscriber::registry().with(filter).with(lines).init();
    let apply = move |levels: &BTreeMap<String, LogLevel>| {
        // It fails only where logging is over, at the end of the process.
        let _ = handle.reload(targets(levels));
    };
    Arc::new(Loggers::new(levels_of(&asked), Box::new(apply)))
}

/// The loggers that have a level of their own at start. What cannot be read counts as not said.
fn levels_of(asked: &str) -> Vec<(String, LogLevel)> {
    let parsed = asked.parse::<Targets>().ok().filter(|_| !asked.trim().is_empty());
    let targets = parsed.unwrap_or_else(|| LOG_FILTER.parse().expect("it is what the library reads"));
    // Who names loggers alone wants no others.
    let root = targets.default_level().unwrap_or(LevelFilter::OFF);
    let own = targets.iter().map(|(target, level)| (target.replace("::", "."), level_of(level)));
    own.chain([(ROOT_LOGGER.to_owned(), level_of(root))]).collect()
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
        let levels = |asked| BTreeMap::from_iter(levels_of(asked));
        let of = |pairs: &[(&str, LogLevel)]| -> BTreeMap<String, LogLevel> {
            pairs.iter().map(|(logger, level)| (logger.to_string(), *level)).collect()
        };
        let default = of(&[("root", LogLevel::Info), ("openraft", LogLevel::Error)]);
        for nothing in ["", " ", "a=loud", "a=b=c"] {
            assert_eq!(levels(nothing), default, "{nothing}");
        }
        assert_eq!(levels("debug"), of(&[("root", LogLevel::Debug)]));
        let mixed = of(&[("root", LogLevel::Warn), ("klamm_server", LogLevel::Debug)]);
        assert_eq!(levels("klamm_server=debug,warn"), mixed);
        let module = of(&[("root", LogLevel::Off), ("klamm_server.api", LogLevel::Warn)]);
        assert_eq!(levels("klamm_server::api=warn"), module);
        let alone = of(&[("root", LogLevel::Off), ("klamm_server", LogLevel::Trace)]);
        assert_eq!(levels("klamm_server"), alone);
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
