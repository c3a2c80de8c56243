//! Zstandard, with one context a thread for each direction.

use std::cell::RefCell;
use std::io::Write;

use zstd::bulk::Compressor;
use zstd::stream::raw::{Decoder as RawDecoder, InBuffer, Operation, OutBuffer};

use super::CHUNK_BYTES;
use crate::error::RecordsError;

const NAME: &str = "zstd";

/// A context that gave more than this is not kept: its window may have grown as large.
const KEPT_AFTER_BYTES_MAX: usize = 8 * 1024 * 1024;

thread_local! {
    static DECODER: RefCell<Option<RawDecoder<'static>>> = const { RefCell::new(None) };
    static COMPRESSOR: RefCell<Option<(i32, Compressor<'static>)>> = const { RefCell::new(None) };
}

fn known_level(level: Option<i32>) -> i32 {
    let range = zstd::compression_level_range();
    level.unwrap_or(zstd::DEFAULT_COMPRESSION_LEVEL).clamp(*range.start(), *range.end())
}

pub(super) fn compress(level: Option<i32>, bytes: &[u8]) -> Vec<u8> {
    let level = known_level(level);
    COMPRESSOR.with_borrow_mut(|kept| {
        let compressor = match kept {
            Some((kept_level, compressor)) if *kept_level == level => compressor,
            _ => &mut kept.insert((level, Compressor::new(level).expect("memory for a zstd context"))).1,
        };
        compressor.compress(bytes).expect("the buffer is as large as the codec asks")
    })
}

pub(crate) struct Encoder(zstd::stream::write::Encoder<'static, Vec<u8>>);

impl Encoder {
    pub(super) fn new(level: Option<i32>) -> Encoder {
        let encoder = zstd::stream::write::Encoder::new(Vec::new(), known_level(level));
        Encoder(encoder.expect("memory for a zstd context"))
    }

    pub(super) fn write(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("writing to memory does not fail");
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.0.finish().expect("writing to memory does not fail")
    }
}

pub(super) struct Decoder<'a> {
    input: &'a [u8],
    /// Taken from and given back to the thread's store.
    context: Option<RawDecoder<'static>>,
    /// Whether a frame has begun and not ended.
    in_frame: bool,
    produced: usize,
}

impl Drop for Decoder<'_> {
    fn drop(&mut self) {
        if self.produced <= KEPT_AFTER_BYTES_MAX {
            DECODER.with_borrow_mut(|kept| *kept = self.context.take());
        }
    }
}

impl<'a> Decoder<'a> {
    pub(super) fn new(input: &'a [u8]) -> Result<Decoder<'a>, RecordsError> {
        let context = match DECODER.with_borrow_mut(Option::take) {
            Some(mut context) => context.reinit().map(|()| context),
            None => RawDecoder::new(),
        };
        let context = context.map_err(|_| corrupt("its context cannot be prepared"))?;
        Ok(Decoder { input, context: Some(context), in_frame: true, produced: 0 })
    }

    pub(super) fn next_chunk(&mut self, out: &mut Vec<u8>) -> Result<bool, RecordsError> {
        if self.input.is_empty() && !self.in_frame {
            return Ok(false);
        }
        let Some(context) = &mut self.context else { return Ok(false) };
        out.reserve(CHUNK_BYTES);
        let before = out.len();
        let mut source = InBuffer::around(self.input);
        let mut sink = OutBuffer::around_pos(out, before);
        let hint = context.run(&mut source, &mut sink).map_err(|_| corrupt("a frame is broken"))?;
        let consumed = source.pos();
        self.in_frame = hint != 0;
        self.produced += out.len() - before;
        if consumed == 0 && out.len() == before && self.in_frame {
            return Err(corrupt("a frame is cut off"));
        }
        self.input = &self.input[consumed..];
        Ok(true)
    }
}

fn corrupt(reason: &'static str) -> RecordsError {
    RecordsError::Decompression { codec: NAME, reason }
}
