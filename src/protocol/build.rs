//! Generates the messages from `schema/`.
// A build script is no part of the broker: it reads the schema from the disk that cargo names.
#![allow(clippy::disallowed_methods)]

use std::path::PathBuf;

fn main() {
    let here =
        PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets the package's folder"));
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets the output folder"));
    println!("cargo::rerun-if-changed=schema/wire");
    println!("cargo::rerun-if-changed=schema/records");
    if let Err(error) = klamm_protocol_generator::generate(&here.join("schema"), &out) {
        println!("cargo::error={error}");
        std::process::exit(1);
    }
}
