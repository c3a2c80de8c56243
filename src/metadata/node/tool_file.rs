//! `klamm-metadata/meta.properties`, for `kafka-metadata-quorum add-controller`: the tool reads which node, and which
//! directory of it, it is to add from the file of that name in `metadata.log.dir`, and does not understand the one in
//! `log.dirs`, which keeps Apache Kafka away (observed on Kafka 4.4.0). Klamm itself never reads it.

use std::io;

use super::settings::Settings;

const FILE_NAME: &str = "meta.properties";

/// Writes the file unless it is there as it should be. A node that is alone needs none.
pub(super) fn keep(settings: &Settings, cluster_id: &str) -> io::Result<()> {
    if settings.is_alone() {
        return Ok(());
    }
    let path = settings.dir.join(FILE_NAME);
    let content = format!(
        "# For metadata.log.dir in the settings that kafka-metadata-quorum add-controller is given.\n\
         version=1\ncluster.id={cluster_id}\nnode.id={}\ndirectory.id={}\n",
        settings.node_id, settings.directory_id
    );
    if settings.disk.exists(&path)? && settings.disk.read(&path)? == content.as_bytes() {
        return Ok(());
    }
    settings.disk.replace(&path, content.as_bytes())
}
