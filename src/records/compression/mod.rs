//! The five codecs: none, gzip, snappy, LZ4 and zstd.
//!
//! Each codec's decoder yields its output in chunks, so that validation can look through a batch with a small
//! buffer. Contexts and buffers are kept per thread: a broker decompresses a batch for each Produce.

mod gzip;
mod lz4;
mod snappy;
mod zstd;

use bytes::Bytes;

use crate::error::RecordsError;

/// What a compressed batch may expand to unless its caller says otherwise, in bytes.
pub const EXPANDED_BYTES_MAX: usize = 128 * 1024 * 1024;

/// How much the decoders of codecs without blocks yield at once.
const CHUNK_BYTES: usize = 32 * 1024;

/// What the blocks of all codecs divide: pieces of a multiple of this come out as if they were one.
pub(crate) const PIECE_BYTES: usize = 64 * 1024;

/// The codec of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Compression {
    /// Records stand in the batch as they are.
    #[default]
    None,
    /// RFC 1952.
    Gzip,
    /// Snappy blocks in the framing of snappy-java; a bare block is read too.
    Snappy,
    /// An LZ4 frame.
    Lz4,
    /// Zstandard frames (KIP-110), only in V2.
    Zstd,
}

impl Compression {
    /// From the lowest three bits of a batch's attributes.
    pub fn from_attributes(attributes: i16) -> Result<Compression, RecordsError> {
        match attributes & crate::header::COMPRESSION_MASK {
            0 => Ok(Compression::None),
            1 => Ok(Compression::Gzip),
            2 => Ok(Compression::Snappy),
            3 => Ok(Compression::Lz4),
            4 => Ok(Compression::Zstd),
            id => Err(RecordsError::UnknownCompression { id: id as u8 }),
        }
    }

    /// From a name in a config: `none` or `uncompressed`, `gzip`, `snappy`, `lz4`, `zstd`.
    pub fn from_name(name: &str) -> Option<Compression> {
        match name {
            "none" | "uncompressed" => Some(Compression::None),
            "gzip" => Some(Compression::Gzip),
            "snappy" => Some(Compression::Snappy),
            "lz4" => Some(Compression::Lz4),
            "zstd" => Some(Compression::Zstd),
            _ => None,
        }
    }

    /// Kafka's name of the codec.
    pub fn name(self) -> &'static str {
        match self {
            Compression::None => "none",
            Compression::Gzip => "gzip",
            Compression::Snappy => "snappy",
            Compression::Lz4 => "lz4",
            Compression::Zstd => "zstd",
        }
    }

    /// The bits in a batch's attributes.
    pub(crate) fn attribute_bits(self) -> i16 {
        self as i16
    }
}

/// Compresses `bytes`. `magic` is that of the batch around them: LZ4 in V0 has a header checksum of its own.
/// `level` `None` is the codec's default; snappy and LZ4 have only one.
pub fn compress(codec: Compression, level: Option<i32>, magic: i8, bytes: &[u8]) -> Vec<u8> {
    match codec {
        Compression::None => bytes.to_vec(),
        Compression::Gzip => gzip::compress(level, bytes),
        Compression::Snappy => snappy::compress(bytes),
        Compression::Lz4 => lz4::compress(magic == 0, bytes),
        Compression::Zstd => zstd::compress(level, bytes),
    }
}

/// Compresses piece by piece, for what is too large to be held uncompressed.
pub(crate) enum Encoder {
    Plain(Vec<u8>),
    Gzip(Box<gzip::Encoder>),
    Snappy(Box<snappy::Encoder>),
    Lz4(lz4::Encoder),
    Zstd(Box<zstd::Encoder>),
}

impl Encoder {
    /// What [`compress`] would write of all that is given to [`Encoder::write`], but for zstd, whose frame then
    /// does not tell its length.
    pub(crate) fn new(codec: Compression, level: Option<i32>, magic: i8) -> Encoder {
        match codec {
            Compression::None => Encoder::Plain(Vec::new()),
            Compression::Gzip => Encoder::Gzip(Box::new(gzip::Encoder::new(level, Vec::new()))),
            Compression::Snappy => Encoder::Snappy(Box::new(snappy::Encoder::new(0))),
            Compression::Lz4 => Encoder::Lz4(lz4::Encoder::new(magic == 0, 0)),
            Compression::Zstd => Encoder::Zstd(Box::new(zstd::Encoder::new(level))),
        }
    }

    /// Compresses a piece; all but the last one must be a multiple of [`PIECE_BYTES`] long.
    pub(crate) fn write(&mut self, piece: &[u8]) {
        match self {
            Encoder::Plain(out) => out.extend_from_slice(piece),
            Encoder::Gzip(encoder) => encoder.write(piece),
            Encoder::Snappy(encoder) => encoder.write(piece),
            Encoder::Lz4(encoder) => encoder.write(piece),
            Encoder::Zstd(encoder) => encoder.write(piece),
        }
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        match self {
            Encoder::Plain(out) => out,
            Encoder::Gzip(encoder) => encoder.finish(),
            Encoder::Snappy(encoder) => encoder.finish(),
            Encoder::Lz4(encoder) => encoder.finish(),
            Encoder::Zstd(encoder) => encoder.finish(),
        }
    }
}

/// Decompresses `bytes`, which must not give more than `limit` bytes.
pub fn decompress(codec: Compression, magic: i8, bytes: &Bytes, limit: usize) -> Result<Bytes, RecordsError> {
    if codec == Compression::None {
        return Ok(bytes.clone());
    }
    let mut decoder = Decoder::new(codec, magic, bytes, limit)?;
    let mut out = Vec::new();
    while decoder.next_chunk(&mut out)? {}
    Ok(out.into())
}

/// Decompresses chunk by chunk.
pub(crate) struct Decoder<'a> {
    state: State<'a>,
    codec: Compression,
    produced: usize,
    limit: usize,
}

enum State<'a> {
    Plain(&'a [u8]),
    Gzip(gzip::Decoder<'a>),
    Snappy(snappy::Decoder<'a>),
    Lz4(lz4::Decoder<'a>),
    Zstd(zstd::Decoder<'a>),
}

impl<'a> Decoder<'a> {
    /// A decoder that refuses to give more than `limit` bytes.
    pub(crate) fn new(
        codec: Compression,
        magic: i8,
        bytes: &'a [u8],
        limit: usize,
    ) -> Result<Decoder<'a>, RecordsError> {
        let state = match codec {
            Compression::None => State::Plain(bytes),
            Compression::Gzip => State::Gzip(gzip::Decoder::new(bytes)),
            Compression::Snappy => State::Snappy(snappy::Decoder::new(bytes)),
            // Clients of V0 compute the checksum of the frame's header wrongly (KAFKA-3160).
            Compression::Lz4 => State::Lz4(lz4::Decoder::new(bytes, magic != 0)?),
            Compression::Zstd => State::Zstd(zstd::Decoder::new(bytes)?),
        };
        Ok(Decoder { state, codec, produced: 0, limit })
    }

    /// Appends some bytes to `out`. False at the end.
    pub(crate) fn next_chunk(&mut self, out: &mut Vec<u8>) -> Result<bool, RecordsError> {
        let before = out.len();
        let remaining = self.limit - self.produced;
        let more = match &mut self.state {
            State::Plain(bytes) => {
                out.extend_from_slice(std::mem::take(bytes));
                false
            }
            State::Gzip(decoder) => decoder.next_chunk(out)?,
            State::Snappy(decoder) => decoder.next_chunk(out, remaining, self.limit)?,
            State::Lz4(decoder) => decoder.next_chunk(out)?,
            State::Zstd(decoder) => decoder.next_chunk(out)?,
        };
        if out.len() - before > remaining {
            return Err(self.expands_too_far());
        }
        self.produced += out.len() - before;
        Ok(more)
    }

    fn expands_too_far(&self) -> RecordsError {
        RecordsError::ExpandsTooFar { codec: self.codec.name(), limit: self.limit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Compression; 5] =
        [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd];

    fn samples() -> Vec<Vec<u8>> {
        let text: Vec<u8> =
            (0..200_000u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()).collect();
        vec![vec![], vec![7], b"hello hello hello hello".to_vec(), vec![0; 300_000], text]
    }

    #[test]
    fn what_is_compressed_comes_back() {
        for codec in ALL {
            for magic in [0, 1, 2] {
                for sample in samples() {
                    let packed: Bytes = compress(codec, None, magic, &sample).into();
                    assert_eq!(
                        decompress(codec, magic, &packed, sample.len()).unwrap(),
                        sample,
                        "{}",
                        codec.name()
                    );
                }
            }
        }
    }

    /// What is too large to be held is compressed in pieces, and must read the same.
    #[test]
    fn pieces_come_out_as_the_whole() {
        let sample = [&samples()[4][..], &[7; 1000]].concat();
        for codec in ALL {
            for magic in [0, 1, 2] {
                let mut encoder = Encoder::new(codec, None, magic);
                sample.chunks(PIECE_BYTES).for_each(|piece| encoder.write(piece));
                let packed: Bytes = encoder.finish().into();
                if codec != Compression::Zstd {
                    assert_eq!(packed, compress(codec, None, magic, &sample), "{}", codec.name());
                }
                assert_eq!(decompress(codec, magic, &packed, sample.len()).unwrap(), sample);
            }
        }
    }

    /// A bomb: kilobytes that become gigabytes. The limit must hold before they are in memory.
    #[test]
    fn expansion_stops_at_the_limit() {
        for codec in [Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd] {
            let packed: Bytes = compress(codec, None, 2, &vec![0; 300_000]).into();
            let error = decompress(codec, 2, &packed, 299_999).unwrap_err();
            assert_eq!(error, RecordsError::ExpandsTooFar { codec: codec.name(), limit: 299_999 });
        }
    }

    #[test]
    fn a_cut_end_is_an_error() {
        for codec in [Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd] {
            let packed = compress(codec, None, 2, &samples()[4]);
            for len in [0, 1, 5, 12, 18, packed.len() / 2, packed.len() - 1] {
                let cut = Bytes::copy_from_slice(&packed[..len]);
                assert!(decompress(codec, 2, &cut, usize::MAX).is_err(), "{} cut to {len}", codec.name());
            }
        }
    }

    /// gzip and zstd data may be several members in a row, and clients that append so exist.
    #[test]
    fn members_in_a_row_are_read_as_one() {
        for codec in [Compression::Gzip, Compression::Snappy, Compression::Zstd] {
            let packed = [compress(codec, None, 2, b"one "), compress(codec, None, 2, b"two")].concat();
            assert_eq!(
                decompress(codec, 2, &packed.into(), 100).unwrap(),
                b"one two"[..],
                "{}",
                codec.name()
            );
        }
    }

    #[test]
    fn levels_out_of_range_are_clamped() {
        for codec in [Compression::Gzip, Compression::Zstd] {
            for level in [i32::MIN, -1, 0, 1, 99, i32::MAX] {
                let packed: Bytes = compress(codec, Some(level), 2, b"abcabcabc").into();
                assert_eq!(decompress(codec, 2, &packed, 100).unwrap(), b"abcabcabc"[..]);
            }
        }
    }
}
