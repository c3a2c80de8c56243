//! The `klamm` binary: it only hands over to the command line in `klamm-cli`.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    klamm_cli::run()
}
