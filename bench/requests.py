#!/usr/bin/env python3
"""Requests of FUSE for a file: made (4 KiB, closed), looked at with cold names, removed, each by its whole path, by operation, on a mount that is
alone and on one that has another beside it. What a mount costs beside others is above all these requests. Needs root.

usage: bench/requests.py [options]
example: bench/requests.py --names ahead --workers 1,16
"""
import argparse
import multiprocessing
import os

import metadata
import reading
import systems

PHASES = [metadata.create, metadata.stat, metadata.unlink]


def by_workers(phase, paths, workers):
    jobs = [multiprocessing.Process(target=phase, args=(paths[i::workers], lambda: None)) for i in range(workers)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    if any(job.exitcode for job in jobs):
        raise RuntimeError(f"{phase.__name__} failed")


def count(system, mounts, workers, files):
    """Of the first mount, for a file, by phase; each mount has a directory of its own beside the other's."""
    system.only(mounts)
    mount = reading.Mount(system)
    mount.anew()
    small = f"small-{mounts}-{workers}"
    os.mkdir(os.path.join(system.mounts[0], small))
    for index in range(mounts):
        own = os.path.join(system.mounts[index], small, f"w{index}")
        os.mkdir(own)
        # So many that a directory's token comes, where it is asked for.
        metadata.create([os.path.join(own, f"before{i}") for i in range(16)], lambda: None)
    paths = [os.path.join(system.mounts[0], small, "w0", str(i)) for i in range(files)]
    for phase in PHASES:
        if phase is metadata.stat:
            metadata.drop_names()
        before, messages = mount.counts()
        by_workers(phase, paths, workers)
        after, messages_then = mount.counts()
        requests = {name: number / files for name, number in (after - before).most_common()}
        shown = ", ".join(f"{name} {number:.2f}" for name, number in requests.items() if number >= 0.005)
        messages = max(0, messages_then - messages - 4) / files
        print(f"{mounts:6}{workers:8} {phase.__name__:8}{sum(requests.values()):9.2f}{messages:9.2f}  {shown}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", default="/dev/shm/ropewalk-requests", help="an empty or new directory [%(default)s]")
    parser.add_argument("--files", type=int, default=800, help="[%(default)s]")
    parser.add_argument("--workers", default="1,16", help="[%(default)s]")
    parser.add_argument("--names", default="durable,ahead", help="[%(default)s]")
    args = parser.parse_args()
    os.makedirs(args.dir, exist_ok=True)
    if os.listdir(args.dir):
        parser.error(f"{args.dir} is not empty")
    try:
        for names in args.names.split(","):
            system = systems.Ropewalk(args.dir, 2, "1way", names)
            try:
                system.start()
                print(f"\n{system.name}\n{'mounts':>6}{'workers':>8} {'':8}{'requests':>9}{'messages':>9}  a file; requests by operation")
                for mounts in (1, 2):
                    for workers in map(int, args.workers.split(",")):
                        count(system, mounts, workers, args.files)
            finally:
                system.stop()
    finally:
        systems.remove(args.dir)


if __name__ == "__main__":
    main()
