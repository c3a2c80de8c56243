//! Looking through the records of a V2 batch without building them: what validation does with each Produce.
//!
//! A record of V2 is `length: varint, attributes: i8, timestamp delta: varlong, offset delta: varint, key,
//! value, header count: varint, headers`, each byte string with its length as varint, -1 for null.

use std::cell::RefCell;

use klamm_model::Offset;

use crate::compression::Decoder;
use crate::error::RecordsError;
use crate::varint::{VarintError, read_varint, read_varlong};

/// The most bytes that a varint takes.
const VARINT_LEN_MAX: usize = 10;

/// Why the next piece cannot be had: a broken record, or a broken codec.
pub(crate) enum Broken {
    /// The record is not what the format says.
    Record(&'static str),
    /// The decoder failed.
    Codec(RecordsError),
}

impl Broken {
    /// The same of a batch that begins at `offset`.
    pub(crate) fn at(self, offset: Offset) -> RecordsError {
        match self {
            Broken::Record(reason) => RecordsError::InvalidRecord { offset, reason },
            Broken::Codec(error) => error,
        }
    }
}

const ENDS: Broken = Broken::Record("the batch ends within a record");

/// Bytes that are read from front to back.
pub(crate) trait Source {
    /// At least `wanted` bytes from here on, fewer only at the end. `wanted` is small.
    fn peek(&mut self, wanted: usize) -> Result<&[u8], Broken>;
    /// Passes over `count` bytes, which must be there.
    fn skip(&mut self, count: usize) -> Result<(), Broken>;
    /// How many bytes were passed.
    fn position(&self) -> u64;
}

/// An uncompressed batch.
pub(crate) struct SliceSource<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) position: usize,
}

impl Source for SliceSource<'_> {
    #[inline]
    fn peek(&mut self, _wanted: usize) -> Result<&[u8], Broken> {
        Ok(&self.bytes[self.position..])
    }

    #[inline]
    fn skip(&mut self, count: usize) -> Result<(), Broken> {
        if count > self.bytes.len() - self.position {
            return Err(ENDS);
        }
        self.position += count;
        Ok(())
    }

    fn position(&self) -> u64 {
        self.position as u64
    }
}

thread_local! {
    static WINDOW: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A larger window, which one odd batch needed, is not kept.
const WINDOW_BYTES_KEPT_MAX: usize = 256 * 1024;

/// A compressed batch, of which only a chunk at a time is in memory.
pub(crate) struct DecoderSource<'a> {
    decoder: Decoder<'a>,
    window: Vec<u8>,
    at: usize,
    passed: u64,
    ended: bool,
}

impl Drop for DecoderSource<'_> {
    fn drop(&mut self) {
        let mut window = std::mem::take(&mut self.window);
        window.clear();
        if window.capacity() <= WINDOW_BYTES_KEPT_MAX {
            WINDOW.set(window);
        }
    }
}

impl<'a> DecoderSource<'a> {
    pub(crate) fn new(decoder: Decoder<'a>) -> DecoderSource<'a> {
        DecoderSource { decoder, window: WINDOW.take(), at: 0, passed: 0, ended: false }
    }

    fn fill(&mut self) -> Result<(), Broken> {
        self.window.drain(..self.at);
        self.at = 0;
        self.ended = !self.decoder.next_chunk(&mut self.window).map_err(Broken::Codec)?;
        Ok(())
    }
}

impl Source for DecoderSource<'_> {
    #[inline]
    fn peek(&mut self, wanted: usize) -> Result<&[u8], Broken> {
        while self.window.len() - self.at < wanted && !self.ended {
            self.fill()?;
        }
        Ok(&self.window[self.at..])
    }

    #[inline]
    fn skip(&mut self, mut count: usize) -> Result<(), Broken> {
        self.passed += count as u64;
        loop {
            let there = self.window.len() - self.at;
            if count <= there {
                self.at += count;
                return Ok(());
            }
            if self.ended {
                return Err(ENDS);
            }
            count -= there;
            self.at = self.window.len();
            self.fill()?;
        }
    }

    fn position(&self) -> u64 {
        self.passed
    }
}

/// What validation wants to know of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outline {
    pub(crate) timestamp_delta: i64,
    pub(crate) offset_delta: i32,
    /// -1 for a null key.
    pub(crate) key_len: i32,
    /// -1 for a null value.
    pub(crate) value_len: i32,
}

/// Passes over one record.
pub(crate) fn outline(source: &mut impl Source) -> Result<Outline, Broken> {
    let len = varint(source)?;
    let len = u64::try_from(len).map_err(|_| Broken::Record("a record's length is negative"))?;
    let start = source.position();
    source.skip(1)?;
    let timestamp_delta = varlong(source)?;
    let offset_delta = varint(source)?;
    let key_len = skip_bytes(source)?;
    let value_len = skip_bytes(source)?;
    let headers = varint(source)?;
    if headers < 0 {
        return Err(Broken::Record("a record's number of headers is negative"));
    }
    for _ in 0..headers {
        if skip_bytes(source)? < 0 {
            return Err(Broken::Record("a record's header has no key"));
        }
        skip_bytes(source)?;
    }
    if source.position() - start != len {
        return Err(Broken::Record("a record's length is not that of its fields"));
    }
    Ok(Outline { timestamp_delta, offset_delta, key_len, value_len })
}

/// Whether nothing is left.
pub(crate) fn is_at_end(source: &mut impl Source) -> Result<bool, Broken> {
    Ok(source.peek(1)?.is_empty())
}

fn skip_bytes(source: &mut impl Source) -> Result<i32, Broken> {
    let len = varint(source)?;
    if len > 0 {
        source.skip(len as usize)?;
    }
    Ok(len)
}

fn varint(source: &mut impl Source) -> Result<i32, Broken> {
    let (value, len) = read_varint(source.peek(VARINT_LEN_MAX)?).map_err(broken_varint)?;
    source.skip(len)?;
    Ok(value)
}

fn varlong(source: &mut impl Source) -> Result<i64, Broken> {
    let (value, len) = read_varlong(source.peek(VARINT_LEN_MAX)?).map_err(broken_varint)?;
    source.skip(len)?;
    Ok(value)
}

pub(crate) fn broken_varint(error: VarintError) -> Broken {
    match error {
        VarintError::Ends => ENDS,
        VarintError::TooLong => Broken::Record("a record has a varint that is too long"),
    }
}
