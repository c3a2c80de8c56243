//! Randomness: ids, jitter, election time-outs.

/// A source of random bytes.
pub trait Random: Send + Sync + 'static {
    /// Fills all of `bytes`.
    fn fill(&self, bytes: &mut [u8]);

    /// Eight random bytes as a number.
    fn next_u64(&self) -> u64 {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// Sixteen random bytes, what an id is made of.
    fn next_16(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        self.fill(&mut bytes);
        bytes
    }
}

/// The kernel's random source.
pub struct SystemRandom;

impl Random for SystemRandom {
    fn fill(&self, bytes: &mut [u8]) {
        let mut filled = 0;
        while filled < bytes.len() {
            match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
                Ok(count) => filled += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => panic!("the kernel gives no random bytes: {error}"),
            }
        }
    }
}
