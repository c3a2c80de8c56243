//! gzip: deflate between a header and a trailer, which are read here so that the decoder's state can be kept.

use std::cell::RefCell;
use std::io::Write;

use flate2::write::GzEncoder;
use flate2::{Crc, Decompress, FlushDecompress, Status};

use super::CHUNK_BYTES;
use crate::error::RecordsError;

const NAME: &str = "gzip";

thread_local! {
    static INFLATE: RefCell<Option<Decompress>> = const { RefCell::new(None) };
}

pub(super) fn compress(level: Option<i32>, bytes: &[u8]) -> Vec<u8> {
    let mut encoder = Encoder::new(level, Vec::with_capacity(bytes.len() / 2 + 64));
    encoder.write(bytes);
    encoder.finish()
}

pub(crate) struct Encoder(GzEncoder<Vec<u8>>);

impl Encoder {
    /// Kafka takes -1 (the library's default) and 1 to 9.
    pub(super) fn new(level: Option<i32>, out: Vec<u8>) -> Encoder {
        let level = match level {
            Some(level) if level >= 1 => flate2::Compression::new(level.min(9) as u32),
            _ => flate2::Compression::default(),
        };
        Encoder(GzEncoder::new(out, level))
    }

    pub(super) fn write(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("writing to memory does not fail");
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.0.finish().expect("writing to memory does not fail")
    }
}

/// Reads gzip members until the input ends. What follows the first member and is no member is ignored, as Java
/// does.
pub(super) struct Decoder<'a> {
    input: &'a [u8],
    /// Taken from and given back to the thread's store.
    inflate: Option<Decompress>,
    crc: Crc,
    in_member: bool,
    members: usize,
}

impl Drop for Decoder<'_> {
    fn drop(&mut self) {
        INFLATE.with_borrow_mut(|kept| *kept = self.inflate.take());
    }
}

impl<'a> Decoder<'a> {
    pub(super) fn new(input: &'a [u8]) -> Decoder<'a> {
        let inflate = INFLATE.with_borrow_mut(Option::take).unwrap_or_else(|| Decompress::new(false));
        Decoder { input, inflate: Some(inflate), crc: Crc::new(), in_member: false, members: 0 }
    }

    pub(super) fn next_chunk(&mut self, out: &mut Vec<u8>) -> Result<bool, RecordsError> {
        if !self.in_member {
            match header_len(self.input) {
                Ok(len) => self.input = &self.input[len..],
                Err(_) if self.members > 0 => return Ok(false),
                Err(error) => return Err(error),
            }
            self.in_member = true;
            self.members += 1;
            self.crc.reset();
            self.inflate().reset(false);
        }
        let before = out.len();
        out.reserve(CHUNK_BYTES);
        let input = self.input;
        let inflate = self.inflate();
        let consumed_before = inflate.total_in();
        let status = inflate
            .decompress_vec(input, out, FlushDecompress::None)
            .map_err(|_| corrupt("the deflate stream is broken"))?;
        let consumed = (inflate.total_in() - consumed_before) as usize;
        self.input = &input[consumed..];
        self.crc.update(&out[before..]);
        match status {
            Status::StreamEnd => self.finish_member()?,
            Status::Ok | Status::BufError if consumed == 0 && out.len() == before => {
                return Err(RecordsError::CompressedTruncated { codec: NAME });
            }
            Status::Ok | Status::BufError => {}
        }
        Ok(true)
    }

    fn inflate(&mut self) -> &mut Decompress {
        self.inflate.get_or_insert_with(|| Decompress::new(false))
    }

    fn finish_member(&mut self) -> Result<(), RecordsError> {
        let [c0, c1, c2, c3, l0, l1, l2, l3, rest @ ..] = self.input else {
            return Err(RecordsError::CompressedTruncated { codec: NAME });
        };
        if u32::from_le_bytes([*c0, *c1, *c2, *c3]) != self.crc.sum() {
            return Err(corrupt("its checksum is wrong"));
        }
        if u32::from_le_bytes([*l0, *l1, *l2, *l3]) != self.crc.amount() {
            return Err(corrupt("its length is wrong"));
        }
        self.input = rest;
        self.in_member = false;
        Ok(())
    }
}

fn corrupt(reason: &'static str) -> RecordsError {
    RecordsError::Decompression { codec: NAME, reason }
}

/// How a member begins: two bytes of magic, and deflate.
const BEGIN: [u8; 3] = [0x1f, 0x8b, 8];
const FLAG_HEADER_CRC: u8 = 2;
const FLAG_EXTRA: u8 = 4;
const FLAG_NAME: u8 = 8;
const FLAG_COMMENT: u8 = 16;

/// The length of the member header at the beginning of `bytes`.
fn header_len(bytes: &[u8]) -> Result<usize, RecordsError> {
    let truncated = || RecordsError::CompressedTruncated { codec: NAME };
    // What is something else is told from what was cut off, as far as it goes.
    let seen = bytes.len().min(BEGIN.len());
    if bytes[..seen] != BEGIN[..seen] {
        return Err(corrupt("it does not begin as gzip does"));
    }
    if bytes.len() < 10 {
        return Err(truncated());
    }
    let flags = bytes[3];
    let mut len = 10;
    if flags & FLAG_EXTRA != 0 {
        let field = bytes.get(len..len + 2).ok_or_else(truncated)?;
        len += 2 + usize::from(u16::from_le_bytes([field[0], field[1]]));
    }
    for flag in [FLAG_NAME, FLAG_COMMENT] {
        if flags & flag != 0 {
            let text = bytes.get(len..).ok_or_else(truncated)?;
            len += text.iter().position(|&byte| byte == 0).ok_or_else(truncated)? + 1;
        }
    }
    if flags & FLAG_HEADER_CRC != 0 {
        len += 2;
    }
    if bytes.len() < len { Err(truncated()) } else { Ok(len) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Go and C clients may set a name or a comment, which a reader that knows only Java's ten bytes misreads.
    #[test]
    fn optional_header_fields_are_skipped() {
        let plain = compress(None, b"payload");
        let mut odd = plain[..3].to_vec();
        odd.push(FLAG_EXTRA | FLAG_NAME | FLAG_COMMENT | FLAG_HEADER_CRC);
        odd.extend_from_slice(&plain[4..10]);
        odd.extend_from_slice(&[2, 0, b'x', b'y']);
        odd.extend_from_slice(b"name\0comment\0");
        odd.extend_from_slice(&[0, 0]);
        odd.extend_from_slice(&plain[10..]);
        let mut out = Vec::new();
        let mut decoder = Decoder::new(&odd);
        while decoder.next_chunk(&mut out).unwrap() {}
        assert_eq!(out, b"payload");
    }

    #[test]
    fn a_wrong_checksum_is_refused() {
        let mut packed = compress(None, b"payload");
        let at = packed.len() - 8;
        packed[at] ^= 1;
        let mut decoder = Decoder::new(&packed);
        let error = loop {
            match decoder.next_chunk(&mut Vec::new()) {
                Ok(true) => {}
                Ok(false) => panic!("the damage went unseen"),
                Err(error) => break error,
            }
        };
        assert_eq!(error, corrupt("its checksum is wrong"));
    }
}
