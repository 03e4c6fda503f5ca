//! Random operations on files against plain byte arrays: what is read is always what was written, also
//! after a remount; after a crash what was fsynced is there and nothing else is mixed in.
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use crate::support::{BLOCK, RW, Rng, World, small};
use base::InodeNo;
use client::{Client, Errno, Fallocate, Handle, Privileges, SetAttrs};
use wire::mgr::FileKind;

const FILES: u64 = 3;
/// Files stay below this size.
const SIZE_MAX: u64 = 5 * BLOCK as u64;

#[derive(Default)]
struct ModelFile {
    bytes: Vec<u8>,
    /// Contents since (and with) the last fsync: one of them is found after a crash.
    since: Vec<Vec<u8>>,
}

impl ModelFile {
    fn note(&mut self) {
        self.since.push(self.bytes.clone());
        if self.since.len() > 400 {
            self.since.remove(1);
        }
    }
    fn resize(&mut self, size: u64) {
        self.bytes.resize(size as usize, 0);
    }
    fn write(&mut self, offset: u64, data: &[u8]) {
        let end = offset as usize + data.len();
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[offset as usize..end].copy_from_slice(data);
    }
}

struct Run {
    rng: Rng,
    seed: u64,
    world: World,
    client: Client,
    handles: BTreeMap<u64, (InodeNo, Handle)>,
    model: BTreeMap<u64, ModelFile>,
    step: u64,
    log: Vec<String>,
}

/// A small client that forgets at once which blocks there are.
fn forgetful() -> client::Tunables {
    client::Tunables { record_runs_max: 1, ..small() }
}

fn name(file: u64) -> Vec<u8> {
    format!("file{file}").into_bytes()
}

impl Run {
    async fn new(k: u8, seed: u64) -> Run {
        let mut world = World::new(k, seed);
        let client = world.mount(forgetful());
        let model = (0..FILES).map(|f| (f, ModelFile::default())).collect();
        let rng = Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let mut run =
            Run { rng, seed, world, client, handles: BTreeMap::new(), model, step: 0, log: Vec::new() };
        for f in 0..FILES {
            run.create(f).await;
        }
        run
    }

    async fn create(&mut self, f: u64) {
        let c = &self.client;
        let root = InodeNo::ROOT;
        let (attr, new) = c.create(root, &name(f), FileKind::File, 0o644, 0, 0, 0, b"", false).await.unwrap();
        assert!(new);
        let handle = c.open(attr.ino, RW).await.unwrap();
        self.handles.insert(f, (attr.ino, handle));
        let file = self.model.get_mut(&f).unwrap();
        *file = ModelFile::default();
        file.note();
    }

    fn offset(&mut self, size: u64) -> u64 {
        match self.rng.below(4) {
            0 => self.rng.below(size + 1),
            1 => self.rng.below(SIZE_MAX),
            2 => self.rng.below(SIZE_MAX / 4096) * 4096,
            _ => self.rng.below(20_000).min(SIZE_MAX),
        }
    }

    fn len(&mut self) -> u64 {
        match self.rng.below(5) {
            0 => 1 + self.rng.below(100),
            1 => 4096 * (1 + self.rng.below(8)),
            2 => 1 + self.rng.below(20_000),
            3 => 1 + self.rng.below(2 * u64::from(BLOCK)),
            _ => 1 + self.rng.below(3000),
        }
    }

    async fn op(&mut self) {
        self.step += 1;
        let f = self.rng.below(FILES);
        let (ino, handle) = self.handles[&f];
        let size = self.model[&f].bytes.len() as u64;
        let choice = self.rng.below(100);
        let c = self.client.clone();
        let what = match choice {
            0..=34 => {
                let append = self.rng.below(3) == 0;
                let offset = if append { size } else { self.offset(size) };
                let len = self.len().min(SIZE_MAX.saturating_sub(offset));
                let data = vec![(self.step % 255) as u8 + 1; len as usize];
                assert_eq!(c.write(handle, offset, &data).await, Ok(len as usize));
                if len > 0 {
                    self.model.get_mut(&f).unwrap().write(offset, &data);
                }
                format!("write {offset}+{len}")
            }
            35..=59 => {
                let (offset, len) = (self.offset(size), self.len());
                self.check_read(f, offset, len as usize).await;
                format!("read {offset}+{len}")
            }
            60..=67 => {
                let to = self.offset(size);
                let set = SetAttrs { size: Some(to), ..SetAttrs::default() };
                assert_eq!(c.setattr(ino, set).await.unwrap().size, to);
                self.model.get_mut(&f).unwrap().resize(to);
                format!("truncate {to}")
            }
            68..=73 => {
                let (offset, len) = (self.offset(size), self.len());
                c.fallocate(handle, Fallocate::PunchHole, offset, len, Privileges::Kept).await.unwrap();
                let file = self.model.get_mut(&f).unwrap();
                let (from, to) = (offset.min(size) as usize, (offset + len).min(size) as usize);
                file.bytes[from..to].fill(0);
                format!("punch {offset}+{len}")
            }
            74..=76 => {
                let offset = self.offset(size);
                let len = self.len().min(SIZE_MAX.saturating_sub(offset)).max(1);
                c.fallocate(handle, Fallocate::ZeroRange { keep_size: false }, offset, len, Privileges::Kept)
                    .await
                    .unwrap();
                self.model.get_mut(&f).unwrap().write(offset, &vec![0; len as usize]);
                format!("zero {offset}+{len}")
            }
            77..=86 => {
                c.fsync(ino, self.rng.below(2) == 0).await.unwrap();
                self.model.get_mut(&f).unwrap().since.clear();
                "fsync".into()
            }
            87..=90 => {
                c.release(handle);
                let handle = c.open(ino, RW).await.unwrap();
                self.handles.insert(f, (ino, handle));
                "reopen".into()
            }
            91..=92 => {
                c.unlink(InodeNo::ROOT, &name(f), false).await.unwrap();
                // Still readable through its handle.
                self.check_read(f, 0, SIZE_MAX as usize).await;
                c.release(handle);
                self.create(f).await;
                "unlink".into()
            }
            93..=96 => {
                tokio::time::sleep(Duration::from_millis(self.rng.below(60))).await;
                "pause".into()
            }
            _ => {
                self.check_holes(f).await;
                "seek".into()
            }
        };
        if std::env::var_os("ROPEWALK_VERBOSE").is_some() {
            println!("{}: file{f} {what} (size {size})", self.step);
        }
        self.log.push(format!("{}: file{f} {what} (size {size})", self.step));
        self.model.get_mut(&f).unwrap().note();
        let now = self.model[&f].bytes.len() as u64;
        let ino = self.handles[&f].0;
        assert_eq!(c.getattr(ino).await.unwrap().size, now, "size; seed {}", self.seed);
    }

    async fn check_read(&self, f: u64, offset: u64, len: usize) {
        let bytes = &self.model[&f].bytes;
        let from = (offset as usize).min(bytes.len());
        let expect = &bytes[from..(from + len).min(bytes.len())];
        let got = self.client.read(self.handles[&f].1, offset, len).await.unwrap().to_vec();
        self.same(f, from, expect, &got);
        if let Some(cached) = self.client.try_read_cached(self.handles[&f].1, offset, len) {
            self.same(f, from, expect, &cached.to_vec());
        }
    }

    fn same(&self, f: u64, from: usize, expect: &[u8], got: &[u8]) {
        if expect == got {
            return;
        }
        let at = expect.iter().zip(got).position(|(a, b)| a != b).unwrap_or(expect.len().min(got.len()));
        self.print_log(f);
        panic!(
            "seed {} step {}: file{f} differs at {} (expected {:?}, got {:?}; lengths {} and {})",
            self.seed,
            self.step,
            from + at,
            expect.get(at),
            got.get(at),
            expect.len(),
            got.len()
        );
    }

    fn print_log(&self, f: u64) {
        self.log.iter().filter(|l| l.contains(&format!("file{f} "))).for_each(|l| println!("{l}"));
    }

    async fn check_holes(&self, f: u64) {
        let (bytes, handle) = (&self.model[&f].bytes, self.handles[&f].1);
        let mut pos = 0;
        while (pos as usize) < bytes.len() {
            match self.client.seek_data(handle, pos).await {
                Ok(data) => {
                    assert!(bytes[pos as usize..data as usize].iter().all(|&b| b == 0), "data in a hole");
                    pos = self.client.seek_hole(handle, data).await.unwrap();
                    assert!(pos > data);
                }
                Err(Errno::ENXIO) => {
                    assert!(bytes[pos as usize..].iter().all(|&b| b == 0), "data in the last hole");
                    return;
                }
                Err(error) => panic!("{error:?}"),
            }
        }
    }

    async fn check_all(&self) {
        for f in 0..FILES {
            self.check_read(f, 0, SIZE_MAX as usize + 10).await;
        }
    }

    async fn remount(&mut self) {
        self.client.shutdown(Instant::now() + Duration::from_secs(60)).await.unwrap();
        assert_eq!(self.client.pool_use().dirty, 0);
        self.client = self.world.mount(forgetful());
        for f in 0..FILES {
            let attr = self.client.lookup(InodeNo::ROOT, &name(f)).await.unwrap();
            assert_eq!(attr.size, self.model[&f].bytes.len() as u64, "seed {}", self.seed);
            let handle = self.client.open(attr.ino, RW).await.unwrap();
            self.handles.insert(f, (attr.ino, handle));
            let file = self.model.get_mut(&f).unwrap();
            file.since.clear();
            file.note();
        }
    }

    /// The client is gone in the middle of whatever it does.
    async fn crash(&mut self) {
        self.client = self.world.mount(forgetful());
        for f in 0..FILES {
            let attr = self.client.lookup(InodeNo::ROOT, &name(f)).await.unwrap();
            let handle = self.client.open(attr.ino, RW).await.unwrap();
            self.handles.insert(f, (attr.ino, handle));
            let got = self.client.read(handle, 0, SIZE_MAX as usize + 10).await.unwrap().to_vec();
            assert_eq!(got.len() as u64, attr.size);
            let since = &self.model[&f].since;
            let sizes = || since.iter().map(Vec::len);
            let (least, most) = (sizes().min().unwrap(), sizes().max().unwrap());
            assert!((least..=most).contains(&got.len()), "seed {}: size after a crash", self.seed);
            for from in (0..got.len()).step_by(4096) {
                let unit = &got[from..got.len().min(from + 4096)];
                if since.iter().any(|s| s.get(from..from + unit.len()) == Some(unit)) {
                    continue;
                }
                // Not one state as a whole: then each byte of some state (a size was cut inside it).
                for (at, &byte) in (from..).zip(unit) {
                    if !since.iter().any(|s| s.get(at) == Some(&byte)) {
                        self.print_log(f);
                        panic!("seed {}: file{f} byte {at} is {byte}, which it never was", self.seed);
                    }
                }
            }
            let file = self.model.get_mut(&f).unwrap();
            file.bytes = got;
            file.since.clear();
            file.note();
        }
    }
}

fn seeds() -> std::ops::Range<u64> {
    let from: Option<u64> = std::env::var("ROPEWALK_SEED").ok().and_then(|s| s.parse().ok());
    let count = std::env::var("ROPEWALK_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(12);
    from.map_or(1..1 + count, |s| s..s + 1)
}

fn on_runtime(run: impl AsyncFn(u64, u8)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for seed in seeds() {
        runtime.block_on(run(seed, [1, 4, 2][seed as usize % 3]));
    }
}

#[test]
fn reads_what_was_written_also_after_a_remount() {
    on_runtime(async |seed, k| {
        let mut run = Run::new(k, seed).await;
        for _ in 0..4 {
            for _ in 0..150 {
                run.op().await;
            }
            run.check_all().await;
            run.remount().await;
            run.check_all().await;
        }
    });
}

#[test]
fn after_a_crash_what_was_fsynced_is_there_and_nothing_is_mixed() {
    on_runtime(async |seed, k| {
        let mut run = Run::new(k, seed).await;
        for _ in 0..6 {
            for _ in 0..60 {
                run.op().await;
            }
            run.crash().await;
        }
    });
}

#[test]
fn answers_of_the_manager_that_get_lost_change_nothing() {
    on_runtime(async |seed, k| {
        if seed > 3 && std::env::var_os("ROPEWALK_SEEDS").is_none() {
            return; // each lost answer costs a pause
        }
        let mut run = Run::new(k, seed).await;
        run.world.manager.lossy.store(12, std::sync::atomic::Ordering::SeqCst);
        for _ in 0..4 {
            for _ in 0..60 {
                run.op().await;
            }
            run.crash().await;
        }
    });
}
