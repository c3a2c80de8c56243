//! The composition of the process: the only place that knows every crate and puts them together.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use klamm_config::BrokerConfig;
use klamm_io::{SystemClock, SystemDisk, SystemNetwork, SystemRandom, Threads};
use klamm_server::{Format, Loggers, Machine, Others};
use tokio::signal::unix::{SignalKind, signal};

use crate::arguments::{Arguments, FormatArguments};
use crate::banner::{BoundListener, start_line};
use crate::settings;

/// Runs the broker until SIGTERM or SIGINT; operators change what `loggers` log.
pub(crate) fn serve(config: BrokerConfig, loggers: Arc<Loggers>) -> anyhow::Result<()> {
    raise_open_files_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("klamm")
        .build()
        .context("start the threads that serve requests")?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).context("wait for SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("wait for SIGINT")?;
        let server = tokio::select! {
            biased;
            started = klamm_server::start(config.clone(), Machine { loggers, ..machine() }) => started?,
            () = async { tokio::select! { biased; _ = terminate.recv() => {}, _ = interrupt.recv() => {} } } => {
                tracing::info!("stopped before it was ready");
                return Ok(());
            }
        };
        let listeners = server.listeners.iter().map(|(name, address, is_controller)| BoundListener {
            name: name.clone(),
            address: *address,
            is_controller: *is_controller,
        });
        announce(&config, &listeners.collect::<Vec<_>>());
        tokio::select! {
            biased;
            _ = terminate.recv() => tracing::info!("stopping: SIGTERM"),
            _ = interrupt.recv() => tracing::info!("stopping: SIGINT"),
            reason = server.failed() => anyhow::bail!("the broker cannot go on: {reason}"),
        }
        if server.stop().await {
            tracing::info!("stopped; the logs are closed cleanly");
        } else {
            tracing::info!("stopped");
        }
        Ok(())
    })
}

/// The machine that the process runs on.
fn machine() -> Machine {
    Machine {
        disk: Arc::new(SystemDisk),
        network: Arc::new(SystemNetwork),
        clock: Arc::new(SystemClock::new()),
        random: Arc::new(SystemRandom),
        threads: Threads::default(),
        loggers: Arc::default(),
    }
}

/// Prepares the directories of a node and tells what was done.
pub(crate) fn format(asked: FormatArguments) -> anyhow::Result<()> {
    let FormatArguments { file, overrides, cluster_id, voters } = asked;
    let arguments = Arguments { file: Some(file), overrides, ..Arguments::default() };
    let loaded = settings::load(arguments, &SystemDisk, std::env::vars_os());
    let (config, _) = loaded.map_err(anyhow::Error::msg)?;
    let format = match voters.initial_controllers {
        Some(voters) => Format::InitialControllers(voters),
        None if voters.standalone => Format::Standalone,
        None => Format::NoInitialControllers,
    };
    let line = klamm_server::format(&config, format, cluster_id, &machine())?;
    // A closed stdout is no reason to fail: it is done.
    let _ = writeln!(std::io::stdout(), "{line}");
    Ok(())
}

/// Gives log directories back to Apache Kafka and tells what was done.
pub(crate) fn release(log_dirs: Vec<PathBuf>, alone: bool) -> anyhow::Result<()> {
    let others = if alone { Others::Lost } else { Others::Stay };
    let lines = klamm_server::release(log_dirs, others, &machine())?;
    let mut stdout = std::io::stdout();
    // A closed stdout is no reason to fail: it is done.
    let _ = lines.iter().try_for_each(|line| writeln!(stdout, "{line}"));
    Ok(())
}

/// A partition needs several descriptors and a client one: what the system allows is taken in full.
fn raise_open_files_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!("the limit of open files stays at {:?}: {error}", limit.current);
    }
}

/// Prints the start line. A closed stdout is no reason to stop.
fn announce(config: &BrokerConfig, bound: &[BoundListener]) {
    let working_dir = std::env::current_dir().unwrap_or_default();
    let line = start_line(env!("CARGO_PKG_VERSION"), config, bound, Path::new(&working_dir));
    let mut stdout = std::io::stdout();
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
}
