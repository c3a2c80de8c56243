//! What is to be generated: modules, structs and fields with everything about them decided.

use serde_json::Value;

use crate::names;
use crate::schema;
use crate::versions::Versions;

/// Values that may be secret and are not shown in the JSON view: (struct, field). Byte strings (SASL tokens,
/// salted passwords, HMACs) are never shown anyway, only their length.
const HIDDEN_IN_LOGS: [(&str, &str); 1] = [("AlterableConfig", "Value")];

/// One generated file: an API's request and response, or one stored record.
pub(crate) struct Module {
    pub(crate) name: String,
    pub(crate) messages: Vec<MessagePlan>,
    pub(crate) structs: Vec<Struct>,
    /// Key, name and listeners where this is an API.
    pub(crate) api: Option<(i16, String, Vec<String>)>,
}

/// A top-level message; its struct has the same name.
pub(crate) struct MessagePlan {
    pub(crate) name: String,
    pub(crate) versions: Versions,
    pub(crate) flexible: Versions,
    pub(crate) id: Option<i16>,
    pub(crate) kind: Option<schema::Kind>,
}

pub(crate) struct Struct {
    pub(crate) name: String,
    pub(crate) versions: Versions,
    pub(crate) flexible: Versions,
    pub(crate) fields: Vec<Field>,
}

pub(crate) struct Field {
    pub(crate) wire_name: String,
    pub(crate) ident: String,
    pub(crate) kind: Kind,
    pub(crate) versions: Versions,
    /// `None` where null is never allowed.
    pub(crate) nullable: Option<Versions>,
    pub(crate) default: Fallback,
    pub(crate) ignorable: bool,
    pub(crate) tag: Option<u32>,
    pub(crate) hidden: bool,
}

#[derive(Clone, PartialEq)]
pub(crate) enum Kind {
    Scalar(Scalar),
    Text,
    Bytes,
    Records,
    Struct(String),
    Array(Box<Kind>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scalar {
    Bool,
    I8,
    I16,
    U16,
    I32,
    I64,
    F64,
    Uuid,
}

/// What a field holds in a version that lacks it.
#[derive(PartialEq)]
pub(crate) enum Fallback {
    Null,
    /// Zero, false, empty, or a struct of such.
    Empty,
    Number(i64),
    True,
}

impl Scalar {
    pub(crate) fn rust(self) -> &'static str {
        match self {
            Scalar::Bool => "bool",
            Scalar::I8 => "i8",
            Scalar::I16 => "i16",
            Scalar::U16 => "u16",
            Scalar::I32 => "i32",
            Scalar::I64 => "i64",
            Scalar::F64 => "f64",
            Scalar::Uuid => "uuid",
        }
    }

    pub(crate) fn size(self) -> usize {
        match self {
            Scalar::Bool | Scalar::I8 => 1,
            Scalar::I16 | Scalar::U16 => 2,
            Scalar::I32 => 4,
            Scalar::I64 | Scalar::F64 => 8,
            Scalar::Uuid => 16,
        }
    }
}

impl Kind {
    fn parse(text: &str) -> Result<Kind, String> {
        if let Some(element) = text.strip_prefix("[]") {
            return Ok(Kind::Array(Box::new(Kind::parse(element)?)));
        }
        Ok(match text {
            "bool" => Kind::Scalar(Scalar::Bool),
            "int8" => Kind::Scalar(Scalar::I8),
            "int16" => Kind::Scalar(Scalar::I16),
            "uint16" => Kind::Scalar(Scalar::U16),
            "int32" => Kind::Scalar(Scalar::I32),
            "int64" => Kind::Scalar(Scalar::I64),
            "float64" => Kind::Scalar(Scalar::F64),
            "uuid" => Kind::Scalar(Scalar::Uuid),
            "string" => Kind::Text,
            "bytes" => Kind::Bytes,
            "records" => Kind::Records,
            name if name.starts_with(|c: char| c.is_uppercase()) => Kind::Struct(name.to_owned()),
            other => return Err(format!("unknown type {other:?}")),
        })
    }

    /// The name of the struct that this is or holds.
    fn struct_name_mut(&mut self) -> Option<&mut String> {
        match self {
            Kind::Struct(name) => Some(name),
            Kind::Array(element) => element.struct_name_mut(),
            _ => None,
        }
    }
}

impl Module {
    pub(crate) fn of_api(name: &str, api: schema::Api) -> Result<Module, String> {
        let mut request = Collected::of(&api.request)?;
        let mut response = Collected::of(&api.response)?;
        request.name_apart_from(&mut response);
        let mut structs = request.structs;
        for found in response.structs {
            if !structs.iter().any(|s| s.name == found.name) {
                structs.push(found);
            }
        }
        Ok(Module {
            name: name.to_owned(),
            messages: vec![MessagePlan::of(&api.request), MessagePlan::of(&api.response)],
            structs,
            api: Some((api.key, api.name, api.listeners)),
        })
    }

    pub(crate) fn of_record(name: &str, mut message: schema::Message) -> Result<Module, String> {
        if message.kind == Some(schema::Kind::CoordinatorKey) {
            // The leading int16 of a coordinator's key is its type; the body has the one format, version 0.
            message.versions = Versions { low: 0, high: 0 };
        }
        let structs = Collected::of(&message)?.structs;
        Ok(Module { name: name.to_owned(), messages: vec![MessagePlan::of(&message)], structs, api: None })
    }
}

impl MessagePlan {
    fn of(message: &schema::Message) -> MessagePlan {
        MessagePlan {
            name: message.name.clone(),
            versions: message.versions,
            flexible: message.flexible,
            id: message.id,
            kind: message.kind,
        }
    }
}

/// The structs of one message with the schema they came from, by which equal ones are recognised.
struct Collected {
    suffix: &'static str,
    versions: Versions,
    flexible: Versions,
    structs: Vec<Struct>,
    sources: Vec<Vec<schema::Field>>,
}

impl Collected {
    fn of(message: &schema::Message) -> Result<Collected, String> {
        let suffix = if message.name.ends_with("Request") { "Request" } else { "Response" };
        let mut collected = Collected {
            suffix,
            versions: message.versions,
            flexible: message.flexible,
            structs: Vec::new(),
            sources: Vec::new(),
        };
        collected.add(&message.name, &message.fields)?;
        Ok(collected)
    }

    fn add(&mut self, name: &str, fields: &[schema::Field]) -> Result<(), String> {
        if let Some(index) = self.structs.iter().position(|s| s.name == name) {
            let same = self.sources[index] == fields;
            return if same { Ok(()) } else { Err(format!("two structs of one message are named {name}")) };
        }
        let planned: Result<Vec<Field>, String> = fields.iter().map(|f| plan_field(name, f)).collect();
        self.structs.push(Struct {
            name: name.to_owned(),
            versions: self.versions,
            flexible: self.flexible,
            fields: planned?,
        });
        self.sources.push(fields.to_vec());
        for field in fields.iter().filter(|f| !f.fields.is_empty()) {
            self.add(field.r#type.trim_start_matches("[]"), &field.fields)?;
        }
        Ok(())
    }

    /// Request and response share a module. Structs of one name and one content are one struct; where the
    /// content differs, both get their message's kind as a suffix.
    fn name_apart_from(&mut self, other: &mut Collected) {
        let same_rules = self.versions == other.versions && self.flexible == other.flexible;
        let mut differing = Vec::new();
        for (index, found) in self.structs.iter().enumerate() {
            let twin = other.structs.iter().position(|s| s.name == found.name);
            if twin.is_some_and(|twin| !same_rules || other.sources[twin] != self.sources[index]) {
                differing.push(found.name.clone());
            }
        }
        for side in [self, other] {
            for found in &mut side.structs {
                let own = std::iter::once(&mut found.name);
                let held = found.fields.iter_mut().filter_map(|f| f.kind.struct_name_mut());
                for name in own.chain(held).filter(|n| differing.contains(n)) {
                    name.push_str(side.suffix);
                }
            }
        }
    }
}

fn plan_field(owner: &str, field: &schema::Field) -> Result<Field, String> {
    let fail = |what: &str| Err(format!("{owner}.{}: {what}", field.name));
    let kind = Kind::parse(&field.r#type)?;
    if field.flexible_versions.is_some() {
        return fail("flexibleVersions is known in the request header only");
    }
    if field.tagged.is_some() != field.tag.is_some() || field.tagged.is_some_and(|t| t != field.versions) {
        return fail("a tagged field needs a tag, and is tagged in all its versions");
    }
    if field.tag.is_some() && kind == Kind::Records {
        return fail("records as a tagged field would have to be copied");
    }
    let default = match plan_default(&kind, field.default.as_ref()) {
        Some(default) => default,
        None => return fail("unknown default"),
    };
    if default == Fallback::Null && field.nullable.is_none() && kind != Kind::Records {
        return fail("null is the default of a field that is never null");
    }
    Ok(Field {
        wire_name: field.name.clone(),
        ident: names::field(&field.name),
        kind,
        versions: field.versions,
        nullable: field.nullable,
        default,
        ignorable: field.ignorable,
        tag: field.tag,
        hidden: HIDDEN_IN_LOGS.contains(&(owner, field.name.as_str())),
    })
}

fn plan_default(kind: &Kind, default: Option<&Value>) -> Option<Fallback> {
    let text = match default {
        None if *kind == Kind::Records => return Some(Fallback::Null),
        // Kafka's generator takes a JSON null for no default; a default of null is the text "null".
        None => return Some(Fallback::Empty),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    match (kind, text.as_str()) {
        (_, "null") => Some(Fallback::Null),
        (Kind::Text, "") | (Kind::Scalar(Scalar::Bool), "false") => Some(Fallback::Empty),
        (Kind::Scalar(Scalar::Bool), "true") => Some(Fallback::True),
        (Kind::Scalar(Scalar::F64 | Scalar::Uuid), _) => None,
        (Kind::Scalar(_), text) => {
            let number = match text.strip_prefix("0x") {
                Some(hex) => i64::from_str_radix(hex, 16).ok()?,
                None => text.parse().ok()?,
            };
            Some(if number == 0 { Fallback::Empty } else { Fallback::Number(number) })
        }
        _ => None,
    }
}
