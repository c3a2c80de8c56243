//! What all messages have in common.

use std::fmt::Debug;
use std::ops::RangeInclusive;

use bytes::Bytes;
use klamm_model::Uuid;

use crate::{ApiKey, DecodeError, DecodeErrorKind, EncodeError, EncodeErrorKind, JsonView, Reader, Writer};

/// The records of a partition inside a Produce or Fetch message.
#[derive(Clone, Debug, PartialEq)]
pub enum RecordsField {
    /// Bytes at hand: a slice of the frame where it was decoded.
    Bytes(Bytes),
    /// Bytes that stand in a file. Only the length is encoded; the connection fills the hole with the slice
    /// that the sender of the frame keeps under this index.
    External {
        /// Which slice.
        index: u32,
        /// Its length in bytes.
        len: u32,
    },
}

impl RecordsField {
    /// The length in bytes.
    pub fn len(&self) -> usize {
        match self {
            RecordsField::Bytes(bytes) => bytes.len(),
            RecordsField::External { len, .. } => *len as usize,
        }
    }

    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, where they are at hand.
    pub fn bytes(&self) -> Option<&Bytes> {
        match self {
            RecordsField::Bytes(bytes) => Some(bytes),
            RecordsField::External { .. } => None,
        }
    }
}

impl From<Bytes> for RecordsField {
    fn from(bytes: Bytes) -> RecordsField {
        RecordsField::Bytes(bytes)
    }
}

/// A generated struct, a message or a part of one.
pub trait Fields: Sized + Default + Clone + PartialEq + Debug {
    /// The fewest bytes that it takes in this version.
    fn min_size(version: i16) -> usize;
    /// Reads it. The version must be one of its message's.
    ///
    /// # Errors
    /// When the bytes are not such a struct.
    fn read(reader: &mut Reader, version: i16) -> Result<Self, DecodeError>;
    /// Writes it. The version must be one of its message's.
    ///
    /// # Errors
    /// When this version cannot carry what it holds.
    fn write(&self, writer: &mut Writer, version: i16) -> Result<(), EncodeError>;
    /// Shows the fields of this version.
    fn view(&self, json: &mut JsonView, version: i16);
}

/// A request, a response or a stored record.
pub trait Message: Fields {
    /// The name in Kafka's protocol guide.
    const NAME: &'static str;
    /// The versions from the first to the newest that is known.
    const VERSIONS: RangeInclusive<i16>;

    /// Whether this version has compact lengths and tagged fields (KIP-482). Answers for versions that are newer
    /// than any known too, as a header must be read before its version can be refused.
    fn is_flexible(version: i16) -> bool;

    /// Reads a message. Bytes after it are left alone.
    ///
    /// # Errors
    /// When the version is not known or the bytes are no such message.
    fn decode(reader: &mut Reader, version: i16) -> Result<Self, DecodeError> {
        if !Self::VERSIONS.contains(&version) {
            let error = reader.error(DecodeErrorKind::Version(version));
            return Err(error.within(Self::NAME, version));
        }
        Self::read(reader, version).map_err(|e| e.within(Self::NAME, version))
    }

    /// Writes the message. A field that this version lacks is dropped where the protocol says so.
    ///
    /// # Errors
    /// When the version is not known or cannot carry what the message says.
    fn encode(&self, writer: &mut Writer, version: i16) -> Result<(), EncodeError> {
        if !Self::VERSIONS.contains(&version) {
            let error = EncodeError::new(EncodeErrorKind::Version(version));
            return Err(error.within(Self::NAME, version));
        }
        self.write(writer, version).map_err(|e| e.within(Self::NAME, version))
    }

    /// The message as JSON for a request log: the fields of this version under the names of Kafka's protocol
    /// guide. Bytes are shown as their length, and what may be a secret is left out.
    fn to_json(&self, version: i16) -> String {
        JsonView::of(self, version)
    }
}

/// A request, which knows its response.
pub trait Request: Message {
    /// The API.
    const KEY: ApiKey;
    /// What answers it.
    type Response: Message;
}

/// The key of a record of a coordinator's topic.
pub trait CoordinatorKey: Message {
    /// The int16 before the key.
    const TYPE: i16;
}

/// What can stand in an array.
pub(crate) trait Element: Sized {
    /// The fewest bytes that one takes.
    fn least(version: i16, flexible: bool) -> usize;
    fn read_element(reader: &mut Reader, version: i16, flexible: bool) -> Result<Self, DecodeError>;
    fn write_element(&self, writer: &mut Writer, version: i16, flexible: bool) -> Result<(), EncodeError>;
}

impl<T: Fields> Element for T {
    fn least(version: i16, _flexible: bool) -> usize {
        T::min_size(version)
    }

    fn read_element(reader: &mut Reader, version: i16, _flexible: bool) -> Result<T, DecodeError> {
        T::read(reader, version)
    }

    fn write_element(&self, writer: &mut Writer, version: i16, _flexible: bool) -> Result<(), EncodeError> {
        self.write(writer, version)
    }
}

impl Element for String {
    fn least(_version: i16, flexible: bool) -> usize {
        if flexible { 1 } else { 2 }
    }

    fn read_element(reader: &mut Reader, _version: i16, flexible: bool) -> Result<String, DecodeError> {
        reader.string(flexible)
    }

    fn write_element(&self, writer: &mut Writer, _version: i16, flexible: bool) -> Result<(), EncodeError> {
        writer.string(self, flexible)
    }
}

macro_rules! plain_elements {
    ($($kind:ty = $name:ident;)*) => {$(
        impl Element for $kind {
            fn least(_version: i16, _flexible: bool) -> usize {
                size_of::<$kind>()
            }

            fn read_element(reader: &mut Reader, _version: i16, _flexible: bool) -> Result<$kind, DecodeError> {
                reader.$name()
            }

            fn write_element(&self, writer: &mut Writer, _version: i16, _flexible: bool) -> Result<(), EncodeError> {
                writer.$name(*self);
                Ok(())
            }
        }
    )*};
}

plain_elements! {
    i8 = i8;
    i16 = i16;
    i32 = i32;
    i64 = i64;
    Uuid = uuid;
}
