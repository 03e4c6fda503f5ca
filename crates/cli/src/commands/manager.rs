//! `ropewalk manager dump|restore|check|accept-loss`: the manager's whole store as one file, independent of its
//! engine; what is wrong with it, and going on without that. A dump is taken while the manager runs, or not; for the rest it does not.

use std::{
    fs::File,
    io::{self, BufReader, BufWriter, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use manager::store::{self, CopyPlace as _, Damaged, DumpWriter, KeyText, Look};
use serde::Serialize;
use wire::mgr::{MgrReply, MgrRequest};

use crate::{
    args::{AcceptLoss, Listing, ManagerDump, ManagerFile},
    cluster_dir::{ClusterDir, EtcdMember, OwnManager, access, host::host_name, make},
    input,
    interrupt::{self, Interrupted},
    link::{self, Link},
    output,
    process::pid_file,
};

/// Memory for the store's pages, bytes.
pub(super) const CACHE_BYTES: usize = 64 << 20;

/// Where a manager's store is that nobody has open, if it is here and the only one.
fn at_rest(dir: &ClusterDir) -> Option<PathBuf> {
    let own = dir.file.own_managers().into_iter().next().filter(|_| stores(dir).len() == 1)?;
    pid_file::live_pid(&dir.pid_file(&own.local)).is_none().then(|| dir.data_of(&own))
}

/// The managers with a store: one that only keeps a copy has none.
fn stores(dir: &ClusterDir) -> Vec<crate::cluster_dir::ManagerFile> {
    let mut all = dir.file.all_managers();
    all.retain(|one| Some(&one.name) != dir.file.mirror_on.as_ref() && !dir.file.keeps_copy);
    all
}

/// The directory of the manager's store, which is here, which nobody has open, and which is the only one: of several the table of one that
/// followed lacks what was committed last.
pub(super) fn stopped(dir: &ClusterDir) -> Result<PathBuf> {
    if dir.file.keeps_copy {
        bail!(
            "this machine keeps a copy of the manager's store, and the manager is elsewhere ({}); is that lost: ropewalk manager promote \
             --from-mirror",
            dir.managers.places()
        );
    }
    let all = stores(dir);
    if all.len() > 1 {
        let names: Vec<&str> = all.iter().map(|one| one.name.as_str()).collect();
        bail!(
            "there are {} managers ({}), and only the active one's table has all: while the cluster is up, remove the others \
             (`ropewalk manager remove NAME`); they are added again afterwards",
            all.len(),
            names.join(", ")
        );
    }
    own_stopped(dir)
}

/// The directory of this machine's manager, the first where it has several: none of them runs.
pub(super) fn own_stopped(dir: &ClusterDir) -> Result<PathBuf> {
    let all = dir.file.own_managers();
    for own in &all {
        if let Some(pid) = pid_file::live_pid(&dir.pid_file(&own.local)) {
            bail!(
                "the manager runs (process {pid}); stop the cluster first: ropewalk down --dir {}",
                dir.path.display()
            );
        }
    }
    match all.first() {
        Some(own) => Ok(dir.data_of(own)),
        None => {
            bail!(
                "the manager's store is on another machine, that of {}; run this there",
                dir.managers.places()
            )
        }
    }
}

/// `ropewalk manager dump`: of a store that nobody has open, else from the active manager.
pub fn dump(args: &ManagerDump) -> Result<()> {
    let ManagerDump { file: args, damaged } = args;
    let dir = args.dir.open()?;
    let look = match at_rest(&dir) {
        None if *damaged => bail!(
            "--damaged is for a store that is not in use; stop the cluster first: ropewalk down --dir {}",
            dir.path.display()
        ),
        None if dir.file.secret.is_none() => bail!(
            "a dump holds every name, and the contents of small files: give this command on a manager's machine ({})",
            dir.managers.places()
        ),
        None => None,
        Some(place) => Some(open_store(&manager::format::store_path(&place), *damaged)?),
    };
    interrupt::catch()?;
    // Every name and every attribute is in it.
    let file = access::options()
        .write(true)
        .create_new(true)
        .open(&args.file)
        .with_context(|| format!("make the dump {}, which must not be there yet", args.file.display()))?;
    let damaged = if *damaged { Damaged::LeaveOut } else { Damaged::Refuse };
    let written = write_dump(file, &args.file, |to| match &look {
        Some(look) => Ok(store::dump(&*look.snapshot()?, to, damaged)?),
        None => Ok((link::run(from_active(&dir, to))?, Vec::new())),
    });
    let (count, left_out) = written.map_err(|error| {
        // Half a dump is of no use, and would be refused.
        let _ = std::fs::remove_file(&args.file);
        if interrupt::asked() { Interrupted("no dump was written".into()).into() } else { error }
    })?;
    for what in look.iter().flat_map(|look| &look.problems).chain(&left_out) {
        output::line(format!("left out: {what}"));
    }
    output::line(format!("{count} records are in {}", args.file.display()));
    Ok(())
}

fn open_store(path: &Path, damaged: bool) -> Result<Look> {
    if !path.exists() {
        bail!("{} is not there; `ropewalk manager restore` makes a store from a dump", path.display());
    }
    let look = Look::open(path, CACHE_BYTES).with_context(|| format!("open {}", path.display()))?;
    if let Some(problem) = look.problems.first().filter(|_| !damaged) {
        bail!("{problem}; --damaged writes a dump without it");
    }
    Ok(look)
}

/// Writes what the active manager has stored at one moment; how many records that are.
async fn from_active(dir: &ClusterDir, to: &mut dyn Write) -> Result<u64> {
    let link = Link::as_manager(dir)?;
    let (number, mut after) = (u64::from_le_bytes(make::random()?), Vec::new());
    let mut dump = DumpWriter::begin(to)?;
    loop {
        let (records, more) = match link.manager(&MgrRequest::Dump { dump: number, after }).await? {
            MgrReply::Dumped { records, more } => (records, more),
            other => bail!("unexpected answer from the manager to Dump: {other:?}"),
        };
        for (key, value) in &records {
            if !store::is_whole(key, value) {
                let what = format!("record {}", KeyText(key.clone()));
                return Err(manager::ManagerError::Damaged { what }.into());
            }
            dump.record(key, value)?;
        }
        match records.into_iter().next_back() {
            Some((last, _)) if more => after = last,
            None if more => bail!("the manager's answer to Dump does not go on"),
            _ => return Ok(dump.finish()?),
        }
    }
}

/// A file that takes nothing more once the command is told to stop.
#[derive(Debug)]
struct Stoppable(File);

impl Write for Stoppable {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        interrupt::check().map_err(io::Error::other)?;
        self.0.write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

fn write_dump<T>(file: File, path: &Path, write: impl FnOnce(&mut dyn Write) -> Result<T>) -> Result<T> {
    let mut to = BufWriter::new(Stoppable(file));
    let written = write(&mut to)?;
    let Stoppable(file) = to.into_inner().context("write the dump")?;
    file.sync_all().context("make the dump durable")?;
    // Its name too.
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(directory).and_then(|dir| dir.sync_all()).context("make the dump's name durable")?;
    Ok(written)
}

/// The store of a manager of this machine that does not run: of several managers any has a whole table, up to what it has followed.
fn resting(dir: &ClusterDir) -> Result<PathBuf> {
    let rests = |own: &OwnManager| pid_file::live_pid(&dir.pid_file(&own.local)).is_none();
    match dir.file.own_managers().into_iter().find(rests) {
        Some(own) => Ok(dir.data_of(&own)),
        None if dir.file.all_managers().len() < 2 => stopped(dir),
        None => bail!(
            "no manager of this machine is at rest; where one follows, stop it: ropewalk down --dir {}",
            dir.path.display()
        ),
    }
}

/// That a copy of the store counts, and what takes it. None: there is none, or it is behind.
pub(super) fn copy_that_counts(dir: &ClusterDir) -> Option<String> {
    if let Some(copy) = dir.mirror().filter(|copy| copy.whole().is_ok()) {
        let taken = dir.file.mirror.as_deref().unwrap_or(&dir.path).display();
        return Some(format!(
            "the copy of the store {} has all: `ropewalk manager promote --dir {} --from-mirror {taken}` takes it",
            copy.name(),
            dir.path.display()
        ));
    }
    let (name, own) = (dir.file.mirror_on.as_ref()?, dir.file.own_managers().into_iter().next()?);
    dir.witness_of(&dir.data_of(&own)).names_one().then(|| {
        format!(
            "the copy of the store on {name} has all: `ropewalk manager promote --from-mirror`, on the machine of {name}, takes it"
        )
    })
}

/// Refuses to make a store from a dump where something would be lost, or be at odds with it: tables that are here, another machine's
/// manager that is active, a journal that etcd has.
fn nothing_is_replaced(dir: &ClusterDir) -> Result<()> {
    for own in dir.file.own_managers() {
        let store = dir.data_of(&own);
        if has_entries(&store) {
            bail!(
                "{} holds a store; move it away first, it is the only copy of what is in it: mv {} {}.old",
                store.display(),
                store.display(),
                store.display()
            );
        }
    }
    let several = dir.file.all_managers().len() > 1;
    if several && link::run(async { Link::new(dir)?.cluster().await }).is_ok() {
        bail!(
            "a manager on another machine is active; stop them all first: ropewalk down, on each of their machines"
        );
    }
    let Some(etcd) = &dir.file.etcd else { return Ok(()) };
    let place = etcd.place()?;
    let rests = |member: &&EtcdMember| pid_file::live_pid(&dir.pid_file(&member.name)).is_none();
    let free = store::is_free(&place, &format!("`manager restore` on {}", host_name()));
    let free = match etcd.members.iter().find(rests).filter(|_| free.is_err()) {
        Some(member) => free.with_context(|| {
            format!(
                "this machine runs etcd itself; start its members for the time being, as ropewalk serve --dir {} --name {}",
                dir.path.display(),
                member.name
            )
        })?,
        None => free?,
    };
    if !free {
        bail!(
            "{place} holds the journal of the former store; once no manager is to go on with that: etcdctl del --prefix {}/",
            place.prefix
        );
    }
    Ok(())
}

#[derive(Serialize)]
struct Checked {
    whole: bool,
    records: u64,
    last_commit: u64,
    problems: Vec<String>,
    more: u64,
}

/// `ropewalk manager check`.
pub fn check(listing: &Listing) -> Result<()> {
    let dir = listing.dir.open()?;
    let place = resting(&dir)?;
    let found = manager::check::check(&place)?;
    let count = found.problems.len() as u64 + found.more;
    if listing.json {
        output::json(&Checked {
            whole: count == 0,
            records: found.records,
            last_commit: found.last,
            problems: found.problems,
            more: found.more,
        })?;
    } else {
        found.problems.iter().for_each(output::line);
        output::line(format!(
            "{} records, the last commit is {}, in {}",
            found.records,
            found.last,
            place.display()
        ));
    }
    let copy = copy_that_counts(&dir).map_or(String::new(), |copy| format!("; {copy}"));
    match count {
        0 => Ok(()),
        1 => bail!("one thing is wrong with {}{copy}", place.display()),
        _ => bail!("{count} things are wrong with {}{copy}", place.display()),
    }
}

/// `ropewalk manager accept-loss`.
pub fn accept_loss(args: &AcceptLoss) -> Result<()> {
    let dir = args.dir.open()?;
    if let Some(copy) = copy_that_counts(&dir) {
        bail!("{copy}; before anything is given up, the copy is to be: `ropewalk manager mirror --off`");
    }
    if dir.file.all_managers().len() > 1 {
        bail!(
            "there are several managers, each with the whole table: move a damaged one's directory away, and start it; it copies the \
             table from the active manager. If no whole one is left: ropewalk manager restore"
        );
    }
    let place = stopped(&dir)?;
    if !args.yes {
        bail!(
            "what is lost stays lost: names, sizes and contents that programs were told are safe. A dump is the better way \
             back (`ropewalk manager restore`). `ropewalk manager check` says what is wrong; --yes gives it up"
        );
    }
    let accepted = manager::accept_loss(&place)?;
    accepted.lost.iter().for_each(|what| output::line(format!("given up: {what}")));
    output::line(format!(
        "{} records are left; the former files are beside them (.given-up). Look at it before it is used: \
         ropewalk manager check --dir {}",
        accepted.records,
        dir.path.display()
    ));
    Ok(())
}

/// `ropewalk manager restore`.
pub fn restore(args: &ManagerFile) -> Result<()> {
    let dir = args.dir.open()?;
    let store = own_stopped(&dir)?;
    nothing_is_replaced(&dir)?;
    let file = input::open(&args.file).with_context(|| format!("open {}", args.file.display()))?;
    let count = manager::restore(&store, &mut BufReader::new(file)).with_context(|| {
        format!("restore from {}; no store was made, take another dump", args.file.display())
    })?;
    output::line(format!(
        "{count} records are in {}; start it: ropewalk up --dir {}",
        store.display(),
        dir.path.display()
    ));
    if let Some(copy) = copy_that_counts(&dir) {
        output::line(format!(
            "{copy}; this store is not started with it beside: give it up before (`ropewalk manager mirror --off`)"
        ));
    }
    if dir.file.all_managers().len() > 1 {
        output::line(
            "it is started first; the others copy its table: move their directories away, on every machine, before they are started",
        );
    }
    Ok(())
}

fn has_entries(dir: &Path) -> bool {
    std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some())
}
