//! From arguments, file and environment to one config, or to one message that says all that is wrong.

use std::ffi::OsString;
use std::path::Path;

use klamm_config::{BrokerConfig, Sources, Warning};
use klamm_io::Disk;

use crate::arguments::Arguments;

/// Reads all settings. The error is a message for a person.
pub(crate) fn load(
    arguments: Arguments,
    disk: &dyn Disk,
    environment: impl Iterator<Item = (OsString, OsString)>,
) -> Result<(BrokerConfig, Vec<Warning>), String> {
    let file = match arguments.file {
        Some(path) => {
            let text = read(disk, &path)?;
            Some((path, text))
        }
        None => None,
    };
    // A variable that is no text cannot be a setting.
    let environment = environment
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let sources = Sources { file, environment, overrides: arguments.overrides };
    let (mut config, warnings) = klamm_config::load(&sources).map_err(|errors| {
        let lines: Vec<String> = errors.iter().map(|error| format!("\n  {error}")).collect();
        let (count, plural) = (lines.len(), if lines.len() == 1 { "mistake" } else { "mistakes" });
        format!("{count} {plural} in the settings:{}", lines.concat())
    })?;
    config.ignores_access_control = arguments.without_access_control;
    Ok((config, warnings))
}

fn read(disk: &dyn Disk, path: &Path) -> Result<String, String> {
    let bytes = disk.read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    // Java reads these files as ISO 8859-1; files of today are UTF-8.
    Ok(String::from_utf8(bytes)
        .unwrap_or_else(|error| error.into_bytes().into_iter().map(char::from).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    use klamm_io::SystemDisk;

    fn load_text(text: &[u8], environment: &[(&str, &str)]) -> Result<(BrokerConfig, Vec<Warning>), String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("server.properties");
        SystemDisk.replace(&path, text).unwrap();
        let environment = environment.iter().map(|(name, value)| (name.into(), value.into()));
        load(Arguments { file: Some(path), ..Arguments::default() }, &SystemDisk, environment)
    }

    #[test]
    fn a_file_that_is_not_there_is_told_by_its_path() {
        let arguments = Arguments { file: Some("/no/such/file".into()), ..Arguments::default() };
        let message = load(arguments, &SystemDisk, std::iter::empty()).unwrap_err();
        assert!(message.starts_with("cannot read /no/such/file: "), "{message}");
    }

    /// Whoever mends a file must see everything that is wrong in it, with the lines, in one go.
    #[test]
    fn all_mistakes_are_told_at_once() {
        let message = load_text(b"num.partitions=zero\n\nlog.retention.ms=7d\n", &[]).unwrap_err();
        let lines: Vec<&str> = message.lines().collect();
        assert_eq!(lines[0], "2 mistakes in the settings:");
        assert!(lines[1].ends_with(
            "server.properties:3: log.retention.ms=7d: expected a whole number that is not 0, as -1 for no limit"
        ));
        assert!(lines[2].ends_with(
            "server.properties:1: num.partitions=zero: expected a whole number from 1 to 2147483647"
        ));
        assert_eq!(lines.len(), 3);
    }

    #[test]
    fn files_are_utf_8_or_latin_1() {
        let rack = |text: &[u8]| load_text(text, &[]).unwrap().0.rack;
        assert_eq!(rack("broker.rack=Köln".as_bytes()).as_deref(), Some("Köln"));
        assert_eq!(rack(b"broker.rack=K\xf6ln").as_deref(), Some("Köln"));
    }

    #[test]
    fn the_environment_wins_over_the_file() {
        let (config, warnings) = load_text(b"num.partitions=2", &[("KAFKA_NUM_PARTITIONS", "3")]).unwrap();
        assert_eq!((config.num_partitions, warnings), (3, vec![]));
    }
}
