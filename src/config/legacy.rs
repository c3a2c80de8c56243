//! Keys of older Kafkas that mean what others mean today.

use crate::load::Loading;
use crate::source::Warning;

/// Replaces old keys by the ones of today, and says once that no ZooKeeper is needed.
pub(crate) fn translate(loading: &mut Loading) {
    note_zookeeper(loading);
    let port = loading.value("port");
    let host = loading.value("host.name");
    if !loading.settings.contains_key("listeners")
        && let Some(source) = loading.source("host.name").or_else(|| loading.source("port"))
    {
        let text = plaintext(host.as_deref().unwrap_or_default(), port.as_deref().unwrap_or("9092"));
        loading.settings.insert("listeners".to_owned(), (text, source));
    }
    if !loading.settings.contains_key("advertised.listeners")
        && let Some(source) =
            loading.source("advertised.host.name").or_else(|| loading.source("advertised.port"))
    {
        let host = loading.value("advertised.host.name").or(host).unwrap_or_default();
        if host.is_empty() {
            loading
                .error("advertised.port", "it needs advertised.host.name; better set advertised.listeners");
            return;
        }
        let port = loading.value("advertised.port").or(port).unwrap_or_else(|| "9092".to_owned());
        loading.settings.insert("advertised.listeners".to_owned(), (plaintext(&host, &port), source));
    }
}

/// Whether a value that Apache Kafka 4 refuses was good for an older one, whose settings come here with its
/// directories: KIP-1030 has raised the lower bound of `log.segment.bytes` from 14 bytes.
pub(crate) fn was_allowed(key: &str, value: &str) -> bool {
    const SEGMENT_BYTES_MIN: i32 = 14;
    key == "log.segment.bytes" && value.trim().parse::<i32>().is_ok_and(|bytes| bytes >= SEGMENT_BYTES_MIN)
}

fn plaintext(host: &str, port: &str) -> String {
    if host.contains(':') && !host.starts_with('[') {
        format!("PLAINTEXT://[{host}]:{port}")
    } else {
        format!("PLAINTEXT://{host}:{port}")
    }
}

fn note_zookeeper(loading: &mut Loading) {
    let first = loading.settings.keys().find(|key| key.starts_with("zookeeper.")).cloned();
    let Some(key) = loading.settings.get_key_value("zookeeper.connect").map(|(key, _)| key.clone()).or(first)
    else {
        return;
    };
    let source = loading.source(&key);
    loading.warnings.push(Warning {
        source,
        message: format!("{key} has no effect: Klamm needs no ZooKeeper, so none has to run"),
    });
}
