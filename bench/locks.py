#!/usr/bin/env python3
"""Microseconds to lock and unlock a file, fcntl and flock: by one process, and by two that contend for it (on two
mounts, where two are given). The raw ceiling of the same run are the kernel's own locks in a local directory; beside it one
message to the manager and back (a statvfs). Rounds alternate; medians are printed.

usage: bench/locks.py [--times N] --local DIR MOUNT [MOUNT]
example: bench/locks.py --local /var/tmp /mnt/rope /mnt/rope2
"""
import argparse
import fcntl
import multiprocessing
import os
import statistics
import time

ROUNDS = 5
NAME = f"locks-{os.getpid()}"


def both(kind, file):
    if kind == "fcntl":
        fcntl.lockf(file, fcntl.LOCK_EX, 1)
        fcntl.lockf(file, fcntl.LOCK_UN, 1)
    else:
        fcntl.flock(file, fcntl.LOCK_EX)
        fcntl.flock(file, fcntl.LOCK_UN)


def loop(kind, path, times, start):
    with open(path, "r+b") as file:
        start.wait()
        for _ in range(times):
            both(kind, file)


def micros(kind, paths, times):
    """Of one lock and unlock, by a process for each path."""
    start = multiprocessing.Barrier(len(paths) + 1)
    workers = [multiprocessing.Process(target=loop, args=(kind, path, times, start)) for path in paths]
    for worker in workers:
        worker.start()
    start.wait()
    begin = time.perf_counter()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    return (time.perf_counter() - begin) / (times * len(paths)) * 1e6


def message(mount, times):
    begin = time.perf_counter()
    for _ in range(times):
        os.statvfs(mount)
    return (time.perf_counter() - begin) / times * 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=2000)
    parser.add_argument("--local", required=True)
    parser.add_argument("mounts", nargs="+")
    args = parser.parse_args()
    places = {"local": [args.local] * 2, "mount": [args.mounts[0], args.mounts[-1]]}
    for directory in (args.local, args.mounts[0]):
        open(os.path.join(directory, NAME), "wb").close()
    found = {}
    for _ in range(ROUNDS):
        found.setdefault("message", []).append(message(args.mounts[0], args.times))
        for kind in ("fcntl", "flock"):
            for place, directories in places.items():
                paths = [os.path.join(directory, NAME) for directory in directories]
                for workers in (1, 2):
                    key = (kind, workers, place)
                    found.setdefault(key, []).append(micros(kind, paths[:workers], args.times))
    for directory in (args.local, args.mounts[0]):
        os.unlink(os.path.join(directory, NAME))
    median = {key: statistics.median(values) for key, values in found.items()}
    print(f"one message to the manager and back: {median['message']:.1f} us")
    for kind in ("fcntl", "flock"):
        for workers in (1, 2):
            here, local = median[kind, workers, "mount"], median[kind, workers, "local"]
            print(
                f"{kind}, {workers} process(es): {here:.1f} us for lock and unlock, the kernel's {local:.1f} us, "
                f"{here / local:.0f} times; {here / median['message']:.1f} messages"
            )


if __name__ == "__main__":
    main()
