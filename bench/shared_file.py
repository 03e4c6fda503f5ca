#!/usr/bin/env python3
"""One file written by several mounts at once, record by record in turns (process P of N writes records P, P+N, P+2N, ...: the
shape of IO500's hard case with records of 47,008 bytes), to the fsync of the last. The ceiling of the same run is the same work
by as many processes on one mount. `create` lets the file grow as it is written, `over` overwrites it. After each
round what was written is read back on each mount and compared.

One server on tmpfs; rounds alternate between the two, medians are printed, MB/s; then the shortest, the median, and the longest
wait of one write call with several mounts. Needs root (FUSE).

usage: bench/shared_file.py [options]
example: bench/shared_file.py --records 47008,1m --bytes 64m
example: bench/shared_file.py --mounts 4 --ways create --open RDWR
"""
import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from systems import run, script


def size(word):
    unit = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}.get(word[-1:].lower())
    return int(word[:-1]) * unit if unit else int(word)


def content(record, length):
    """Bytes of a record that no other one has."""
    return (record.to_bytes(8, "little") * (length // 8 + 1))[:length]


def write(path, flags, length, first, step, records, start, waits):
    file = os.open(path, flags | os.O_CREAT, 0o644)
    start.wait()
    took = []
    for record in range(first, records, step):
        data, begin = content(record, length), time.monotonic()
        while data:
            data = data[os.pwrite(file, data, record * length + length - len(data)):]
        took.append(time.monotonic() - begin)
    os.fsync(file)
    os.close(file)
    waits.put((max(took), statistics.median(took), min(took)))


def one_round(paths, flags, length, records):
    """Seconds, and the waits of write calls."""
    start, waits = multiprocessing.Barrier(len(paths) + 1), multiprocessing.Queue()
    workers = [multiprocessing.Process(target=write, args=(path, flags, length, first, len(paths), records, start, waits))
               for first, path in enumerate(paths)]
    for worker in workers:
        worker.start()
    start.wait()
    begin = time.monotonic()
    took = [waits.get(timeout=600) for _ in workers]
    for worker in workers:
        worker.join()
        if worker.exitcode:
            raise SystemExit("a writer failed")
    seconds = time.monotonic() - begin
    for path in sorted(set(paths)):
        with open(path, "rb") as file:
            for record in range(records):
                if file.read(length) != content(record, length):
                    raise SystemExit(f"{path}: record {record} is not what was written")
    return seconds, took


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="target/release/ropewalk", help="the program under test [%(default)s]")
    parser.add_argument("--dir", default="/dev/shm", help="where the cluster is made [%(default)s]")
    parser.add_argument("--code", default="1way")
    parser.add_argument("--mounts", type=int, default=2)
    parser.add_argument("--records", default="47008,1m", help="lengths of records [%(default)s]")
    parser.add_argument("--bytes", default="64m", help="length of the file, about [%(default)s]")
    parser.add_argument("--ways", default="create,over", help="[%(default)s]")
    parser.add_argument("--open", default="WRONLY", choices=["WRONLY", "RDWR"], help="[%(default)s]")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    flags = {"WRONLY": os.O_WRONLY, "RDWR": os.O_RDWR}[args.open]
    base = tempfile.mkdtemp(prefix="ropewalk-shared.", dir=args.dir)
    cluster = os.path.join(base, "c")
    mounts = [os.path.join(base, f"mnt{i}") for i in range(args.mounts)]
    values = []
    try:
        for mount in mounts:
            os.mkdir(mount)
        run(args.program, "up", "--dir", cluster, "--nodes", "1", "--pdisks", "1", "--pdisk-size", "2g", "--code", args.code, "--detach")
        for mount in mounts:
            run(args.program, "mount", "fs1", mount, "--dir", cluster)
        for way in args.ways.split(","):
            for word in args.records.split(","):
                length = size(word)
                records = max(size(args.bytes) // length, 2 * args.mounts)
                rates, took = {1: [], args.mounts: []}, []
                for turn in range(args.rounds):
                    for count in rates:
                        name = f"{way}-{word}-{count}" + (f"-{turn}" if way == "create" else "")
                        if way == "over" and turn == 0:
                            one_round([os.path.join(mounts[0], name)], flags, length, records)
                        paths = [os.path.join(mounts[i % count], name) for i in range(args.mounts)]
                        seconds, waits = one_round(paths, flags, length, records)
                        rates[count].append(records * length / seconds / 1e6)
                        took += waits if count > 1 else []
                        if way == "create":
                            os.unlink(paths[0])
                one, several = (statistics.median(rates[count]) for count in rates)
                value = {"way": way, "record": length, "one_mount": one, "mounts": args.mounts, "several_mounts": several, "ratio": several / one,
                         "wait_s": [min(w[2] for w in took), statistics.median(w[1] for w in took), max(w[0] for w in took)]}
                values.append(value)
                if not args.json:
                    waits = ", ".join(f"{w * 1e3:,.2f}" for w in value["wait_s"])
                    print(f"{way:<7} {length:>9,} bytes: one mount {one:>7,.0f} MB/s, {args.mounts} mounts {several:>7,.1f} MB/s: {several / one:.2f} of it;"
                          f" waits {waits} ms", flush=True)
        if args.json:
            json.dump(values, sys.stdout, indent=1)
            print()
    finally:
        subprocess.run([args.program, "down", "--dir", cluster, "--force"], capture_output=True, timeout=120)
        if not any(os.path.ismount(mount) for mount in mounts):
            shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    script(main)
