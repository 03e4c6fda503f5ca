//! The binary `ropewalk`: the only place where parts are put together.

mod args;
mod cluster_dir;
mod commands;
mod input;
mod interrupt;
mod link;
mod logging;
mod lost_blocks;
#[cfg(test)]
#[path = "../../../fuzz/mutate.rs"]
mod mutate;
mod output;
mod process;
mod terminal;

use std::process::ExitCode;

use anyhow::Context as _;
use args::{Cli, Command};
use clap::Parser;

/// A request takes memory on one thread and gives it back on another: with the C library's allocator 4 KiB reads took a quarter more
/// CPU, and two page faults each (`bench/path.py`, docs/path.md).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = Cli::parse_from(args::with_gpfsperf_options(args::with_helper_name(std::env::args_os())));
    logging::start(default_log_level(&cli.command));
    #[cfg(debug_assertions)] // for tests of upgrades; see `wire::version`
    if let Ok(newest) = std::env::var("ROPEWALK_TEST_VERSIONS") {
        assert!(
            wire::version::Build::pretend(&newest),
            "ROPEWALK_TEST_VERSIONS is {newest}: not PROTOCOL,LEVEL"
        );
    }
    let ended = commands::run(&cli.command);
    let printed = output::finish().context("write to standard output");
    let unsaid = printed.as_ref().err().filter(|_| ended.is_err()); // of two errors the command's own comes last
    if let Some(error) = unsaid {
        output::error(error);
    }
    let ended = match ended.and(printed) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<commands::Status>() => {
            ExitCode::from(error.downcast_ref::<commands::Status>().map_or(1, |status| status.0))
        }
        Err(error) => {
            output::error(&error);
            match error.downcast_ref::<interrupt::Interrupted>() {
                Some(_) => ExitCode::from(interrupt::EXIT),
                None => ExitCode::FAILURE,
            }
        }
    };
    logging::flush();
    ended
}

/// The long-running processes tell what happens to them; commands speak only of trouble.
fn default_log_level(command: &Command) -> &'static str {
    match command {
        Command::Serve(_) => "info",
        Command::Mount(mount) if mount.foreground => "info",
        _ => "error",
    }
}
