//! Going through the messages in a compressed one of V0 or V1 while only a chunk of them is in memory.

use bytes::Bytes;
use klamm_model::Offset;

use crate::batch::Batch;
use crate::compression::{Compression, Decoder};
use crate::header::{BatchHeader, V0_SIZE_MIN};
use crate::legacy::{InnerHead, fields_len, wrapped_offset_base, wrapped_value};
use crate::stream::{Broken, DecoderSource, Source};

/// The value of a compressed message. What it expands to has no bound.
pub(crate) struct Wrapper<'a> {
    header: &'a BatchHeader,
    codec: Compression,
    value: Bytes,
}

impl<'a> Wrapper<'a> {
    pub(crate) fn of(batch: &'a Batch) -> Result<Wrapper<'a>, Broken> {
        let header = &batch.header;
        let (codec, value) = wrapped_value(header, &batch.bytes).map_err(Broken::Codec)?;
        Ok(Wrapper { header, codec, value })
    }

    /// The messages in it, from the first on.
    pub(crate) fn open(&self) -> Result<DecoderSource<'_>, Broken> {
        let decoder = Decoder::new(self.codec, self.header.magic, &self.value, usize::MAX);
        decoder.map(DecoderSource::new).map_err(Broken::Codec)
    }

    /// What is added to the offsets of the messages: it follows from that of the last one, so all are passed.
    pub(crate) fn offset_base(&self) -> Result<Offset, Broken> {
        let mut last = None;
        let mut source = self.open()?;
        while let Some(head) = pass_message(&mut source)? {
            last = Some(head.offset);
        }
        let last = last.ok_or(Broken::Record("a compressed message that holds none"))?;
        wrapped_offset_base(self.header, last).map_err(Broken::Record)
    }
}

/// The head of the next message; `None` at the end.
pub(crate) fn peek_message(source: &mut impl Source) -> Result<Option<InnerHead>, Broken> {
    InnerHead::read(source.peek(fields_len(1))?).map_err(Broken::Record)
}

/// Passes over the next message; `None` at the end, and where the message is cut off.
pub(crate) fn pass_message(source: &mut impl Source) -> Result<Option<InnerHead>, Broken> {
    let Some(head) = peek_message(source)? else { return Ok(None) };
    debug_assert!(head.len > V0_SIZE_MIN as usize, "a message moves the walk on");
    match source.skip(head.len) {
        Ok(()) => Ok(Some(head)),
        Err(Broken::Record(_)) => Ok(None),
        Err(broken) => Err(broken),
    }
}
