//! Reads that have to wait for the disk, on threads that may wait.
//!
//! `sendfile` blocks its thread until the pages that it sends are in memory. On a thread that serves requests,
//! one client that reads old records from a slow disk would hold up all others.

use std::io;
use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::File;

/// How many such reads there are at once: enough to keep a disk busy, few enough that each goes on.
const AT_ONCE: usize = 8;

/// How much is read at once.
const READ_BYTES: usize = 128 * 1024;

static PERMITS: Semaphore = Semaphore::const_new(AT_ONCE);

/// Returns when a part of a file has been read into the system's cache; the bytes themselves are dropped.
pub(crate) async fn into_cache(file: Arc<dyn File>, position: u64, len: usize) -> io::Result<()> {
    let _permit = PERMITS.acquire().await.map_err(io::Error::other)?;
    let read = tokio::task::spawn_blocking(move || {
        let end = position + len as u64;
        let mut buffer = vec![0; READ_BYTES.min(len)];
        let mut position = position;
        while position < end {
            let most = buffer.len().min((end - position) as usize);
            match file.read_at(&mut buffer[..most], position)? {
                0 => break,
                count => position += count as u64,
            }
        }
        Ok(())
    });
    read.await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;
    use std::path::Path;
    use std::thread::{self, ThreadId};

    use std::sync::Mutex;

    use super::*;
    use crate::{Disk, Network, OpenMode, SystemDisk, SystemNetwork};

    /// A file that is never in memory, and that notes who reads it.
    struct Cold {
        file: Arc<dyn File>,
        readers: Mutex<Vec<ThreadId>>,
    }

    impl File for Cold {
        fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
            self.readers.lock().unwrap().push(thread::current().id());
            self.file.read_at(buffer, position)
        }
        fn write_all_at(&self, parts: &[&[u8]], position: u64) -> io::Result<()> {
            self.file.write_all_at(parts, position)
        }
        fn len(&self) -> io::Result<u64> {
            self.file.len()
        }
        fn set_len(&self, len: u64) -> io::Result<()> {
            self.file.set_len(len)
        }
        fn sync_data(&self) -> io::Result<()> {
            self.file.sync_data()
        }
        fn is_cached(&self, _position: u64, _len: u64) -> bool {
            false
        }
        fn descriptor(&self) -> Option<BorrowedFd<'_>> {
            self.file.descriptor()
        }
    }

    /// The only thread of the runtime would have waited for the disk, and everybody else for it.
    #[tokio::test]
    async fn what_is_not_in_memory_is_read_on_another_thread() {
        let name = format!("klamm-cold-reads-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let content: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
        let file = SystemDisk.open(Path::new(&path), OpenMode::CreateOrOpen).unwrap();
        SystemDisk.remove_file(&path).unwrap();
        file.write_all_at(&[&content], 0).unwrap();
        assert!(file.is_cached(0, content.len() as u64), "it was written just now");
        let cold = Arc::new(Cold { file, readers: Mutex::default() });
        let listener = SystemNetwork.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let client = SystemNetwork.connect(listener.local_addr()).await.unwrap();
        let server = listener.accept().await.unwrap();
        let receiving = async {
            let mut received = bytes::BytesMut::new();
            while received.len() < content.len() - 7 {
                received.reserve(64 * 1024);
                assert_ne!(client.read(&mut received).await.unwrap(), 0);
            }
            received
        };
        let as_file: Arc<dyn File> = cold.clone();
        let len = content.len() as u64 - 7;
        let (sent, received) = tokio::join!(server.send_file(&as_file, 7, len), receiving);
        sent.unwrap();
        assert_eq!(received, content[7..]);
        let readers = cold.readers.lock().unwrap();
        assert!(readers.len() >= 20, "only {} reads", readers.len());
        assert!(readers.iter().all(|reader| *reader != thread::current().id()));
    }
}
