//! What is known about one key.

/// Whose key it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Scope {
    /// A setting of a broker: `server.properties`, or dynamic for one broker or for all.
    Broker,
    /// A setting of one topic.
    Topic,
    /// A setting of one group.
    Group,
}

/// The type of a value. The numbers are those of DescribeConfigs (KIP-569).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i8)]
pub enum Kind {
    /// `true` or `false`, in any case.
    Boolean = 1,
    /// Text, without the blanks around it.
    String = 2,
    /// A whole number of 32 bits.
    Int = 3,
    /// A whole number of 16 bits.
    Short = 4,
    /// A whole number of 64 bits.
    Long = 5,
    /// A number with a fraction.
    Double = 6,
    /// Texts with commas between them.
    List = 7,
    /// The name of a Java class. Klamm loads none.
    Class = 8,
    /// Text that is never shown.
    Password = 9,
}

/// What stands where nobody said anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DefaultValue {
    /// Apache Kafka does not start without a value. Klamm has one of its own for each such key.
    Required,
    /// Nothing; shown as null.
    Null,
    /// This text.
    Value(&'static str),
}

/// Which values a key takes, beyond what its type says.
#[derive(Clone, PartialEq, Debug)]
pub enum Allowed {
    /// Every value of the type.
    Any,
    /// Numbers from the first to the second, both included, and perhaps one more outside.
    Range {
        /// The least number.
        from: f64,
        /// The greatest number; infinite where the type alone limits it.
        to: f64,
        /// A number outside that is allowed too.
        or: Option<f64>,
    },
    /// Every number of the type but 0.
    NotZero,
    /// One of these words (of a list: each item is one of them).
    OneOf {
        /// The words.
        words: Vec<&'static str>,
        /// Whether upper and lower case are the same.
        any_case: bool,
    },
    /// Anything but an empty text.
    NonEmpty,
    /// `*`, nothing, or `partition:broker` pairs with commas between them.
    ThrottledReplicas,
    /// `host:number` pairs with commas between them, or nothing.
    ConnectionsPerHost,
    /// A version of Apache Kafka, as `2.8` or `3.0-IV1`.
    KafkaVersion,
    /// `latest`, `earliest` or `by_duration:` and an ISO 8601 duration.
    OffsetReset,
}

/// How much a key matters, in Apache Kafka's opinion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Importance {
    /// Most installations look at it.
    High,
    /// Some do.
    Medium,
    /// Few do.
    Low,
}

/// Who may change a key of a broker while it runs (KIP-226).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Update {
    /// Nobody: it is read at start.
    ReadOnly,
    /// It can be changed for one broker.
    PerBroker,
    /// It can be changed for one broker or for the whole cluster.
    ClusterWide,
}

/// A broker's key that gives a topic's key its default.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Synonym {
    /// The broker's key.
    pub name: &'static str,
    /// What its number is multiplied with, as 3,600,000 for hours where the topic's key counts milliseconds.
    pub factor: i64,
}

/// One line of the table.
#[derive(Clone, PartialEq, Debug)]
pub struct Key {
    /// Whose key it is.
    pub scope: Scope,
    /// Its name, as `num.partitions`.
    pub name: &'static str,
    /// The type of its values.
    pub kind: Kind,
    /// Apache Kafka's default. Where Klamm's differs, [`BrokerConfig`](crate::BrokerConfig) holds it.
    pub default: DefaultValue,
    /// Which values it takes.
    pub allowed: Allowed,
    /// How much it matters.
    pub importance: Importance,
    /// Whether it can be changed while the broker runs; always read-only for topics and groups, whose settings
    /// can be changed at any time.
    pub update: Update,
    /// The last release of Apache Kafka that had it: `2.8`, `3.9` or `4.4`.
    pub last_kafka: &'static str,
    /// Apache Kafka keeps it out of what it describes.
    pub internal: bool,
    /// For a topic's or a group's key: the broker's keys that give its default; the first that is set decides.
    pub synonyms: Vec<Synonym>,
    /// Whether Klamm does something with it. What it accepts and does not act on is marked so in what it
    /// describes.
    pub acted_on: bool,
    /// One line on what it does; empty where nothing plain can be said.
    pub doc: &'static str,
}

impl Key {
    /// Whether its value is never shown.
    pub fn is_sensitive(&self) -> bool {
        self.kind == Kind::Password
    }

    /// The default as text, where there is one.
    pub fn default_text(&self) -> Option<&'static str> {
        match self.default {
            DefaultValue::Value(text) => Some(text),
            DefaultValue::Required | DefaultValue::Null => None,
        }
    }

    /// The documentation as clients get it: what the key does, and whether Klamm acts on it.
    pub fn documentation(&self) -> String {
        const NOT_ACTED_ON: &str = "Klamm accepts this key and does not act on it.";
        match (self.doc, self.acted_on) {
            (doc, true) => doc.to_owned(),
            ("", false) => NOT_ACTED_ON.to_owned(),
            (doc, false) => format!("{doc} {NOT_ACTED_ON}"),
        }
    }
}
