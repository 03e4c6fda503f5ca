#!/usr/bin/env python3
"""One very large directory on Ropewalk: making it, listing it (names; names with attributes), the manager's memory and store,
the time from killing the manager to the next operation, and `ropewalk manager dump` and `restore` of it, beside a copy of
the dump as the raw ceiling. Nothing is removed one by one: the cluster goes as a whole. Needs root.

usage: bench/million.py [--entries N] [--dir DIR] [--names ahead|durable]
example: bench/million.py --entries 100000
"""
import argparse
import os
import signal
import subprocess
import sys
import time

import metadata
import systems


def show(row, value):
    print(f"{row:52}{metadata.figure(value)}", flush=True)


def listed(directory, *options):
    """Seconds of `ls`, and lines."""
    metadata.drop_names()
    began = time.monotonic()
    lines = subprocess.run(["ls", *options, directory], check=True, stdout=subprocess.PIPE).stdout.count(b"\n")
    return time.monotonic() - began, lines


def measure(system, entries):
    mount, cluster = system.mounts[0], os.path.join(system.base, "c")
    directory = os.path.join(mount, "large")
    os.mkdir(directory)
    before = systems.resident(system.servers())
    show(f"made, {metadata.FILLERS} workers, 1/s", metadata.fill_all(directory, entries))
    show("manager's memory, MB", systems.resident(system.servers()) / 1e6)
    show("of it since the directory was empty", (systems.resident(system.servers()) - before) / 1e6)
    store = os.path.join(cluster, "manager")
    show("its store, MB", os.path.getsize(os.path.join(store, "store.redb")) / 1e6)
    for options, extra in (("-f", 2), ("-l", 1)):
        took, lines = listed(directory, options)
        assert lines == entries + extra, f"{lines} lines"
        show(f"ls {options}, s", took)
    metadata.drop_names()
    began = time.monotonic()
    files = subprocess.run("find . -type f | wc -l", shell=True, cwd=directory, check=True, stdout=subprocess.PIPE).stdout
    assert int(files) == entries, files
    show("find . -type f | wc -l, s", time.monotonic() - began)
    show("manager's memory then, MB", systems.resident(system.servers()) / 1e6)
    for row, value in metadata.first_operation(system).items():
        show(row, value)
    for path in system.mounts:
        systems.run(system.binary, "umount", path)
    system.ropewalk("down")
    dump, copy, again = (os.path.join(system.base, name) for name in ("dump", "copy", "again"))
    show("dump, s", metadata.seconds(system.binary, "manager", "dump", "--dir", cluster, dump))
    show("its size, MB", os.path.getsize(dump) / 1e6)
    show("copy of it with sync, s", metadata.seconds("dd", f"if={dump}", f"of={copy}", "bs=1M", "conv=fsync", "status=none"))
    os.rename(store, store + ".old")
    show("restore, s", metadata.seconds(system.binary, "manager", "restore", "--dir", cluster, dump))
    show("the store then, MB", os.path.getsize(os.path.join(store, "store.redb")) / 1e6)
    show("dump again, s", metadata.seconds(system.binary, "manager", "dump", "--dir", cluster, again))
    system.up()
    system.ropewalk("mount", "fs1", mount)
    took, lines = listed(directory, "-f")
    assert lines == entries + 2, f"{lines} lines after the restore"
    show("ls -f after the restore, s", took)
    systems.run(system.binary, "umount", mount)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", default="/var/tmp/ropewalk-million", help="an empty or new directory [%(default)s]")
    parser.add_argument("--entries", type=int, default=1_000_000, help="[%(default)s]")
    parser.add_argument("--names", choices=["ahead", "durable"], default="ahead", help="how the mount makes them [%(default)s]")
    args = parser.parse_args()
    os.makedirs(args.dir, exist_ok=True)
    if os.listdir(args.dir):
        parser.error(f"{args.dir} is not empty")
    if systems.Ropewalk.missing:
        parser.error(systems.Ropewalk.missing)
    # Ended by a signal: what was started is stopped all the same.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    system = systems.Ropewalk(args.dir, 1, names=args.names)
    try:
        system.start()
        measure(system, args.entries)
    finally:
        system.stop()


main()
