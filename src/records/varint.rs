//! Zigzag varints, in which V2 writes the fields of a record.

/// The most bytes that a varint of 32 and of 64 bits takes.
const LEN_MAX_32: usize = 5;
const LEN_MAX_64: usize = 10;

pub(crate) fn write_varint(out: &mut Vec<u8>, value: i32) {
    write_varlong(out, i64::from(value));
}

pub(crate) fn write_varlong(out: &mut Vec<u8>, value: i64) {
    let mut rest = (value << 1 ^ value >> 63) as u64;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// How many bytes [`write_varlong`] writes; also right for a varint.
pub(crate) fn varlong_len(value: i64) -> usize {
    let bits = 64 - ((value << 1 ^ value >> 63) as u64 | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

/// Why a varint does not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VarintError {
    /// The bytes end in the middle.
    Ends,
    /// More bytes than the width allows.
    TooLong,
}

/// The 32-bit varint at the beginning of `bytes`, and its length.
#[inline]
pub(crate) fn read_varint(bytes: &[u8]) -> Result<(i32, usize), VarintError> {
    let (raw, len) = read_unsigned(bytes, LEN_MAX_32)?;
    let raw = raw as u32;
    Ok(((raw >> 1) as i32 ^ -((raw & 1) as i32), len))
}

/// The 64-bit varint at the beginning of `bytes`, and its length.
#[inline]
pub(crate) fn read_varlong(bytes: &[u8]) -> Result<(i64, usize), VarintError> {
    let (raw, len) = read_unsigned(bytes, LEN_MAX_64)?;
    Ok(((raw >> 1) as i64 ^ -((raw & 1) as i64), len))
}

#[inline]
fn read_unsigned(bytes: &[u8], len_max: usize) -> Result<(u64, usize), VarintError> {
    // Most are short: lengths, and differences to the record before.
    match *bytes {
        [only @ ..0x80, ..] => Ok((u64::from(only), 1)),
        [low, high @ ..0x80, ..] => Ok((u64::from(low & 0x7f) | u64::from(high) << 7, 2)),
        _ => read_long(bytes, len_max),
    }
}

fn read_long(bytes: &[u8], len_max: usize) -> Result<(u64, usize), VarintError> {
    let mut value = 0;
    for (index, byte) in bytes.iter().take(len_max).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Ok((value, index + 1));
        }
    }
    Err(if bytes.len() < len_max { VarintError::Ends } else { VarintError::TooLong })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A varint that reads back as another number moves every record behind it.
    #[test]
    fn varints_read_back_and_know_their_length() {
        for value in [
            0,
            1,
            -1,
            63,
            64,
            -64,
            -65,
            8191,
            8192,
            i64::from(i32::MAX),
            i64::from(i32::MIN),
            i64::MAX,
            i64::MIN,
        ] {
            let mut out = Vec::new();
            write_varlong(&mut out, value);
            assert_eq!(read_varlong(&out), Ok((value, out.len())));
            assert_eq!(varlong_len(value), out.len());
            if let Ok(small) = i32::try_from(value) {
                assert_eq!(read_varint(&out), Ok((small, out.len())));
            }
            assert_eq!(read_varlong(&out[..out.len() - 1]), Err(VarintError::Ends));
        }
    }

    #[test]
    fn an_endless_varint_is_refused() {
        assert_eq!(read_varint(&[0xff; 6]), Err(VarintError::TooLong));
        assert_eq!(read_varlong(&[0xff; 11]), Err(VarintError::TooLong));
    }
}
