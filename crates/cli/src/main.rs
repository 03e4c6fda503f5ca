//! The binary `ropewalk`: the only place where parts are put together.

mod args;
mod cluster_dir;
mod commands;
mod interrupt;
mod link;
mod logging;
#[cfg(test)]
#[path = "../../../fuzz/mutate.rs"]
mod mutate;
mod output;
mod process;

use std::process::ExitCode;

use anyhow::{Context, Result};
use args::{Cli, Command};
use clap::{CommandFactory, Parser};
use wire::mgr::PdiskWish;

fn main() -> ExitCode {
    let cli = Cli::parse_from(args::with_gpfsperf_options(std::env::args_os()));
    logging::start(default_log_level(&cli.command));
    let ended = match run(&cli.command) {
        Ok(()) => ExitCode::SUCCESS,
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

fn run(command: &Command) -> Result<()> {
    match command {
        Command::Up(args) => commands::up::up(args),
        Command::Down(args) => commands::down::down(args),
        Command::Serve(args) => process::server::serve(args),
        Command::Mount(args) => commands::mount::mount(args),
        Command::Umount(args) => commands::mount::umount(args),
        Command::Status(listing) => commands::listing::status(listing),
        Command::Fs(args::Fs::List(listing)) => commands::listing::fs_list(listing),
        Command::Fs(args::Fs::Df(listing)) => commands::listing::fs_df(listing),
        Command::Fs(args::Fs::Create { dir, name, pool }) => commands::pools::fs_create(dir, name, pool),
        Command::Fs(args::Fs::Delete(args)) => commands::pools::fs_delete(args),
        Command::Fs(args::Fs::SetPool { directory, pool, .. }) => {
            commands::pools::fs_set_pool(directory, pool)
        }
        Command::Pdisk(args::Pdisk::List(listing)) => commands::listing::pdisk_list(listing),
        Command::Pdisk(args::Pdisk::Verify(dir)) => commands::pdisk_tools::verify(dir),
        Command::Pdisk(args::Pdisk::Dump(dir)) => commands::pdisk_tools::dump(dir),
        Command::Pdisk(args::Pdisk::Bench(bench)) => commands::pdisk_bench::bench(bench),
        Command::Pdisk(args::Pdisk::Fail(pdisk)) => commands::pdisks::pdisk_wish(pdisk, PdiskWish::Fail),
        Command::Pdisk(args::Pdisk::Drain(pdisk)) => commands::pdisks::pdisk_wish(pdisk, PdiskWish::Drain),
        Command::Pdisk(args::Pdisk::Keep(pdisk)) => commands::pdisks::pdisk_wish(pdisk, PdiskWish::Keep),
        Command::Pdisk(args::Pdisk::Add(args)) => commands::pdisks::pdisk_add(args),
        Command::Pdisk(args::Pdisk::Replace(pdisk)) => commands::pdisks::pdisk_replace(pdisk),
        Command::Pdisk(args::Pdisk::Remove(pdisk)) => commands::pdisks::pdisk_remove(pdisk),
        Command::Pdisk(args::Pdisk::Events(listing)) => commands::events::list(listing),
        Command::Pool(args::Pool::List(listing)) => commands::listing::pool_list(listing),
        Command::Pool(args::Pool::Create(args)) => commands::pools::pool_create(args),
        Command::Pool(args::Pool::Delete(args)) => commands::pools::pool_delete(args),
        Command::Manager(args::Manager::Dump(args)) => commands::manager::dump(args),
        Command::Manager(args::Manager::Restore(args)) => commands::manager::restore(args),
        Command::Manager(args::Manager::Check(listing)) => commands::manager::check(listing),
        Command::Manager(args::Manager::AcceptLoss(args)) => commands::manager::accept_loss(args),
        Command::Clients(args::Clients::List(listing)) => commands::clients::clients(listing),
        Command::Clients(args::Clients::Detach { dir, session }) => commands::clients::detach(dir, *session),
        Command::Tokens(args) => commands::clients::tokens(&args.listing, args.waiting),
        Command::Locks(args) => commands::locks::locks(&args.listing, args.waiting),
        Command::Pool(args::Pool::Lost(listing)) => commands::verify::pool_lost(listing),
        Command::Pool(args::Pool::Status(listing)) => commands::pdisks::pool_status(listing),
        Command::Pool(args::Pool::Verify(args)) => commands::verify::pool_verify(args),
        Command::Rebuild(args::Rebuild::Status(args)) => commands::pdisks::rebuild_status(args),
        Command::Health(listing) => commands::pdisks::health(listing),
        Command::Events(args) => commands::pdisks::events(args),
        Command::Config(args::Config::Show(listing)) => commands::config::show(listing),
        Command::Config(args::Config::Explain { name, .. }) => commands::config::explain(name),
        Command::Config(args::Config::Set { dir, pairs }) => commands::config::set(dir, pairs),
        Command::Net(args::Net::Status(args)) => commands::net_status::status(args),
        Command::Net(args::Net::Sizing(args)) => commands::waiters::sizing(args),
        Command::Waiters(listing) => commands::waiters::waiters(listing),
        Command::Pagepool(listing) => commands::pagepool::pagepool(listing),
        Command::Perf(args) => commands::perf::perf(args),
        Command::Lab(args::Lab::Ceilings { dir, size, json }) => commands::lab::ceilings(dir, *size, *json),
        Command::Lab(args::Lab::List(args)) => commands::lab_run::list(args),
        Command::Lab(args::Lab::Plan { name }) => commands::lab_run::plan(name),
        Command::Lab(args::Lab::Run(args)) => commands::lab_run::run(args),
        Command::Lab(args::Lab::Resume(args)) => commands::lab_run::resume(args),
        Command::Lab(args::Lab::Report(args)) => commands::lab_run::report(args),
        Command::Lab(args::Lab::Agent(args)) => commands::lab_run::agent(args),
        Command::Lab(args::Lab::Compare(args)) => commands::lab_run::compare_runs(args),
        Command::Lab(args::Lab::Array(args)) => commands::lab::array(args),
        Command::Lab(args::Lab::NetFigures(args)) => commands::net_figures::figures(args),
        Command::Lab(args::Lab::Testbed(command)) => commands::testbed::run(command),
        Command::Netperf(command) => commands::netperf::run(command),
        Command::Advise(args) => commands::lab::advise(args),
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "ropewalk", &mut script);
            output::line(String::from_utf8_lossy(&script).trim_end());
            Ok(())
        }
        Command::Man { dir } => {
            std::fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
            clap_mangen::generate_to(Cli::command(), dir)
                .with_context(|| format!("write manual pages into {}", dir.display()))
        }
    }
}
