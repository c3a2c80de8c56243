//! What can be wrong with bytes that are read and with messages that are written.

use std::fmt;

use thiserror::Error;

/// Bytes that are not what they should be. Small, so that the good way stays cheap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodeError(Box<Inner>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Inner {
    message: Option<(&'static str, i16)>,
    position: usize,
    kind: DecodeErrorKind,
}

/// The kinds of [`DecodeError`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DecodeErrorKind {
    /// The bytes end too early.
    #[error("{wanted} bytes are claimed, {remaining} remain")]
    Truncated {
        /// How many bytes the field claims or needs.
        wanted: usize,
        /// How many are there.
        remaining: usize,
    },
    /// A variable-length integer of more than five bytes.
    #[error("a variable-length integer does not end within 5 bytes")]
    Varint,
    /// Null where this version allows none.
    #[error("null where none is allowed")]
    Null,
    /// A string of more than 32,767 bytes.
    #[error("a string of {0} bytes is longer than the 32767 that are allowed")]
    StringTooLong(usize),
    /// An array that cannot fit into the bytes that remain.
    #[error("an array of {count} elements does not fit into {remaining} bytes")]
    Count {
        /// How many elements the array claims.
        count: usize,
        /// How many bytes are there.
        remaining: usize,
    },
    /// A message whose decoded form would take out of proportion to its bytes.
    #[error("it would take more memory than its bytes justify")]
    Memory,
    /// A tagged field whose value is not as long as it says.
    #[error("tagged field {tag} leaves {rest} of its bytes")]
    Tag {
        /// Its number.
        tag: u32,
        /// How many bytes its value did not use.
        rest: usize,
    },
    /// A version that is not known of this message.
    #[error("version {0} is not known")]
    Version(i16),
    /// An API key that is not known.
    #[error("API key {0} is not known")]
    ApiKey(i16),
    /// A frame around a metadata record of a version that is not known.
    #[error("frame version {0} is not known")]
    FrameVersion(u32),
    /// A metadata record of a kind that is not known.
    #[error("metadata record {0} is not known")]
    MetadataRecord(u32),
}

impl DecodeError {
    #[cold]
    pub(crate) fn new(position: usize, kind: DecodeErrorKind) -> DecodeError {
        DecodeError(Box::new(Inner { message: None, position, kind }))
    }

    #[cold]
    pub(crate) fn within(mut self, message: &'static str, version: i16) -> DecodeError {
        self.0.message.get_or_insert((message, version));
        self
    }

    /// What is wrong.
    pub fn kind(&self) -> &DecodeErrorKind {
        &self.0.kind
    }

    /// Where it was found, in bytes from the beginning of what was read.
    pub fn position(&self) -> usize {
        self.0.position
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((message, version)) = self.0.message {
            write!(f, "{message} v{version}, ")?;
        }
        write!(f, "byte {}: {}", self.0.position, self.0.kind)
    }
}

impl std::error::Error for DecodeError {}

/// A message that its version cannot carry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodeError(Box<(Option<(&'static str, i16)>, EncodeErrorKind)>);

/// The kinds of [`EncodeError`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EncodeErrorKind {
    /// A field that means something and that this version lacks.
    #[error("{holder}.{field} is set, but this version cannot carry it")]
    Lost {
        /// The struct.
        holder: &'static str,
        /// The field.
        field: &'static str,
    },
    /// Null where this version allows none.
    #[error("{holder}.{field} is null, which this version does not allow")]
    Null {
        /// The struct.
        holder: &'static str,
        /// The field.
        field: &'static str,
    },
    /// A string of more than 32,767 bytes.
    #[error("a string of {0} bytes is longer than the 32767 that are allowed")]
    StringTooLong(usize),
    /// Bytes, an array or a frame whose length does not fit into an int32.
    #[error("a length of {0} does not fit")]
    TooLong(usize),
    /// A version that is not known of this message.
    #[error("version {0} is not known")]
    Version(i16),
}

impl EncodeError {
    #[cold]
    pub(crate) fn new(kind: EncodeErrorKind) -> EncodeError {
        EncodeError(Box::new((None, kind)))
    }

    #[cold]
    pub(crate) fn lost(holder: &'static str, field: &'static str) -> EncodeError {
        EncodeError::new(EncodeErrorKind::Lost { holder, field })
    }

    #[cold]
    pub(crate) fn null(holder: &'static str, field: &'static str) -> EncodeError {
        EncodeError::new(EncodeErrorKind::Null { holder, field })
    }

    #[cold]
    pub(crate) fn within(mut self, message: &'static str, version: i16) -> EncodeError {
        self.0.0.get_or_insert((message, version));
        self
    }

    /// What is wrong.
    pub fn kind(&self) -> &EncodeErrorKind {
        &self.0.1
    }
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((message, version)) = self.0.0 {
            write!(f, "{message} v{version}: ")?;
        }
        write!(f, "{}", self.0.1)
    }
}

impl std::error::Error for EncodeError {}
