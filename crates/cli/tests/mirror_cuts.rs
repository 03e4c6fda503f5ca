//! A copy of the manager's store on another machine: what that one answers is lost, then its disk gets full. Work goes on, `health` says
//! why the copy is behind, none that is behind is promoted, and it is made anew by itself once it can be.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a helper that fails is a test that fails

mod common;

#[path = "common/beds.rs"]
mod beds;
#[path = "common/hosts.rs"]
mod hosts;
#[path = "common/maker.rs"]
mod maker;
#[path = "common/small_disk.rs"]
mod small_disk;

use std::{
    ffi::CString,
    fs::{self, File},
    path::Path,
    time::Instant,
};

use beds::Bed;
use common::until;
use hosts::{Down, Machine};
use rustix::fs::{XattrFlags, setxattr};
use small_disk::Disk;

/// Files made before something counts as gone on.
const BETWEEN: u64 = 20;

/// Some records of 60 KiB, each a new one.
fn large(mnt: &Path, made: &mut u32) {
    let value = vec![1; 60 << 10];
    for _ in 0..20 {
        let path = mnt.join(format!("large/{made}"));
        File::create(&path).unwrap();
        let name = CString::new(path.to_str().unwrap()).unwrap();
        setxattr(&*name, "user.large", &value, XattrFlags::empty()).unwrap();
        *made += 1;
    }
}

#[test]
fn a_copy_whose_answers_are_lost_or_whose_disk_is_full_is_given_up_and_comes_back_by_itself() {
    let bed = Bed::up("mirror", &["--hosts", "3", "--links", "1", "--join", "ecmp"]);
    let base = tempfile::Builder::new().prefix("ropewalk-mirror-").tempdir().unwrap();
    let [first, keeper] = [1, 2].map(|host| Machine::new(&bed, base.path(), host));
    let _down = Down(vec![&first, &keeper]);
    first.begin(&["init", "--name", "rope", "--node", "h1"]);
    first.ok(&["pool", "create", "data", "--code", "1way", "--block-size", "1m"]);
    first.ok(&["fs", "create", "fs1", "--pool", "data"]);
    let token = first.token(&["--role", "manager"]);
    keeper.ok(&["join", &token, "--name", "m2", "--address", &bed.addr(1)]);
    keeper.ok(&["down"]);
    let disk = Disk::mount(&keeper.dir.join("copy"), 128);
    keeper.ok(&["up", "--detach"]);
    first.ok(&["down"]);
    first.ok(&["manager", "mirror", "m2"]);
    first.ok(&["up", "--detach"]);
    let mnt = first.mounted();
    let whole = || {
        until("the copy has all", || {
            first.json(&["status"])["store"]
                .as_str()
                .is_some_and(|store| store.ends_with("with a copy on m2"))
        });
    };
    let health = || String::from_utf8(first.run(&["health"]).stdout).unwrap();
    let promote = ["manager", "promote", "--from-mirror"];
    whole();

    let made = maker::making(&mnt, BETWEEN, |goes_on, _| {
        goes_on("files are made");
        let begun = Instant::now();
        bed.lose(2, 1, true);
        goes_on("files are made with the keeper's answers lost");
        println!("its answers are lost: all went on {:.1?} later", begun.elapsed());
        until("health says so", || health().contains("its copy on m2 is behind"));
        keeper.kill_process("manager");
        bed.lose(2, 1, false);
        // The servers are reached again, and tell it.
        until("it is refused as behind", || {
            keeper.refused(&promote).contains("lacks what was committed last")
        });
        keeper.ok(&["up", "--detach"]);
        whole();

        fs::create_dir(mnt.join("large")).unwrap();
        disk.fill(0);
        let mut records = 0;
        until("health says that there is no room", || {
            large(&mnt, &mut records);
            let health = health();
            health.contains("is behind") && (health.contains("No space") || health.contains("is full"))
        });
        goes_on("files are made with the keeper's disk full");
        // A new copy was begun, and did not fit.
        until("none is begun before there is room", || health().contains("is full: "));
        println!("{}", health());
        disk.empty();
        whole();
        goes_on("files are made");
        fs::remove_dir_all(mnt.join("large")).unwrap();

        first.kill_process("manager");
        keeper.ok(&["down"]);
        // A server may not be heard in time: then it is to be tried again.
        until("it is promoted", || {
            let output = keeper.run(&promote);
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(output.status.success() || said.contains("try again"), "{said}");
            output.status.success()
        });
        keeper.ok(&["up", "--detach"]);
        goes_on("files are made with the copy");
    });
    maker::check(&mnt, made);
}
