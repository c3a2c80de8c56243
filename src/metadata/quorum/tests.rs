//! The log storage against openraft's own suite, and against crashes.

use std::path::Path;
use std::sync::Arc;

use klamm_io::Disk;
use klamm_testing::SimulatedDisk;
use openraft::StorageError;
use openraft::testing::log::{StoreBuilder, Suite};

use super::disk_thread::DiskThread;
use super::log::LogStore;
use super::state_machine::StateMachine;
use super::{Runtime, TypeConfig};

struct OnSimulatedDisk;

impl StoreBuilder<TypeConfig, LogStore, StateMachine> for OnSimulatedDisk {
    async fn build(&self) -> Result<((), LogStore, StateMachine), StorageError<TypeConfig>> {
        let disk: Arc<dyn Disk> = Arc::new(SimulatedDisk::new(1));
        let (dir, thread) = (Path::new("/meta"), DiskThread::inline());
        disk.create_dir_all(dir).unwrap();
        let log = LogStore::open(&disk, &thread, dir).unwrap();
        let (machine, _) = StateMachine::open(&disk, &thread, dir, "suite").unwrap();
        Ok(((), log, machine))
    }
}

#[test]
fn openrafts_own_suite_accepts_the_storage() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let suite = Suite::<TypeConfig, LogStore, StateMachine, OnSimulatedDisk, ()>::test_all(OnSimulatedDisk);
    runtime.block_on(Runtime::scope(1, suite)).unwrap();
}
