//! The generators of arbitrary messages, one a struct: what a version can hold, so that a message comes back
//! equal from its own encoding.

use std::fmt::Write;

use crate::emit::default_value;
use crate::plan::{Field, Kind, Module, Struct};

macro_rules! put {
    ($out:expr, $($text:tt)*) => { { let _ = writeln!($out, $($text)*); } };
}

pub(crate) fn all(modules: &[Module], folders: &[(String, Vec<Module>)]) -> String {
    let mut out = String::new();
    for module in modules {
        one(&mut out, &format!("m_{}", module.name), &format!("messages::{}", module.name), module);
    }
    for (folder, records) in folders {
        for module in records {
            let path = format!("records::{folder}::{}", module.name);
            one(&mut out, &format!("r_{folder}_{}", module.name), &path, module);
        }
    }
    out
}

fn one(out: &mut String, name: &str, path: &str, module: &Module) {
    put!(
        out,
        "#[allow(unused_imports, unused_variables)]\nmod {name} {{\n    use super::{{Arbitrary, Source}};"
    );
    put!(out, "    use crate::generated_prelude::*;\n    use crate::{path}::*;");
    for found in &module.structs {
        put!(out, "    impl Arbitrary for {} {{", found.name);
        put!(out, "        fn arbitrary(s: &mut Source, version: i16) -> Self {{\n            Self {{");
        for field in &found.fields {
            put!(out, "                {}: {},", field.ident, value(found, field));
        }
        put!(out, "            }}\n        }}\n    }}");
    }
    put!(out, "}}");
}

fn value(found: &Struct, field: &Field) -> String {
    let condition = field.versions.condition(found.versions);
    let present = field.versions.intersect(found.versions);
    let plain = match &field.kind {
        Kind::Struct(_) | Kind::Scalar(_) | Kind::Text | Kind::Bytes | Kind::Records => "s.any(version)",
        Kind::Array(_) => "s.list(version)",
    };
    let null = field.nullable.map(|n| n.condition(present));
    let any = match (null.as_deref(), &field.kind) {
        (None | Some("false"), Kind::Records) => format!("Some({plain})"),
        (None, _) => plain.to_owned(),
        (Some(allowed), Kind::Array(_)) => format!("s.maybe_list(version, {allowed})"),
        (Some(allowed), _) => format!("s.maybe(version, {allowed})"),
    };
    match condition.as_str() {
        "true" => any,
        _ => format!("if {condition} {{ {any} }} else {{ {} }}", default_value(field)),
    }
}
