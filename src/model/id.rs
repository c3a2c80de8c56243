//! Ids and epochs, each a type of its own so that none passes for another.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The number of a node (`node.id`, formerly `broker.id`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct NodeId(pub i32);

/// The term of a partition's leader. It rises with each election.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct LeaderEpoch(pub i32);

/// The id of an idempotent or transactional producer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ProducerId(pub i64);

/// The epoch of a producer id; a higher one fences the lower.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ProducerEpoch(pub i16);

impl LeaderEpoch {
    /// What the wire says for "not known" and for batches that predate epochs.
    pub const NONE: LeaderEpoch = LeaderEpoch(-1);
}

impl ProducerId {
    /// A batch that is not idempotent.
    pub const NONE: ProducerId = ProducerId(-1);
}

impl ProducerEpoch {
    /// A batch that is not idempotent.
    pub const NONE: ProducerEpoch = ProducerEpoch(-1);
}

macro_rules! display_as_number {
    ($($name:ident)*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

display_as_number!(NodeId LeaderEpoch ProducerId ProducerEpoch);

/// 16 bytes, written as Kafka writes them: URL-safe base64 without padding.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Uuid(pub [u8; 16]);

/// The id of a topic (KIP-516); a topic that is deleted and made again has another one.
pub type TopicId = Uuid;

const BASE64_URL: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

impl Uuid {
    /// No id.
    pub const ZERO: Uuid = Uuid([0; 16]);

    /// An id of version 4 from 16 random bytes.
    pub fn from_random(mut bytes: [u8; 16]) -> Uuid {
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        Uuid(bytes)
    }

    /// Whether this is [`Uuid::ZERO`].
    pub fn is_zero(self) -> bool {
        self == Uuid::ZERO
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = u128::from_be_bytes(self.0);
        let mut text = String::with_capacity(22);
        for digit in 0..21 {
            text.push(BASE64_URL[(bits >> (122 - 6 * digit)) as usize & 63] as char);
        }
        text.push(BASE64_URL[(bits as usize & 3) << 4] as char);
        f.write_str(&text)
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Uuid {
    type Err = InvalidUuid;

    fn from_str(text: &str) -> Result<Uuid, InvalidUuid> {
        let digits = text.trim_end_matches('=').as_bytes();
        if digits.len() != 22 {
            return Err(InvalidUuid(text.to_owned()));
        }
        let mut bits = 0u128;
        for (index, digit) in digits.iter().enumerate() {
            let value = BASE64_URL.iter().position(|d| d == digit);
            let value = value.ok_or_else(|| InvalidUuid(text.to_owned()))? as u128;
            bits = if index < 21 { bits << 6 | value } else { bits << 2 | value >> 4 };
        }
        Ok(Uuid(bits.to_be_bytes()))
    }
}

/// A text that is no id: Kafka's are 22 letters of URL-safe base64.
#[derive(Debug)]
pub struct InvalidUuid(String);

impl fmt::Display for InvalidUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not an id: 22 letters of URL-safe base64 were expected", self.0)
    }
}

impl std::error::Error for InvalidUuid {}

/// A partition by the name of its topic. Displays as `topic-3`, the name of its folder.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct TopicPartition {
    /// The topic's name.
    pub topic: Arc<str>,
    /// The partition's index.
    pub partition: i32,
}

impl TopicPartition {
    /// Names a partition.
    pub fn new(topic: impl Into<Arc<str>>, partition: i32) -> TopicPartition {
        TopicPartition { topic: topic.into(), partition }
    }

    /// From the name of a folder. The partition is what stands after the last `-`, since a topic's name may
    /// hold dashes too.
    pub fn from_folder_name(name: &str) -> Option<TopicPartition> {
        let (topic, partition) = name.rsplit_once('-')?;
        let partition: i32 = partition.parse().ok()?;
        (!topic.is_empty() && partition >= 0).then(|| TopicPartition::new(topic, partition))
    }
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.topic, self.partition)
    }
}

/// Partitions as a message names them: the first of them, and how many more there are.
pub struct Named<'a>(pub &'a [TopicPartition]);

/// As many as a person reads.
const NAMED_MAX: usize = 10;

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, partition) in self.0.iter().take(NAMED_MAX).enumerate() {
            write!(f, "{}{partition}", if index == 0 { "" } else { ", " })?;
        }
        match self.0.len().saturating_sub(NAMED_MAX) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_reads_back_from_its_text() {
        let id = Uuid([0xf0, 0x0b, 0xa1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 0xff]);
        assert_eq!(id.to_string().len(), 22);
        assert_eq!(id.to_string().parse::<Uuid>().unwrap(), id);
        assert_eq!("AAAAAAAAAAAAAAAAAAAAAQ".parse::<Uuid>().unwrap().0[15], 1);
        assert!("short".parse::<Uuid>().is_err());
    }

    #[test]
    fn the_partition_stands_after_the_last_dash() {
        let found = TopicPartition::from_folder_name("a-b.c_d-12").unwrap();
        assert_eq!(found, TopicPartition::new("a-b.c_d", 12));
        assert_eq!(found.to_string(), "a-b.c_d-12");
        assert!(TopicPartition::from_folder_name("klamm-metadata").is_none());
        assert!(TopicPartition::from_folder_name("-3").is_none());
    }

    /// Two thousand names in one line would hide the other lines.
    #[test]
    fn ten_partitions_are_named() {
        let all: Vec<TopicPartition> = (0..12).map(|index| TopicPartition::new("a", index)).collect();
        assert_eq!(Named(&all[..2]).to_string(), "a-0, a-1");
        assert_eq!(Named(&all).to_string(), "a-0, a-1, a-2, a-3, a-4, a-5, a-6, a-7, a-8, a-9 and 2 more");
    }
}
