#!/usr/bin/env python3
"""What reading a tree asks for: `ls -l`, `find`, `du`, a storm of stat, `git status`, and files held open; FUSE requests an entry by
operation, messages to the manager an entry, and the time, beside a local directory. On one mount alone, and beside a second one that
keeps still. Cold: the mount is made anew, so that neither kernel nor client knows anything; warm: the same once more. Counts depend
little on how busy the machine is; seconds do. Needs root.

usage: bench/reading.py [options]
example: bench/reading.py --entries 20000 --rows ls,find --mounts 1
"""
import argparse
import collections
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import systems

PER_DIRECTORY = 100


def tool(*command):
    def row(directory):
        subprocess.run(command, cwd=directory, check=True, stdout=subprocess.DEVNULL)

    return row


def storm(directory):
    """By name, as programs do that know their files from an index."""
    for entry in entries_of(directory):
        os.stat(os.path.join(directory, entry))


def held(directory):
    files = [os.open(os.path.join(directory, entry), os.O_RDONLY) for entry in entries_of(directory)]
    for file in files:
        os.close(file)


def made(directory):
    """Files made in a new directory and held open, then closed and removed."""
    new = os.path.join(directory, "new")
    os.mkdir(new)
    paths = [f"{new}/held{i}" for i in range(len(entries_of(directory)))]
    files = [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) for path in paths]
    for file in files:
        os.close(file)
    for path in paths:
        os.unlink(path)
    os.rmdir(new)


NAMES = {}


def entries_of(directory):
    """Of the tree that was made; nothing is read for it."""
    return NAMES[os.path.basename(directory)]


# What it is called: where it works, and what it does there.
ROWS = {
    "ls": ("flat", tool("ls", "-l")),
    "names": ("flat", tool("ls", "-f")),
    "find": ("flat", tool("find", ".", "-type", "f")),
    "stat": ("flat", storm),
    "held": ("flat", held),
    "made": ("flat", made),
    "ls-R": ("deep", tool("ls", "-lR")),
    "find-deep": ("deep", tool("find", ".", "-type", "f")),
    "du": ("deep", tool("du", "-s")),
    "git": ("deep", tool("git", "status", "--short")),
}


def make(base, entries):
    """`flat`: one directory; `deep`: a tree with an index of git."""
    for shape in ("flat", "deep"):
        names = []
        for i in range(entries):
            name = f"f{i}" if shape == "flat" else f"d{i // PER_DIRECTORY // 20}/e{i // PER_DIRECTORY}/f{i}"
            path = os.path.join(base, shape, name)
            if i % PER_DIRECTORY == 0:
                os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as file:
                file.write(str(i))
            names.append(name)
        NAMES[shape] = names
    git = os.path.join(base, "deep")
    subprocess.run("git init -q . && git add -A", shell=True, cwd=git, check=True, capture_output=True)
    # So that `git status` need not read what was written in the second of its index.
    time.sleep(1.1)
    subprocess.run("git update-index -q --refresh", shell=True, cwd=git, check=True)
    os.sync()


class Mount:
    """The first mount of a cluster, made anew for each cold row, with its counters."""

    def __init__(self, system):
        self.system, self.path = system, system.mounts[0]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.metrics = "%s:%d" % free.getsockname()

    def anew(self):
        if os.path.ismount(self.path):
            systems.run(self.system.binary, "umount", self.path)
        self.system.ropewalk("mount", *self.system.options, "--metrics", self.metrics, "fs1", self.path)

    def counts(self):
        """FUSE requests by operation, messages to the manager; the counters are brought up to date each second."""
        time.sleep(1.2)
        with urllib.request.urlopen(f"http://{self.metrics}/metrics") as answer:
            text = answer.read().decode()
        counts = collections.Counter()
        for labels, value in re.findall(r"^ropewalk_file_op_seconds_count\{(.*)\} (\d+)", text, re.M):
            counts[re.search(r'op="(\w+)"', labels).group(1)] += int(value)
        return counts, self.system.costs()[0]


def timed(row, directory):
    began = time.monotonic()
    row(directory)
    return time.monotonic() - began


def measure(args, system, count, local):
    mount = Mount(system)
    print(f"\n{count} mount{'s' * (count > 1)}, {args.entries} entries in each tree\n")
    print(f"{'':17}{'s':>9}{'local':>9}{'messages':>10}{'requests':>10}  an entry; by operation")
    for name in args.rows:
        shape, row = ROWS[name]
        systems.run("sh", "-c", "sync; echo 3 >/proc/sys/vm/drop_caches")
        beside = [timed(row, os.path.join(local, shape)) for _ in ("cold", "warm")]
        mount.anew()
        for at, kind in enumerate(("cold", "warm")):
            requests, messages = mount.counts()
            took = timed(row, os.path.join(mount.path, shape))
            requests_then, messages_then = mount.counts()
            requests = requests_then - requests
            total = sum(requests.values())
            # Counting asks for what it counts, and a mount renews its lease.
            messages = max(0, messages_then - messages - 4)
            by = ", ".join(f"{op} {n / args.entries:.3f}" for op, n in requests.most_common(4))
            print(f"{name + ', ' + kind:17}{took:9.2f}{beside[at]:9.2f}{messages / args.entries:10.3f}{total / args.entries:10.3f}  {by}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", default="/var/tmp/ropewalk-reading", help="an empty or new directory [%(default)s]")
    parser.add_argument("--entries", type=int, default=20000, help="files in each of two trees [%(default)s]")
    parser.add_argument("--mounts", type=lambda text: [int(n) for n in text.split(",")], default=[1, 2], help="alone, beside another [1,2]")
    parser.add_argument("--rows", type=lambda text: text.split(","), default=list(ROWS), help=f"[{','.join(ROWS)}]")
    args = parser.parse_args()
    if unknown := [row for row in args.rows if row not in ROWS]:
        parser.error(f"no row is called {unknown[0]}: {', '.join(ROWS)}")
    os.makedirs(args.dir, exist_ok=True)
    if os.listdir(args.dir):
        parser.error(f"{args.dir} is not empty")
    if systems.Ropewalk.missing:
        parser.error(systems.Ropewalk.missing)
    # Ended by a signal: what was started is stopped all the same.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    resource.setrlimit(resource.RLIMIT_NOFILE, (args.entries + 100, max(args.entries + 100, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
    system, local = systems.Ropewalk(args.dir, max(args.mounts)), systems.Local(args.dir, 1)
    try:
        local.start()
        make(local.mounts[0], args.entries)
        system.start()
        system.only(1)
        make(system.mounts[0], args.entries)
        for count in args.mounts:
            system.only(count)
            measure(args, system, count, local.mounts[0])
    finally:
        system.stop()
        local.stop()


if __name__ == "__main__":
    main()
