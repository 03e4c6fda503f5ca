//! The binary `ropewalk`: the only place where parts are put together.

mod access;
mod args;
mod array_commands;
mod choice;
mod config;
mod directory;
mod down;
mod events;
mod interrupt;
mod lab_commands;
mod lab_run;
mod link;
mod listing;
mod lock_commands;
mod logging;
mod make;
mod manager_commands;
mod metrics;
mod mount;
mod net_commands;
mod net_status;
mod netfigures_commands;
mod netperf_commands;
mod output;
mod pagepool;
mod pdisk_bench;
mod pdisk_commands;
mod perf;
mod pool_commands;
mod process;
mod resolver;
mod server;
mod share_commands;
mod testbed_commands;
mod tuning;
mod up;
mod verify_commands;

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
        Command::Up(args) => up::up(args),
        Command::Down(args) => down::down(args),
        Command::Serve(args) => server::serve(args),
        Command::Mount(args) => mount::mount(args),
        Command::Umount(args) => mount::umount(args),
        Command::Status(listing) => listing::status(listing),
        Command::Fs(args::Fs::List(listing)) => listing::fs_list(listing),
        Command::Fs(args::Fs::Df(listing)) => listing::fs_df(listing),
        Command::Fs(args::Fs::Create { dir, name, pool }) => pool_commands::fs_create(dir, name, pool),
        Command::Fs(args::Fs::Delete(args)) => pool_commands::fs_delete(args),
        Command::Fs(args::Fs::SetPool { directory, pool, .. }) => pool_commands::fs_set_pool(directory, pool),
        Command::Pdisk(args::Pdisk::List(listing)) => listing::pdisk_list(listing),
        Command::Pdisk(args::Pdisk::Verify(dir)) => pdisk_commands::verify(dir),
        Command::Pdisk(args::Pdisk::Dump(dir)) => pdisk_commands::dump(dir),
        Command::Pdisk(args::Pdisk::Bench(bench)) => pdisk_bench::bench(bench),
        Command::Pdisk(args::Pdisk::Fail(pdisk)) => array_commands::pdisk_wish(pdisk, PdiskWish::Fail),
        Command::Pdisk(args::Pdisk::Drain(pdisk)) => array_commands::pdisk_wish(pdisk, PdiskWish::Drain),
        Command::Pdisk(args::Pdisk::Keep(pdisk)) => array_commands::pdisk_wish(pdisk, PdiskWish::Keep),
        Command::Pdisk(args::Pdisk::Add(args)) => array_commands::pdisk_add(args),
        Command::Pdisk(args::Pdisk::Replace(pdisk)) => array_commands::pdisk_replace(pdisk),
        Command::Pdisk(args::Pdisk::Remove(pdisk)) => array_commands::pdisk_remove(pdisk),
        Command::Pdisk(args::Pdisk::Events(listing)) => events::list(listing),
        Command::Pool(args::Pool::List(listing)) => listing::pool_list(listing),
        Command::Pool(args::Pool::Create(args)) => pool_commands::pool_create(args),
        Command::Pool(args::Pool::Delete(args)) => pool_commands::pool_delete(args),
        Command::Manager(args::Manager::Dump(args)) => manager_commands::dump(args),
        Command::Manager(args::Manager::Restore(args)) => manager_commands::restore(args),
        Command::Manager(args::Manager::Check(listing)) => manager_commands::check(listing),
        Command::Manager(args::Manager::AcceptLoss(args)) => manager_commands::accept_loss(args),
        Command::Clients(args::Clients::List(listing)) => share_commands::clients(listing),
        Command::Clients(args::Clients::Detach { dir, session }) => share_commands::detach(dir, *session),
        Command::Tokens(args) => share_commands::tokens(&args.listing, args.waiting),
        Command::Locks(args) => lock_commands::locks(&args.listing, args.waiting),
        Command::Pool(args::Pool::Lost(listing)) => verify_commands::pool_lost(listing),
        Command::Pool(args::Pool::Status(listing)) => array_commands::pool_status(listing),
        Command::Pool(args::Pool::Verify(args)) => verify_commands::pool_verify(args),
        Command::Rebuild(args::Rebuild::Status(args)) => array_commands::rebuild_status(args),
        Command::Health(listing) => array_commands::health(listing),
        Command::Events(args) => array_commands::events(args),
        Command::Config(args::Config::Show(listing)) => config::show(listing),
        Command::Config(args::Config::Explain { name, .. }) => config::explain(name),
        Command::Config(args::Config::Set { dir, pairs }) => config::set(dir, pairs),
        Command::Net(args::Net::Status(args)) => net_status::status(args),
        Command::Net(args::Net::Sizing(args)) => net_commands::sizing(args),
        Command::Waiters(listing) => net_commands::waiters(listing),
        Command::Pagepool(listing) => pagepool::pagepool(listing),
        Command::Perf(args) => perf::perf(args),
        Command::Lab(args::Lab::Ceilings { dir, size, json }) => lab_commands::ceilings(dir, *size, *json),
        Command::Lab(args::Lab::List(args)) => lab_run::list(args),
        Command::Lab(args::Lab::Plan { name }) => lab_run::plan(name),
        Command::Lab(args::Lab::Run(args)) => lab_run::run(args),
        Command::Lab(args::Lab::Resume(args)) => lab_run::resume(args),
        Command::Lab(args::Lab::Report(args)) => lab_run::report(args),
        Command::Lab(args::Lab::Agent(args)) => lab_run::agent(args),
        Command::Lab(args::Lab::Compare(args)) => lab_run::compare_runs(args),
        Command::Lab(args::Lab::Array(args)) => lab_commands::array(args),
        Command::Lab(args::Lab::NetFigures(args)) => netfigures_commands::figures(args),
        Command::Lab(args::Lab::Testbed(command)) => testbed_commands::run(command),
        Command::Netperf(command) => netperf_commands::run(command),
        Command::Advise(args) => lab_commands::advise(args),
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
