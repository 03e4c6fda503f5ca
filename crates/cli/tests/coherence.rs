//! Several mounts of one file system on a real cluster: each sees what the others did, at once; who dies or
//! sleeps harms nobody; the manager's death is survived.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod common;
#[path = "common/linear.rs"]
mod linear;
#[path = "common/mounts.rs"]
mod mounts;

use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Write},
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

use base::AlignedBuf;
use common::{Random, ok, processes::signal, ropewalk, seed, until};
use linear::{Act, Done, is_linearizable};
use mounts::Mounts;
use rustix::process::Signal;

fn append(path: &Path, line: &str) {
    let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
    file.write_all(line.as_bytes()).unwrap();
}

fn read_at(file: &File, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let got = file.read_at(&mut bytes, offset).unwrap();
    bytes.truncate(got);
    bytes
}

fn rw(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// What one mount wrote, renamed, removed, cut, the others see; everything in order, so nothing may be late.
#[test]
fn each_mount_sees_what_the_others_did() {
    let mounts = Mounts::new(3);
    fs::write(mounts.at(0, "f"), "hello\n").unwrap();
    assert_eq!(fs::read_to_string(mounts.at(1, "f")).unwrap(), "hello\n");
    append(&mounts.at(1, "f"), "world\n");
    assert_eq!(fs::read_to_string(mounts.at(0, "f")).unwrap(), "hello\nworld\n");
    assert_eq!(fs::metadata(mounts.at(2, "f")).unwrap().len(), 12);
    names_and_attributes(&mounts);
    cutting_and_growing(&mounts);
    removed_but_open(&mounts);
    mappings(&mounts);
    for round in 0..20 {
        // Across the border of the inode, so that the file leaves it on one mount and comes back on another.
        let len = [10usize, 5_000, 3_000_000][round % 3];
        let byte = round as u8;
        fs::write(mounts.at(round % 3, "turns"), vec![byte; len]).unwrap();
        for other in 0..3 {
            let seen = fs::read(mounts.at(other, "turns")).unwrap();
            assert!(seen.len() == len && seen.iter().all(|b| *b == byte), "round {round}, mount {other}");
        }
    }
}

/// Files of three pages in their inodes, written page by page through handles that only write: nothing of them is lost on
/// the way to another mount.
#[test]
fn a_small_file_stays_whole_when_two_mounts_write_it_in_turn() {
    let cluster = Mounts::memory();
    cluster.set_up(&["inlineDataMax=16k"]);
    let mounts = Mounts::over(cluster, 2);
    for file in 0..9 {
        let name = format!("small{file}");
        let mut expected = vec![b'-'; 3 * 4096];
        fs::write(mounts.at(1, &name), &expected).unwrap();
        let open = |mount| OpenOptions::new().write(true).open(mounts.at(mount, &name)).unwrap();
        let writers = [open(0), open(1)];
        for step in 0..=file {
            let (page, byte) = ((step + 1) % 3, b'a' + step as u8);
            writers[step % 2].write_all_at(&[byte; 4096], page as u64 * 4096).unwrap();
            expected[page * 4096..][..4096].fill(byte);
            if file % 3 == 0 {
                writers[step % 2].sync_all().unwrap();
            }
        }
        for mount in 0..2 {
            assert!(fs::read(mounts.at(mount, &name)).unwrap() == expected, "{name} on mount {mount}");
        }
    }
}

fn names_and_attributes(mounts: &Mounts) {
    use std::os::unix::fs::PermissionsExt;
    assert!(!mounts.at(1, "g").exists());
    fs::hard_link(mounts.at(0, "f"), mounts.at(0, "g")).unwrap();
    assert_eq!(fs::metadata(mounts.at(1, "f")).unwrap().nlink(), 2);
    fs::rename(mounts.at(1, "g"), mounts.at(1, "h")).unwrap();
    assert!(!mounts.at(0, "g").exists() && mounts.at(0, "h").exists());
    fs::set_permissions(mounts.at(2, "h"), fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(fs::metadata(mounts.at(0, "f")).unwrap().mode() & 0o777, 0o640);
    fs::remove_file(mounts.at(0, "h")).unwrap();
    assert_eq!(fs::metadata(mounts.at(1, "f")).unwrap().nlink(), 1);
    fs::create_dir(mounts.at(0, "d")).unwrap();
    for i in 0..30 {
        fs::write(mounts.at(i % 3, &format!("d/n{i:02}")), i.to_string()).unwrap();
        for other in 0..3 {
            let names = fs::read_dir(mounts.at(other, "d")).unwrap().count();
            assert_eq!(names, i + 1, "mount {other}");
        }
    }
    let before = fs::metadata(mounts.at(1, "d")).unwrap().mtime_nsec();
    fs::remove_file(mounts.at(0, "d/n00")).unwrap();
    assert_ne!(fs::metadata(mounts.at(1, "d")).unwrap().mtime_nsec(), before);
}

fn cutting_and_growing(mounts: &Mounts) {
    fs::write(mounts.at(0, "cut"), vec![b'x'; 3_000_000]).unwrap();
    let reader = File::open(mounts.at(1, "cut")).unwrap();
    assert_eq!(read_at(&reader, 2_999_990, 100), [b'x'; 10]);
    OpenOptions::new().write(true).open(mounts.at(0, "cut")).unwrap().set_len(1_000_000).unwrap();
    assert_eq!(reader.metadata().unwrap().len(), 1_000_000);
    assert_eq!(read_at(&reader, 999_990, 100), [b'x'; 10]);
    OpenOptions::new().write(true).open(mounts.at(2, "cut")).unwrap().set_len(2_000_000).unwrap();
    assert_eq!(read_at(&reader, 999_990, 100), [[b'x'; 10].as_slice(), &[0; 90]].concat());
}

fn removed_but_open(mounts: &Mounts) {
    fs::write(mounts.at(0, "orphan"), vec![b'o'; 400_000]).unwrap();
    let open = File::open(mounts.at(1, "orphan")).unwrap();
    fs::remove_file(mounts.at(0, "orphan")).unwrap();
    thread::sleep(Duration::from_millis(1500)); // longer than the background takes to give inodes up
    assert_eq!(read_at(&open, 399_999, 10), b"o");
    assert_eq!(open.metadata().unwrap().nlink(), 0);
}

fn mappings(mounts: &Mounts) {
    fs::write(mounts.at(0, "map"), vec![0; 16384]).unwrap();
    let script = r#"
import mmap, os, sys
fds = [os.open(path, os.O_RDWR) for path in sys.argv[1:]]
maps = [mmap.mmap(fd, 16384) for fd in fds]
for i in range(1, 60):
    maps[i % 3][100] = i
    maps[i % 3][9000] = i
    for m in maps:
        assert m[100] == i and m[9000] == i, (i, m[100], m[9000])
os.pwrite(fds[0], b"xyz", 200)
assert maps[1][200:203] == b"xyz" and os.pread(fds[2], 3, 200) == b"xyz"
"#;
    let paths = (0..3).map(|mount| mounts.at(mount, "map"));
    let run = std::process::Command::new("python3").args(["-c", script]).args(paths).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}

/// Like fsx, with each operation on another mount than the last. `ROPEWALK_RANDOM_OPERATIONS` for more.
#[test]
fn random_operations_on_one_file_from_three_mounts() {
    let mounts = Mounts::new(3);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/several_mounts.py");
    let operations = std::env::var("ROPEWALK_RANDOM_OPERATIONS").unwrap_or_else(|_| "2000".into());
    let run = std::process::Command::new("python3")
        .arg(script)
        .args([(seed() % 1_000_000_007).to_string(), operations])
        .args(&mounts.all)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{said}");
    print!("{}", String::from_utf8_lossy(&run.stdout));
}

/// At the same time: appends that must not be lost or torn, names that only one may win, registers whose
/// histories must be linearizable.
#[test]
fn three_mounts_at_once_lose_nothing() {
    let mounts = Mounts::new(3);
    let seed = seed();
    thread::scope(|scope| {
        for mount in 0..3 {
            let log = mounts.at(mount, "log");
            scope.spawn(move || (0..80).for_each(|i| append(&log, &format!("{mount} {i:05}\n"))));
        }
    });
    for mount in 0..3 {
        let text = fs::read_to_string(mounts.at(mount, "log")).unwrap();
        for writer in 0..3 {
            let lines = text.lines().filter(|line| line.starts_with(&format!("{writer} ")));
            let expected: Vec<String> = (0..80).map(|i| format!("{writer} {i:05}")).collect();
            assert_eq!(lines.collect::<Vec<_>>(), expected, "as mount {mount} sees it");
        }
        assert_eq!(text.lines().count(), 240);
    }
    names_have_one_winner(&mounts);
    registers(&mounts, seed);
}

fn names_have_one_winner(mounts: &Mounts) {
    for round in 0..15 {
        let (made, moved) = (AtomicU64::new(0), AtomicU64::new(0));
        fs::write(mounts.at(0, &format!("prize{round}")), "p").unwrap();
        thread::scope(|scope| {
            for mount in 0..3 {
                let (made, moved) = (&made, &moved);
                scope.spawn(move || {
                    let name = mounts.at(mount, &format!("only{round}"));
                    made.fetch_add(u64::from(File::create_new(name).is_ok()), SeqCst);
                    let (from, to) = (format!("prize{round}"), format!("won{round}-{mount}"));
                    let won = fs::rename(mounts.at(mount, &from), mounts.at(mount, &to)).is_ok();
                    moved.fetch_add(u64::from(won), SeqCst);
                });
            }
        });
        assert_eq!((made.load(SeqCst), moved.load(SeqCst)), (1, 1), "round {round}");
    }
}

/// Values of eight bytes at fixed places of one file: in one block, and in different blocks.
fn registers(mounts: &Mounts, seed: u64) {
    const PLACES: [u64; 4] = [0, 8, 5_000, 1 << 20];
    const OPERATIONS: u64 = 40;
    rw(&mounts.at(0, "registers")).write_all_at(&[0], (2 << 20) - 1).unwrap();
    let began = Instant::now();
    let histories: Vec<Vec<(usize, Done)>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..3u64)
            .map(|mount| {
                let path = mounts.at(mount as usize, "registers");
                scope.spawn(move || {
                    let mut random = Random(seed ^ mount);
                    let file = rw(&path);
                    let one = |i: u64, random: &mut Random| {
                        let place = random.below(PLACES.len() as u64) as usize;
                        let start = began.elapsed().as_nanos() as u64;
                        let act = if random.below(2) == 0 {
                            let value = 1 + mount + 3 * i;
                            file.write_all_at(&value.to_le_bytes(), PLACES[place]).unwrap();
                            Act::Write(value)
                        } else {
                            let mut bytes = [0; 8];
                            file.read_exact_at(&mut bytes, PLACES[place]).unwrap();
                            Act::Read(u64::from_le_bytes(bytes))
                        };
                        (place, Done { act, start, end: began.elapsed().as_nanos() as u64, maybe: false })
                    };
                    (0..OPERATIONS).map(|i| one(i, &mut random)).collect()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for place in 0..PLACES.len() {
        let history: Vec<Done> =
            histories.iter().flatten().filter(|(at, _)| *at == place).map(|(_, done)| *done).collect();
        assert!(is_linearizable(&history), "place {place}: {history:?}");
    }
}

#[test]
fn the_checker_finds_what_cannot_be() {
    let done = |act, start, end| Done { act, start, end, maybe: false };
    let write = done(Act::Write(1), 10, 20);
    assert!(is_linearizable(&[write, done(Act::Read(0), 11, 12), done(Act::Read(1), 13, 30)]));
    assert!(!is_linearizable(&[write, done(Act::Read(0), 21, 30)]), "a stale read");
    assert!(!is_linearizable(&[write, done(Act::Read(1), 1, 5)]), "a read from the future");
    let reads = [done(Act::Read(1), 11, 12), done(Act::Read(0), 13, 14)];
    assert!(!is_linearizable(&[write, reads[0], reads[1]]), "new, then old");
    assert!(!is_linearizable(&[write, done(Act::Read(7), 11, 12)]), "never written");
}

/// kill -9 of a mount in the middle of a write: the others go on, each block is old or new, and the file is
/// theirs after the dead one's lease.
#[test]
fn a_killed_mount_leaves_whole_blocks_and_no_locked_files() {
    let mut mounts = Mounts::new(2);
    let block = 1 << 20;
    let path = mounts.at(1, "victim");
    let writing = AtomicBool::new(true);
    thread::scope(|scope| {
        scope.spawn(|| {
            let file = rw(&path);
            for i in 0u64.. {
                let value = (i % 251) as u8;
                if file.write_all_at(&paged(value, block), (i % 4) * block as u64).is_err() {
                    break;
                }
                let _ = file.sync_data();
            }
            writing.store(false, SeqCst);
        });
        let begun = || fs::metadata(&path).is_ok_and(|found| found.len() >= block as u64);
        until("the victim writes", begun);
        thread::sleep(Duration::from_secs(1));
        signal(mounts.process(1), Signal::KILL);
        // What the dead one did not hold goes on at once.
        fs::write(mounts.at(0, "other"), "x").unwrap();
        assert_eq!(fs::read_to_string(mounts.at(0, "other")).unwrap(), "x");
        let content = fs::read(mounts.at(0, "victim")).unwrap();
        assert_eq!(content.len() % block, 0);
        for (number, bytes) in content.chunks(block).enumerate() {
            assert!(bytes.iter().all(|b| *b == bytes[0]), "block {number} is a mixture");
        }
        rw(&mounts.at(0, "victim")).write_all_at(b"mine", 0).unwrap();
        let _ = rustix::mount::unmount(&mounts.all[1], rustix::mount::UnmountFlags::DETACH);
    });
    assert!(!writing.load(SeqCst));
    mounts.add();
    let mut head = [0; 4];
    File::open(mounts.at(2, "victim")).unwrap().read_exact(&mut head).unwrap();
    assert_eq!(&head, b"mine");
}

/// A mount that slept past its lease: its file was given to another, and when it wakes it neither writes
/// nor reads it any more. A mount whose files nobody wants just goes on.
#[test]
fn a_mount_that_slept_past_its_lease_is_fenced() {
    let mounts = Mounts::new(3);
    let sleeper = rw(&mounts.at(1, "s"));
    sleeper.write_all_at(&vec![b'o'; 300_000], 0).unwrap();
    let undisturbed = rw(&mounts.at(2, "u"));
    undisturbed.write_all_at(b"before", 0).unwrap();
    let (first, second) = (mounts.process(1), mounts.process(2));
    signal(first, Signal::STOP);
    signal(second, Signal::STOP);
    let heir = rw(&mounts.at(0, "s"));
    heir.write_all_at(&vec![b'n'; 300_000], 0).unwrap();
    heir.sync_all().unwrap();
    signal(first, Signal::CONT);
    signal(second, Signal::CONT);
    let late = sleeper.write_all_at(&vec![b'b'; 100_000], 0).and_then(|()| sleeper.sync_all());
    assert!(late.is_err(), "a fenced mount wrote");
    let mut bytes = [0; 8];
    assert!(sleeper.read_exact_at(&mut bytes, 0).is_err(), "a fenced mount read");
    assert!(fs::read(mounts.at(0, "s")).unwrap().iter().all(|b| *b == b'n'));
    undisturbed.write_all_at(b"after!", 0).unwrap();
    assert_eq!(fs::read_to_string(mounts.at(0, "u")).unwrap(), "after!");
    // Nobody takes it for well.
    let dead = mounts.all[1].canonicalize().unwrap();
    let names_it = |remarks: &serde_json::Value| remarks.to_string().contains(&*dead.to_string_lossy());
    let status = mounts.cluster.json(&["status"]);
    assert!(status["well"] == false && names_it(&status["remarks"]), "{status}");
    let health = ropewalk(&["health", "--json", "--dir", mounts.cluster.dir().to_str().unwrap()]);
    assert!(!health.status.success());
    let health: serde_json::Value = serde_json::from_slice(&health.stdout).unwrap();
    assert!(names_it(&health["remarks"]), "{health}");
    // It can be taken away, whatever has failed.
    drop(sleeper);
    let _ = ropewalk(&["umount", "--force", mounts.all[1].to_str().unwrap()]);
    mounts.mount(&mounts.all[1]);
    assert!(fs::read(mounts.at(1, "s")).unwrap().iter().all(|b| *b == b'n'));
}

fn writer(path: &Path) -> File {
    OpenOptions::new().write(true).open(path).unwrap()
}

/// Bytes that begin on a page. The kernel makes one request of a direct write of them, whatever its limit of pages; what a
/// request writes into a block is stored whole or not at all, what a write of two does is not.
fn paged(byte: u8, len: usize) -> AlignedBuf {
    let mut bytes = AlignedBuf::zeroed(len);
    bytes.fill(byte);
    bytes
}

/// The runs of equal bytes, as `start..end byte`.
fn runs(bytes: &[u8]) -> String {
    let mut start = 0;
    let runs = bytes.chunk_by(|a, b| a == b).map(|run| {
        let at = start;
        start += run.len();
        format!("{at}..{start} {:?}", char::from(run[0]))
    });
    runs.collect::<Vec<_>>().join(", ")
}

/// Two mounts write every other block of one file at the same time: when the blocks are divided neither grants nor
/// releases follow, times are seen by the other, and the death of one takes nothing from the other.
#[test]
fn writers_of_different_blocks_do_not_disturb_each_other() {
    const BLOCKS: u64 = 12;
    let mounts = Mounts::new(2);
    let block = 1 << 20;
    fs::write(mounts.at(0, "shared"), vec![b'0'; BLOCKS as usize * block]).unwrap();
    let files = [writer(&mounts.at(0, "shared")), writer(&mounts.at(1, "shared"))];
    let inode = files[0].metadata().unwrap().ino();
    let round = |round: u8| {
        thread::scope(|scope| {
            for (mount, file) in files.iter().enumerate() {
                scope.spawn(move || {
                    for number in (mount as u64..BLOCKS).step_by(2) {
                        let len = if round.is_multiple_of(2) { block } else { 8192 };
                        let bytes = paged(b'a' + 2 * round + mount as u8, len);
                        file.write_all_at(&bytes, number * block as u64).unwrap();
                    }
                });
            }
        });
        mounts.tokens_of(inode)
    };
    let (mut rounds, mut tokens) = (0, Vec::new());
    loop {
        let now = round(rounds % 2);
        let same = now == tokens;
        tokens = now;
        rounds += 1;
        if same {
            break;
        }
        assert!(rounds < 8, "the blocks are not divided yet: {tokens:?}");
    }
    assert!(tokens.iter().all(|token| token["mode"] == "part"), "{tokens:?}");
    for number in 2..6 {
        assert_eq!(round(number), tokens, "a token moved");
    }
    println!("divided after {} rounds", rounds - 1);
    files[0].sync_all().unwrap();
    // Who looks at times or content sees what was written last.
    for turn in 0..4 {
        let before = fs::metadata(mounts.at(1 - turn % 2, "shared")).unwrap();
        thread::sleep(Duration::from_millis(20));
        files[turn % 2].write_all_at(b"turn", (turn % 2 * block + 4096) as u64).unwrap();
        let after = fs::metadata(mounts.at(1 - turn % 2, "shared")).unwrap();
        let times = |of: &fs::Metadata| (of.mtime(), of.mtime_nsec());
        assert!(times(&after) > times(&before), "turn {turn}: {before:?} {after:?}");
        assert_eq!(after.len(), BLOCKS * block as u64);
    }
    // A block when a round of 8 KiB has followed one of whole blocks.
    let after = |round: u8, number: usize| {
        let byte = |round: u8| b'a' + 2 * round + (number % 2) as u8;
        [vec![byte(round); 8192], vec![byte(round - 1); block - 8192]].concat()
    };
    let turned = |number: usize| {
        let mut bytes = after(5, number);
        if number < 2 {
            bytes[4096..4100].copy_from_slice(b"turn");
        }
        bytes
    };
    let expect = |content: &[u8], what: &str| {
        for (number, bytes) in content.chunks(block).enumerate() {
            assert!(bytes == turned(number), "{what}, block {number} is {}", runs(bytes));
        }
    };
    expect(&fs::read(mounts.at(0, "shared")).unwrap(), "mount 0");
    expect(&fs::read(mounts.at(1, "shared")).unwrap(), "mount 1");
    // The end is found by who has the file to itself.
    append(&mounts.at(1, "shared"), "end");
    assert_eq!(files[0].metadata().unwrap().len(), BLOCKS * block as u64 + 3);
    (6..9).for_each(|number| drop(round(number)));
    signal(mounts.process(1), Signal::KILL);
    for number in (0..BLOCKS).step_by(2) {
        files[0].write_all_at(&vec![b'z'; block], number * block as u64).unwrap();
    }
    files[0].sync_all().unwrap();
    let content = fs::read(mounts.at(0, "shared")).unwrap();
    for (number, bytes) in content.chunks(block).enumerate().take(BLOCKS as usize) {
        let whole = |byte: u8| vec![byte; block];
        // What the dead one had not stored is lost, in its own blocks, and each is as one of its writes left it.
        let states = match number % 2 {
            0 => vec![whole(b'z')],
            _ => vec![turned(number), whole(b'a' + 13), after(7, number), whole(b'a' + 17)],
        };
        assert!(states.iter().any(|state| state == bytes), "block {number} is {}", runs(bytes));
    }
}

/// What the listings say of two mounts, and the forced end of one.
#[test]
fn clients_and_tokens_are_shown_and_a_client_can_be_detached() {
    let mut mounts = Mounts::new(1);
    until("alone it holds everything", || mounts.cluster.json(&["clients", "list"])[0]["whole"] == true);
    mounts.add();
    fs::write(mounts.at(0, "f"), "x").unwrap();
    let held = rw(&mounts.at(1, "f"));
    held.write_all_at(b"y", 0).unwrap();
    let inode = held.metadata().unwrap().ino();
    let tokens = mounts.cluster.json(&["tokens"]);
    let of_file: Vec<_> = tokens.as_array().unwrap().iter().filter(|t| t["inode"] == inode).collect();
    assert!(of_file.iter().any(|t| t["mode"] == "write" && t["waits_s"].is_null()), "{tokens}");
    let clients = mounts.cluster.json(&["clients", "list"]);
    let path = mounts.all[1].canonicalize().unwrap();
    let session = clients.as_array().unwrap().iter().find(|c| c["mount"] == path.to_str().unwrap());
    let session = session.expect("the second mount")["session"].to_string();
    let dir = mounts.cluster.dir();
    ok(&["clients", "detach", "--dir", dir.to_str().unwrap(), &session]);
    // Its tokens move on without waiting for a lease; it may change nothing more.
    fs::write(mounts.at(0, "f"), "mine").unwrap();
    assert_eq!(mounts.cluster.json(&["tokens", "--waiting"]), serde_json::json!([]));
    until("a detached mount does not go on", || {
        held.write_all_at(b"late", 0).and_then(|()| held.sync_all()).is_err()
    });
    assert_eq!(fs::read_to_string(mounts.at(0, "f")).unwrap(), "mine");
    drop(held);
    let end = Instant::now();
    let _ = ropewalk(&["umount", "--force", mounts.all[1].to_str().unwrap()]);
    println!("a dead mount was taken away in {:?}", end.elapsed());
    let again = common::refused(&["clients", "detach", "--dir", dir.to_str().unwrap(), "999"]);
    assert!(again.contains("clients list"), "{again}");
}

/// Dump and restore of the manager's store: the same files are there, and new ones do not meet old ones.
#[test]
fn the_managers_store_goes_through_a_dump() {
    let mounts = Mounts::new(1);
    let content: Vec<u8> = (0..3_000_000u32).map(|i| (i % 253) as u8).collect();
    fs::write(mounts.at(0, "large"), &content).unwrap();
    fs::write(mounts.at(0, "small"), "in the inode").unwrap();
    let dir = mounts.cluster.dir();
    let (dir, dump) = (dir.to_str().unwrap(), mounts.more.path().join("dump"));
    let dump = dump.to_str().unwrap();
    let running = common::refused(&["manager", "dump", "--damaged", "--dir", dir, dump]);
    assert!(running.contains("ropewalk down"), "{running}");
    // While everything runs: what was stored then is in it.
    for name in ["large", "small"] {
        fs::File::open(mounts.at(0, name)).unwrap().sync_all().unwrap();
    }
    ok(&["manager", "dump", "--dir", dir, dump]);
    mounts.cluster.down();
    let down = ["manager", "dump", "--dir", dir, &format!("{dump}.down")];
    if common::over_etcd() {
        // Nobody knows which of several tables has all.
        let none = common::unheard(&down);
        assert!(none.contains("is the cluster up?"), "{none}");
    } else {
        ok(&down);
    }
    let full = common::refused(&["manager", "restore", "--dir", dir, dump]);
    assert!(full.contains("move it away"), "{full}");
    let store = mounts.cluster.dir().join("manager");
    mounts.cluster.put_managers_aside();
    if common::over_etcd() {
        mounts.cluster.start_etcd();
        mounts.cluster.name_fresh_place();
    } else {
        let none = common::refused(&["manager", "dump", "--dir", dir, &format!("{dump}.none")]);
        assert!(none.contains("manager restore"), "{none}");
    }
    let bytes = fs::read(dump).unwrap();
    let flipped = bytes.iter().enumerate().map(|(at, byte)| byte ^ u8::from(at == bytes.len() / 2)).collect();
    for bad in [bytes[..bytes.len() - 1].to_vec(), [&bytes[..], b"x"].concat(), flipped] {
        let path = format!("{dump}.bad");
        fs::write(&path, bad).unwrap();
        let said = common::refused(&["manager", "restore", "--dir", dir, &path]);
        assert!(said.contains(&path), "{said}");
        assert!(!store.exists(), "a store is left of a bad dump");
    }
    ok(&["manager", "restore", "--dir", dir, dump]);
    mounts.cluster.start();
    assert_eq!(fs::read(mounts.at(0, "large")).unwrap(), content);
    assert_eq!(fs::read_to_string(mounts.at(0, "small")).unwrap(), "in the inode");
    fs::write(mounts.at(0, "new"), &content[..2_000_000]).unwrap();
    assert_eq!(fs::read(mounts.at(0, "new")).unwrap(), content[..2_000_000]);
}

/// That a file has no extended attribute is known with its attributes, here and on other mounts, until one is set.
#[test]
fn extended_attributes_are_seen_at_once() {
    let mut mounts = Mounts::new(1);
    fs::write(mounts.at(0, "f"), "x").unwrap();
    for round in 0..12 {
        if round == 4 {
            mounts.add();
        }
        let count = mounts.all.len();
        let file = |i: usize| mounts.at((round + i) % count, "f");
        let get = |i: usize| {
            let mut value = [0; 8];
            rustix::fs::getxattr(file(i), "user.round", &mut value).map(|len| value[..len].to_vec())
        };
        let none = Err(rustix::io::Errno::NODATA);
        assert!((0..count).all(|i| get(i) == none), "round {round}");
        let value = vec![round as u8; 3];
        rustix::fs::setxattr(file(0), "user.round", &value, rustix::fs::XattrFlags::CREATE).unwrap();
        assert!((0..count).all(|i| get(i).as_ref() == Ok(&value)), "round {round}");
        rustix::fs::removexattr(file(1), "user.round").unwrap();
        assert!((0..count).all(|i| get(i) == none), "round {round}");
    }
}
