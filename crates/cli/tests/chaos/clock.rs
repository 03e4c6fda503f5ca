//! Clocks that jump: CLOCK_REALTIME of each process, by a library that is preloaded and built here (`clock.c`).

use std::{
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant, SystemTime},
};

use crate::common::{Cluster, Random};

/// The clocks of one cluster's processes.
pub struct Clocks {
    dir: PathBuf,
}

impl Clocks {
    /// Builds the library in `dir`. `None`: this machine has no C compiler.
    pub fn new(dir: &Path) -> Option<Clocks> {
        let (source, dir) = (dir.join("clock.c"), dir.to_path_buf());
        fs::write(&source, include_str!("clock.c")).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-O1", "-o"]).arg(dir.join("clock.so")).arg(&source).arg("-ldl");
        if !cc.status().is_ok_and(|status| status.success()) {
            println!("no C compiler is to be had (`cc`): clocks do not jump");
            return None;
        }
        fs::create_dir(dir.join("clocks")).unwrap();
        Some(Clocks { dir })
    }

    /// The environment of processes whose clocks are to jump.
    pub fn env(&self) -> [(&'static str, PathBuf); 2] {
        [("LD_PRELOAD", self.dir.join("clock.so")), ("ROPEWALK_CHAOS_CLOCKS", self.dir.join("clocks"))]
    }

    /// All that the cluster starts from now on.
    pub fn give_to(&self, cluster: &Cluster) {
        self.env().iter().for_each(|(name, value)| cluster.set_env(name, value.to_str().unwrap()));
    }

    /// Sets a process's clock to `seconds` after the true time. False: it has none of these clocks.
    pub fn set(&self, pid: i32, seconds: i64) -> bool {
        let file = fs::OpenOptions::new().write(true).open(self.dir.join(format!("clocks/{pid}")));
        file.is_ok_and(|file| file.write_all_at(&seconds.to_ne_bytes(), 0).is_ok())
    }
}

/// Some seconds to some hours, forwards or back.
pub fn jump(random: &mut Random) -> i64 {
    let most = [60, 3600, 48 * 3600][random.below(3) as usize];
    let seconds = 1 + random.below(most) as i64;
    if random.below(2) == 0 { seconds } else { -seconds }
}

/// Without this the fault would be none. The process whose clock jumps is this test again.
#[test]
fn a_process_sees_its_clock_jump_and_no_other() {
    let patience = Duration::from_secs(60);
    if std::env::var_os("ROPEWALK_CHAOS_CLOCKS").is_some() {
        let (wall, steady) = (SystemTime::now(), Instant::now());
        let hour = Duration::from_secs(3000);
        let jumped = |wall: SystemTime| wall.elapsed().unwrap_or_else(|e| e.duration()) > hour;
        while !jumped(wall) {
            assert!(steady.elapsed() < patience, "the clock does not jump");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(steady.elapsed() < 2 * patience, "the monotonic clock jumps too");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let Some(clocks) = Clocks::new(dir.path()) else { return };
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["clock::a_process_sees", "--nocapture"]).envs(clocks.env());
    let mut child = again.spawn().unwrap();
    let end = Instant::now() + patience;
    // Again and again: we do not know when it looks first.
    while child.try_wait().unwrap().is_none() && Instant::now() < end {
        clocks.set(child.id() as i32, 3600);
        std::thread::sleep(Duration::from_millis(100));
        clocks.set(child.id() as i32, -3600);
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(child.wait().unwrap().success());
}
