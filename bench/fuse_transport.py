#!/usr/bin/env python3
"""FUSE by /dev/fuse (classic) against FUSE over io_uring (uring) on this machine: the same loads on a mount of each kind, in turns, medians:
for whoever chooses `mount --fuse-transport`.

One server, `1way`, on tmpfs; one file of 512 MiB. Each round mounts anew, so that caches are empty, with the two kinds in the other
order each time. Beside the rate stands the CPU of the whole machine for one operation (of the sequential rows: for one MiB).

usage: bench/fuse_transport.py [options]
example: bench/fuse_transport.py --rows read-4k-16,read-seq --rounds 7
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

from systems import cpu_seconds, run, script

# Name: arguments of `perf`; FILE and SCALEn (a number of records) are put in.
ROWS = {
    "read-4k-16": "read rand FILE -r 4k -n SCALE20000R -th 16 -dio",
    "read-4k-1": "read rand FILE -r 4k -n SCALE3000R -th 1 -dio",
    "write-4k-16": "write rand FILE -r 4k -n SCALE20000R -th 16 -dio",
    "sync-4k-16": "write rand FILE -r 4k -n SCALE6000R -th 16 -osync",
    "sync-4k-1": "write rand FILE -r 4k -n SCALE1500R -th 1 -osync",
    "read-seq": "read seq FILE -r 1m -n SCALE512R -th 1",
    "read-seq-4": "read seq FILE -r 1m -n SCALE512R -th 4",
    "write-seq": "write seq FILE -r 1m -n SCALE512R -th 1 -fsync",
    "write-seq-4": "write seq FILE -r 1m -n SCALE512R -th 4 -fsync",
}
KINDS = ("classic", "uring")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="target/release/ropewalk", help="the program under test [%(default)s]")
    parser.add_argument("--dir", default="/dev/shm", help="where the cluster is made [%(default)s]")
    parser.add_argument("--rows", default=",".join(ROWS), help="[%(default)s]")
    parser.add_argument("--transport", default="auto", help="what connections to the server go by [%(default)s]")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of operations [%(default)s]")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = args.rows.split(",")
    unknown = [row for row in rows if row not in ROWS]
    if unknown:
        parser.error(f"no row {unknown[0]}: there are {', '.join(ROWS)}")
    base = tempfile.mkdtemp(prefix="ropewalk-fuse.", dir=args.dir)
    cluster, mount = os.path.join(base, "c"), os.path.join(base, "mnt")
    found = {(row, kind): [] for row in rows for kind in KINDS}
    try:
        os.mkdir(mount)
        run(args.program, "up", "--dir", cluster, "--nodes", "1", "--pdisks", "1", "--pdisk-size", "2g", "--code", "1way", "--detach")
        run(args.program, "config", "set", f"transport={args.transport}", "--dir", cluster)
        direct = ["--direct-client", "--dir", cluster]
        run(args.program, "perf", "create", "seq", "/f", "-r", "4m", "-n", "512m", "-fsync", *direct)
        for turn in range(args.rounds):
            for kind in KINDS if turn % 2 == 0 else reversed(KINDS):
                run(args.program, "mount", "fs1", mount, "--fuse-transport", kind, "--dir", cluster)
                for row in rows:
                    words = [os.path.join(mount, "f") if word == "FILE" else word for word in ROWS[row].split()]
                    words = [f"{max(int(int(word[5:-1]) * args.scale), 16)}R" if word.startswith("SCALE") else word for word in words]
                    before, _ = cpu_seconds()
                    report = json.loads(run(args.program, "perf", *words, "--json", "--dir", cluster, timeout=600))["runs"][0]
                    found[row, kind].append((report["operations_per_second"], (cpu_seconds()[0] - before) / report["operations"] * 1e6))
                run(args.program, "umount", mount)
        values = []
        for row in rows:
            (classic, classic_us), (uring, uring_us) = ([statistics.median(column) for column in zip(*found[row, kind])] for kind in KINDS)
            values.append({"row": row, "classic": classic, "uring": uring, "uring_of_classic": uring / classic,
                           "classic_cpu_us": classic_us, "uring_cpu_us": uring_us})
        mean = statistics.geometric_mean(value["uring_of_classic"] for value in values)
        if args.json:
            json.dump({"rows": values, "uring_of_classic": mean, "cpus": os.cpu_count()}, sys.stdout, indent=1)
            print()
            return
        print(f"{'row':<14}{'classic/s':>12}{'uring/s':>12}{'uring of classic':>18}{'CPU us':>10}{'CPU us':>10}")
        for value in values:
            print(f"{value['row']:<14}{value['classic']:>12,.0f}{value['uring']:>12,.0f}{value['uring_of_classic']:>18.2f}"
                  f"{value['classic_cpu_us']:>10.0f}{value['uring_cpu_us']:>10.0f}")
        print(f"{'all':<14}{'':>24}{mean:>18.2f}   (geometric mean; {os.cpu_count()} CPUs)")
    finally:
        subprocess.run([args.program, "down", "--dir", cluster, "--force"], capture_output=True, timeout=120)
        if not os.path.ismount(mount):
            shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    script(main)
