//! The view of the network where there are several machines: hosts (network namespaces) in two networks.

use std::{
    fs,
    os::fd::AsFd,
    thread,
    time::{Duration, Instant},
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::{
    beds::Bed,
    browser::Browser,
    common::{ok, until},
    hosts::{Down, Machine},
    pictured, serve,
};

/// After this a mount that does nothing has no use for its connections.
const IDLE: Duration = Duration::from_secs(35);

/// This thread, and what it begins, is in the network of a host.
struct Inside {
    host: fs::File,
    outside: fs::File,
}

impl Inside {
    fn enter(bed: &Bed, host: usize) -> Inside {
        let outside = fs::File::open("/proc/thread-self/ns/net").unwrap();
        let host = fs::File::open(format!("/run/netns/{}", bed.netns(host))).unwrap();
        let inside = Inside { host, outside };
        Inside::go(&inside.host);
        // The browser's driver listens on ::1 as well, and tells no port where that is not there.
        fs::write("/proc/sys/net/ipv6/conf/lo/disable_ipv6", "0").unwrap();
        inside
    }

    fn go(to: &fs::File) {
        move_into_link_name_space(to.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    }

    /// Does it where the networks of hosts can be changed.
    fn outside<T>(&self, does: impl FnOnce() -> T) -> T {
        Inside::go(&self.outside);
        let done = does();
        Inside::go(&self.host);
        done
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        Inside::go(&self.outside);
    }
}

/// Rows of a table of the view, each a list of the texts of its cells.
fn rows(table: &str) -> String {
    format!(
        "[...[...document.querySelectorAll('#hardware article')].find((part) => part.querySelector('h2').textContent === '{table}') \
         .querySelectorAll('tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
}

#[test]
fn rails_ports_and_pools_of_several_machines_by_name_and_state() {
    let bed = Bed::up("view", &["--hosts", "4", "--join", "subnets", "--links", "2"]);
    let base = tempfile::Builder::new().prefix("ropewalk-view-").tempdir().unwrap();
    // The servers show the ports of their hosts. The client mounts where this test sees it.
    let mut hosts: Vec<Machine<'_>> =
        (1..=3).map(|host| Machine::new(&bed, base.path(), host).with_sys()).collect();
    hosts.push(Machine::new(&bed, base.path(), 4));
    let [first, second, third, client] = &hosts[..] else { unreachable!() };
    let _down = Down(hosts.iter().collect());
    let begin = |host: &Machine<'_>, words: &[&str]| {
        let (addresses, disk) = (host.addresses(), host.dir.with_extension("disk"));
        let place = ["--address", &addresses, "--pdisk", disk.to_str().unwrap(), "--pdisk-size", "192m"];
        host.ok(&[words, &place].concat());
    };
    begin(first, &["init", "--name", "rope", "--node", "h1"]);
    for host in [second, third] {
        begin(host, &["join", &first.token(&["--role", "server"]), "--name", &format!("h{}", host.host)]);
    }
    until("all pdisks are ok", || {
        let pdisks = first.json(&["pdisk", "list"]);
        pdisks.as_array().unwrap().iter().filter(|pdisk| pdisk["state"] == "ok").count() == 3
    });
    first.ok(&["pool", "create", "data", "--code", "2+1p", "--block-size", "1m"]);
    first.ok(&["fs", "create", "fs1", "--pool", "data"]);
    client.ok(&["join", &first.token(&["--role", "client"]), "--name", "laptop"]);
    let pdisks = first.json(&["pdisk", "list"]);
    let of_second = pdisks.as_array().unwrap().iter().find(|pdisk| pdisk["node"] == "h2").unwrap();
    let pdisk = of_second["name"].as_str().unwrap();
    let mnt = client.mounted();
    let write = || {
        fs::write(mnt.join("file"), vec![7; 16 << 20]).unwrap();
        fs::File::open(mnt.join("file")).unwrap().sync_all().unwrap();
    };
    write();

    let inside = Inside::enter(&bed, 1);
    let (_page, port) = serve(first.dir.to_str().unwrap());
    let browser = Browser::start();
    browser.open(&format!("http://127.0.0.1:{port}/#view=hardware"));
    // From the mount to each server two rails, by address, with their connections by name.
    let mount = mnt.to_str().unwrap();
    let rails = format!("{}.filter((row) => row[0].endsWith({mount:?}))", rows("Links and rails"));
    for (number, host) in (0..).zip(["h1", "h2", "h3"]) {
        for addr in bed.addrs(number) {
            browser.until(&format!(
                "{rails}.some((row) => row[1] === '{host}' && row[2].startsWith('{addr}:') && row[3] === 'up' && row[4].includes(' active'))"
            ));
        }
    }
    browser.until(&format!("{rails}.filter((row) => row[4].includes('control active')).length >= 3"));
    let groups = rows("Groups and their members");
    browser.until(&format!("{groups}.some((row) => row[0] === 'pool' && row[1] === 'data' && (row[3].match(/ ok/g) ?? []).length === 3)"));
    // Machines that call themselves the same are told apart by a process that is there; each shows its own ports.
    let ports = rows("Ports and cards");
    for host in ["h1", "h2", "h3"] {
        browser.until(&format!("{ports}.filter((row) => /[( ]{host}[,)]/.test(row[0]) && row[1] !== 'lo' && row[2] === 'up').length === 2"));
    }
    pictured(&browser, "machines");

    // A network is cut off from h3, and h2 is gone: red, by name.
    let lost = &bed.addrs(2)[1];
    inside.outside(|| bed.link("h3", "2", "cut"));
    let cut = Instant::now();
    second.kill();
    let red = |cell: &str| format!("[...document.querySelectorAll('#hardware .bad')].some((cell) => {cell})");
    browser.until(&red("cell.textContent.startsWith('left: ')"));
    browser.until(&format!(
        "{rails}.some((row) => row[2].startsWith('{lost}:') && row[3].startsWith('left: '))"
    ));
    browser.until(&red(&format!("cell.matches('.member') && cell.textContent === '{pdisk} missing'")));
    browser.until(&format!("{groups}.some((row) => row[0] === 'group' && row[1].startsWith('data ') && row[3].includes('missing'))"));
    browser.until("[...document.querySelectorAll('#hardware li button')].some((button) => button.textContent.includes('ropewalk net status'))");
    pictured(&browser, "machines-cut");
    // The mount has been idle for longer than it would connect again to a peer that is gone: a rail that is back it takes.
    thread::sleep(IDLE.saturating_sub(cut.elapsed()));
    inside.outside(|| bed.link("h3", "2", "up"));
    browser.until(&format!("{rails}.some((row) => row[2].startsWith('{lost}:') && row[3] === 'up')"));
    drop(browser);
    drop(inside);
    ok(&["umount", mount]);
}
