//! The bottlenecks that can be staged, and each plan without its bottleneck. Place and degree are drawn.

use std::{fs, path::Path};

use base::units::human_size;

use super::{
    clusters,
    disks::{Disks, Way},
    error::{SelfTestError, failed},
    staged::{Outcome, Scratch, Staged, head, series},
};
use crate::{
    calibrate::{caches, free_memory},
    draw::Draw,
    observe::allowed_cpus,
    testbed::{BitRate, Join, Spec, Testbed},
    verdict::Limit,
};

/// One bottleneck.
pub struct Staging {
    /// Its name.
    pub name: &'static str,
    /// What the verdict must be with it.
    pub limit: Limit,
    /// What it must be without; where none is named, anything else.
    pub without: Option<Limit>,
    /// Makes it, with or without its bottleneck, in a directory of its own.
    pub stage: fn(&mut Draw, bool, &Path) -> Outcome,
}

/// The names of all.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|one| one.name)
}

/// All.
pub const ALL: &[Staging] = &[
    Staging { name: "throttled link", limit: Limit::Link, without: None, stage: throttled_link },
    Staging {
        name: "one slow link of four",
        limit: Limit::SlowDevice,
        without: Some(Limit::None),
        stage: slow_link,
    },
    Staging { name: "noisy neighbour", limit: Limit::Neighbour, without: None, stage: neighbour },
    Staging { name: "slow device", limit: Limit::SlowDevice, without: Some(Limit::None), stage: slow_device },
    Staging { name: "pinned CPU", limit: Limit::PinnedCpu, without: None, stage: pinned_cpu },
    Staging { name: "few clients", limit: Limit::Clients, without: None, stage: few_clients },
    Staging {
        name: "bad hash policy",
        limit: Limit::HashPolicy,
        without: Some(Limit::Link),
        stage: hash_policy,
    },
    Staging { name: "small registered memory", limit: Limit::Queue, without: None, stage: small_memory },
    Staging { name: "one busy disk on many queues", limit: Limit::Queue, without: None, stage: busy_disk },
    Staging {
        name: "page pool too small",
        limit: Limit::PagePool,
        without: None,
        stage: clusters::page_pool,
    },
    Staging {
        name: "slow pdisk of eight",
        limit: Limit::SlowDevice,
        without: None,
        stage: clusters::slow_pdisk,
    },
    Staging {
        name: "manager slow to commit",
        limit: Limit::Manager,
        without: None,
        stage: clusters::slow_manager,
    },
    Staging { name: "lock contention", limit: Limit::Tokens, without: None, stage: clusters::one_file },
    Staging { name: "memory bandwidth", limit: Limit::Memory, without: None, stage: memory },
    Staging { name: "single thread", limit: Limit::LoadThread, without: None, stage: single_thread },
];

/// Links between two hosts, of which one is slow.
const LINKS: u8 = 4;

/// Random reads of one device to three.
fn devices(set: &str) -> String {
    head("devices", "[1, 2, 3]") + &series("fio", "operations", &format!("rw = 'randread', bs = '4k', {set}"))
}

fn throttled_link(draw: &mut Draw, with: bool, _: &Path) -> Outcome {
    // Faster than any CPU here where nothing throttles it.
    let speed = if with { 60 + draw.below(200) } else { 100_000 };
    let set = format!("links = 1, policy = 1, speed = {speed}");
    let plan = head("connections", "[1, 2, 4]") + &series("iperf3", "bytes", &set);
    Ok(Ok(Staged { plan, place: "l1".into(), ..Staged::default() }))
}

fn hash_policy(draw: &mut Draw, with: bool, _: &Path) -> Outcome {
    let speed = 60 + draw.below(200);
    // Sixteen connections over two links by ports: all on one in 1 of 32768 runs.
    let (policy, steps) = if with { (0, "[1, 2, 4, 8]") } else { (1, "[1, 16]") };
    let set = format!("links = 2, policy = {policy}, speed = {speed}");
    let plan = head("connections", steps) + &series("iperf3", "bytes", &set);
    Ok(Ok(Staged { plan, place: "/l".into(), ..Staged::default() }))
}

fn slow_device(draw: &mut Draw, with: bool, dir: &Path) -> Outcome {
    let rate = 400 + draw.below(500);
    let (slow, times) = (draw.below(3) as usize, 3 + draw.below(3));
    let mut rates = [rate; 3];
    if with {
        rates[slow] = rate / times;
    }
    Ok(Disks::new(dir, &rates)?.map(|disks| Staged {
        under: disks.under(),
        plan: devices("ioengine = 'libaio', iodepth = 8"),
        options: disks.options(),
        place: disks.devices[slow].clone(),
        disks: Some(disks),
        ..Staged::default()
    }))
}

fn slow_link(draw: &mut Draw, with: bool, _: &Path) -> Outcome {
    let (rate, times) = (40 + draw.below(60), 3 + draw.below(3));
    let slow = draw.below(u64::from(LINKS)) as u8;
    let mbit = |n: u64| BitRate(n * 1_000_000);
    let bed = Testbed::scoped(Spec {
        hosts: 2,
        links: LINKS,
        rate: mbit(rate),
        join: Join::Subnets,
        ..Spec::default()
    })?;
    let [client, server] = bed.hosts.as_slice() else {
        return Ok(Err("the testbed has no two hosts".into()));
    };
    if with {
        bed.set_rate(&client.name, slow + 1, mbit(rate / times))?;
    }
    let pairs = client.addrs.iter().zip(&server.addrs);
    let pair = |(a, b)| ["--pair".to_owned(), format!("{}@{a}={}@{b}", client.netns, server.netns)];
    let options = pairs.flat_map(pair).collect();
    let place = client.addrs.get(usize::from(slow)).map_or(String::new(), |addr| format!("{addr}="));
    let plan = head("pairs", "[1, 2, 4]") + &series("iperf3", "bytes", "connections = 1");
    Ok(Ok(Staged { plan, options, place, bed: Some(bed), ..Staged::default() }))
}

/// A file system whose files are memory: what is in the page cache of a disk's may be given up at any time.
const IN_MEMORY: &str = "/dev/shm";

/// Files in memory to read, and the options that name them: only CPUs bound that, or memory itself.
fn in_memory(files: usize, bytes: usize) -> Result<(Scratch, Vec<String>), SelfTestError> {
    let dir = Scratch::below(Path::new(IN_MEMORY))?;
    let mut options = Vec::new();
    for n in 0..files {
        let file = dir.path.join(format!("file{n}"));
        fs::write(&file, vec![7; bytes]).map_err(failed(format!("write {}", file.display())))?;
        options.extend(["--device".to_owned(), file.display().to_string()]);
    }
    Ok((dir, options))
}

/// A file of few pages.
const SMALL: usize = 8 << 20;

fn neighbour(draw: &mut Draw, with: bool, _: &Path) -> Outcome {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    // The load has three jobs; neighbours that outnumber them get more of the CPUs.
    let spins = cpus + 3 + draw.below(2);
    let shell = format!(
        "pids=; for n in $(seq {spins}); do (while :; do :; done) & pids=\"$pids $!\"; done; \"$@\"; status=$?; \
         kill $pids; wait; exit $status"
    );
    let under = ["sh", "-c", &shell, "sh"].map(str::to_owned).to_vec();
    let (files, options) = in_memory(3, SMALL)?;
    Ok(Ok(Staged {
        under: if with { under } else { Vec::new() },
        plan: devices("ioengine = 'psync', direct = false"),
        options,
        files: Some(files),
        place: "other programs".into(),
        ..Staged::default()
    }))
}

fn pinned_cpu(draw: &mut Draw, with: bool, _: &Path) -> Outcome {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    if cpus < 2 {
        return Ok(Err("there is one CPU only".into()));
    }
    let cpu = draw.below(cpus);
    let under = ["taskset", "-c", &cpu.to_string()].map(str::to_owned).to_vec();
    let (files, options) = in_memory(3, SMALL)?;
    Ok(Ok(Staged {
        under: if with { under } else { Vec::new() },
        plan: devices("ioengine = 'psync', direct = false"),
        options,
        files: Some(files),
        place: format!("CPU {cpu}"),
        ..Staged::default()
    }))
}

fn few_clients(draw: &mut Draw, with: bool, dir: &Path) -> Outcome {
    let rate = 100 + draw.below(200);
    // Each client asks for so much; the device has room for fifty of them, or for one and a half.
    let room = if with { rate * 50 } else { rate * 3 / 2 };
    let set = format!("rw = 'randread', bs = '4k', ioengine = 'psync', rate_iops = {rate}");
    Ok(Disks::new(dir, &[room])?.map(|disks| Staged {
        under: disks.under(),
        plan: head("nodes", "[1, 2, 4]") + &series("fio", "operations", &set),
        options: disks.options(),
        disks: Some(disks),
        ..Staged::default()
    }))
}

/// Random reads through the strip store on the disk below the directory, which is throttled.
fn queues(draw: &mut Draw, dir: &Path, set: &str, place: &str) -> Outcome {
    let disks = match Disks::none()? {
        Ok(disks) => disks,
        Err(why) => return Ok(Err(why)),
    };
    disks.throttle_below(dir, Way::Read, 200 + draw.below(300))?;
    let set = format!("load = 'random-read', size = '64m', depth = 16, {set}");
    Ok(Ok(Staged {
        under: disks.under(),
        plan: head("queues", "[1, 2, 4]") + &series("pdisk", "operations", &set),
        place: place.into(),
        disks: Some(disks),
        ..Staged::default()
    }))
}

fn busy_disk(draw: &mut Draw, with: bool, dir: &Path) -> Outcome {
    let disks = if with { 1 } else { 4 };
    queues(draw, dir, &format!("disks = {disks}, dma_mib = 256"), "the disk's queue")
}

fn small_memory(draw: &mut Draw, with: bool, dir: &Path) -> Outcome {
    let mib = if with { 8 } else { 256 };
    queues(draw, dir, &format!("disks = 4, dma_mib = {mib}"), "registered memory")
}

/// A part of the free memory that the files may take.
const MEMORY_PART: u64 = 4;

/// Copies from mapped files: of more than the caches hold they go at the speed of memory; of less, at that of the CPUs.
fn memory(draw: &mut Draw, with: bool, _: &Path) -> Outcome {
    let allowed = allowed_cpus();
    let cpus = allowed.len().max(1);
    let cache = caches(&allowed) as usize;
    if cache == 0 {
        return Ok(Err("the kernel does not say how large the CPUs' caches are".into()));
    }
    // One copies for each CPU, and one more: by then memory gives no more.
    let files = cpus + 1;
    let (bytes, size) = match with {
        true => ((4 * cache).max(128 << 20), 512 << draw.below(3)),
        false => ((cache / 4 / files).clamp(1 << 20, SMALL), 4 << draw.below(7)),
    };
    let room = free_memory();
    if (files * bytes) as u64 > room / MEMORY_PART {
        let (wanted, room) = (human_size((files * bytes) as u64), human_size(room));
        return Ok(Err(format!("files of {wanted} in memory are too much where {room} are free")));
    }
    let mut steps = vec![1, cpus, files];
    steps.dedup();
    let set = format!("rw = 'randread', bs = '{size}k', ioengine = 'mmap', direct = false");
    let (files, options) = in_memory(files, bytes)?;
    Ok(Ok(Staged {
        plan: head("devices", &format!("{steps:?}")) + &series("fio", "bytes", &set),
        options,
        files: Some(files),
        place: if with { "memory" } else { "" }.into(),
        ..Staged::default()
    }))
}

/// More workers are asked for, and one thread makes the load.
fn single_thread(draw: &mut Draw, with: bool, _: &Path) -> Outcome {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    if cpus < 2 {
        return Ok(Err("there is one CPU only".into()));
    }
    let size = 4 << draw.below(3);
    let jobs = if with { ", numjobs = 1" } else { "" };
    let set = format!("rw = 'randread', bs = '{size}k', ioengine = 'psync', direct = false{jobs}");
    let (files, options) = in_memory(1, SMALL)?;
    Ok(Ok(Staged {
        plan: head("workers", "[1, 2, 4]") + &series("fio", "operations", &set),
        options,
        files: Some(files),
        place: "fio".into(),
        ..Staged::default()
    }))
}
