//! The Rust text of one module: structs with default, decoder, encoder and JSON view.

use std::fmt::Write;

use crate::names;
use crate::plan::{Fallback, Field, Kind, MessagePlan, Module, Scalar, Struct};
use crate::schema;
use crate::versions::Versions;

/// Writes into a `String`, which cannot fail.
macro_rules! put {
    ($out:expr, $($text:tt)*) => { { let _ = writeln!($out, $($text)*); } };
}

pub(crate) fn module(module: &Module) -> String {
    let mut out = String::from("use crate::generated_prelude::*;\n");
    for message in &module.messages {
        put!(out, "{}", message_impl(message));
    }
    if let Some((_, name, _)) = &module.api {
        let (request, response) = (&module.messages[0].name, &module.messages[1].name);
        put!(out, "impl Request for {request} {{");
        put!(out, "    const KEY: ApiKey = ApiKey::{name};");
        put!(out, "    type Response = {response};\n}}");
    }
    for found in &module.structs {
        let message = module.messages.iter().any(|m| m.name == found.name);
        define(&mut out, found, message);
        default(&mut out, found);
        put!(out, "impl Fields for {} {{", found.name);
        min_size(&mut out, module, found);
        read(&mut out, found);
        write(&mut out, found);
        view(&mut out, found);
        put!(out, "}}");
    }
    out
}

fn message_impl(message: &MessagePlan) -> String {
    let MessagePlan { name, versions, .. } = message;
    let flexible = message.flexible.condition(*versions);
    let mut out = format!(
        "impl Message for {name} {{\n    const NAME: &'static str = \"{name}\";\n    \
         const VERSIONS: RangeInclusive<i16> = {}..={};\n    \
         fn is_flexible(version: i16) -> bool {{ {} }}\n}}\n",
        versions.low,
        versions.high,
        unbounded(message, &flexible),
    );
    if let (Some(schema::Kind::CoordinatorKey), Some(id)) = (message.kind, message.id) {
        put!(out, "impl CoordinatorKey for {name} {{ const TYPE: i16 = {id}; }}");
    }
    out
}

/// A header must be read before its version is known to be served, so flexibility is answered for versions
/// beyond the newest too: once flexible, always flexible.
fn unbounded(message: &MessagePlan, condition: &str) -> String {
    match condition {
        "true" => "version >= 0".to_owned(),
        _ if message.flexible.is_empty() => "false".to_owned(),
        _ => format!("version >= {}", message.flexible.low),
    }
}

fn define(out: &mut String, found: &Struct, message: bool) {
    if message {
        put!(out, "/// `{}`, versions {}-{}.", found.name, found.versions.low, found.versions.high);
    } else {
        put!(out, "/// `{}`.", found.name);
    }
    let zero = found.fields.iter().all(default_is_zero);
    put!(out, "#[derive(Clone, Debug, PartialEq{})]", if zero { ", Default" } else { "" });
    put!(out, "pub struct {} {{", found.name);
    for field in &found.fields {
        put!(out, "    /// {}", field_doc(found, field));
        put!(out, "    pub {}: {},", field.ident, rust_type(field));
    }
    put!(out, "}}");
}

fn field_doc(found: &Struct, field: &Field) -> String {
    let mut text = format!("`{}`: versions {}", field.wire_name, field.versions.text(found.versions));
    if let Some(nullable) = field.nullable {
        let _ = write!(text, ", null in {}", nullable.text(found.versions));
    }
    if let Some(tag) = field.tag {
        let _ = write!(text, ", tag {tag}");
    }
    match &field.default {
        Fallback::Number(number) => {
            let _ = write!(text, ", by default {number}");
        }
        Fallback::True => text.push_str(", by default true"),
        Fallback::Empty if is_optional(field) => text.push_str(", by default empty, not null"),
        Fallback::Null | Fallback::Empty => {}
    }
    text.push('.');
    text
}

fn is_optional(field: &Field) -> bool {
    field.nullable.is_some() || field.kind == Kind::Records
}

fn rust_type(field: &Field) -> String {
    let plain = kind_type(&field.kind);
    if is_optional(field) { format!("Option<{plain}>") } else { plain }
}

pub(crate) fn kind_type(kind: &Kind) -> String {
    match kind {
        Kind::Scalar(Scalar::Uuid) => "Uuid".to_owned(),
        Kind::Scalar(scalar) => scalar.rust().to_owned(),
        Kind::Text => "String".to_owned(),
        Kind::Bytes => "Bytes".to_owned(),
        Kind::Records => "RecordsField".to_owned(),
        Kind::Struct(name) => name.clone(),
        Kind::Array(element) => format!("Vec<{}>", kind_type(element)),
    }
}

fn default_is_zero(field: &Field) -> bool {
    match field.default {
        Fallback::Null => true,
        Fallback::Empty => !is_optional(field),
        Fallback::Number(_) | Fallback::True => false,
    }
}

pub(crate) fn default_value(field: &Field) -> String {
    match &field.default {
        Fallback::Null => "None".to_owned(),
        Fallback::Empty if is_optional(field) => "Some(Default::default())".to_owned(),
        Fallback::Number(number) => number.to_string(),
        Fallback::True => "true".to_owned(),
        Fallback::Empty => match &field.kind {
            Kind::Scalar(Scalar::Bool) => "false".to_owned(),
            Kind::Scalar(Scalar::F64) => "0.0".to_owned(),
            Kind::Scalar(Scalar::Uuid) => "Uuid::ZERO".to_owned(),
            Kind::Scalar(_) => "0".to_owned(),
            Kind::Text => "String::new()".to_owned(),
            Kind::Bytes => "Bytes::new()".to_owned(),
            Kind::Struct(name) => format!("{name}::default()"),
            Kind::Records | Kind::Array(_) => "Vec::new()".to_owned(),
        },
    }
}

/// An expression that is true when the field holds something else than its default.
fn differs_from_default(field: &Field) -> String {
    let value = format!("self.{}", field.ident);
    match (&field.default, &field.kind) {
        (Fallback::Null, _) => format!("{value}.is_some()"),
        (Fallback::Empty, Kind::Struct(_)) if is_optional(field) => {
            format!("{value} != Some(Default::default())")
        }
        (Fallback::Empty, _) if is_optional(field) => {
            format!("{value}.as_ref().is_none_or(|v| !v.is_empty())")
        }
        (Fallback::Number(number), _) => format!("{value} != {number}"),
        (Fallback::True, _) => format!("!{value}"),
        (Fallback::Empty, Kind::Scalar(Scalar::Bool)) => value,
        (Fallback::Empty, Kind::Scalar(Scalar::Uuid)) => format!("!{value}.is_zero()"),
        (Fallback::Empty, Kind::Scalar(Scalar::F64)) => format!("{value} != 0.0"),
        (Fallback::Empty, Kind::Scalar(_)) => format!("{value} != 0"),
        (Fallback::Empty, Kind::Struct(name)) => format!("{value} != {name}::default()"),
        (Fallback::Empty, _) => format!("!{value}.is_empty()"),
    }
}

fn default(out: &mut String, found: &Struct) {
    if found.fields.iter().all(default_is_zero) {
        return;
    }
    put!(out, "impl Default for {} {{", found.name);
    put!(out, "    fn default() -> Self {{\n        Self {{");
    for field in &found.fields {
        put!(out, "            {}: {},", field.ident, default_value(field));
    }
    put!(out, "        }}\n    }}\n}}");
}

fn min_size(out: &mut String, module: &Module, found: &Struct) {
    let sizes: Vec<(i16, usize)> =
        (found.versions.low..=found.versions.high).map(|v| (v, size_in(module, found, v))).collect();
    put!(out, "    fn min_size(version: i16) -> usize {{");
    put!(out, "        match version {{");
    let mut runs: Vec<(i16, i16, usize)> = Vec::new();
    for (version, size) in sizes {
        match runs.last_mut() {
            Some((_, last, same)) if *same == size => *last = version,
            _ => runs.push((version, version, size)),
        }
    }
    let newest = runs.pop();
    for (first, last, size) in runs {
        put!(out, "            {first}..={last} => {size},");
    }
    put!(out, "            _ => {},", newest.map_or(0, |(_, _, size)| size));
    put!(out, "        }}\n    }}");
}

fn size_in(module: &Module, found: &Struct, version: i16) -> usize {
    let flexible = found.flexible.contains(version);
    let present = found.fields.iter().filter(|f| f.tag.is_none() && f.versions.contains(version));
    let fields: usize = present
        .map(|field| match &field.kind {
            Kind::Scalar(scalar) => scalar.size(),
            Kind::Struct(_) if field.nullable.is_some() => 1,
            Kind::Struct(name) => {
                module.structs.iter().find(|s| s.name == *name).map_or(0, |s| size_in(module, s, version))
            }
            _ if flexible => 1,
            Kind::Text => 2,
            Kind::Bytes | Kind::Records | Kind::Array(_) => 4,
        })
        .sum();
    fields + usize::from(flexible)
}

/// Whether null may stand there, as an expression.
fn null_allowed(found: &Struct, field: &Field) -> String {
    let present = field.versions.intersect(found.versions);
    match field.nullable {
        None => "false".to_owned(),
        Some(nullable) => nullable.condition(present),
    }
}

fn read_value(found: &Struct, field: &Field) -> String {
    let null = null_allowed(found, field);
    let optional = is_optional(field);
    match &field.kind {
        Kind::Scalar(scalar) => format!("r.{}()?", scalar.rust()),
        Kind::Text if optional => format!("r.nullable_string(flexible, {null})?"),
        Kind::Text => "r.string(flexible)?".to_owned(),
        Kind::Bytes if optional => format!("r.nullable_bytes(flexible, {null})?"),
        Kind::Bytes => "r.bytes(flexible)?".to_owned(),
        Kind::Records => format!("r.records(flexible, {null})?"),
        Kind::Struct(_) if optional && field.tag.is_some() => {
            format!("r.nullable_tagged_fields(version, {null})?")
        }
        Kind::Struct(_) if optional => format!("r.nullable_fields(version, {null})?"),
        Kind::Struct(name) => format!("{name}::read(r, version)?"),
        Kind::Array(_) if optional => format!("r.nullable_array(version, flexible, {null})?"),
        Kind::Array(_) => "r.array(version, flexible)?".to_owned(),
    }
}

fn read(out: &mut String, found: &Struct) {
    put!(out, "    fn read(r: &mut Reader, version: i16) -> Result<Self, DecodeError> {{");
    put!(out, "        let flexible = {};", found.flexible.condition(found.versions));
    for field in &found.fields {
        let condition = field.versions.condition(found.versions);
        let (name, kind) = (local(field), rust_type(field));
        if field.tag.is_some() {
            put!(out, "        let mut {name}: {kind} = {};", default_value(field));
        } else if condition == "true" {
            put!(out, "        let {name}: {kind} = {};", read_value(found, field));
        } else {
            let (value, fallback) = (read_value(found, field), default_value(field));
            put!(out, "        let {name}: {kind} = if {condition} {{ {value} }} else {{ {fallback} }};");
        }
    }
    read_tags(out, found);
    let assigned: Vec<String> = found.fields.iter().map(|f| format!("{}: {}", f.ident, local(f))).collect();
    put!(out, "        Ok(Self {{ {} }})\n    }}", assigned.join(", "));
}

fn local(field: &Field) -> String {
    format!("f_{}", field.ident.trim_start_matches("r#"))
}

fn read_tags(out: &mut String, found: &Struct) {
    if found.flexible.intersect(found.versions).is_empty() {
        return;
    }
    let tagged: Vec<&Field> = found.fields.iter().filter(|f| f.tag.is_some()).collect();
    if tagged.is_empty() {
        put!(out, "        if flexible {{ r.skip_tags()?; }}");
        return;
    }
    put!(out, "        if flexible {{\n            for _ in 0..r.tag_count()? {{");
    put!(out, "                let tag = r.begin_tag()?;\n                match tag.number {{");
    for field in tagged {
        let tag = field.tag.unwrap_or_default();
        let condition = field.versions.condition(flexible_versions(found));
        let guard = if condition == "true" { String::new() } else { format!(" if {condition}") };
        put!(out, "                    {tag}{guard} => {} = {},", local(field), read_value(found, field));
    }
    put!(out, "                    _ => r.skip_tag(&tag),\n                }}");
    put!(out, "                r.end_tag(tag)?;\n            }}\n        }}");
}

fn flexible_versions(found: &Struct) -> Versions {
    found.flexible.intersect(found.versions)
}

fn write_value(field: &Field) -> String {
    let value = format!("self.{}", field.ident);
    let optional = is_optional(field);
    match &field.kind {
        Kind::Scalar(scalar) => format!("w.{}({value});", scalar.rust()),
        Kind::Text if optional => format!("w.nullable_string({value}.as_deref(), flexible)?;"),
        Kind::Text => format!("w.string(&{value}, flexible)?;"),
        Kind::Bytes if optional => format!("w.nullable_bytes({value}.as_ref(), flexible)?;"),
        Kind::Bytes => format!("w.bytes(&{value}, flexible)?;"),
        Kind::Records => format!("w.records({value}.as_ref(), flexible)?;"),
        Kind::Struct(_) if optional && field.tag.is_some() => {
            format!("w.nullable_tagged_fields({value}.as_ref(), version)?;")
        }
        Kind::Struct(_) if optional => format!("w.nullable_fields({value}.as_ref(), version)?;"),
        Kind::Struct(_) => format!("{value}.write(w, version)?;"),
        Kind::Array(_) if optional => format!("w.nullable_array({value}.as_deref(), version, flexible)?;"),
        Kind::Array(_) => format!("w.array(&{value}, version, flexible)?;"),
    }
}

fn write(out: &mut String, found: &Struct) {
    put!(out, "    fn write(&self, w: &mut Writer, version: i16) -> Result<(), EncodeError> {{");
    put!(out, "        let flexible = {};", found.flexible.condition(found.versions));
    for field in &found.fields {
        let condition = field.versions.condition(found.versions);
        let name = format!("\"{}\", \"{}\"", found.name, field.ident.trim_start_matches("r#"));
        let lost = (condition != "true" && !field.ignorable).then(|| {
            format!("if {} {{ return Err(EncodeError::lost({name})); }}", differs_from_default(field))
        });
        let null = is_optional(field).then(|| null_allowed(found, field)).filter(|c| c != "true");
        let mut body = String::new();
        if let Some(allowed) = null {
            let _ = write!(
                body,
                "if self.{}.is_none() && !({allowed}) {{ return Err(EncodeError::null({name})); }} ",
                field.ident
            );
        }
        if field.tag.is_none() {
            body.push_str(&write_value(field));
        }
        match (condition.as_str(), lost) {
            ("true", _) if body.is_empty() => {}
            ("true", _) => put!(out, "        {body}"),
            (_, Some(lost)) if body.is_empty() => put!(out, "        if !({condition}) {{ {lost} }}"),
            (_, Some(lost)) => put!(out, "        if {condition} {{ {body} }} else {{ {lost} }}"),
            (_, None) if body.is_empty() => {}
            (_, None) => put!(out, "        if {condition} {{ {body} }}"),
        }
    }
    write_tags(out, found);
    put!(out, "        Ok(())\n    }}");
}

fn write_tags(out: &mut String, found: &Struct) {
    if flexible_versions(found).is_empty() {
        return;
    }
    let mut tagged: Vec<&Field> = found.fields.iter().filter(|f| f.tag.is_some()).collect();
    tagged.sort_by_key(|f| f.tag);
    if tagged.is_empty() {
        put!(out, "        if flexible {{ w.no_tags(); }}");
        return;
    }
    let conditions: Vec<String> = tagged
        .iter()
        .map(|field| {
            let differs = differs_from_default(field);
            match field.versions.condition(flexible_versions(found)).as_str() {
                "true" => differs,
                condition => format!("{condition} && {differs}"),
            }
        })
        .collect();
    put!(out, "        if flexible {{\n            let present = [{}];", conditions.join(", "));
    put!(out, "            w.tag_count(&present);");
    for (index, field) in tagged.iter().enumerate() {
        let tag = field.tag.unwrap_or_default();
        let body = write_value(field);
        put!(
            out,
            "            if present[{index}] {{ let tag = w.begin_tag({tag}); {body} w.end_tag(tag); }}"
        );
    }
    put!(out, "        }}");
}

fn view(out: &mut String, found: &Struct) {
    put!(out, "    fn view(&self, json: &mut JsonView, version: i16) {{");
    for field in &found.fields {
        let condition = field.versions.condition(found.versions);
        let value = if field.hidden { "&Hidden".to_owned() } else { format!("&self.{}", field.ident) };
        let body = format!("json.field(\"{}\", {value}, version);", names::json(&field.wire_name));
        let shown = match (condition.as_str(), field.tag) {
            ("true", None) => body,
            ("true", Some(_)) => format!("if {} {{ {body} }}", differs_from_default(field)),
            (_, None) => format!("if {condition} {{ {body} }}"),
            (_, Some(_)) => format!("if {condition} && {} {{ {body} }}", differs_from_default(field)),
        };
        put!(out, "        {shown}");
    }
    put!(out, "    }}");
}
