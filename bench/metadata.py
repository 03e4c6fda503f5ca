#!/usr/bin/env python3
"""create, stat, readdir and unlink of small files: on one mount, on several, and on a local directory as the
raw ceiling of the same run. Each worker is a process with a directory of its own; --shared puts all of them into one.

usage: bench/metadata.py [--files N] [--workers 1,4,16] [--shared] [--json] --local DIR MOUNT...
example: bench/metadata.py --local /var/tmp /mnt/rope /mnt/rope2
"""
import argparse
import json
import multiprocessing
import os
import shutil
import time

CONTENT = bytes(range(256)) * 16


def create(paths):
    for path in paths:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        os.write(file, CONTENT)
        os.close(file)


def stat(paths):
    for path in paths:
        assert os.stat(path).st_size == len(CONTENT)


def readdir(paths):
    names = {entry.name for entry in os.scandir(os.path.dirname(paths[0]))}
    assert all(os.path.basename(path) in names for path in paths)


def unlink(paths):
    for path in paths:
        os.unlink(path)


PHASES = [create, stat, readdir, unlink]


def work(paths, barrier, times):
    for phase in PHASES:
        barrier.wait()
        began = time.monotonic()
        phase(paths)
        times.put((phase.__name__, began, time.monotonic()))
        barrier.wait()


def measure(directories, workers, files, shared):
    """Files per second of each phase; worker i uses directory i mod n (all lead to the same file system)."""
    name = f"metadata-{os.getpid()}"
    base = os.path.join(directories[0], name)
    os.mkdir(base)
    try:
        jobs, barrier, times = [], multiprocessing.Barrier(workers), multiprocessing.Queue()
        for worker in range(workers):
            own = "all" if shared else f"w{worker}"
            os.makedirs(os.path.join(base, own), exist_ok=True)
            directory = os.path.join(directories[worker % len(directories)], name, own)
            paths = [os.path.join(directory, f"{worker}-{i}") for i in range(files // workers)]
            jobs.append(multiprocessing.Process(target=work, args=(paths, barrier, times)))
        for job in jobs:
            job.start()
        spans = {}
        for _ in range(workers * len(PHASES)):
            phase, began, ended = times.get(timeout=600)
            first, last = spans.get(phase, (began, ended))
            spans[phase] = (min(first, began), max(last, ended))
        for job in jobs:
            job.join()
        return {phase: files / (last - first) for phase, (first, last) in spans.items()}
    finally:
        shutil.rmtree(base, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mounts", nargs="+", metavar="MOUNT", help="mount points of one file system")
    parser.add_argument("--local", required=True, help="a local directory, for the raw ceiling")
    parser.add_argument("--files", type=int, default=2000, help="files of each run [2000]")
    parser.add_argument("--workers", default="1,4,16", help="processes [1,4,16]")
    parser.add_argument("--shared", action="store_true", help="all workers in one directory")
    parser.add_argument("--json", action="store_true", help="for scripts")
    args = parser.parse_args()
    places = [("local", [args.local])]
    places += [(f"{n} mount{'s' * (n > 1)}", args.mounts[:n]) for n in range(1, len(args.mounts) + 1)]
    rows = []
    for workers in map(int, args.workers.split(",")):
        for place, directories in places:
            files = args.files // workers * workers
            rates = measure(directories, workers, files, args.shared)
            rows.append({"place": place, "workers": workers, "files": files, **rates})
            if not args.json:
                shown = "  ".join(f"{phase} {rate:9.0f}" for phase, rate in rates.items())
                print(f"{place:10} {workers:3} workers  {files} files of 4 KiB, files/s: {shown}", flush=True)
    if args.json:
        print(json.dumps(rows, indent=1))


main()
