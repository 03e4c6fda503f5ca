//! What the commands do, a file for a group of them; what they are asked by is in `args`.

mod advise;
mod analytics;
mod ask;
mod authority;
mod clients;
mod config;
mod down;
mod drain;
mod events;
mod health;
mod join;
mod lab;
mod lab_run;
mod lab_seen;
mod last_copies;
mod listing;
mod locks;
mod lost;
mod manager;
mod managers;
mod members;
mod migrate;
mod mirror;
mod mount;
mod mount_helper;
mod net_figures;
mod net_sizing;
mod net_status;
mod netperf;
mod node_restart;
mod node_set;
mod nodes;
mod page;
mod pagepool;
mod pdisk_bench;
mod pdisk_tools;
mod pdisks;
mod perf;
mod pools;
mod rebuild;
mod self_test;
mod status;
mod sync;
mod testbed;
mod top;
mod up;
mod verify;
mod versions;
mod waiters;
mod workload;

pub use self::advise::Status;

use anyhow::{Context, Result};
use clap::CommandFactory;
use wire::mgr::PdiskWish;

use crate::{
    args::{self, Cli, Command},
    output, process,
};

/// Does what was asked.
pub fn run(command: &Command) -> Result<()> {
    let starts = matches!(
        command,
        Command::Init(_)
            | Command::Join(_)
            | Command::Up(_)
            | Command::Node(args::Node::Set(_))
            | Command::Manager(args::Manager::Add(_))
    );
    // What they start would refuse it, when they have changed something already.
    if starts {
        process::endpoint::check_environment()?;
    }
    match command {
        Command::Init(args) => join::init(args),
        Command::Join(args) => join::join(args),
        Command::Up(args) => up::up(args),
        Command::Down(args) => down::down(args),
        Command::Serve(args) => process::serve::serve(args),
        Command::Mount(args) => mount::mount(args),
        Command::Umount(args) => mount::umount(args),
        Command::Sync(args) => sync::sync(args),
        Command::MountHelper(args) => mount_helper::mount(args),
        Command::UmountHelper(args) => mount_helper::umount(args),
        Command::Status(listing) => status::status(listing),
        Command::Fs(args::Fs::List(listing)) => listing::fs_list(listing),
        Command::Fs(args::Fs::Df(listing)) => listing::fs_df(listing),
        Command::Fs(args::Fs::Create { dir, name, pool }) => pools::fs_create(dir, name, pool),
        Command::Fs(args::Fs::Delete(args)) => pools::fs_delete(args),
        Command::Fs(args::Fs::SetPool { directory, pool, .. }) => pools::fs_set_pool(directory, pool),
        Command::Cluster(args::Whole::Version(listing)) => versions::version(listing),
        Command::Cluster(args::Whole::Finalize(dir)) => versions::finalize(dir),
        Command::Cluster(args::Whole::Authority(args::Authority::Show(listing))) => authority::show(listing),
        Command::Cluster(args::Whole::Authority(args::Authority::Renew(dir))) => authority::renew(dir),
        Command::Cluster(args::Whole::Authority(args::Authority::Finish(args))) => authority::finish(args),
        Command::Node(args::Node::List(listing)) => nodes::list(listing),
        Command::Node(args::Node::Show(args)) => nodes::show(args),
        Command::Node(args::Node::Token(args)) => join::token(args),
        Command::Node(args::Node::Members(listing)) => members::list(listing),
        Command::Node(args::Node::Revoke(args)) => members::revoke(args),
        Command::Node(args::Node::Drain(args)) => drain::drain(args),
        Command::Node(args::Node::Keep(args)) => drain::keep(args),
        Command::Node(args::Node::Remove(args)) => nodes::remove(args),
        Command::Node(args::Node::Set(args)) => node_set::set(args),
        Command::Node(args::Node::Rename(args)) => nodes::rename(args),
        Command::Pdisk(args::Pdisk::List(listing)) => listing::pdisk_list(listing),
        Command::Pdisk(args::Pdisk::Verify(dir)) => pdisk_tools::verify(dir),
        Command::Pdisk(args::Pdisk::Dump(dir)) => pdisk_tools::dump(dir),
        Command::Pdisk(args::Pdisk::Bench(bench)) => pdisk_bench::bench(bench),
        Command::Pdisk(args::Pdisk::Fail(args)) => pdisks::pdisk_fail(args),
        Command::Pdisk(args::Pdisk::Drain(pdisk)) => pdisks::pdisk_wish(pdisk, PdiskWish::Drain),
        Command::Pdisk(args::Pdisk::Keep(pdisk)) => pdisks::pdisk_wish(pdisk, PdiskWish::Keep),
        Command::Pdisk(args::Pdisk::Add(args)) => pdisks::pdisk_add(args),
        Command::Pdisk(args::Pdisk::Replace(pdisk)) => pdisks::pdisk_replace(pdisk),
        Command::Pdisk(args::Pdisk::Remove(pdisk)) => pdisks::pdisk_remove(pdisk),
        Command::Pdisk(args::Pdisk::Events(listing)) => events::pdisk_events(listing),
        Command::Pool(args::Pool::List(listing)) => listing::pool_list(listing),
        Command::Pool(args::Pool::Create(args)) => pools::pool_create(args),
        Command::Pool(args::Pool::Delete(args)) => pools::pool_delete(args),
        Command::Manager(args::Manager::Dump(args)) => manager::dump(args),
        Command::Manager(args::Manager::Restore(args)) => manager::restore(args),
        Command::Manager(args::Manager::Check(listing)) => manager::check(listing),
        Command::Manager(args::Manager::AcceptLoss(args)) => manager::accept_loss(args),
        Command::Manager(args::Manager::Migrate(args)) => migrate::migrate(args),
        Command::Manager(args::Manager::Mirror(args)) => mirror::mirror(args),
        Command::Manager(args::Manager::List(listing)) => managers::list(listing),
        Command::Manager(args::Manager::Add(args)) => managers::add(args),
        Command::Manager(args::Manager::Remove(args)) => managers::remove(args),
        Command::Manager(args::Manager::Promote(args)) => managers::promote(args),
        Command::Clients(args::Clients::List(listing)) => clients::clients(listing),
        Command::Clients(args::Clients::Detach { dir, session }) => clients::detach(dir, *session),
        Command::Tokens(args) => clients::tokens(&args.listing, args.waiting),
        Command::Locks(args) => locks::locks(&args.listing, args.waiting),
        Command::Pool(args::Pool::Lost(listing)) => lost::pool_lost(listing),
        Command::Pool(args::Pool::Status(listing)) => health::pool_status(listing),
        Command::Pool(args::Pool::Verify(args)) => verify::pool_verify(args),
        Command::Rebuild(args::Rebuild::Status(args)) => rebuild::rebuild_status(args),
        Command::Health(listing) => health::health(listing),
        Command::Events(args) => events::events(args),
        Command::Config(args::Config::Show(listing)) => config::show(listing),
        Command::Config(args::Config::Explain { name, .. }) => config::explain(name),
        Command::Config(args::Config::Set { dir, pairs }) => config::set(dir, pairs),
        Command::Net(args::Net::Status(args)) => net_status::status(args),
        Command::Net(args::Net::Sizing(args)) => net_sizing::sizing(args),
        Command::Top(args) => top::top(args),
        Command::Analytics(args::Analytics::Query(args)) => analytics::query(args),
        Command::Analytics(args::Analytics::Export(args)) => analytics::export(args),
        Command::Analytics(args::Analytics::Record(args)) => analytics::record(args),
        Command::Analytics(args::Analytics::Replay(args)) => top::replay(args),
        Command::Analytics(args::Analytics::Statistics { json }) => analytics::statistics(*json),
        Command::Analytics(args::Analytics::History(listing)) => analytics::history(listing),
        Command::Analytics(args::Analytics::Serve(args)) => analytics::serve(args),
        Command::Analytics(args::Analytics::Password { dir }) => analytics::password(dir),
        Command::Analytics(args::Analytics::Worksheet(command)) => analytics::worksheet(command),
        Command::Waiters(listing) => waiters::waiters(listing),
        Command::Pagepool(listing) => pagepool::pagepool(listing),
        Command::Perf(args) => perf::perf(args),
        Command::Lab(args::Lab::Ceilings { dir, size, json }) => lab::ceilings(dir, *size, *json),
        Command::Lab(args::Lab::List(args)) => lab_run::list(args),
        Command::Lab(args::Lab::Plan { name }) => lab_run::plan(name),
        Command::Lab(args::Lab::Run(args)) => lab_run::run(args),
        Command::Lab(args::Lab::Resume(args)) => lab_run::resume(args),
        Command::Lab(args::Lab::Report(args)) => lab_run::report(args),
        Command::Lab(args::Lab::Agent(args)) => lab_run::agent(args),
        Command::Lab(args::Lab::Compare(args)) => lab_run::compare_runs(args),
        Command::Lab(args::Lab::Array(args)) => lab::array(args),
        Command::Lab(args::Lab::SelfTest(args)) => self_test::self_test(args),
        Command::Lab(args::Lab::NetFigures(args)) => net_figures::figures(args),
        Command::Lab(args::Lab::Workload(command)) => workload::workload(command),
        Command::Lab(args::Lab::Testbed(command)) => testbed::run(command),
        Command::Netperf(command) => netperf::run(command),
        Command::Advise(args) => advise::advise(args),
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
