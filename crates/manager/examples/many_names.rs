//! A dump with many more inodes than the one it is made from: empty files, 1,000 to a directory, made by the manager's own code without
//! network, mount or journal. For what is measured against inodes (`bench/takeover.sh`, `bench/migrate.sh`): `ropewalk manager restore`
//! makes a store of it. The same dump, number and seed give the same names.
//!
//! `many_names DUMP NEW-DUMP INODES [SEED]`
#![allow(clippy::print_stdout, clippy::expect_used)] // it prints its figure, and ends where something fails

use std::{
    fs::File,
    io::{BufReader, BufWriter},
    path::Path,
};

use base::{Grant, InodeNo, SessionId};
use manager::{
    format,
    namespace::{self, Actor, DirHash, FsContext},
    store::{self, Damaged, Mark, RedbStore, Store as _, Txn},
};
use wire::{
    credentials::Who,
    mgr::{Change, FileKind, MgrReply},
};

const USAGE: &str = "many_names DUMP NEW-DUMP INODES [SEED]";
/// Files of a directory, which are one commit with it.
const FILES: u64 = 1000;

fn made(txn: &mut Txn<'_>, fs: FsContext, parent: InodeNo, name: String, kind: FileKind) -> InodeNo {
    let actor = Actor { session: SessionId(0), who: &Who::Root, grant: Grant(0), openers: &[] };
    let mode = if kind == FileKind::Directory { 0o755 } else { 0o644 };
    let now = format::wall_clock();
    let change = Change::Create {
        parent,
        name: name.into_bytes(),
        kind,
        mode,
        uid: 0,
        gid: 0,
        rdev: 0,
        target: Vec::new(),
        now,
        existing_ok: false,
    };
    let reply = namespace::apply(txn, fs, actor, change).expect("a new name");
    txn.keep();
    let MgrReply::Created { attr, .. } = reply else { panic!("{reply:?}") };
    attr.ino
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (from, to, numbers) = match args.as_slice() {
        [from, to, numbers @ ..] => (Path::new(from), Path::new(to), numbers),
        _ => panic!("{USAGE}"),
    };
    let numbers: Vec<u64> = numbers.iter().map(|text| text.parse().expect(USAGE)).collect();
    let (inodes, seed) = match numbers[..] {
        [inodes] => (inodes, 1),
        [inodes, seed] => (inodes, seed),
        _ => panic!("{USAGE}"),
    };
    let table = to.with_extension("table");
    let store = RedbStore::create(&table, 256 << 20).expect("a table beside the new dump");
    store::restore(&mut BufReader::new(File::open(from).expect("open the dump")), &store).expect("a dump");
    let snapshot = store.snapshot().expect("a snapshot");
    let hash = DirHash::new(format::check_format(&*snapshot, &table).expect("its format").hash_key);
    let map = manager::keys::read_map(&*snapshot).expect("the map");
    drop(snapshot);
    let fs = map.filesystems.first().expect("a file system").id;
    let fs = FsContext { fs, hash, full: false };
    let mut left = inodes;
    while left > 0 {
        let snapshot = store.snapshot().expect("a snapshot");
        let mut txn = Txn::new(&*snapshot);
        let directory = format!("many-{seed}-{}", left / FILES);
        let directory = made(&mut txn, fs, InodeNo::ROOT, directory, FileKind::Directory);
        let files = FILES.min(left - 1);
        for n in 0..files {
            let name = format!("{:016x}", (seed << 32 | n).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            made(&mut txn, fs, directory, name, FileKind::File);
        }
        left -= files + 1;
        store.commit_marked(&txn.into_changes(), Mark::default(), false).expect("a commit");
    }
    let mut new = BufWriter::new(File::create(to).expect("make the new dump"));
    let (count, _) =
        store::dump(&*store.snapshot().expect("a snapshot"), &mut new, Damaged::Refuse).expect("dump");
    new.into_inner().expect("write the new dump").sync_all().expect("make the new dump durable");
    drop(store);
    std::fs::remove_file(&table).expect("remove the table");
    println!("{count} records");
}
