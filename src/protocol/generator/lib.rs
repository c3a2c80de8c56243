//! Turns the schema facts of `src/protocol/schema` into Rust: one file a message module, with its structs and
//! their decoders, encoders and log views, and the tables over all of them.
//!
//! This crate runs in the build script of `klamm-protocol` and nowhere else. It must never know what a message
//! means: a rule that holds for one message only belongs to `klamm-protocol`, written by hand. The exceptions
//! that are data (what must not be shown in a log) stand in [`plan`].

// It runs while the project is built, on the builder's disk: the broker's seams for files are not for it.
#![allow(clippy::disallowed_methods)]

mod arbitrary;
mod emit;
mod names;
mod plan;
mod schema;
mod tables;
mod versions;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use plan::Module;

/// The folders of stored records below `records/`.
const RECORD_FOLDERS: [&str; 6] =
    ["cluster-metadata", "consumer-offsets", "transaction-state", "share-group-state", "control", "storage"];

/// Reads `schema` and writes the generated files into `out`: `messages.rs`, `records.rs`, `api_table.rs`,
/// `arbitrary.rs`, `for_each.rs` and one file a module, which they include.
///
/// # Errors
/// When a file cannot be read or written, or when the schema says something that the generator does not know;
/// the text names the file.
pub fn generate(schema: &Path, out: &Path) -> io::Result<()> {
    let mut modules = Vec::new();
    for path in json_files(&schema.join("wire"))? {
        let stem = file_stem(&path);
        if stem == "request-header" || stem == "response-header" {
            continue;
        }
        let api: schema::Api = parse(&path)?;
        modules.push(Module::of_api(&names::module(&stem), api).map_err(|e| invalid(&path, &e))?);
    }
    let mut folders = Vec::new();
    for folder in RECORD_FOLDERS {
        let mut records = Vec::new();
        for path in json_files(&schema.join("records").join(folder))? {
            let message: schema::Message = parse(&path)?;
            let module = names::module(&file_stem(&path));
            records.push(Module::of_record(&module, message).map_err(|e| invalid(&path, &e))?);
        }
        folders.push((names::module(folder), records));
    }
    write_all(out, &modules, &folders)
}

fn write_all(out: &Path, modules: &[Module], folders: &[(String, Vec<Module>)]) -> io::Result<()> {
    for module in modules {
        fs::write(out.join(format!("message_{}.rs", module.name)), emit::module(module))?;
    }
    for (folder, records) in folders {
        for module in records {
            fs::write(out.join(format!("record_{folder}_{}.rs", module.name)), emit::module(module))?;
        }
    }
    fs::write(out.join("messages.rs"), tables::messages(modules))?;
    fs::write(out.join("records.rs"), tables::records(folders))?;
    fs::write(out.join("api_table.rs"), tables::api_table(modules))?;
    fs::write(out.join("for_each.rs"), tables::for_each(modules, folders))?;
    fs::write(out.join("arbitrary.rs"), arbitrary::all(modules, folders))
}

fn json_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "json") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn file_stem(path: &Path) -> String {
    path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default()
}

fn parse<T: serde::de::DeserializeOwned>(path: &Path) -> io::Result<T> {
    serde_json::from_slice(&fs::read(path)?).map_err(|e| invalid(path, &e.to_string()))
}

fn invalid(path: &Path, what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {what}", path.display()))
}
