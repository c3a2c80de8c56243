//! Snappy in the framing of snappy-java: a header of 16 bytes, then blocks with their length before them. Some
//! clients send one bare block without any framing; that is read too.

use super::CHUNK_BYTES;
use crate::error::RecordsError;

const NAME: &str = "snappy";
const MAGIC: [u8; 8] = [0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0];
const HEADER_LEN: usize = 16;

/// Snappy's densest instruction makes 64 bytes of 3, so a block that claims more lies.
const EXPANSION_MAX: usize = 22;

pub(super) fn compress(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = Encoder::new(bytes.len());
    encoder.write(bytes);
    encoder.finish()
}

pub(crate) struct Encoder {
    encoder: snap::raw::Encoder,
    out: Vec<u8>,
}

impl Encoder {
    pub(super) fn new(expected_len: usize) -> Encoder {
        let mut out = Vec::with_capacity(HEADER_LEN + expected_len / 2 + 64);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&1i32.to_be_bytes()); // version
        out.extend_from_slice(&1i32.to_be_bytes()); // the oldest version that can read it
        Encoder { encoder: snap::raw::Encoder::new(), out }
    }

    /// Each call ends a block.
    pub(super) fn write(&mut self, bytes: &[u8]) {
        let out = &mut self.out;
        for block in bytes.chunks(CHUNK_BYTES) {
            let start = out.len() + 4;
            out.resize(start + snap::raw::max_compress_len(block.len()), 0);
            let compressed = self.encoder.compress(block, &mut out[start..]);
            let len = compressed.expect("the buffer is as large as the codec asks");
            out.truncate(start + len);
            out[start - 4..start].copy_from_slice(&(len as i32).to_be_bytes());
        }
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.out
    }
}

pub(super) struct Decoder<'a> {
    input: &'a [u8],
    framed: bool,
}

impl<'a> Decoder<'a> {
    pub(super) fn new(input: &'a [u8]) -> Decoder<'a> {
        if input.len() >= HEADER_LEN && input.starts_with(&MAGIC) {
            Decoder { input: &input[HEADER_LEN..], framed: true }
        } else {
            Decoder { input, framed: false }
        }
    }

    /// `remaining` is what may still be produced, of `limit` in all.
    pub(super) fn next_chunk(
        &mut self,
        out: &mut Vec<u8>,
        remaining: usize,
        limit: usize,
    ) -> Result<bool, RecordsError> {
        if !self.framed {
            let block = std::mem::take(&mut self.input);
            decompress_block(block, out, remaining, limit)?;
            return Ok(false);
        }
        if self.input.is_empty() {
            return Ok(false);
        }
        if self.input.starts_with(&MAGIC) {
            self.input = self.input.get(HEADER_LEN..).ok_or_else(|| corrupt("its header is cut off"))?;
            return Ok(true);
        }
        let (len, rest) = self.input.split_first_chunk::<4>().ok_or_else(|| corrupt("a block is cut off"))?;
        let len = usize::try_from(i32::from_be_bytes(*len))
            .map_err(|_| corrupt("a block has a negative length"))?;
        let block = rest.get(..len).ok_or_else(|| corrupt("a block is cut off"))?;
        self.input = &rest[len..];
        decompress_block(block, out, remaining, limit)?;
        Ok(true)
    }
}

fn decompress_block(
    block: &[u8],
    out: &mut Vec<u8>,
    remaining: usize,
    limit: usize,
) -> Result<(), RecordsError> {
    if block.is_empty() {
        return Err(corrupt("a block is empty"));
    }
    let len = snap::raw::decompress_len(block).map_err(|_| corrupt("a block does not tell its length"))?;
    if len > block.len().saturating_mul(EXPANSION_MAX) {
        return Err(corrupt("a block claims more than snappy can hold"));
    }
    if len > remaining {
        return Err(RecordsError::ExpandsTooFar { codec: NAME, limit });
    }
    let before = out.len();
    out.resize(before + len, 0);
    snap::raw::Decoder::new()
        .decompress(block, &mut out[before..])
        .map_err(|_| corrupt("a block is broken"))?;
    Ok(())
}

fn corrupt(reason: &'static str) -> RecordsError {
    RecordsError::Decompression { codec: NAME, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clients without snappy-java (early Go and Python ones) send a bare block.
    #[test]
    fn a_bare_block_is_read() {
        let bare = snap::raw::Encoder::new().compress_vec(b"bare bare bare").unwrap();
        let mut out = Vec::new();
        assert!(!Decoder::new(&bare).next_chunk(&mut out, 100, 100).unwrap());
        assert_eq!(out, b"bare bare bare");
    }

    /// Four bytes that claim four gigabytes must not reserve them.
    #[test]
    fn a_block_that_claims_too_much_is_refused_before_memory_is_taken() {
        let mut out = Vec::new();
        let error = Decoder::new(&[0xff, 0xff, 0xff, 0xff, 0x0f, 0])
            .next_chunk(&mut out, usize::MAX, usize::MAX)
            .unwrap_err();
        assert_eq!(error, corrupt("a block claims more than snappy can hold"));
        assert_eq!(out.capacity(), 0);
    }
}
