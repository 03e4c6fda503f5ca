//! The rules of DESIGN section 4 about pages, names and sizes that the kernel of one mount keeps while another mount
//! changes the file: a giving up that would wait for itself hangs here, a page that outlives its token is read.
//! One mount is over `/dev/fuse`, the other over io_uring where the kernel has it.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/mounts.rs"]
mod mounts;

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::FileExt,
    path::Path,
    process::Command,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

use common::{Random, ok, seed};
use mounts::Mounts;
use rustix::fs::{Advice, Dir, FallocateFlags, fadvise, fallocate};

const BLOCK: usize = 1 << 20;
/// A token that waits for itself is given up after 60 s only.
const HANGS: Duration = Duration::from_secs(45);

fn two() -> Mounts {
    let mut mounts = Mounts::new(1);
    let path = mounts.more.path().join("uring");
    fs::create_dir(&path).unwrap();
    mounts.mount_by(&path, "auto");
    mounts.all.push(path);
    mounts
}

fn in_time<T>(what: &str, act: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let result = act();
    assert!(began.elapsed() < HANGS, "{what} took {:?}", began.elapsed());
    result
}

/// Ends the readers, also when the writer fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

fn python(script: &str, paths: &[&Path]) {
    let run = Command::new("python3").args(["-c", script]).args(paths).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}

/// Readers through the page cache have pages locked while they wait for tokens that a writer on the other mount keeps
/// taking: pages of several blocks each, so that they wait for one while another is recalled. What is read in order is
/// never older than what was read before.
#[test]
fn a_recall_does_not_wait_for_pages_that_wait_for_a_token() {
    const BLOCKS: u64 = 4;
    let mounts = two();
    for writer in 0..2 {
        let name = format!("hot{writer}");
        fs::write(mounts.at(0, &name), vec![0; BLOCKS as usize * BLOCK]).unwrap();
        let stop = AtomicBool::new(false);
        let file = OpenOptions::new().write(true).open(mounts.at(writer, &name)).unwrap();
        thread::scope(|scope| {
            for shift in [0, BLOCK as u64 / 2] {
                let (path, stop) = (mounts.at(1 - writer, &name), &stop);
                scope.spawn(move || {
                    let file = File::open(path).unwrap();
                    let (mut seen, mut bytes) = (vec![0; BLOCKS as usize], vec![0; BLOCK]);
                    while !stop.load(SeqCst) {
                        for number in 0..BLOCKS - 1 {
                            in_time("a read", || {
                                file.read_exact_at(&mut bytes, number * BLOCK as u64 + shift).unwrap();
                            });
                            let block = number as usize + usize::from(shift > 0);
                            let byte = bytes[if shift > 0 { BLOCK / 2 } else { 0 }];
                            assert!(byte >= seen[block], "block {block}: {byte} after {}", seen[block]);
                            seen[block] = byte;
                        }
                    }
                });
            }
            let _ends = Ends(&stop);
            let mut random = Random(seed());
            let cached = File::open(mounts.at(1 - writer, &name)).unwrap();
            for round in 1..=120u8 {
                let block = random.below(BLOCKS) * BLOCK as u64;
                in_time("a write", || file.write_all_at(&[round; 4096], block).unwrap());
                let mut now = [0];
                in_time("a look", || cached.read_exact_at(&mut now, block).unwrap());
                assert_eq!(now, [round], "what the other mount has cached");
            }
        });
    }
}

/// What is stored through a mapping needs no question, so its pages must go with the token: written out while that is
/// being given up, dropped, and filled again only under a token to write. The other side reads through its page cache,
/// and has the page cached each time.
#[test]
fn stores_through_a_mapping_are_seen_by_readers_elsewhere() {
    let mounts = two();
    fs::write(mounts.at(0, "map"), vec![0; 3 * BLOCK]).unwrap();
    for writer in 0..2 {
        let (there, here) = (mounts.at(writer, "map"), mounts.at(1 - writer, "map"));
        let script = r#"
import mmap, os, sys, time
before = os.open(sys.argv[1], os.O_RDONLY)
os.pread(before, 9000, 0)
writer, reader = os.open(sys.argv[1], os.O_RDWR), os.open(sys.argv[2], os.O_RDONLY)
mapped = mmap.mmap(writer, 3 << 20)
for turn in range(1, 40):
    for place in (100, (1 << 20) + 5000):
        began = time.monotonic()
        mapped[place] = turn
        assert os.pread(reader, 1, place)[0] == turn, (turn, place)
        assert os.pread(before, 1, place)[0] == turn, (turn, place)
        mapped[place + 1] = turn
        assert time.monotonic() - began < 45, (turn, place)
"#;
        python(script, &[&there, &here]);
    }
}

/// Both mounts read and write the same block. A write that waits for the right to write must have no pages locked: the right
/// to read that its own mount has is recalled meanwhile, and its pages with it.
#[test]
fn a_recall_does_not_wait_for_writes() {
    const ROUNDS: u64 = 150;
    let mounts = two();
    fs::write(mounts.at(0, "both"), vec![0; BLOCK]).unwrap();
    thread::scope(|scope| {
        for mount in 0..2u64 {
            let path = mounts.at(mount as usize, "both");
            let (reader, writer) =
                (File::open(&path).unwrap(), OpenOptions::new().write(true).open(&path).unwrap());
            scope.spawn(move || {
                let mut page = [0; 4096];
                for _ in 0..ROUNDS {
                    in_time("a read", || reader.read_exact_at(&mut page, 8192).unwrap());
                    assert!(page.chunks(8).all(|n| *n == page[..8]), "a write that is half there");
                }
            });
            scope.spawn(move || {
                for number in 0..ROUNDS {
                    let page = [(2 * number + mount).to_le_bytes(); 512].concat();
                    in_time("a write", || writer.write_all_at(&page, 8192).unwrap());
                }
            });
        }
    });
}

/// Both mounts write a file in turns, and read it through the page cache. A READ has a page locked and needs more than its mount has, which is
/// recalled; beside it a writer asks for more, and stands behind the other mount's: the READ must not wait for that.
#[test]
fn a_recall_does_not_wait_for_a_reader_behind_a_writer() {
    const RECORD: u64 = 5000;
    const RECORDS: u64 = 800;
    const ROUNDS: u32 = 8;
    let mounts = two();
    fs::write(mounts.at(0, "turns"), "").unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _ends = Ends(&stop);
        let writers = [0, 1].map(|mount| {
            let path = mounts.at(mount as usize, "turns");
            let (reads, stop) = (path.clone(), &stop);
            scope.spawn(move || {
                let (mut random, mut record) = (Random(seed() ^ mount), [0; RECORD as usize]);
                while !stop.load(SeqCst) {
                    let file = File::open(&reads).unwrap();
                    for _ in 0..20 {
                        let size = in_time("a look", || file.metadata().unwrap().len());
                        let at = random.below(size / RECORD + 1) * RECORD;
                        in_time("a read", || file.read_at(&mut record, at).unwrap());
                    }
                }
            });
            scope.spawn(move || {
                let mut random = Random(seed() ^ mount << 8);
                for _ in 0..ROUNDS {
                    let file = OpenOptions::new().write(true).open(&path).unwrap();
                    for at in (mount..RECORDS).step_by(2).map(|number| number * RECORD) {
                        if random.below(10) == 0 {
                            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                            in_time("a hole", || fallocate(&file, flags, at, RECORD).unwrap());
                        } else {
                            in_time("a write", || file.write_all_at(&[7; RECORD as usize], at).unwrap());
                        }
                    }
                    in_time("a sync", || file.sync_all().unwrap());
                    if mount == 0 && random.below(3) == 0 {
                        in_time("a cut", || file.set_len(random.below(RECORD * RECORDS)).unwrap());
                    }
                }
            })
        });
        writers.into_iter().for_each(|writer| writer.join().unwrap());
    });
}

/// Each mount writes a block, and then wants to write the other's, which both give up; a READ of both has pages of its own mount's block locked,
/// and needs the other one.
#[test]
fn two_mounts_that_give_blocks_up_to_each_other_do_not_wait_for_each_others_readers() {
    const ROUNDS: u64 = 300;
    const PAGE: u64 = 4096;
    let mounts = two();
    fs::write(mounts.at(0, "across"), vec![0; 2 * BLOCK]).unwrap();
    let files = [0, 1].map(|mount| {
        let path = mounts.at(mount, "across");
        let (reader, writer) =
            (File::open(&path).unwrap(), OpenOptions::new().write(true).open(&path).unwrap());
        // Just what is read is asked for, in one READ.
        fadvise(&reader, 0, None, Advice::Random).unwrap();
        (reader, writer)
    });
    let border = BLOCK as u64;
    let page = |mount: usize| if mount == 0 { border - PAGE } else { border };
    let mut random = Random(seed());
    for _ in 0..ROUNDS {
        for (mount, (_, writer)) in files.iter().enumerate() {
            in_time("a write", || writer.write_all_at(&[7; PAGE as usize], page(mount)).unwrap());
        }
        thread::scope(|scope| {
            for (mount, (reader, writer)) in files.iter().enumerate() {
                let waits = Duration::from_micros(random.below(2000));
                scope.spawn(move || {
                    let other = page(1 - mount);
                    in_time("a write", || writer.write_all_at(&[7; PAGE as usize], other).unwrap());
                });
                scope.spawn(move || {
                    thread::sleep(waits);
                    let mut both = [0; 2 * PAGE as usize];
                    in_time("a read", || reader.read_exact_at(&mut both, border - PAGE).unwrap());
                });
            }
        });
    }
}

/// Who looks at a file that is open for reading and writing may read it; a page of a mapping wants the right to write. While
/// the lesser right is being given up, that page is locked and waits: it must not be waited for.
#[test]
fn a_recall_does_not_wait_for_a_page_that_wants_more() {
    let mounts = two();
    fs::write(mounts.at(0, "fault"), vec![0; BLOCK]).unwrap();
    for writer in 0..2 {
        let (there, here) = (mounts.at(writer, "fault"), mounts.at(1 - writer, "fault"));
        let script = r#"
import mmap, os, sys, time
writer, reader = sys.argv[1:]
other = os.fork()
while other == 0:
    with open(reader, "rb") as file:
        file.read()
try:
    file = os.open(writer, os.O_RDWR)
    for turn in range(500):
        began = time.monotonic()
        os.fstat(file)
        with mmap.mmap(file, 1 << 20) as mapped:
            mapped[turn * 4096 % (1 << 20)] = turn % 256
        assert time.monotonic() - began < 45, turn
finally:
    os.kill(other, 9)
"#;
        python(script, &[&there, &here]);
    }
}

/// Two mounts make, move and remove the same few names while both hold the files' tokens: who changes a name has the
/// kernel's lock of the directory, and waits for tokens under it.
#[test]
fn a_recall_does_not_wait_for_names() {
    let mounts = two();
    fs::create_dir(mounts.at(0, "names")).unwrap();
    thread::scope(|scope| {
        for worker in 0..4u64 {
            let mounts = &mounts;
            scope.spawn(move || {
                let mut random = Random(seed() ^ worker);
                let mount = worker as usize % 2;
                for turn in 0..80u8 {
                    let path = mounts.at(mount, &format!("names/{}", random.below(3)));
                    in_time("a change of names", || match random.below(4) {
                        0 => drop(fs::remove_file(&path)),
                        1 => drop(fs::rename(&path, mounts.at(mount, &format!("names/{}", random.below(3))))),
                        2 => drop(fs::read(&path)),
                        _ => drop(fs::write(&path, [turn; 5000])),
                    });
                }
            });
        }
    });
    let list = |mount: usize| {
        let mut names: Vec<_> = fs::read_dir(mounts.at(mount, "names"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        names
    };
    assert_eq!(list(0), list(1));
}

/// A file grows from two mounts at once, each writing records of its own beyond the end: no size is ever below what is
/// written, nobody's bytes are lost to the other's zeros.
#[test]
fn a_file_grows_from_two_mounts() {
    const RECORD: u64 = 70_000;
    const RECORDS: u64 = 60;
    let mounts = two();
    fs::write(mounts.at(0, "grows"), "").unwrap();
    thread::scope(|scope| {
        for mount in 0..2u64 {
            let path = mounts.at(mount as usize, "grows");
            scope.spawn(move || {
                let file = OpenOptions::new().write(true).open(&path).unwrap();
                for number in (mount..RECORDS).step_by(2) {
                    file.write_all_at(&vec![1 + number as u8; RECORD as usize], number * RECORD).unwrap();
                    assert!(fs::metadata(&path).unwrap().len() >= (number + 1) * RECORD);
                }
            });
        }
    });
    for mount in 0..2 {
        let bytes = fs::read(mounts.at(mount, "grows")).unwrap();
        assert_eq!(bytes.len() as u64, RECORDS * RECORD);
        let wrong = bytes.iter().enumerate().find(|(at, byte)| **byte != 1 + (*at as u64 / RECORD) as u8);
        assert_eq!(wrong, None, "mount {mount}");
    }
}

/// Open files that were removed outlive the manager: both mounts go on with theirs, and nothing is left in the end.
#[test]
fn removed_files_outlive_the_managers_death() {
    let mounts = two();
    let files: Vec<File> = (0..2)
        .map(|mount| {
            let path = mounts.at(mount, &format!("gone{mount}"));
            fs::write(&path, vec![7; BLOCK]).unwrap();
            let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
            fs::remove_file(mounts.at(1 - mount, &format!("gone{mount}"))).unwrap();
            file
        })
        .collect();
    mounts.cluster.kill(|name| name == "manager");
    mounts.cluster.start_server("manager");
    thread::sleep(Duration::from_secs(3)); // longer than what is removed waits for
    for file in &files {
        let mut bytes = vec![0; BLOCK];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, vec![7; BLOCK]);
        file.write_all_at(b"still here", 10).unwrap();
        file.sync_all().unwrap();
    }
    let dir = mounts.cluster.dir();
    ok(&["status", "--dir", dir.to_str().unwrap()]);
}

/// Names that a directory held open gives when it is read from its start again.
fn reread(directory: &mut Dir) -> Vec<String> {
    directory.rewind();
    let names = directory.map(|entry| entry.unwrap().file_name().to_str().unwrap().to_string());
    let mut names: Vec<_> = names.filter(|name| !name.starts_with('.')).collect();
    names.sort();
    names
}

/// A directory that is held open is read again from its start: the kernel may have kept the listing, while another mount
/// changed the directory. It was opened while its mount was alone, or later.
#[test]
fn a_directory_held_open_is_never_listed_from_an_old_time() {
    let mut mounts = Mounts::new(1);
    fs::create_dir(mounts.at(0, "held")).unwrap();
    fs::write(mounts.at(0, "held/first"), "").unwrap();
    let open = |path| Dir::read_from(File::open(path).unwrap()).unwrap();
    let mut alone = open(mounts.at(0, "held"));
    assert_eq!((reread(&mut alone), reread(&mut alone)), (vec!["first".into()], vec!["first".into()]));
    let path = mounts.more.path().join("uring");
    fs::create_dir(&path).unwrap();
    mounts.mount_by(&path, "auto");
    mounts.all.push(path);
    let (mut here, mut there) = (open(mounts.at(0, "held")), open(mounts.at(1, "held")));
    let mut names = vec!["first".to_string()];
    for turn in 0..6 {
        let changer = turn % 2;
        for directory in [&mut alone, &mut here, &mut there] {
            // Kept by the first, were it kept, and given by the second.
            assert_eq!((reread(directory), reread(directory)), (names.clone(), names.clone()), "turn {turn}");
        }
        let name = format!("by{turn}");
        fs::write(mounts.at(changer, &format!("held/{name}")), "").unwrap();
        names.insert(turn, name);
        for directory in [&mut alone, &mut here, &mut there] {
            assert_eq!(reread(directory), names, "made by mount {changer}");
        }
        if turn == 3 {
            fs::remove_file(mounts.at(1 - changer, "held/by0")).unwrap();
            fs::rename(mounts.at(changer, "held/by1"), mounts.at(changer, "held/by0")).unwrap();
            names.remove(1);
            for directory in [&mut alone, &mut here, &mut there] {
                assert_eq!(reread(directory), names, "removed and moved");
            }
            fs::write(mounts.at(changer, "held/by1"), "").unwrap();
            names.insert(1, "by1".into());
        }
    }
}

/// Whoever goes through a directory by a descriptor of it asks only the kernel whether he may, which keeps the attributes of directories; the
/// other mount, or his own, closes it to him.
#[test]
fn a_directory_that_was_just_closed_lets_nobody_through() {
    let mounts = two();
    let script = r#"
import os, sys
here, there = sys.argv[1:]
os.makedirs(here + "/walked/in")
def walks(way):
    """Whether another user gets through, several times: what is asked for often is kept."""
    child = os.fork()
    if child == 0:
        os.setgroups([]); os.setgid(65534); os.setuid(65534)
        may = set()
        for _ in range(12):
            try:
                os.stat("in", dir_fd=way)
                may.add(True)
            except PermissionError:
                may.add(False)
        os._exit(len(may) * 2 + (True in may))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
way = os.open(here + "/walked", os.O_PATH | os.O_DIRECTORY)
for turn in range(30):
    changer = (there, here)[turn % 3 == 2]
    os.chmod(changer + "/walked", 0o755)
    assert walks(way) == 3, (turn, "is kept out of what is open to him")
    os.chmod(changer + "/walked", 0o700)
    assert walks(way) == 2, (turn, "goes through what is closed")
"#;
    python(script, &[&mounts.all[0], &mounts.all[1]]);
}

/// Attributes of a directory by a descriptor of it, and so as the kernel keeps them, after names were made and removed in it by the other mount or
/// by this one; then by this one while others on it look at the directory.
#[test]
fn attributes_of_a_directory_are_new_as_soon_as_it_is_changed() {
    let mounts = two();
    let script = r#"
import os, signal, sys, time
here, there = sys.argv[1:]
os.mkdir(here + "/seen")
seen = os.open(here + "/seen", os.O_RDONLY)
def shown(stat):
    return stat.st_nlink, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_mode
def change(turn, changer):
    before = os.fstat(seen)
    path = f"{changer}/seen/{turn // 2}"
    os.rmdir(path) if turn % 2 else os.mkdir(path)
    links = before.st_nlink + (-1 if turn % 2 else 1)
    # While the kernel takes in what somebody else asked for it gives part of the old with part of the new: for nanoseconds, or until
    # who does so has the CPU again. What is kept wrongly stays for longer than this.
    for _ in range(1000):
        now = os.fstat(seen)
        if now.st_nlink == links and now.st_mtime_ns > before.st_mtime_ns:
            return now
        time.sleep(0.001)
    assert False, (turn, shown(before), shown(now))
for turn in range(60):
    # What is asked for often is kept.
    assert len({shown(os.fstat(seen)) for _ in range(12)}) == 1
    now = change(turn, (there, here)[turn % 3 == 2])
    assert shown(now) == shown(os.stat(there + "/seen")), turn
lookers = []
for _ in range(3):
    lookers.append(os.fork())
    while not lookers[-1]:
        os.stat(here + "/seen")
try:
    for turn in range(1000):
        change(turn, here)
finally:
    for looker in lookers:
        os.kill(looker, signal.SIGKILL)
        os.waitpid(looker, 0)
"#;
    python(script, &[&mounts.all[0], &mounts.all[1]]);
}
