//! The files over all modules: module trees, the table of API keys, the sums of stored records, and the macros
//! that run something for each message.

use std::fmt::Write;

use crate::plan::Module;
use crate::schema::Kind;

macro_rules! put {
    ($out:expr, $($text:tt)*) => { { let _ = writeln!($out, $($text)*); } };
}

/// `mod` lines that include the generated files, and the top-level structs one level up.
fn module_tree(out: &mut String, prefix: &str, modules: &[Module]) {
    for module in modules {
        let name = &module.name;
        let about = module.messages.iter().map(|m| format!("`{}`", m.name)).collect::<Vec<_>>().join(" and ");
        put!(out, "/// {about}.\npub mod {name} {{");
        put!(out, "    include!(concat!(env!(\"OUT_DIR\"), \"/{prefix}_{name}.rs\"));\n}}");
        let names: Vec<&str> = module.messages.iter().map(|m| m.name.as_str()).collect();
        put!(out, "pub use {name}::{{{}}};", names.join(", "));
    }
}

pub(crate) fn messages(modules: &[Module]) -> String {
    let mut out = String::new();
    module_tree(&mut out, "message", modules);
    out
}

pub(crate) fn records(folders: &[(String, Vec<Module>)]) -> String {
    let mut out = String::new();
    for (folder, modules) in folders {
        put!(out, "/// Stored records: {}.\npub mod {folder} {{", folder.replace('_', " "));
        put!(out, "use crate::generated_prelude::*;");
        module_tree(&mut out, &format!("record_{folder}"), modules);
        let of_kind = |kind: Kind| -> Vec<&Module> {
            modules.iter().filter(|m| m.messages[0].kind == Some(kind)).collect()
        };
        let metadata = of_kind(Kind::Metadata);
        if !metadata.is_empty() {
            metadata_record(&mut out, &metadata);
        }
        let keys = of_kind(Kind::CoordinatorKey);
        if !keys.is_empty() {
            coordinator_key(&mut out, &keys);
        }
        put!(out, "}}");
    }
    out
}

fn by_id<'a>(modules: &[&'a Module]) -> Vec<(i16, &'a str)> {
    let mut sorted: Vec<(i16, &str)> =
        modules.iter().map(|m| (m.messages[0].id.unwrap_or_default(), m.messages[0].name.as_str())).collect();
    sorted.sort_unstable();
    sorted
}

fn metadata_record(out: &mut String, modules: &[&Module]) {
    let sorted = by_id(modules);
    put!(out, "/// A record of the metadata log.\n#[derive(Clone, Debug, PartialEq)]");
    put!(out, "pub enum MetadataRecord {{");
    for (_, name) in &sorted {
        put!(out, "    /// [`{name}`].\n    {}({name}),", variant(name));
    }
    put!(out, "}}\nimpl MetadataRecord {{");
    put!(
        out,
        "    /// The key in the record's frame.\n    pub fn api_key(&self) -> i16 {{\n        match self {{"
    );
    for (id, name) in &sorted {
        put!(out, "            Self::{}(_) => {id},", variant(name));
    }
    put!(out, "        }}\n    }}");
    put!(
        out,
        "    /// The name of the record's struct.\n    pub fn name(&self) -> &'static str {{\n        match self {{"
    );
    for (_, name) in &sorted {
        put!(out, "            Self::{}(_) => {name}::NAME,", variant(name));
    }
    put!(out, "        }}\n    }}");
    put!(out, "    /// The versions that are known of this record.");
    put!(out, "    pub fn versions(&self) -> RangeInclusive<i16> {{\n        match self {{");
    for (_, name) in &sorted {
        put!(out, "            Self::{}(_) => {name}::VERSIONS,", variant(name));
    }
    put!(out, "        }}\n    }}");
    put!(
        out,
        "    /// Writes the body, without the frame.\n    pub(crate) fn encode_body(&self, w: &mut Writer, version: i16) -> Result<(), EncodeError> {{\n        match self {{"
    );
    for (_, name) in &sorted {
        put!(out, "            Self::{}(record) => record.encode(w, version),", variant(name));
    }
    put!(out, "        }}\n    }}");
    put!(out, "    /// Reads the body of the record with this key; `None` for a key that is not known.");
    put!(
        out,
        "    pub(crate) fn decode_body(r: &mut Reader, api_key: i16, version: i16) -> Result<Option<Self>, DecodeError> {{\n        Ok(Some(match api_key {{"
    );
    for (id, name) in &sorted {
        put!(out, "            {id} => Self::{}({name}::decode(r, version)?),", variant(name));
    }
    put!(out, "            _ => return Ok(None),\n        }}))\n    }}\n}}");
    for (_, name) in &sorted {
        put!(
            out,
            "impl From<{name}> for MetadataRecord {{ fn from(record: {name}) -> Self {{ Self::{}(record) }} }}",
            variant(name)
        );
    }
}

fn variant(name: &str) -> &str {
    name.strip_suffix("Record").unwrap_or(name)
}

fn coordinator_key(out: &mut String, modules: &[&Module]) {
    let sorted = by_id(modules);
    put!(out, "/// The key of a record of this topic; its leading int16 says which.");
    put!(out, "#[derive(Clone, Debug, PartialEq)]\npub enum Key {{");
    for (_, name) in &sorted {
        put!(out, "    /// [`{name}`].\n    {}({name}),", key_variant(name));
    }
    put!(out, "    /// A type that is not known, with the whole key.\n    Unknown(i16, Bytes),");
    put!(out, "}}\nimpl Key {{");
    put!(out, "    /// Reads a key with its leading type.\n    ///\n    /// # Errors");
    put!(out, "    /// When the bytes are not of the form that their type has.");
    put!(out, "    pub fn decode(bytes: Bytes) -> Result<Key, DecodeError> {{");
    put!(out, "        let mut reader = Reader::new(bytes.clone());\n        let r = &mut reader;");
    put!(out, "        Ok(match r.i16()? {{");
    for (id, name) in &sorted {
        put!(out, "            {id} => Key::{}({name}::decode(r, 0)?),", key_variant(name));
    }
    put!(out, "            other => Key::Unknown(other, bytes),\n        }})\n    }}");
    put!(out, "    /// The key with its leading type; an unknown one as it came.\n    ///\n    /// # Errors");
    put!(out, "    /// When a string in it is too long.");
    put!(out, "    pub fn encode(&self) -> Result<Bytes, EncodeError> {{\n        match self {{");
    for (_, name) in &sorted {
        put!(out, "            Key::{}(key) => crate::encode_coordinator_key(key),", key_variant(name));
    }
    put!(out, "            Key::Unknown(_, bytes) => Ok(bytes.clone()),\n        }}\n    }}\n}}");
    for (_, name) in &sorted {
        let variant = key_variant(name);
        put!(out, "impl From<{name}> for Key {{ fn from(key: {name}) -> Self {{ Self::{variant}(key) }} }}");
    }
}

fn key_variant(name: &str) -> &str {
    name.strip_suffix("Key").unwrap_or(name)
}

pub(crate) fn api_table(modules: &[Module]) -> String {
    let mut out = String::new();
    put!(out, "/// The APIs of the protocol, by their keys.");
    put!(
        out,
        "#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]\n#[repr(i16)]\npub enum ApiKey {{"
    );
    let apis: Vec<(&Module, i16, &str, &[String])> = modules
        .iter()
        .filter_map(|m| {
            m.api.as_ref().map(|(key, name, listeners)| (m, *key, name.as_str(), listeners.as_slice()))
        })
        .collect();
    for (module, key, name, _) in &apis {
        let versions = module.messages[0].versions;
        put!(out, "    /// {name}, versions {}-{}.\n    {name} = {key},", versions.low, versions.high);
    }
    put!(out, "}}\npub(crate) const API_TABLE: [ApiFacts; {}] = [", apis.len());
    for (module, _, name, listeners) in &apis {
        let versions = module.messages[0].versions;
        let listeners: Vec<String> =
            listeners.iter().map(|l| format!("ListenerKind::{}", capital(l))).collect();
        put!(
            out,
            "    ApiFacts {{ key: ApiKey::{name}, name: \"{name}\", low: {}, high: {}, request_flexible_from: {}, \
             response_flexible_from: {}, listeners: &[{}] }},",
            versions.low,
            versions.high,
            flexible_from(module, 0),
            flexible_from(module, 1),
            listeners.join(", "),
        );
    }
    put!(out, "];");
    out
}

fn flexible_from(module: &Module, message: usize) -> i16 {
    let flexible = module.messages[message].flexible;
    if flexible.is_empty() { i16::MAX } else { flexible.low }
}

fn capital(name: &str) -> String {
    let mut letters = name.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// `for_each_api!(m)` expands `m! { (Key, Request, Response) … }`, `for_each_record!(m)` `m! { Record … }`.
pub(crate) fn for_each(modules: &[Module], folders: &[(String, Vec<Module>)]) -> String {
    let mut out = String::new();
    put!(
        out,
        "/// Expands `$callback! {{ (Key, Request, Response) … }}` over all APIs, for tests and tools that go over"
    );
    put!(
        out,
        "/// every message.\n#[macro_export]\nmacro_rules! for_each_api {{\n    ($callback:path) => {{\n        $callback! {{"
    );
    for module in modules {
        let Some((_, name, _)) = &module.api else { continue };
        put!(
            out,
            "            ({name}, $crate::messages::{}, $crate::messages::{})",
            module.messages[0].name,
            module.messages[1].name
        );
    }
    put!(out, "        }}\n    }};\n}}");
    put!(out, "/// Expands `$callback! {{ Record … }}` over all stored records.");
    put!(
        out,
        "#[macro_export]\nmacro_rules! for_each_record {{\n    ($callback:path) => {{\n        $callback! {{"
    );
    for (folder, records) in folders {
        for module in records {
            put!(out, "            $crate::records::{folder}::{}", module.messages[0].name);
        }
    }
    put!(out, "        }}\n    }};\n}}");
    out
}
