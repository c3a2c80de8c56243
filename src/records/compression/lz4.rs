//! LZ4 frames, as Kafka's own reader and writer understand them: independent blocks, one frame.
//!
//! Frames in V0 carry a wrong checksum of the frame's header: it covers the magic number too (KAFKA-3160). A
//! reader of V0 must not check it, and a writer for clients of V0 must write it so.

use twox_hash::XxHash32;

use crate::error::RecordsError;

const NAME: &str = "lz4";
const MAGIC: [u8; 4] = [0x04, 0x22, 0x4d, 0x18];
const BLOCK_BYTES: usize = 64 * 1024;

const FLAG_VERSION: u8 = 0x40;
const FLAG_INDEPENDENT: u8 = 0x20;
const FLAG_BLOCK_CHECKSUM: u8 = 0x10;
const FLAG_CONTENT_SIZE: u8 = 0x08;
const FLAG_CONTENT_CHECKSUM: u8 = 0x04;
const FLAGS_RESERVED: u8 = 0x03;
const BLOCK_64_KIB: u8 = 0x40;
const STORED_BIT: u32 = 0x8000_0000;

/// LZ4's densest instruction makes 255 bytes of one.
const EXPANSION_MAX: usize = 255;

fn header_checksum(covered: &[u8]) -> u8 {
    (XxHash32::oneshot(0, covered) >> 8) as u8
}

pub(super) fn compress(broken_checksum: bool, bytes: &[u8]) -> Vec<u8> {
    let mut encoder = Encoder::new(broken_checksum, bytes.len());
    encoder.write(bytes);
    encoder.finish()
}

pub(crate) struct Encoder {
    out: Vec<u8>,
}

impl Encoder {
    pub(super) fn new(broken_checksum: bool, expected_len: usize) -> Encoder {
        let mut out = Vec::with_capacity(expected_len / 2 + 64);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[FLAG_VERSION | FLAG_INDEPENDENT, BLOCK_64_KIB]);
        out.push(header_checksum(if broken_checksum { &out } else { &out[MAGIC.len()..] }));
        Encoder { out }
    }

    /// Each call ends a block.
    pub(super) fn write(&mut self, bytes: &[u8]) {
        let out = &mut self.out;
        for block in bytes.chunks(BLOCK_BYTES) {
            let start = out.len() + 4;
            out.resize(start + lz4_flex::block::get_maximum_output_size(block.len()), 0);
            let len = lz4_flex::block::compress_into(block, &mut out[start..])
                .expect("the buffer is as large as the codec asks");
            let field = if len < block.len() {
                out.truncate(start + len);
                len as u32
            } else {
                out.truncate(start);
                out.extend_from_slice(block);
                block.len() as u32 | STORED_BIT
            };
            out[start - 4..start].copy_from_slice(&field.to_le_bytes());
        }
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        self.out.extend_from_slice(&0u32.to_le_bytes());
        self.out
    }
}

pub(super) struct Decoder<'a> {
    input: &'a [u8],
    block_bytes_max: usize,
    block_checksums: bool,
}

impl<'a> Decoder<'a> {
    pub(super) fn new(input: &'a [u8], check_header: bool) -> Result<Decoder<'a>, RecordsError> {
        let truncated = || corrupt("its header is cut off");
        if input.len() < 7 {
            return Err(truncated());
        }
        if input[..4] != MAGIC {
            return Err(corrupt("it does not begin as LZ4 frames do"));
        }
        let (flags, blocks) = (input[4], input[5]);
        if flags & 0xc0 != FLAG_VERSION || flags & FLAGS_RESERVED != 0 || blocks & 0x8f != 0 {
            return Err(corrupt("a frame of an unknown kind"));
        }
        if flags & FLAG_INDEPENDENT == 0 {
            return Err(corrupt("its blocks depend on each other"));
        }
        if blocks < BLOCK_64_KIB {
            return Err(corrupt("a frame of an unknown block size"));
        }
        // 4 stands for 64 KiB, each step for four times more, 7 for 4 MiB.
        let block_bytes_max = 1 << (8 + 2 * (blocks >> 4));
        let end = if flags & FLAG_CONTENT_SIZE != 0 { 14 } else { 6 };
        let checksum = *input.get(end).ok_or_else(truncated)?;
        if check_header && header_checksum(&input[4..end]) != checksum {
            return Err(corrupt("the checksum of its header is wrong"));
        }
        // The content's checksum at the end, if FLAG_CONTENT_CHECKSUM says that there is one, is not read:
        // Kafka does not either, and the batch's own CRC covers all of this.
        const { assert!(FLAG_CONTENT_CHECKSUM & FLAGS_RESERVED == 0) };
        Ok(Decoder {
            input: &input[end + 1..],
            block_bytes_max,
            block_checksums: flags & FLAG_BLOCK_CHECKSUM != 0,
        })
    }

    pub(super) fn next_chunk(&mut self, out: &mut Vec<u8>) -> Result<bool, RecordsError> {
        let truncated = || corrupt("a block is cut off");
        let (field, rest) = self.input.split_first_chunk::<4>().ok_or_else(truncated)?;
        let field = u32::from_le_bytes(*field);
        if field == 0 {
            return Ok(false);
        }
        let len = (field & !STORED_BIT) as usize;
        if len > self.block_bytes_max {
            return Err(corrupt("a block is larger than its frame allows"));
        }
        let block = rest.get(..len).ok_or_else(truncated)?;
        self.input = &rest[len..];
        if self.block_checksums {
            let (checksum, rest) = self.input.split_first_chunk::<4>().ok_or_else(truncated)?;
            if u32::from_le_bytes(*checksum) != XxHash32::oneshot(0, block) {
                return Err(corrupt("the checksum of a block is wrong"));
            }
            self.input = rest;
        }
        if field & STORED_BIT != 0 {
            out.extend_from_slice(block);
            return Ok(true);
        }
        let before = out.len();
        out.resize(before + self.block_bytes_max.min(len.saturating_mul(EXPANSION_MAX)), 0);
        let produced = lz4_flex::block::decompress_into(block, &mut out[before..])
            .map_err(|_| corrupt("a block is broken"))?;
        out.truncate(before + produced);
        Ok(true)
    }
}

fn corrupt(reason: &'static str) -> RecordsError {
    RecordsError::Decompression { codec: NAME, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(frame: &[u8], check_header: bool) -> Result<Vec<u8>, RecordsError> {
        let mut decoder = Decoder::new(frame, check_header)?;
        let mut out = Vec::new();
        while decoder.next_chunk(&mut out)? {}
        Ok(out)
    }

    /// Clients of 0.8 and 0.9 read only the wrong checksum, today's only the right one.
    #[test]
    fn the_wrong_header_checksum_is_written_and_read_for_old_clients_only() {
        let (old, new) = (compress(true, b"records"), compress(false, b"records"));
        assert_eq!((old[6], new[6]), (0x1a, 0x82), "what Kafka 0.8.2.2 and 2.8.2 write");
        assert_eq!(decode(&old, false).unwrap(), b"records");
        assert_eq!(decode(&old, true).unwrap_err(), corrupt("the checksum of its header is wrong"));
        assert_eq!(decode(&new, true).unwrap(), b"records");
    }

    /// Other clients write their frames through the reference library, with options that Java never uses.
    #[test]
    fn frames_of_another_writer_are_read() {
        use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};
        use std::io::Write;
        let content: Vec<u8> = (0..300_000u32).map(|n| (n / 7) as u8).collect();
        for block_size in [BlockSize::Max64KB, BlockSize::Max256KB, BlockSize::Max1MB, BlockSize::Max4MB] {
            let info = FrameInfo::new()
                .block_mode(BlockMode::Independent)
                .block_size(block_size)
                .block_checksums(true)
                .content_checksum(true)
                .content_size(Some(content.len() as u64));
            let mut encoder = FrameEncoder::with_frame_info(info, Vec::new());
            encoder.write_all(&content).unwrap();
            let mut frame = encoder.finish().unwrap();
            assert_eq!(decode(&frame, true).unwrap(), content);
            frame[25] ^= 1;
            assert!(decode(&frame, true).is_err());
        }
    }
}
