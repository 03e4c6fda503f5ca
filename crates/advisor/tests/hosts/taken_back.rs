//! Settings made, kept and taken back: whole, guarded, cut off, and what others have changed meanwhile.

use std::{
    fs,
    path::{Path, PathBuf},
};

use advisor::{Finding, Tree, apply, host_facts, journal};
use tempfile::TempDir;

use super::{all_files, findings, named, read};

/// A host with a bad setting in each place that can be set.
fn wrong() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, content) in [
        ("proc/sys/vm/zone_reclaim_mode", "1\n"),
        ("proc/sys/net/ipv4/tcp_sack", "0\n"),
        ("sys/block/nvme0n1/queue/scheduler", "none [kyber]\n"),
        ("sys/module/fuse/parameters/enable_uring", "N\n"),
        ("etc/sysctl.d/10-admin.conf", "vm.swappiness = 5\n"),
    ] {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    root
}

fn wrong_findings(root: &Path) -> Vec<Finding> {
    let findings = findings(host_facts(&Tree::below(root)));
    assert_eq!(
        named(&findings).into_iter().collect::<Vec<_>>(),
        ["fuse-uring-off", "memory-zone-reclaim", "nvme-scheduler block.nvme0n1", "tcp-no-sack"]
    );
    findings
}

#[test]
fn what_is_set_is_permanent_and_is_taken_back_whole() {
    let root = wrong();
    let root = root.path();
    let before = all_files(root);
    let found = wrong_findings(root);
    // Files of a tree keep what is written, so the scheduler's list of choices becomes the choice.
    assert_eq!(apply::apply(root, &found.iter().collect::<Vec<_>>(), None).unwrap().len(), 4);
    assert_eq!(read(root, "proc/sys/vm/zone_reclaim_mode"), "0");
    assert_eq!(read(root, "sys/block/nvme0n1/queue/scheduler"), "none");
    let sysctl = read(root, "etc/sysctl.d/90-ropewalk-advise.conf");
    assert!(
        sysctl.contains("vm.zone_reclaim_mode = 0") && sysctl.contains("net.ipv4.tcp_sack = 1"),
        "{sysctl}"
    );
    assert!(read(root, "etc/udev/rules.d/90-ropewalk-advise.rules").contains("nvme0n1"));
    assert_eq!(findings(host_facts(&Tree::below(root))), []);

    let outcomes = apply::revert(root, &["memory-zone-reclaim".to_owned()]).unwrap();
    assert_eq!((outcomes.len(), outcomes[0].what.as_str()), (1, "reverted"));
    assert!(!read(root, "etc/sysctl.d/90-ropewalk-advise.conf").contains("zone_reclaim"));
    assert_eq!(apply::revert(root, &[]).unwrap().len(), 3);
    let after = all_files(root);
    let scheduler = |files: Vec<(PathBuf, String)>| {
        files.into_iter().filter(|(path, _)| !path.ends_with("scheduler")).collect::<Vec<_>>()
    };
    assert_eq!(read(root, "sys/block/nvme0n1/queue/scheduler"), "kyber");
    assert_eq!(scheduler(after), scheduler(before));
    let runs = journal::history(root).unwrap();
    assert!(
        runs[0].done && runs[0].changes.iter().all(|(_, released)| released.as_deref() == Some("reverted"))
    );
}

#[test]
fn a_value_that_others_changed_since_is_left_to_them() {
    let root = wrong();
    let root = root.path();
    let found = wrong_findings(root);
    apply::apply(root, &found.iter().collect::<Vec<_>>(), None).unwrap();
    fs::write(root.join("proc/sys/vm/zone_reclaim_mode"), "3\n").unwrap();
    let outcomes = apply::revert(root, &[]).unwrap();
    let others: Vec<_> = outcomes.iter().filter(|o| o.what == "changed by others").map(|o| &o.fact).collect();
    assert_eq!(others, ["sysctl.vm.zone_reclaim_mode"]);
    assert_eq!(read(root, "proc/sys/vm/zone_reclaim_mode"), "3");
    assert!(!root.join("etc/sysctl.d/90-ropewalk-advise.conf").exists());
    assert_eq!(read(root, "etc/sysctl.d/10-admin.conf"), "vm.swappiness = 5");
}

/// A crash can leave the journal and the values at any point: whatever was written is taken back by the next command.
#[test]
fn a_run_that_a_crash_cut_off_is_taken_back() {
    for written in 0..=4 {
        for torn in [false, true] {
            let root = wrong();
            let root = root.path();
            let before = all_files(root);
            let found = wrong_findings(root);
            let plan = apply::plan(root, &found.iter().collect::<Vec<_>>()).unwrap();
            let mut journal = journal::Journal::open(root).unwrap();
            journal.append(journal::Record::Begin { run: 1, time: 0, changes: plan.clone() }).unwrap();
            drop(journal);
            for change in plan.iter().take(written) {
                let settable = advisor::Settable::of(&change.fact.as_str().into()).unwrap();
                fs::write(root.join(settable.file), &change.after).unwrap();
            }
            if torn {
                use std::io::Write;
                let path = root.join("var/lib/ropewalk/advise/journal");
                let mut file = fs::OpenOptions::new().append(true).open(path).unwrap();
                file.write_all(b"{\"record\":\"done\",\"ru").unwrap();
            }
            apply::revert(root, &["nothing-of-this-name".to_owned()]).unwrap();
            let plain = |files: Vec<(PathBuf, String)>| {
                let chosen = |text: String| text.replace("none [kyber]", "kyber");
                files.into_iter().map(|(path, text)| (path, chosen(text))).collect::<Vec<_>>()
            };
            assert_eq!(plain(all_files(root)), plain(before), "after {written} values");
            let runs = journal::history(root).unwrap();
            assert!(runs[0].in_force().next().is_none());
        }
    }
}

#[test]
fn a_setting_that_cannot_be_made_takes_the_others_back() {
    let root = wrong();
    let root = root.path();
    let mut found = wrong_findings(root);
    // The last file goes away between reading and writing: a device was pulled.
    let last = found.last().unwrap().change.clone().unwrap();
    let gone = advisor::Settable::of(&last.fact).unwrap().file;
    let before = all_files(root);
    fs::remove_file(root.join(&gone)).unwrap();
    let error = apply::apply(root, &found.iter().collect::<Vec<_>>(), None).unwrap_err().to_string();
    assert!(error.contains(&gone), "{error}");
    let there = |files: Vec<(PathBuf, String)>| {
        files.into_iter().filter(|(path, _)| !path.ends_with(&gone)).collect::<Vec<_>>()
    };
    assert_eq!(there(all_files(root)), there(before));
    // A value with a quote would end up in a file of rules.
    found.retain(|f| f.change.as_ref().is_some_and(|c| c.fact != last.fact));
    found[0].change.as_mut().unwrap().value = "1\"\nRUN+=\"/bin/sh".to_owned();
    assert!(apply::apply(root, &[&found[0]], None).unwrap_err().to_string().contains("no plain value"));
}

#[test]
fn a_value_that_cannot_be_taken_back_does_not_keep_the_others() {
    let root = wrong();
    let root = root.path();
    let found = wrong_findings(root);
    apply::apply(root, &found.iter().collect::<Vec<_>>(), None).unwrap();
    // A directory in a file's place can be neither read nor written, also by root.
    let stuck = root.join("proc/sys/net/ipv4/tcp_sack");
    fs::remove_file(&stuck).unwrap();
    fs::create_dir(&stuck).unwrap();
    let outcomes = apply::revert(root, &[]).unwrap();
    let failed: Vec<_> =
        outcomes.iter().filter(|o| o.error.is_some()).map(|o| (&*o.fact, &*o.what)).collect();
    assert_eq!((outcomes.len(), failed), (4, vec![("sysctl.net.ipv4.tcp_sack", "not taken back")]));
    assert_eq!(read(root, "proc/sys/vm/zone_reclaim_mode"), "1");
    // It is still ours, and is taken back once that can be done.
    assert!(read(root, "etc/sysctl.d/90-ropewalk-advise.conf").contains("tcp_sack = 1"));
    fs::remove_dir(&stuck).unwrap();
    fs::write(&stuck, "1\n").unwrap();
    assert_eq!(apply::revert(root, &[]).unwrap().len(), 1);
    assert_eq!(read(root, "proc/sys/net/ipv4/tcp_sack"), "0");
    assert!(!root.join("etc/sysctl.d/90-ropewalk-advise.conf").exists());
}

#[test]
fn a_guarded_run_lasts_only_once_it_is_confirmed() {
    let root = wrong();
    let root = root.path();
    let before = all_files(root);
    let found = wrong_findings(root);
    let found: Vec<&Finding> = found.iter().filter(|f| f.rule == "tcp-no-sack").collect();
    let value = || read(root, "proc/sys/net/ipv4/tcp_sack");
    let apply = |until: u64| apply::apply(root, &found, Some(until));
    // In time: in force at once, permanent once it is confirmed.
    apply(apply::now() + 1000).unwrap();
    assert_eq!(value(), "1");
    assert!(!root.join("etc/sysctl.d/90-ropewalk-advise.conf").exists());
    assert!(apply::expire(root).unwrap().is_empty() && value() == "1");
    let error = apply(apply::now() + 1000).unwrap_err().to_string();
    assert!(error.contains("run 1 waits"), "{error}");
    assert_eq!(apply::confirm(root).unwrap()[0].what, "kept");
    assert!(read(root, "etc/sysctl.d/90-ropewalk-advise.conf").contains("tcp_sack = 1"));
    assert!(apply::confirm(root).unwrap_err().to_string().contains("nothing waits"));
    apply::revert(root, &[]).unwrap();
    assert_eq!(all_files(root), before);
    // The guard has gone already: nothing is begun that it would not take back.
    let error = apply(apply::now()).unwrap_err().to_string();
    assert!(error.contains("nothing is changed") && value() == "0", "{error}");
    // Too late to be kept: whoever comes next takes it back. On a machine that stands still meanwhile it is too late to be set.
    let until = loop {
        let until = apply::now() + 2;
        match apply(until) {
            Ok(_) => break until,
            Err(error) => assert!(matches!(error, apply::ApplyError::TooLate), "{error}"),
        }
    };
    assert_eq!(value(), "1");
    while apply::now() < until {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert!(apply::confirm(root).is_err() && value() == "0");
    // Taken back before anybody confirms.
    apply(apply::now() + 1000).unwrap();
    assert_eq!(apply::revert(root, &[]).unwrap()[0].what, "reverted");
    assert_eq!(all_files(root), before);
}

#[test]
fn a_journal_of_somebody_else_is_an_error() {
    let root = wrong();
    let dir = root.path().join("var/lib/ropewalk/advise");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("journal"), "{\"record\":\"done\",\"run\":1}\nhello\n").unwrap();
    let error = apply::revert(root.path(), &[]).unwrap_err().to_string();
    assert!(error.contains("line 2"), "{error}");
    fs::write(dir.join("journal"), "").unwrap();
    let held = journal::Journal::open(root.path()).unwrap();
    let error = apply::revert(root.path(), &[]).unwrap_err().to_string();
    assert!(error.contains("another"), "{error}");
    drop(held);
}

/// The MTU of a fast port lasts by what manages the port: it is ours alone, and is gone after the revert.
#[test]
fn what_lasts_is_left_to_who_manages_the_interface() {
    let networkd = "etc/systemd/network/10-e.network.d/90-ropewalk-advise.conf";
    let dispatcher = "etc/NetworkManager/dispatcher.d/90-ropewalk-advise";
    let udev = "etc/udev/rules.d/90-ropewalk-advise.rules";
    for (state, text, ours, holds) in [
        (
            "run/systemd/netif/links/7",
            "NETWORK_FILE=/etc/systemd/network/10-e.network\n",
            networkd,
            "[Link]\n# nic-mtu-small (was: 1500)\nMTUBytes=9000\n",
        ),
        (
            "run/NetworkManager/devices/7",
            "[device]\nconnection-uuid=1-2\n",
            dispatcher,
            "[ \"$2\" = up ] || exit 0\n# nic-mtu-small (was: 1500)\n[ \"$1\" = e ] && echo 9000 > /sys/class/net/e/mtu\n",
        ),
        ("run/nothing", "", udev, "KERNEL==\"e\", ATTR{mtu}=\"9000\"\n"),
    ] {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        for (path, content) in [
            ("sys/class/net/e/ifindex", "7\n"),
            ("sys/class/net/e/mtu", "1500\n"),
            ("sys/class/net/e/operstate", "up\n"),
            ("sys/class/net/e/speed", "100000\n"),
            ("sys/class/net/e/device/numa_node", "-1\n"),
            ("etc/systemd/network/10-e.network", "[Match]\nName=e\n"),
            (state, text),
        ] {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let before = all_files(root);
        let found = findings(host_facts(&Tree::below(root)));
        let small: Vec<&Finding> = found.iter().filter(|f| f.rule == "nic-mtu-small").collect();
        assert!(small[0].permanent.as_ref().unwrap().starts_with(&format!("/{ours}: ")), "{small:?}");
        assert!(small[0].disruptive && apply::may_cut(&apply::plan(root, &small).unwrap()));
        apply::apply(root, &small, None).unwrap();
        assert_eq!(read(root, "sys/class/net/e/mtu"), "9000");
        let text = fs::read_to_string(root.join(ours)).unwrap();
        assert!(text.ends_with(holds), "{text}");
        if ours == dispatcher {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(fs::metadata(root.join(ours)).unwrap().permissions().mode() & 0o777, 0o755);
            assert!(text.starts_with("#!/bin/sh\n"));
        }
        // Who manages the interface may change; then our line moves with it.
        fs::remove_file(root.join(state)).unwrap();
        apply::revert(root, &["nothing".to_owned()]).unwrap();
        assert!(root.join(udev).exists() && (ours == udev || !root.join(ours).exists()));
        fs::write(root.join(state), text_of(state, &before)).unwrap();
        assert_eq!(apply::revert(root, &[]).unwrap().len(), 1);
        assert_eq!(all_files(root), before);
        assert!(!root.join("etc/systemd/network/10-e.network.d").exists());
    }
}

fn text_of(name: &str, files: &[(PathBuf, String)]) -> String {
    files.iter().find(|(path, _)| path.ends_with(name)).unwrap().1.clone()
}

/// A value in a comment never becomes a line of its own, and what is no plain value never gets into a file.
#[test]
fn what_the_journal_says_is_one_line_of_comment() {
    let root = wrong();
    let root = root.path();
    let put = |before: &str, after: &str| {
        let _ = fs::remove_dir_all(root.join("var/lib/ropewalk"));
        let mut journal = journal::Journal::open(root).unwrap();
        let (fact, rule) = ("sysctl.net.ipv4.tcp_sack".to_owned(), "tcp-no-sack".to_owned());
        let changes =
            vec![journal::Changed { rule, fact, before: before.to_owned(), after: after.to_owned() }];
        journal.append(journal::Record::Begin { run: 1, time: 0, changes }).unwrap();
        journal.append(journal::Record::Done { run: 1 }).unwrap();
    };
    put("0\nreboot\r\u{b}reboot\u{85}reboot", "1");
    apply::revert(root, &["nothing".to_owned()]).unwrap();
    let text = read(root, "etc/sysctl.d/90-ropewalk-advise.conf");
    assert!(
        text.contains("(was: 0\\nreboot")
            && text.lines().all(|l| l.starts_with('#') || l == "net.ipv4.tcp_sack = 1"),
        "{text}"
    );
    put("0", "1\nkernel.panic = 1");
    let error = apply::revert(root, &["nothing".to_owned()]).unwrap_err().to_string();
    assert!(error.contains("no plain value"), "{error}");
    assert!(!read(root, "etc/sysctl.d/90-ropewalk-advise.conf").contains("panic"));
}

/// Killed after the files that make it last were written and before the end of the run was; and in the middle of taking it back.
#[test]
fn a_crash_beside_the_files_or_in_the_revert_leaves_nothing() {
    let root = wrong();
    let root = root.path();
    let chosen = |files: Vec<(PathBuf, String)>| {
        let choice = |text: String| text.replace("none [kyber]", "kyber");
        files.into_iter().map(|(path, text)| (path, choice(text))).collect::<Vec<_>>()
    };
    let before = chosen(all_files(root));
    let found = wrong_findings(root);
    let found: Vec<&Finding> = found.iter().collect();
    apply::apply(root, &found, None).unwrap();
    let journal = root.join("var/lib/ropewalk/advise/journal");
    let text = fs::read_to_string(&journal).unwrap();
    let end = text.trim_end().rfind('\n').unwrap() + 1;
    assert!(text[end..].contains("done") && root.join("etc/sysctl.d/90-ropewalk-advise.conf").exists());
    fs::write(&journal, &text[..end]).unwrap();
    apply::revert(root, &["nothing-of-this-name".to_owned()]).unwrap();
    assert_eq!(chosen(all_files(root)), before);

    apply::apply(root, &found, None).unwrap();
    // One value is given back and not yet recorded.
    fs::write(root.join("proc/sys/net/ipv4/tcp_sack"), "0\n").unwrap();
    let outcomes = apply::revert(root, &[]).unwrap();
    assert!(outcomes.len() == 4 && outcomes.iter().all(|o| o.what == "reverted"), "{outcomes:?}");
    assert_eq!(chosen(all_files(root)), before);
}
