//! Recorded hosts made wrong at random: what is named, what is set, what is taken back.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use advisor::{Finding, Tree, apply, host_facts};

use super::{SOUND as SOUND_HOSTS, Score, all_files, findings, host, named, seeded};

/// What can be wrong on any of the hosts, whatever else is: the file, what stands in it then, and what must be found.
const WRONG: [(&str, &str, &str); 16] = [
    ("proc/sys/net/ipv4/tcp_sack", "0", "tcp-no-sack"),
    ("proc/sys/net/ipv4/tcp_window_scaling", "0", "tcp-no-window-scaling"),
    ("proc/sys/net/ipv4/tcp_timestamps", "0", "tcp-no-timestamps"),
    ("proc/sys/net/ipv4/tcp_moderate_rcvbuf", "0", "tcp-no-receive-tuning"),
    ("proc/sys/net/ipv4/ip_local_port_range", "32768 33000", "tcp-few-ports"),
    ("proc/sys/net/core/somaxconn", "4", "tcp-backlog-short"),
    ("proc/sys/vm/max_map_count", "1024", "memory-max-map-count"),
    ("proc/sys/kernel/io_uring_disabled", "2", "uring-disabled"),
    ("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]", "memory-thp-off"),
    ("sys/block/sdz/queue/scheduler", "[none] mq-deadline bfq", "disk-without-scheduler block.sdz"),
    ("sys/block/sdz/queue/read_ahead_kb", "32", "block-readahead-small block.sdz"),
    ("sys/block/sdz/queue/nomerges", "2", "block-no-merges block.sdz"),
    ("sys/class/net/ens9/mtu", "1500", "nic-mtu-small net.ens9"),
    ("sys/class/net/ens9/tx_queue_len", "100", "nic-txqueue-short net.ens9"),
    ("sys/class/net/ens9/duplex", "half", "nic-half-duplex net.ens9"),
    (
        "ropewalk/command/ethtool_-k_ens9",
        "Features for ens9:\ngeneric-receive-offload: off",
        "nic-gro-off net.ens9",
    ),
];

/// A disk and a fast port that are as they should be, for what can be wrong of such.
const SOUND: [(&str, &str); 12] = [
    ("sys/block/sdz/queue/scheduler", "[mq-deadline] none bfq"),
    ("sys/block/sdz/queue/rotational", "1"),
    ("sys/block/sdz/queue/read_ahead_kb", "4096"),
    ("sys/block/sdz/queue/nomerges", "0"),
    ("sys/class/net/ens9/mtu", "9000"),
    ("sys/class/net/ens9/speed", "100000"),
    ("sys/class/net/ens9/operstate", "up"),
    ("sys/class/net/ens9/duplex", "full"),
    ("sys/class/net/ens9/tx_queue_len", "1000"),
    ("sys/class/net/ens9/device/numa_node", "-1"),
    ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never"),
    ("ropewalk/command/ethtool_-k_ens9", "Features for ens9:\ngeneric-receive-offload: on"),
];

/// Hosts of every kind, made wrong at random in one to five ways: what was made wrong is named and nothing else is; what can be
/// set is set; after the revert every file is what it was.
#[test]
fn what_was_made_wrong_at_random_is_named_set_and_taken_back() {
    let (mut below, mut score) = (seeded(20_261_125), Score::default());
    for round in 0..40 {
        let (root, _) = host(SOUND_HOSTS[round % SOUND_HOSTS.len()]);
        let root = root.path();
        let put = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        SOUND.iter().for_each(|(path, text)| put(path, text));
        let seen = |root: &Path| findings(host_facts(&Tree::below(root)));
        let at_first = named(&seen(root));
        let mut chosen: Vec<usize> = (0..=below(5)).map(|_| below(WRONG.len())).collect();
        chosen.sort_unstable();
        chosen.dedup();
        let chosen: Vec<_> = chosen.into_iter().map(|i| WRONG[i]).collect();
        chosen.iter().for_each(|(path, text, _)| put(path, text));
        let before = all_files(root);

        let now = seen(root);
        let mut found: BTreeSet<String> = named(&now).difference(&at_first).cloned().collect();
        if found.contains("nic-mtu-small net.ens9") {
            // The same fault, seen from the other ports of the machine.
            found.remove("nic-mtus-differ");
        }
        let made: BTreeSet<String> = chosen.iter().map(|(.., rule)| (*rule).to_owned()).collect();
        score.add(SOUND_HOSTS[round % SOUND_HOSTS.len()], &made, &found);

        let new = |f: &&Finding| made.contains(named(std::slice::from_ref(f)).first().unwrap());
        let to_set: Vec<&Finding> = now.iter().filter(new).filter(|f| f.change.is_some()).collect();
        let set = apply::apply(root, &to_set, None).unwrap();
        assert_eq!(set.len(), to_set.len());
        let left = named(&seen(root));
        assert!(
            named(&to_set.iter().map(|f| (*f).clone()).collect::<Vec<_>>()).is_disjoint(&left),
            "{left:?}"
        );
        score.taken_back += apply::revert(root, &[]).unwrap().len();
        // A file of choices shows the choice alone, once it was written.
        let plain = |files: Vec<(PathBuf, String)>| {
            let choice = |text: String| {
                let inner = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
                inner.map_or(text.clone(), |(inner, _)| inner.to_owned())
            };
            files.into_iter().map(|(path, text)| (path, choice(text))).collect::<Vec<_>>()
        };
        assert_eq!(plain(all_files(root)), plain(before));
    }
    score.judge();
}
