//! The file `klamm-metadata/snapshot`, which is also what travels to a voter that is far behind:
//!
//! ```text
//! magic "KLAMMSNP" | version u32 | length u32 and JSON of openraft's SnapshotMeta | offset i64
//! | count u32 | count × (length u32 | metadata record in KRaft's frame) | CRC32C of all before u32
//! ```

use std::io;

use bytes::{Buf, BufMut, Bytes};
use klamm_protocol::{decode_metadata_record, encode_metadata_record};

use super::SnapshotMeta;
use crate::apply::apply_to;
use crate::image::Image;
use crate::image_records::records_of;

const MAGIC: &[u8; 8] = b"KLAMMSNP";
/// The version of the format. A message of one version carries it in one version (`message`).
pub(crate) const VERSION: u32 = 2;
const VERSION_AT: std::ops::Range<usize> = 8..12;

pub(crate) fn encode(version: u32, meta: &SnapshotMeta, image: &Image) -> io::Result<Bytes> {
    let records = records_of(image);
    let mut out = Vec::with_capacity(256 + 96 * records.len());
    out.put_slice(MAGIC);
    out.put_u32(version);
    let meta = serde_json::to_vec(meta).map_err(io::Error::other)?;
    out.put_u32(meta.len() as u32);
    out.put_slice(&meta);
    out.put_i64(image.offset);
    out.put_u32(records.len() as u32);
    for record in &records {
        let bytes = encode_metadata_record(record, *record.versions().end()).map_err(io::Error::other)?;
        out.put_u32(bytes.len() as u32);
        out.put_slice(&bytes);
    }
    let checksum = crc32c::crc32c(&out);
    out.put_u32(checksum);
    Ok(out.into())
}

/// A snapshot for a node that knows this version and none that is higher. Versions that a test raises differ in their
/// number alone. What is no snapshot stays as it is.
pub(crate) fn in_version(version: u32, content: &Bytes) -> Bytes {
    let end = content.len().saturating_sub(4);
    let is_snapshot = end >= VERSION_AT.end && content.starts_with(MAGIC);
    if !is_snapshot || content[VERSION_AT] == version.to_be_bytes() {
        return content.clone();
    }
    let mut out = content.to_vec();
    out[VERSION_AT].copy_from_slice(&version.to_be_bytes());
    let checksum = crc32c::crc32c(&out[..end]);
    out[end..].copy_from_slice(&checksum.to_be_bytes());
    out.into()
}

/// What a snapshot holds, in versions up to `highest`. The cluster's id stands in `meta.properties`, not here.
pub(crate) fn decode(highest: u32, content: &Bytes, cluster_id: &str) -> io::Result<(SnapshotMeta, Image)> {
    if content.len() < 16 || &content[..8] != MAGIC {
        return Err(invalid("it is no snapshot of Klamm"));
    }
    let mut rest = content.slice(8..);
    let version = rest.get_u32();
    if !(VERSION..=highest).contains(&version) {
        return Err(invalid(&format!(
            "its format is version {version}, and this Klamm knows versions {VERSION} to {highest}"
        )));
    }
    let mut checksum = rest.split_off(rest.len() - 4);
    if crc32c::crc32c(&content[..content.len() - 4]) != checksum.get_u32() {
        return Err(invalid("its checksum is wrong"));
    }
    let meta = take_counted(&mut rest)?;
    let meta: SnapshotMeta = serde_json::from_slice(&meta).map_err(io::Error::other)?;
    if rest.len() < 12 {
        return Err(invalid("it is cut off"));
    }
    let mut image = Image::empty(cluster_id);
    image.offset = rest.get_i64();
    for _ in 0..rest.get_u32() {
        let (record, _) = decode_metadata_record(take_counted(&mut rest)?).map_err(io::Error::other)?;
        apply_to(&mut image, &record);
    }
    Ok((meta, image))
}

fn take_counted(rest: &mut Bytes) -> io::Result<Bytes> {
    let len = if rest.len() < 4 { usize::MAX } else { rest.get_u32() as usize };
    if len > rest.len() { Err(invalid("it is cut off")) } else { Ok(rest.split_to(len)) }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the metadata snapshot cannot be used: {why}"))
}
