//! System calls that a shell cannot make, one an invocation, for the scripts under tests/.
//! Prints the result, or the name of the error (`EEXIST`), and exits 0 in both cases: scripts compare
//! what is printed on the mount with what is printed on a local file system. Exits 2 on bad usage.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    os::{fd::AsFd, unix::ffi::OsStrExt, unix::fs::FileExt, unix::fs::MetadataExt, unix::fs::OpenOptionsExt},
    process::{Command, ExitCode},
};

use rustix::{
    fs::{
        AtFlags, CWD, FallocateFlags, FlockOperation, RenameFlags, StatxFlags, Timespec, Timestamps,
        copy_file_range, fallocate, fcntl_lock, flock, renameat_with, statx, utimensat,
    },
    io::Errno,
    mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap},
};

const USAGE: &str = "usage: fscall CALL ARGUMENTS
  rename FLAGS FROM TO               flags: none, noreplace, exchange, whiteout, joined by +
  fallocate MODE OFFSET LENGTH FILE  mode: none, keep, punch, zero, collapse, joined by +
  seek data|hole OFFSET FILE
  copy FROM OFFSET TO OFFSET LENGTH
  mmap-write FILE OFFSET TEXT        shared mapping, then msync and a read of the file
  mmap-private FILE OFFSET TEXT      private mapping: the file keeps its bytes
  mmap-append FILE                   mapping of an O_APPEND handle
  times FILE ATIME MTIME             SECONDS.NANOSECONDS, now or omit
  unlinked FILE                      write, read and stat of a file without a name
  removed-dir DIR                    list and stat of a removed directory that is open
  list-while-removing DIR N          makes N files, removes them while listing
  locks FILE                         flock and fcntl locks, conflicts included
  try-lock FILE                      (used by locks)
  append FILE N TEXT                 N appends of TEXT through one O_APPEND handle
  pwrite FILE OFFSET TEXT
  pread FILE OFFSET LENGTH
  truncate FILE LENGTH               ftruncate of an open file
  open FLAGS FILE                    flags: r, w, rw, append, trunc, creat, excl, nofollow, directory, direct
  birth FILE                         whether there is a time of birth, and it is not after the change
  fsync-dir DIR
  direct FILE                        aligned O_DIRECT write and read, beside a buffered handle";

type Res = Result<String, io::Error>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let Some(result) = call(&args) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let line = match result {
        Ok(line) => line,
        Err(error) => name_of(&error),
    };
    match writeln!(io::stdout(), "{line}") {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn call(args: &[&str]) -> Option<Res> {
    Some(match args {
        ["rename", flags, from, to] => rename(flags, from, to)?,
        ["fallocate", mode, offset, len, file] => allocate(mode, number(offset)?, number(len)?, file)?,
        ["seek", what, offset, file] => seek(what, number(offset)?, file)?,
        ["copy", from, from_at, to, to_at, len] => {
            copy(from, number(from_at)?, to, number(to_at)?, number(len)? as usize)
        }
        ["mmap-write", file, offset, text] => {
            map(file, number(offset)? as usize, text, MapFlags::SHARED, false)
        }
        ["mmap-private", file, offset, text] => {
            map(file, number(offset)? as usize, text, MapFlags::PRIVATE, false)
        }
        ["mmap-append", file] => map(file, 0, "mapped", MapFlags::SHARED, true),
        ["times", file, atime, mtime] => times(file, timespec(atime)?, timespec(mtime)?),
        ["unlinked", file] => unlinked(file),
        ["removed-dir", dir] => removed_dir(dir),
        ["list-while-removing", dir, n] => list_while_removing(dir, number(n)?),
        ["locks", file] => locks(file),
        ["try-lock", file] => try_lock(file),
        ["append", file, n, text] => append(file, number(n)?, text),
        ["pwrite", file, offset, text] => pwrite(file, number(offset)?, text),
        ["pread", file, offset, len] => pread(file, number(offset)?, number(len)? as usize),
        ["truncate", file, len] => truncate(file, number(len)?),
        ["open", flags, file] => open(flags, file)?,
        ["birth", file] => birth(file),
        ["fsync-dir", dir] => File::open(dir).and_then(|d| d.sync_all()).map(|()| "synced".into()),
        ["direct", file] => direct(file),
        _ => return None,
    })
}

fn number(text: &str) -> Option<u64> {
    text.parse().ok()
}

fn name_of(error: &io::Error) -> String {
    let names = [
        (Errno::PERM, "EPERM"),
        (Errno::NOENT, "ENOENT"),
        (Errno::NXIO, "ENXIO"),
        (Errno::BADF, "EBADF"),
        (Errno::AGAIN, "EAGAIN"),
        (Errno::ACCESS, "EACCES"),
        (Errno::BUSY, "EBUSY"),
        (Errno::EXIST, "EEXIST"),
        (Errno::NODEV, "ENODEV"),
        (Errno::NOTDIR, "ENOTDIR"),
        (Errno::ISDIR, "EISDIR"),
        (Errno::INVAL, "EINVAL"),
        (Errno::FBIG, "EFBIG"),
        (Errno::NOSPC, "ENOSPC"),
        (Errno::ROFS, "EROFS"),
        (Errno::NAMETOOLONG, "ENAMETOOLONG"),
        (Errno::NOSYS, "ENOSYS"),
        (Errno::NOTEMPTY, "ENOTEMPTY"),
        (Errno::LOOP, "ELOOP"),
        (Errno::OPNOTSUPP, "EOPNOTSUPP"),
    ];
    let code = error.raw_os_error();
    let known = names.iter().find(|(errno, _)| Some(errno.raw_os_error()) == code);
    known.map_or_else(|| format!("error: {error}"), |(_, name)| (*name).to_owned())
}

fn update(file: &str) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(file)
}

fn rename(flags: &str, from: &str, to: &str) -> Option<Res> {
    let mut all = RenameFlags::empty();
    for flag in flags.split('+') {
        all |= match flag {
            "none" => RenameFlags::empty(),
            "noreplace" => RenameFlags::NOREPLACE,
            "exchange" => RenameFlags::EXCHANGE,
            "whiteout" => RenameFlags::WHITEOUT,
            _ => return None,
        };
    }
    Some(renameat_with(CWD, from, CWD, to, all).map(|()| "renamed".into()).map_err(Into::into))
}

fn allocate(mode: &str, offset: u64, len: u64, file: &str) -> Option<Res> {
    let mut all = FallocateFlags::empty();
    for flag in mode.split('+') {
        all |= match flag {
            "none" => FallocateFlags::empty(),
            "keep" => FallocateFlags::KEEP_SIZE,
            "punch" => FallocateFlags::PUNCH_HOLE,
            "zero" => FallocateFlags::ZERO_RANGE,
            "collapse" => FallocateFlags::COLLAPSE_RANGE,
            _ => return None,
        };
    }
    Some(update(file).and_then(|f| {
        fallocate(&f, all, offset, len)?;
        Ok(format!("size {}", f.metadata()?.len()))
    }))
}

fn seek(what: &str, offset: u64, file: &str) -> Option<Res> {
    let whence = match what {
        "data" => rustix::fs::SeekFrom::Data(offset),
        "hole" => rustix::fs::SeekFrom::Hole(offset),
        _ => return None,
    };
    Some(File::open(file).and_then(|f| Ok(rustix::fs::seek(&f, whence)?.to_string())))
}

fn copy(from: &str, mut from_at: u64, to: &str, mut to_at: u64, len: usize) -> Res {
    let (from, to) = (File::open(from)?, update(to)?);
    let mut done = 0;
    while done < len {
        match copy_file_range(&from, Some(&mut from_at), &to, Some(&mut to_at), len - done)? {
            0 => break,
            n => done += n,
        }
    }
    Ok(format!("copied {done}"))
}

fn map(file: &str, offset: usize, text: &str, flags: MapFlags, append: bool) -> Res {
    let handle = OpenOptions::new().read(true).write(true).append(append).open(file)?;
    let len = handle.metadata()?.len() as usize;
    if offset + text.len() > len {
        return Err(io::Error::from_raw_os_error(Errno::INVAL.raw_os_error()));
    }
    // SAFETY: a fresh mapping of our own; nothing else in this process refers to that memory.
    let memory =
        unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags, &handle, 0) }?;
    drop(handle);
    // SAFETY: the mapping is writable and `len` bytes long; the range was checked above.
    unsafe { memory.cast::<u8>().add(offset).copy_from(text.as_ptr(), text.len()) };
    // SAFETY: the whole mapping, which is still there.
    unsafe { msync(memory, len, MsyncFlags::SYNC) }?;
    let mut seen = vec![0; text.len()];
    File::open(file)?.read_exact_at(&mut seen, offset as u64)?;
    // SAFETY: the whole mapping, not used afterwards.
    unsafe { munmap(memory, len) }?;
    Ok(format!("file has {:?}", String::from_utf8_lossy(&seen)))
}

fn timespec(text: &str) -> Option<Timespec> {
    const UTIME_NOW: i64 = (1 << 30) - 1;
    const UTIME_OMIT: i64 = (1 << 30) - 2;
    let special = |nsec| Some(Timespec { tv_sec: 0, tv_nsec: nsec });
    match text {
        "now" => special(UTIME_NOW),
        "omit" => special(UTIME_OMIT),
        _ => {
            let (secs, nanos) = text.split_once('.')?;
            Some(Timespec { tv_sec: secs.parse().ok()?, tv_nsec: nanos.parse().ok()? })
        }
    }
}

fn times(file: &str, last_access: Timespec, last_modification: Timespec) -> Res {
    utimensat(CWD, file, &Timestamps { last_access, last_modification }, AtFlags::SYMLINK_NOFOLLOW)?;
    let m = fs::symlink_metadata(file)?;
    let part = |given: &Timespec, secs: i64, nanos: i64| {
        // A time of "now" cannot be compared.
        if given.tv_nsec == (1 << 30) - 1 { "now".to_owned() } else { format!("{secs}.{nanos:09}") }
    };
    let atime = part(&last_access, m.atime(), m.atime_nsec());
    Ok(format!("{atime} {}", part(&last_modification, m.mtime(), m.mtime_nsec())))
}

fn unlinked(file: &str) -> Res {
    let mut f = OpenOptions::new().read(true).write(true).create_new(true).open(file)?;
    f.write_all(b"before")?;
    fs::remove_file(file)?;
    f.write_all(b" and after")?;
    f.seek(SeekFrom::Start(0))?;
    let mut text = String::new();
    f.read_to_string(&mut text)?;
    f.set_len(6)?;
    f.sync_all()?;
    let m = f.metadata()?;
    Ok(format!("{text:?} links {} size {} exists {}", m.nlink(), m.len(), fs::exists(file)?))
}

fn removed_dir(dir: &str) -> Res {
    fs::create_dir(dir)?;
    let handle = File::open(dir)?;
    let listing = fs::read_dir(dir)?;
    fs::remove_dir(dir)?;
    let names = listing.filter_map(Result::ok).count();
    let inside = rustix::fs::openat(
        handle.as_fd(),
        "new",
        rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY,
        rustix::fs::Mode::RUSR,
    );
    let create = inside.map_or_else(|e| name_of(&e.into()), |_| "made".into());
    Ok(format!("entries {names} links {} create {create}", handle.metadata()?.nlink()))
}

fn list_while_removing(dir: &str, n: u64) -> Res {
    fs::create_dir(dir)?;
    for i in 0..n {
        File::create(format!("{dir}/file-{i:06}"))?;
    }
    let mut removed = 0;
    for entry in fs::read_dir(dir)? {
        fs::remove_file(entry?.path())?;
        removed += 1;
    }
    let left = fs::read_dir(dir)?.count();
    fs::remove_dir(dir)?;
    Ok(format!("removed {removed} left {left}"))
}

fn locks(file: &str) -> Res {
    let (a, b) = (update(file)?, update(file)?);
    let tried = |r: rustix::io::Result<()>| r.map_or_else(|e| name_of(&e.into()), |()| "got".into());
    let mut out = Vec::new();
    flock(&a, FlockOperation::LockShared)?;
    out.push(format!("shared beside shared: {}", tried(flock(&b, FlockOperation::NonBlockingLockShared))));
    out.push(format!(
        "exclusive beside shared: {}",
        tried(flock(&b, FlockOperation::NonBlockingLockExclusive))
    ));
    flock(&a, FlockOperation::Unlock)?;
    out.push(format!("exclusive alone: {}", tried(flock(&b, FlockOperation::NonBlockingLockExclusive))));
    drop(b);
    out.push(format!("after close: {}", tried(flock(&a, FlockOperation::NonBlockingLockExclusive))));
    flock(&a, FlockOperation::Unlock)?;
    fcntl_lock(&a, FlockOperation::LockExclusive)?;
    out.push(format!("other process: {}", other_process(file)?));
    fcntl_lock(&a, FlockOperation::Unlock)?;
    out.push(format!("other process after unlock: {}", other_process(file)?));
    Ok(out.join("; "))
}

fn other_process(file: &str) -> Res {
    let output = Command::new(std::env::current_exe()?).args(["try-lock", file]).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn try_lock(file: &str) -> Res {
    fcntl_lock(&update(file)?, FlockOperation::NonBlockingLockExclusive)?;
    Ok("got".into())
}

fn append(file: &str, n: u64, text: &str) -> Res {
    let mut f = OpenOptions::new().append(true).create(true).open(file)?;
    for _ in 0..n {
        f.write_all(text.as_bytes())?;
    }
    Ok("appended".into())
}

fn pwrite(file: &str, offset: u64, text: &str) -> Res {
    let f = OpenOptions::new().write(true).create(true).truncate(false).open(file)?;
    f.write_all_at(text.as_bytes(), offset)?;
    Ok(format!("size {}", f.metadata()?.len()))
}

fn pread(file: &str, offset: u64, len: usize) -> Res {
    let mut buf = vec![0; len];
    let n = File::open(file)?.read_at(&mut buf, offset)?;
    Ok(format!("{n} {:?}", String::from_utf8_lossy(&buf[..n])))
}

fn truncate(file: &str, len: u64) -> Res {
    let f = OpenOptions::new().write(true).open(file)?;
    f.set_len(len)?;
    Ok(format!("size {}", f.metadata()?.len()))
}

fn open(flags: &str, file: &str) -> Option<Res> {
    use rustix::fs::OFlags;
    let mut all = OFlags::empty();
    for flag in flags.split('+') {
        all |= match flag {
            "r" => OFlags::RDONLY,
            "w" => OFlags::WRONLY,
            "rw" => OFlags::RDWR,
            "append" => OFlags::APPEND,
            "trunc" => OFlags::TRUNC,
            "creat" => OFlags::CREATE,
            "excl" => OFlags::EXCL,
            "nofollow" => OFlags::NOFOLLOW,
            "directory" => OFlags::DIRECTORY,
            "direct" => OFlags::DIRECT,
            _ => return None,
        };
    }
    let opened = rustix::fs::open(file, all, rustix::fs::Mode::from_raw_mode(0o640));
    Some(opened.map_err(io::Error::from).and_then(|fd| {
        let m = File::from(fd).metadata()?;
        Ok(format!("opened, size {} mode {:o}", m.len(), m.mode()))
    }))
}

fn birth(file: &str) -> Res {
    let s = statx(CWD, file, AtFlags::empty(), StatxFlags::BASIC_STATS | StatxFlags::BTIME)?;
    if s.stx_mask & StatxFlags::BTIME.bits() == 0 {
        return Ok("no time of birth".into());
    }
    let birth = (s.stx_btime.tv_sec, s.stx_btime.tv_nsec);
    Ok(format!("born before changed: {}", birth <= (s.stx_ctime.tv_sec, s.stx_ctime.tv_nsec)))
}

/// O_DIRECT needs aligned memory: a buffer of twice the size has an aligned half.
fn direct(file: &str) -> Res {
    const LEN: usize = 8192;
    let o_direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    let buffered = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(file)?;
    buffered.write_all_at(&[b'o'; 3 * LEN], 0)?;
    let mut seen = vec![0; LEN];
    buffered.read_exact_at(&mut seen, LEN as u64)?;
    let direct = OpenOptions::new().read(true).write(true).custom_flags(o_direct).open(file)?;
    let mut memory = vec![b'n'; 2 * LEN];
    let start = memory.as_ptr().align_offset(4096);
    direct.write_all_at(&memory[start..start + LEN], LEN as u64)?;
    buffered.read_exact_at(&mut seen, LEN as u64)?;
    let after_direct = seen.iter().all(|b| *b == b'n');
    buffered.write_all_at(&[b'b'; LEN], 0)?;
    direct.read_exact_at(&mut memory[start..start + LEN], 0)?;
    let after_buffered = memory[start..start + LEN].iter().all(|b| *b == b'b');
    let mut text = Vec::new();
    File::open(file)?.read_to_end(&mut text)?;
    let end = text[2 * LEN..].iter().all(|b| *b == b'o');
    Ok(format!(
        "buffered sees direct {after_direct}, direct sees buffered {after_buffered}, rest {end}, name {} bytes",
        std::path::Path::new(file).file_name().map_or(0, |n| n.as_bytes().len())
    ))
}
