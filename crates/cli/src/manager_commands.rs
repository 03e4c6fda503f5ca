//! `ropewalk manager dump|restore`: the manager's whole store as one file, independent of its engine. The
//! manager does not run meanwhile.

use std::{fs::File, io::BufReader, io::BufWriter, path::Path};

use anyhow::{Context, Result, bail};
use manager::store::{self, JournaledStore, Store as _};

use crate::{access, args::ManagerFile, directory::ClusterDir, output, process};

/// Memory for the store's pages, bytes.
const CACHE_BYTES: usize = 64 << 20;

fn stopped(dir: &ClusterDir) -> Result<()> {
    match process::live_pid(&dir.pid_file("manager")) {
        Some(pid) => bail!(
            "the manager runs (process {pid}); stop the cluster first: ropewalk down --dir {}",
            dir.path.display()
        ),
        None => Ok(()),
    }
}

/// `ropewalk manager dump`.
pub fn dump(args: &ManagerFile) -> Result<()> {
    let dir = ClusterDir::open(&args.dir.dir)?;
    stopped(&dir)?;
    let path = manager::format::store_path(&dir.manager_dir());
    if !path.exists() {
        bail!("{} is not there; `ropewalk manager restore` makes a store from a dump", path.display());
    }
    let from =
        JournaledStore::open(&path, CACHE_BYTES).with_context(|| format!("open {}", path.display()))?;
    // Every name and every attribute is in it.
    let file = access::options()
        .write(true)
        .create_new(true)
        .open(&args.file)
        .with_context(|| format!("make the dump {}, which must not be there yet", args.file.display()))?;
    let count = write_dump(&from, file).inspect_err(|_| {
        // Half a dump is of no use, and would be refused.
        let _ = std::fs::remove_file(&args.file);
    })?;
    output::line(format!("{count} records are in {}", args.file.display()));
    Ok(())
}

fn write_dump(from: &JournaledStore, file: File) -> Result<u64> {
    let mut to = BufWriter::new(file);
    let count = store::dump(&*from.snapshot()?, &mut to)?;
    let file = to.into_inner().context("write the dump")?;
    file.sync_all().context("make the dump durable")?;
    Ok(count)
}

/// `ropewalk manager restore`.
pub fn restore(args: &ManagerFile) -> Result<()> {
    let dir = ClusterDir::open(&args.dir.dir)?;
    stopped(&dir)?;
    let store = dir.manager_dir();
    if has_entries(&store) {
        bail!(
            "{} holds a store; move it away first, it is the only copy of what is in it: mv {} {}.old",
            store.display(),
            store.display(),
            store.display()
        );
    }
    let file = File::open(&args.file).with_context(|| format!("open {}", args.file.display()))?;
    let count = manager::restore(&store, &mut BufReader::new(file)).with_context(|| {
        format!("restore from {}; no store was made, take another dump", args.file.display())
    })?;
    output::line(format!(
        "{count} records are in {}; start it: ropewalk up --dir {}",
        store.display(),
        dir.path.display()
    ));
    Ok(())
}

fn has_entries(dir: &Path) -> bool {
    std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some())
}
