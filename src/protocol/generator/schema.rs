//! The schema files as they stand. An unknown attribute is an error, so that a new one is never overlooked.

use serde::Deserialize;
use serde_json::Value;

use crate::versions::Versions;

/// `wire/NNN-name.json`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Api {
    pub(crate) key: i16,
    pub(crate) name: String,
    pub(crate) listeners: Vec<String>,
    pub(crate) request: Message,
    pub(crate) response: Message,
}

/// A request, a response or a stored record.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Message {
    pub(crate) name: String,
    pub(crate) id: Option<i16>,
    pub(crate) kind: Option<Kind>,
    pub(crate) versions: Versions,
    pub(crate) flexible: Versions,
    #[serde(default, rename = "latestVersionUnstable")]
    _latest_version_unstable: bool,
    pub(crate) fields: Vec<Field>,
}

/// Where a stored record stands, which decides what precedes its body.
#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    Metadata,
    CoordinatorKey,
    CoordinatorValue,
    Data,
}

/// A field of a struct.
#[derive(Deserialize, Clone, PartialEq)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Field {
    pub(crate) name: String,
    pub(crate) r#type: String,
    pub(crate) versions: Versions,
    pub(crate) nullable: Option<Versions>,
    pub(crate) default: Option<Value>,
    #[serde(default)]
    pub(crate) ignorable: bool,
    pub(crate) tagged: Option<Versions>,
    pub(crate) tag: Option<u32>,
    pub(crate) flexible_versions: Option<Versions>,
    #[serde(default)]
    pub(crate) fields: Vec<Field>,
    #[serde(default, rename = "mapKey")]
    _map_key: bool,
    #[serde(default, rename = "entity")]
    _entity: Option<String>,
    #[serde(default, rename = "zeroCopy")]
    _zero_copy: bool,
}
