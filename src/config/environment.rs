//! Environment variables as the `apache/kafka` image maps them to keys.

use crate::key::Scope;
use crate::table;

/// Variables that begin with `KAFKA_` and are for a JVM or for scripts around it; they are taken in silence, so
/// that a start line written for Apache Kafka works.
const FOR_A_JVM: &[&str] = &[
    "KAFKA_HEAP_OPTS",
    "KAFKA_HEAP_OPT",
    "KAFKA_OPTS",
    "KAFKA_JVM_PERFORMANCE_OPTS",
    "KAFKA_GC_LOG_OPTS",
    "KAFKA_TOOLS_LOG4J_LOGLEVEL",
    "KAFKA_HOME",
    "KAFKA_VERSION",
    "KAFKA_MIRROR",
    "KAFKA_SCALA_VERSION",
    "KAFKA_DEBUG",
];

/// The key that a variable stands for, or `None` if it is none of ours.
///
/// `_` becomes `.`, `__` becomes `_`, `___` becomes `-`, and upper case becomes lower case.
pub fn key_of_variable(name: &str) -> Option<String> {
    let rest = name.strip_prefix("KAFKA_")?;
    if rest.is_empty()
        || FOR_A_JVM.contains(&name)
        || name.starts_with("KAFKA_LOG4J_")
        || name.starts_with("KAFKA_JMX_")
        || name.starts_with("KAFKA_DEBUG_")
    {
        return None;
    }
    Some(rest.to_lowercase().replace('_', ".").replace("...", "-").replace("..", "_"))
}

/// Whether Kubernetes or Docker links put this variable there, because a service is named "kafka":
/// `KAFKA_PORT=tcp://10.0.0.1:9092`, `KAFKA_SERVICE_HOST`, `KAFKA_PORT_9092_TCP_ADDR` and so on.
fn is_of_a_service_named_kafka(name: &str, value: &str) -> bool {
    let rest = name.strip_prefix("KAFKA_").unwrap_or(name);
    (rest == "PORT" && value.contains("://"))
        || rest == "SERVICE_HOST"
        || rest.starts_with("SERVICE_PORT")
        || rest
            .strip_prefix("PORT_")
            .is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
}

/// From all variables those that are settings: `(variable, key, value)`, sorted by variable.
pub fn settings_of_environment(environment: &[(String, String)]) -> Vec<(String, String, String)> {
    let mut settings: Vec<_> = environment
        .iter()
        .filter(|(name, value)| !is_of_a_service_named_kafka(name, value))
        .filter_map(|(name, value)| Some((name.clone(), key_of_variable(name)?, value.clone())))
        .collect();
    settings.sort();
    settings
}

/// The variable that was meant by one whose key is unknown.
pub(crate) fn nearest_variable(key: &str) -> Option<String> {
    let name = table::nearest(Scope::Broker, key)?;
    let mapped = name.to_uppercase().replace('_', "__").replace('-', "___").replace('.', "_");
    Some(format!("KAFKA_{mapped}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_become_keys_as_in_the_image() {
        for (variable, key) in [
            ("KAFKA_ADVERTISED_LISTENERS", Some("advertised.listeners")),
            ("KAFKA_BROKER_ID", Some("broker.id")),
            ("KAFKA_ZOOKEEPER_CONNECT", Some("zookeeper.connect")),
            ("KAFKA_LISTENER_NAME_MY__OWN_SSL_KEYSTORE_TYPE", Some("listener.name.my_own.ssl.keystore.type")),
            ("KAFKA_LISTENER_NAME_SASL___SSL_X", Some("listener.name.sasl-ssl.x")),
            ("KAFKA_HEAP_OPTS", None),
            ("KAFKA_OPTS", None),
            ("KAFKA_LOG4J_LOGGERS", None),
            ("KAFKA_LOG4J_ROOT_LOGLEVEL", None),
            ("KAFKA_JMX_PORT", None),
            ("KAFKA_JVM_PERFORMANCE_OPTS", None),
            ("KAFKA_HOME", None),
            ("KAFKA_VERSION", None),
            ("KAFKA_MIRROR", None),
            ("KAFKA_", None),
            ("SCALA_VERSION", None),
            ("PATH", None),
        ] {
            assert_eq!(key_of_variable(variable).as_deref(), key, "{variable}");
        }
    }

    /// In Kubernetes a service named kafka sets KAFKA_PORT to a URL; read as the old key `port`, it would keep
    /// the broker from starting.
    #[test]
    fn variables_of_a_service_named_kafka_are_no_settings() {
        let environment = [
            ("KAFKA_PORT", "tcp://10.0.0.1:9092"),
            ("KAFKA_PORT_9092_TCP_ADDR", "10.0.0.1"),
            ("KAFKA_SERVICE_HOST", "10.0.0.1"),
            ("KAFKA_SERVICE_PORT_HTTP", "9092"),
            ("KAFKA_NUM_PARTITIONS", "3"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let settings = settings_of_environment(&environment);
        assert_eq!(
            settings,
            [("KAFKA_NUM_PARTITIONS".to_owned(), "num.partitions".to_owned(), "3".to_owned())]
        );
        let port = [("KAFKA_PORT".to_owned(), "9093".to_owned())];
        assert_eq!(settings_of_environment(&port).len(), 1);
    }

    #[test]
    fn a_mistyped_variable_is_answered_with_a_variable() {
        assert_eq!(nearest_variable("advertised.listener").as_deref(), Some("KAFKA_ADVERTISED_LISTENERS"));
        assert_eq!(nearest_variable("create.topics"), None);
    }
}
