//! Whether the folder with the metadata is where a node looks for it, in the first of `log.dirs`.
//!
//! Without it, a node that is alone would begin an empty cluster beside the partitions that it has, and clients would
//! make the topics again. Of a node with others, `klamm-metadata` itself refuses to begin anew.

use klamm_config::BrokerConfig;
use klamm_io::Disk;
use klamm_metadata::holds_metadata;
use klamm_storage::LogStore;

/// Checks that directories that belong to a cluster have its metadata. To be called when they are Klamm's.
///
/// # Errors
/// What is missing, and what to do, for a person. Nothing was changed.
pub(crate) fn check(store: &LogStore, config: &BrokerConfig, disk: &dyn Disk) -> Result<(), String> {
    let dir = store.metadata_dir();
    // A new directory belongs to no cluster yet, also where it was put before those that do.
    let cluster_id = Some(store.cluster_id()).filter(|id| !id.is_empty()).or(store.wanted_cluster_id());
    let Some(cluster_id) = cluster_id else { return Ok(()) };
    // What the disk cannot tell now, it says again when the folder is opened.
    if holds_metadata(disk, &dir).unwrap_or(true) {
        return Ok(());
    }
    let (first, folder) = (dir.parent().unwrap_or(&dir), dir.file_name().unwrap_or_default());
    let others = config.log_dirs.iter().filter(|other| *other != first);
    for other in others.map(|other| other.as_path()) {
        if holds_metadata(disk, &other.join(folder)).unwrap_or(false) {
            return Err(format!(
                "the metadata of this node is in {}, and is looked for in the first of log.dirs, which is {}: name {} first, \
                 as before",
                other.join(folder).display(),
                first.display(),
                other.display()
            ));
        }
    }
    let partitions = store.partition_folders().map_or(0, |folders| folders.len());
    if !config.is_alone() || partitions == 0 {
        return Ok(());
    }
    Err(format!(
        "the folder {} is missing. This node belongs to cluster {cluster_id}, and {partitions} partitions lie in log.dirs, \
         whose topics only that folder knows: without it, this node would begin an empty cluster beside them. Put the folder back from where \
         it was moved to, or all of log.dirs from one copy; if log.dirs was changed, name the directory that has \
         klamm-metadata again, as the first",
        dir.display()
    ))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use klamm_io::{SystemClock, SystemNetwork, Threads};
    use klamm_testing::{SeededRandom, SimulatedDisk};

    use super::*;
    use crate::start::{Machine, Server, StartError, start};

    async fn node(disk: &SimulatedDisk, log_dirs: &str) -> Result<Server, StartError> {
        let settings = [("listeners", "PLAINTEXT://127.0.0.1:0"), ("log.dirs", log_dirs)];
        let overrides =
            settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let sources = klamm_config::Sources { overrides, ..Default::default() };
        let machine = Machine {
            disk: Arc::new(disk.clone()),
            network: Arc::new(SystemNetwork),
            clock: Arc::new(SystemClock::new()),
            // Each start draws other ids.
            random: Arc::new(SeededRandom::new(log_dirs.len() as u64)),
            threads: Threads::default(),
            loggers: Arc::default(),
        };
        start(klamm_config::load(&sources).unwrap().0, machine).await
    }

    /// A node that is alone, and that has had a topic.
    async fn used() -> SimulatedDisk {
        let disk = SimulatedDisk::new(1);
        let server = node(&disk, "/one,/two").await.unwrap();
        let topic = vec!["topic".to_owned()];
        server.context().metadata.within(Duration::from_secs(30)).auto_create_topics(topic).await;
        server.context().await_applied(10_000).await;
        server.stop().await;
        disk.kill()
    }

    /// It started as an empty broker that said it serves, and clients made the topics again beside the records.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_node_that_lost_its_metadata_does_not_begin_an_empty_cluster() {
        let disk = used().await;
        disk.remove_dir_all(Path::new("/one/klamm-metadata")).unwrap();
        let why = node(&disk, "/one,/two").await.err().expect("it is refused").to_string();
        assert!(
            why.starts_with("the folder /one/klamm-metadata is missing. This node belongs to cluster "),
            "{why}"
        );
        assert!(why.contains("1 partitions lie in log.dirs") && !why.contains("empty directory"), "{why}");
        assert!(!disk.exists(Path::new("/one/klamm-metadata")).unwrap(), "nothing was changed");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn directories_in_another_order_are_refused_with_the_one_to_name_first() {
        let disk = used().await;
        for changed in ["/two,/one", "/three,/one,/two"] {
            let why = node(&disk, changed).await.err().expect("it is refused").to_string();
            assert!(why.starts_with("the metadata of this node is in /one/klamm-metadata"), "{why}");
            assert!(why.contains("name /one first"), "{why}");
        }
        node(&disk, "/one,/two").await.unwrap().stop().await;
    }
}
