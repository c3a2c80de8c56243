//! The command line: arguments, what the broker says at start and stop, and the composition of the process.
//!
//! This crate must never decide anything about data or the protocol: it reads settings, puts the other crates
//! together, and tells a person what happens.

mod arguments;
mod banner;
mod compose;
mod logging;
mod settings;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use arguments::{Arguments, Command};
pub use banner::{BoundListener, start_line};

/// The exit code for everything that keeps the broker from running.
const FAILED: u8 = 1;

/// Runs the process until it is told to stop, and returns its exit code: 0 after a clean stop, 1 if it could not
/// start or run, 2 for wrong arguments.
pub fn run() -> ExitCode {
    let arguments = Arguments::parse();
    let loggers = logging::to_stderr();
    if let Some(Command::Release { log_dirs, alone }) = arguments.command {
        return finish(compose::release(log_dirs, alone));
    }
    if let Some(Command::Format(asked)) = arguments.command {
        return finish(compose::format(asked));
    }
    let loaded = settings::load(arguments, &klamm_io::SystemDisk, std::env::vars_os());
    let (config, warnings) = match loaded {
        Ok(loaded) => loaded,
        Err(message) => return fail(&message),
    };
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    finish(compose::serve(config, loggers))
}

fn finish(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&told_once(error.chain().map(ToString::to_string))),
    }
}

/// An error and its causes in one line. Many errors say their cause themselves, so it is not said again.
fn told_once(causes: impl Iterator<Item = String>) -> String {
    causes.fold(String::new(), |told, cause| match (told.is_empty(), told.contains(&cause)) {
        (true, _) => cause,
        (false, true) => told,
        (false, false) => format!("{told}: {cause}"),
    })
}

/// Tells why the process ends. It is no log line: it must be seen whatever `KLAMM_LOG` says.
fn fail(message: &str) -> ExitCode {
    // Nothing is left to do if stderr is closed.
    let _ = writeln!(std::io::stderr(), "klamm: {message}");
    ExitCode::from(FAILED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_told_once() {
        let told = |causes: &[&str]| told_once(causes.iter().map(ToString::to_string));
        assert_eq!(told(&["open a: gone", "gone"]), "open a: gone");
        assert_eq!(told(&["open a", "gone", "it was moved"]), "open a: gone: it was moved");
        assert_eq!(told(&["open a"]), "open a");
    }
}
