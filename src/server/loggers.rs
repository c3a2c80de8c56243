//! The loggers of this process, whose levels operators change while it runs (`kafka-configs --entity-type
//! broker-loggers`, KIP-412). A logger is a module of Klamm or a crate that it uses, named as in the log's lines but with
//! dots, since Kafka's tools take no other names; what has no level of its own follows the nearest one above it, up to
//! `root`. As in Kafka, levels last until the process ends.

use std::collections::BTreeMap;
use std::sync::Mutex;

use klamm_model::ErrorCode;
use klamm_protocol::messages::incremental_alter_configs::AlterableConfig;

/// How Kafka 4.4.0 names what all other loggers follow.
pub const ROOT_LOGGER: &str = "root";

/// All modules that log, one a line; `klamm-tidy` holds it against the sources.
const MODULES: &str = include_str!("loggers.txt");

/// How much a logger says, least first. Klamm logs nothing that is fatal: what ends the process is told whatever the
/// levels are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LogLevel {
    /// Nothing. Only `KLAMM_LOG` can say so.
    Off,
    /// Nothing, as nothing is fatal.
    Fatal,
    /// Errors.
    Error,
    /// Warnings too.
    Warn,
    /// What an operator may want to know too.
    Info,
    /// Details too.
    Debug,
    /// All.
    Trace,
}

impl LogLevel {
    /// The levels that may be set, with Kafka's names.
    const NAMED: [(LogLevel, &str); 6] = [
        (LogLevel::Debug, "DEBUG"),
        (LogLevel::Error, "ERROR"),
        (LogLevel::Fatal, "FATAL"),
        (LogLevel::Info, "INFO"),
        (LogLevel::Trace, "TRACE"),
        (LogLevel::Warn, "WARN"),
    ];

    /// Kafka's name for it.
    pub(crate) fn name(self) -> &'static str {
        LogLevel::NAMED.iter().find(|(level, _)| *level == self).map_or("OFF", |(_, name)| name)
    }

    fn parse(name: &str) -> Option<LogLevel> {
        LogLevel::NAMED.iter().find(|(_, known)| *known == name).map(|(level, _)| *level)
    }
}

/// Makes the process log so: every logger with its level, `root` among them.
type Apply = Box<dyn Fn(&BTreeMap<String, LogLevel>) + Send + Sync>;

/// All loggers, and which of them have a level of their own.
pub struct Loggers {
    /// `None` where it follows the one above it.
    levels: Mutex<BTreeMap<String, Option<LogLevel>>>,
    apply: Apply,
}

/// Loggers of a node that is one of several in its process, which log as one: nothing follows their levels.
impl Default for Loggers {
    fn default() -> Loggers {
        Loggers::new([], Box::new(|_| {}))
    }
}

impl Loggers {
    /// Loggers of which these have a level of their own, `root` among them; else it is INFO. `apply` is called with
    /// the levels of all, now and with every change.
    pub fn new(own: impl IntoIterator<Item = (String, LogLevel)>, apply: Apply) -> Loggers {
        let modules = MODULES.lines().map(|module| (module.to_owned(), None));
        let mut levels: BTreeMap<String, Option<LogLevel>> = modules.collect();
        levels.insert(ROOT_LOGGER.to_owned(), Some(LogLevel::Info));
        levels.extend(own.into_iter().map(|(logger, level)| (logger, Some(level))));
        apply(&in_force(&levels));
        Loggers { levels: Mutex::new(levels), apply }
    }

    /// All loggers, sorted by name, with the levels in force.
    pub(crate) fn in_force(&self) -> BTreeMap<String, LogLevel> {
        in_force(&self.lock())
    }

    /// Changes levels: all of them, or none where one of them cannot be changed so. Where `validate_only`, they are
    /// only looked at.
    pub(crate) fn alter(
        &self,
        changes: &[AlterableConfig],
        validate_only: bool,
    ) -> Result<(), (ErrorCode, String)> {
        let mut levels = self.lock();
        let mut changed = levels.clone();
        for change in changes {
            let level = level_of(&levels, change)?;
            changed.insert(change.name.clone(), level);
        }
        if !validate_only {
            *levels = changed;
            (self.apply)(&in_force(&levels));
        }
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Option<LogLevel>>> {
        self.levels.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

const SET: i8 = 0;
const DELETE: i8 = 1;
const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;

/// What a logger is to have of its own, in the order of Kafka's checks and in its words.
fn level_of(
    levels: &BTreeMap<String, Option<LogLevel>>,
    change: &AlterableConfig,
) -> Result<Option<LogLevel>, (ErrorCode, String)> {
    let AlterableConfig { name, config_operation, .. } = change;
    let refused = |operation: String| {
        let message = format!("{operation} is not allowed for the BROKER_LOGGER resource");
        Err((ErrorCode::InvalidRequest, message))
    };
    match *config_operation {
        SET | DELETE if !levels.contains_key(name) => {
            Err((ErrorCode::InvalidConfig, format!("Logger {name} does not exist!")))
        }
        SET => {
            let value = change.value.as_deref().unwrap_or_default();
            LogLevel::parse(value).map(Some).ok_or_else(|| {
                let known = LogLevel::NAMED.map(|(_, name)| name).join(", ");
                let message = format!(
                    "Cannot set the log level of {name} to {value} as it is not a supported log level. Valid log \
                     levels are {known}"
                );
                (ErrorCode::InvalidConfig, message)
            })
        }
        DELETE if name == ROOT_LOGGER => {
            let message = "Removing the log level of the root logger is not allowed".to_owned();
            Err((ErrorCode::InvalidRequest, message))
        }
        DELETE => Ok(None),
        APPEND => refused("APPEND operation".to_owned()),
        SUBTRACT => refused("SUBTRACT operation".to_owned()),
        other => refused(format!("Unknown operation type {other}")),
    }
}

fn in_force(levels: &BTreeMap<String, Option<LogLevel>>) -> BTreeMap<String, LogLevel> {
    let names = levels.keys();
    names.map(|name| (name.clone(), level_in_force(levels, name))).collect()
}

/// The level of the nearest logger that has one: itself, the modules around it, or `root`.
fn level_in_force(levels: &BTreeMap<String, Option<LogLevel>>, name: &str) -> LogLevel {
    let own = levels.get(name).copied().flatten();
    let around = || match name.rsplit_once('.') {
        Some((parent, _)) => level_in_force(levels, parent),
        None => levels.get(ROOT_LOGGER).copied().flatten().unwrap_or(LogLevel::Info),
    };
    own.unwrap_or_else(around)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn change(name: &str, operation: i8, value: Option<&str>) -> AlterableConfig {
        AlterableConfig {
            name: name.to_owned(),
            config_operation: operation,
            value: value.map(str::to_owned),
        }
    }

    /// Loggers, and what the process was told last.
    fn loggers() -> (Loggers, Arc<Mutex<BTreeMap<String, LogLevel>>>) {
        let told = Arc::new(Mutex::new(BTreeMap::new()));
        let seen = told.clone();
        let own = [("openraft".to_owned(), LogLevel::Error)];
        (Loggers::new(own, Box::new(move |levels| *seen.lock().unwrap() = levels.clone())), told)
    }

    /// Whoever hunts a fault in one module and gets the details of all drowns in them.
    #[test]
    fn a_level_binds_a_module_and_what_is_in_it() {
        let (loggers, told) = loggers();
        let level = |name: &str| told.lock().unwrap()[name];
        assert_eq!((level("openraft"), level("klamm_server.api")), (LogLevel::Error, LogLevel::Info));
        let set = |name, value| loggers.alter(&[change(name, SET, Some(value))], false).unwrap();
        set("klamm_server.api", "DEBUG");
        assert_eq!(level("klamm_server.api.produce"), LogLevel::Debug);
        assert_eq!(level("klamm_server.connection"), LogLevel::Info);
        set(ROOT_LOGGER, "WARN");
        set("klamm_server", "FATAL");
        assert_eq!((level("klamm_storage.log"), level("openraft")), (LogLevel::Warn, LogLevel::Error));
        assert_eq!(
            (level("klamm_server.connection"), level("klamm_server.api")),
            (LogLevel::Fatal, LogLevel::Debug)
        );
        loggers
            .alter(&[change("klamm_server.api", DELETE, None), change("openraft", DELETE, None)], false)
            .unwrap();
        assert_eq!((level("klamm_server.api.produce"), level("openraft")), (LogLevel::Fatal, LogLevel::Warn));
        assert_eq!(loggers.in_force(), *told.lock().unwrap());
        assert_eq!(loggers.in_force()["klamm_server"].name(), "FATAL");
    }

    /// As observed on Kafka 4.4.0.
    #[test]
    fn what_is_wrong_is_refused_whole() {
        let (loggers, _) = loggers();
        let before = loggers.in_force();
        let good = change("klamm_server", SET, Some("TRACE"));
        assert_eq!(loggers.alter(std::slice::from_ref(&good), true), Ok(()));
        for (wrong, code, message) in [
            (change("nope", SET, Some("LOUD")), ErrorCode::InvalidConfig, "Logger nope does not exist!"),
            (change("nope", DELETE, None), ErrorCode::InvalidConfig, "Logger nope does not exist!"),
            (
                change("openraft", SET, Some("debug")),
                ErrorCode::InvalidConfig,
                "Cannot set the log level of openraft to debug as it is not a supported log level. Valid log levels \
                 are DEBUG, ERROR, FATAL, INFO, TRACE, WARN",
            ),
            (
                change(ROOT_LOGGER, DELETE, None),
                ErrorCode::InvalidRequest,
                "Removing the log level of the root logger is not allowed",
            ),
            (
                change("openraft", APPEND, Some("INFO")),
                ErrorCode::InvalidRequest,
                "APPEND operation is not allowed for the BROKER_LOGGER resource",
            ),
            (
                change("nope", 7, Some("INFO")),
                ErrorCode::InvalidRequest,
                "Unknown operation type 7 is not allowed for the BROKER_LOGGER resource",
            ),
        ] {
            let refused = loggers.alter(&[good.clone(), wrong], false);
            assert_eq!(refused, Err((code, message.to_owned())));
        }
        assert_eq!(loggers.in_force(), before);
    }
}
