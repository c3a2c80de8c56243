//! SipHash-2-4 with 128 bits of output (Aumasson and Bernstein): with a secret key nobody can choose two record
//! keys that are taken for one.

/// The hash of some bytes under a key.
pub(super) fn hash_128(key: [u64; 2], bytes: &[u8]) -> [u64; 2] {
    let mut state = State {
        v0: key[0] ^ 0x736f_6d65_7073_6575,
        v1: key[1] ^ 0x646f_7261_6e64_6f6d ^ 0xee,
        v2: key[0] ^ 0x6c79_6765_6e65_7261,
        v3: key[1] ^ 0x7465_6462_7974_6573,
    };
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        state.absorb(u64::from_le_bytes(*word));
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    state.absorb(u64::from_le_bytes(last) | (bytes.len() as u64) << 56);
    state.v2 ^= 0xee;
    let first = state.squeeze();
    state.v1 ^= 0xdd;
    [first, state.squeeze()]
}

struct State {
    v0: u64,
    v1: u64,
    v2: u64,
    v3: u64,
}

impl State {
    fn absorb(&mut self, word: u64) {
        self.v3 ^= word;
        self.round();
        self.round();
        self.v0 ^= word;
    }

    fn squeeze(&mut self) -> u64 {
        for _ in 0..4 {
            self.round();
        }
        self.v0 ^ self.v1 ^ self.v2 ^ self.v3
    }

    fn round(&mut self) {
        self.v0 = self.v0.wrapping_add(self.v1);
        self.v1 = self.v1.rotate_left(13) ^ self.v0;
        self.v0 = self.v0.rotate_left(32);
        self.v2 = self.v2.wrapping_add(self.v3);
        self.v3 = self.v3.rotate_left(16) ^ self.v2;
        self.v0 = self.v0.wrapping_add(self.v3);
        self.v3 = self.v3.rotate_left(21) ^ self.v0;
        self.v2 = self.v2.wrapping_add(self.v1);
        self.v1 = self.v1.rotate_left(17) ^ self.v2;
        self.v2 = self.v2.rotate_left(32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first of the vectors that the authors publish.
    #[test]
    fn the_published_vectors_come_out() {
        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        let hex = |bytes: &[u8]| {
            let [first, second] = hash_128(key, bytes);
            let bytes = [first.to_le_bytes(), second.to_le_bytes()].concat();
            bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        assert_eq!(hex(b""), "a3817f04ba25a8e66df67214c7550293");
        assert_eq!(hex(b"\0"), "da87c1d86b99af44347659119b22fc45");
        assert_eq!(hex(b"\0\x01"), "8177228da4a45dc7fca38bdef60affe4");
    }
}
