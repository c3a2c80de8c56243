//! What the machine itself can do with the bytes of a broker: recv, CRC32C and pwritev on the way in,
//! sendfile on the way out, on one thread each, with nothing between. No broker on this machine is faster.

use std::fs::File;
use std::io::{IoSlice, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::Instant;

use anyhow::{Result, bail};
use rustix::time::{ClockId, clock_gettime};

/// The part of a batch that a broker writes itself: offset, length, leader epoch, magic.
const HEAD_BYTES: usize = 17;

const SEND_FILE_BYTES: usize = 1 << 20;

/// One way of the bytes.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// Time that passed.
    pub seconds: f64,
    /// What the broker's side of it took from the processor.
    pub cpu_seconds: f64,
}

/// Moves `bytes` in batches of `batch_bytes` through the loopback into a file, and out of it again.
pub fn measure(folder: &Path, bytes: u64, batch_bytes: usize) -> Result<(Way, Way)> {
    if batch_bytes <= HEAD_BYTES {
        bail!("a batch of {batch_bytes} bytes has no records");
    }
    let batches = bytes / batch_bytes as u64;
    let path = folder.join("raw");
    let file = File::create_new(&path)?;
    let way_in = take_in(&file, batches, batch_bytes)?;
    let way_out = give_out(&File::open(&path)?, batches * batch_bytes as u64)?;
    std::fs::remove_file(&path)?;
    Ok((way_in, way_out))
}

fn take_in(file: &File, batches: u64, batch_bytes: usize) -> Result<Way> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let sender = thread::spawn(move || -> Result<()> {
        let mut stream = TcpStream::connect(address)?;
        let batch = vec![0x61; batch_bytes];
        for _ in 0..batches {
            stream.write_all(&batch)?;
        }
        Ok(())
    });
    let (mut stream, _) = listener.accept()?;
    let (wall, cpu) = (Instant::now(), thread_cpu_seconds());
    let mut batch = vec![0; batch_bytes];
    let mut head = [0; HEAD_BYTES];
    let mut checksums = 0_u32;
    for index in 0..batches {
        stream.read_exact(&mut batch)?;
        checksums ^= crc32c::crc32c(&batch[HEAD_BYTES + 4..]);
        head.copy_from_slice(&batch[..HEAD_BYTES]);
        head[..8].copy_from_slice(&index.to_be_bytes());
        let parts = [IoSlice::new(&head), IoSlice::new(&batch[HEAD_BYTES..])];
        let written = rustix::io::pwritev(file, &parts, index * batch_bytes as u64)?;
        if written != batch_bytes {
            bail!("a write of {written} of {batch_bytes} bytes: the disk is full");
        }
    }
    // Without a use of the checksums the compiler may leave them out.
    std::hint::black_box(checksums);
    let way = Way { seconds: wall.elapsed().as_secs_f64(), cpu_seconds: thread_cpu_seconds() - cpu };
    sender.join().expect("the sender does not panic")?;
    Ok(way)
}

fn give_out(file: &File, bytes: u64) -> Result<Way> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let receiver = thread::spawn(move || -> Result<u64> {
        let mut stream = TcpStream::connect(address)?;
        let mut buffer = vec![0; 64 << 10];
        let mut received = 0;
        loop {
            match stream.read(&mut buffer)? {
                0 => return Ok(received),
                count => received += count as u64,
            }
        }
    });
    let (stream, _) = listener.accept()?;
    let (wall, cpu) = (Instant::now(), thread_cpu_seconds());
    let mut position = 0;
    while position < bytes {
        let most = SEND_FILE_BYTES.min((bytes - position) as usize);
        if rustix::fs::sendfile(&stream, file, Some(&mut position), most)? == 0 {
            bail!("the file ends at {position} of {bytes} bytes");
        }
    }
    let cpu_seconds = thread_cpu_seconds() - cpu;
    drop(stream);
    let received = receiver.join().expect("the receiver does not panic")?;
    if received != bytes {
        bail!("{received} of {bytes} bytes arrived");
    }
    Ok(Way { seconds: wall.elapsed().as_secs_f64(), cpu_seconds })
}

fn thread_cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A limit that moves fewer bytes than it says would flatter itself and shame the broker.
    #[test]
    fn all_bytes_go_in_and_out() {
        let folder = tempfile::tempdir().unwrap();
        let (way_in, way_out) = measure(folder.path(), 4 << 20, 16 << 10).unwrap();
        for way in [way_in, way_out] {
            assert!(way.seconds > 0.0 && way.cpu_seconds > 0.0 && way.cpu_seconds < 60.0, "{way:?}");
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the file is removed");
    }
}
