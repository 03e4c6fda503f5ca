#!/usr/bin/env python3
"""Names and small files: Ropewalk, GlusterFS, MooseFS, a local directory (the raw ceiling) and a pass-through mount over memory (the
ceiling of FUSE) in one run, on this machine; with `--rounds N` all in turn, N times, and medians.

create, stat, readdir, unlink of 4 KiB files (Ropewalk twice: with `--names durable`, and as mounts are by default), each worker a process with a directory that
its mount has made, on one mount and on two; empty files made and removed, and many held open, by one process; a source tree unpacked, copied, cloned,
copied by rsync twice, looked through and removed, a tree like npm's, of many small directories; `ls -l` and `find` of large directories; what a million
inodes cost the server in memory; the time from killing the manager (GlusterFS: the bricks) to the first operation. Before stat, readdir,
`git status`, `find` and `ls -l` the kernel's names and attributes are dropped. Beside the local directory stands the same with each name made
durable, as Ropewalk's are when a call returns. Needs root.

usage: bench/metadata.py [options]
example: bench/metadata.py --files 4000 --tree 20000 --entries 100000,1000000
"""
import argparse
import json
import multiprocessing
import os
import shutil
import resource
import signal
import statistics
import subprocess
import sys
import tarfile
import time

import systems

CONTENT = bytes(range(256)) * 16
WAIT = 1800


def content():
    """What a file gets; bench/managers.sh puts another one in the place of this."""
    return CONTENT


def create(paths, sync):
    for path in paths:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        os.write(file, content())
        os.close(file)
        sync()


def stat(paths, _):
    for path in paths:
        assert os.stat(path).st_size == len(CONTENT)


def readdir(paths, _):
    names = {entry.name for entry in os.scandir(os.path.dirname(paths[0]))}
    assert all(os.path.basename(path) in names for path in paths)


def unlink(paths, sync):
    for path in paths:
        os.unlink(path)
        sync()


PHASES = [create, stat, readdir, unlink]


def drop_names():
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as drop:
        drop.write("2")


def work(paths, synced, barrier, times):
    directory = None

    def sync():
        if synced:
            os.fsync(directory)

    for phase in PHASES:
        barrier.wait(WAIT)
        try:
            directory = directory or os.open(os.path.dirname(paths[0]), os.O_RDONLY)
            began = time.monotonic()
            phase(paths, sync)
        except Exception as error:
            times.put(error)
            barrier.abort()
            return
        times.put((began, time.monotonic()))
        barrier.wait(WAIT)


def span(times):
    got = times.get(timeout=WAIT)
    if isinstance(got, Exception):
        raise got
    return got


def small_files(mounts, workers, files, synced):
    """Files per second of each phase; worker i uses mount i mod n."""
    # A name of its own: another mount of GlusterFS answers ESTALE for a while where a directory was removed and made again.
    small = f"small-{workers}-{len(mounts)}"
    base = os.path.join(mounts[0], small)
    os.mkdir(base)
    jobs, barrier, times = [], multiprocessing.Barrier(workers + 1), multiprocessing.Queue()
    for worker in range(workers):
        directory = os.path.join(mounts[worker % len(mounts)], small, f"w{worker}")
        os.mkdir(directory)
        paths = [os.path.join(directory, str(i)) for i in range(files // workers)]
        jobs.append(multiprocessing.Process(target=work, args=(paths, synced, barrier, times), daemon=True))
    for job in jobs:
        job.start()
    rates = {}
    try:
        for phase in PHASES:
            if phase in (stat, readdir):
                drop_names()
            barrier.wait(WAIT)
            spans = [span(times) for _ in jobs]
            barrier.wait(WAIT)
            took = max(end for _, end in spans) - min(begun for begun, _ in spans)
            rates[phase.__name__] = files // workers * workers / took
    finally:
        for job in jobs:
            job.join(10)
            job.terminate()
    shutil.rmtree(base)
    return rates


def seconds(*command, cwd=None):
    began = time.monotonic()
    subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def make_tree(base, files):
    """A tar file of a tree as sources are, with a git index in it."""
    tree = os.path.join(base, "tree")
    for i in range(files):
        directory = os.path.join(tree, f"part{i // 400}", f"module{i // 20}")
        os.makedirs(directory, exist_ok=True)
        with open(os.path.join(directory, f"source{i}.c"), "w") as source:
            # Half of them below 4 KiB, the largest some 40 KiB.
            source.write(f"/* {i} */\n" * (30 << i * 7919 % 100 // 12))
    subprocess.run("git init -q . && git add -A", shell=True, cwd=tree, check=True, capture_output=True)
    with tarfile.open(os.path.join(base, "tree.tar"), "w") as tar:
        tar.add(tree, "tree")
    shutil.rmtree(tree)
    return os.path.join(base, "tree.tar")


def all_durable(system, directory):
    """Everything below is on disk when this returns, by what the file system has for that; else each is synced by itself."""
    if sync := getattr(system, "sync", None):
        subprocess.run([*sync, directory], check=True)
        return
    for where, _, names in os.walk(directory):
        for name in [".", *names]:
            path = os.open(os.path.join(where, name), os.O_RDONLY)
            os.fsync(path)
            os.close(path)


def copied(system):
    """`cp -a` of the tree that was unpacked, all of it durable at its end."""
    copy = os.path.join(system.mounts[0], "copy")
    began = time.monotonic()
    subprocess.run(["cp", "-a", os.path.join(system.mounts[0], "tree"), copy], check=True)
    all_durable(system, copy)
    took = time.monotonic() - began
    shutil.rmtree(copy)
    return took


def by_one(mount, files):
    """Empty files made, removed; and held open, all at once: by one process."""
    directory = os.path.join(mount, "by-one")
    os.mkdir(directory)
    paths = [os.path.join(directory, str(i)) for i in range(files)]
    began = time.monotonic()
    for path in paths:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    made = time.monotonic()
    for path in paths:
        os.unlink(path)
    removed = time.monotonic()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files + 1000, max(files + 1000, limits[1])))
    opened = [os.open(path, os.O_RDWR | os.O_CREAT) for path in paths]
    for file in opened:
        os.close(file)
    held = time.monotonic() - removed
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    shutil.rmtree(directory)
    return {
        "empty files made by one process, 1/s": files / (made - began),
        "empty files removed by one process, 1/s": files / (removed - made),
        f"{files} files made and held open, s": held,
    }


def like_npm(mount, files):
    """A tree as npm makes it: a package has some directories and five small files in each."""
    began = time.monotonic()
    for i in range(0, files, 5):
        directory = os.path.join(mount, "node_modules", f"package{i // 40}", *["lib", "src", "dist", "test"][: i // 5 % 4 + 1], f"part{i // 5 % 2}")
        os.makedirs(directory, exist_ok=True)
        for n in range(5):
            with open(os.path.join(directory, f"index{i + n}.js"), "wb") as file:
                file.write(CONTENT[: 300 + 700 * n])
    took = time.monotonic() - began
    return {f"npm-like tree of {files} files, s": took, "rm -r of it, s": seconds("rm", "-r", os.path.join(mount, "node_modules"))}


def cost_of_create(system, files):
    """What a new file of 4 KiB costs, told to the end: messages, and the manager's CPU."""
    directory = os.path.join(system.mounts[0], "costs")
    os.mkdir(directory)
    before = system.costs()
    create([os.path.join(directory, str(i)) for i in range(files)], lambda: None)
    opened = os.open(directory, os.O_RDONLY)
    os.fsync(opened)
    os.close(opened)
    time.sleep(2)  # content and times are told by age
    messages, cpu = (after - first for first, after in zip(before, system.costs()))
    shutil.rmtree(directory)
    return {"messages to the manager, a create": messages / files, "manager's CPU, us a create": cpu / files * 1e6}


def tree(system, tar, files):
    mount = system.mounts[0]
    where, other = os.path.join(mount, "tree"), os.path.join(mount, "other")
    rows = {f"unpack {files} files, s": seconds("tar", "xf", tar, "-C", mount)}
    rows["cp -a, all durable at its end, s"] = copied(system)
    drop_names()
    subprocess.run(["git", "update-index", "-q", "--refresh"], cwd=where, check=True)
    drop_names()
    rows["git status, s"] = seconds("git", "status", "--porcelain", cwd=where)
    author = ["-c", "user.name=bench", "-c", "user.email=bench@localhost"]
    subprocess.run(["git", *author, "commit", "-qm", "all"], cwd=where, check=True)
    rows["git clone of it, s"] = seconds("git", "clone", "-q", "--no-local", where, other)
    shutil.rmtree(other)
    for row in ["rsync -a of it, s", "rsync -a once more, s"]:
        drop_names()
        rows[row] = seconds("rsync", "-a", where + "/", other)
    drop_names()
    rows["find . -type f, s"] = seconds("find", where, "-type", "f")
    rows["rm -r of tree and copy, s"] = seconds("rm", "-r", where, other)
    return rows | like_npm(mount, files)


def fill(directory, first, last):
    for i in range(first, last):
        os.close(os.open(os.path.join(directory, f"entry-{i:07}"), os.O_WRONLY | os.O_CREAT | os.O_EXCL))


FILLERS = 16


def fill_all(directory, entries):
    """Makes empty files in one directory; how many a second."""
    step = -(-entries // FILLERS)
    began = time.monotonic()
    fillers = [multiprocessing.Process(target=fill, args=(directory, i, min(i + step, entries))) for i in range(0, entries, step)]
    try:
        for filler in fillers:
            filler.start()
        for filler in fillers:
            filler.join()
    finally:
        for filler in filter(multiprocessing.Process.is_alive, fillers):
            filler.kill()
            filler.join()
    if any(filler.exitcode for filler in fillers):
        raise RuntimeError("not all entries were made")
    return entries / (time.monotonic() - began)


def large_directory(system, entries):
    directory = os.path.join(system.mounts[0], "large")
    os.mkdir(directory)
    memory = systems.resident(system.servers())
    made = fill_all(directory, entries)
    memory = systems.resident(system.servers()) - memory
    drop_names()
    result = {f"make {entries} entries, {FILLERS} workers, 1/s": made, f"ls -l of {entries}, s": seconds("ls", "-l", directory)}
    drop_names()
    result[f"find -type f of {entries}, s"] = seconds("find", directory, "-type", "f")
    if system.servers():
        result[f"server memory, MB a million inodes (of {entries})"] = max(0, memory) / entries
    shutil.rmtree(directory)
    return result


def made(path):
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT))
        return True
    except OSError:
        return False


def first_operation(system):
    path = os.path.join(system.mounts[0], "first")
    began = time.monotonic()
    system.restart()
    systems.wait_for("the first operation", lambda: made(path), 120)
    took = time.monotonic() - began
    os.unlink(path)
    return {"kill of the server to the next create, s": took}


class Rows(dict):
    """Figures, each shown on standard error as it comes: a run takes long, and may end half way."""

    def __init__(self, name):
        self.name = name

    def add(self, rows):
        for row, value in rows.items():
            self[row] = value
            print(f"{self.name}: {row}{figure(value)}", file=sys.stderr, flush=True)


def measure(system, args, tar):
    rows, synced = Rows(system.name), getattr(system, "sync_names", False)
    for count in range(1, args.mounts + 1):
        if hasattr(system, "only"):
            system.only(count)
        for workers in map(int, args.workers.split(",")):
            rates = small_files(system.mounts[:count], workers, args.files, synced)
            where = f"{workers} workers, {count} mount{'s' * (count > 1)}, 1/s"
            rows.add({f"{phase}, {where}": rate for phase, rate in rates.items()})
    if synced:
        return rows
    if hasattr(system, "only"):
        system.only(1)
    rows.add(by_one(system.mounts[0], args.open))
    rows.add(tree(system, tar, args.tree))
    if hasattr(system, "costs"):
        rows.add(cost_of_create(system, args.files))
    for entries in filter(None, args.entries.split(",")):
        rows.add(large_directory(system, int(entries)))
    if hasattr(system, "restart"):
        rows.add(first_operation(system))
    return rows


def figure(value):
    return f"{'-':>20}" if value is None else f"{value:20.{0 if value >= 100 else 3}f}"


def show(results):
    names = list(results)
    print(f"{'':48}" + "".join(f"{name:>20}" for name in names))
    for row in max(results.values(), key=len):
        print(f"{row:48}" + "".join(figure(results[name].get(row)) for name in names))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", default="/var/tmp/ropewalk-metadata", help="an empty or new directory [%(default)s]")
    parser.add_argument("--files", type=int, default=4000, help="files of each run [%(default)s]")
    parser.add_argument("--workers", default="1,4,16", help="[%(default)s]")
    parser.add_argument("--mounts", type=int, default=2, help="on 1 to so many mounts [%(default)s]")
    parser.add_argument("--open", type=int, default=20000, help="empty files made, removed and held open by one process [%(default)s]")
    parser.add_argument("--rounds", type=int, default=1, help="each system so often, in turn; medians are shown [%(default)s]")
    parser.add_argument("--tree", type=int, default=20000, help="files of the source tree [%(default)s]")
    parser.add_argument("--entries", default="100000,1000000", help="of large directories [%(default)s]")
    parser.add_argument("--peers", default="disperse", help="of disperse, plain, replica (GlusterFS), moosefs; '' for none [%(default)s]")
    parser.add_argument("--code", default="4+2p", help="of Ropewalk's pool [%(default)s]")
    parser.add_argument("--json", help="a file for the figures")
    args = parser.parse_args()
    os.makedirs(args.dir, exist_ok=True)
    if os.listdir(args.dir):
        parser.error(f"{args.dir} is not empty")
    wanted = [(systems.Local, []), (systems.LocalSynced, []), (systems.PassThrough, [])]
    wanted += [(systems.Ropewalk, [args.code, "durable"]), (systems.Ropewalk, [args.code])]
    for peer in filter(None, args.peers.split(",")):
        wanted.append((systems.Moose, []) if peer == "moosefs" else (systems.Gluster, [peer]))
    for kind in {kind for kind, _ in wanted if kind.missing}:
        print(f"left out {kind.__name__}: {kind.missing}")
    wanted = [(kind, options) for kind, options in wanted if not kind.missing]
    rounds, durability = {}, {}
    # Ended by a signal: what was started is stopped all the same.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        tar = make_tree(args.dir, args.tree)
        for _ in range(args.rounds):
            for kind, options in wanted:
                system = kind(args.dir, args.mounts, *options)
                try:
                    system.start()
                    durability[system.name] = system.durability
                    rounds.setdefault(system.name, []).append(measure(system, args, tar))
                finally:
                    system.stop()
    finally:
        systems.remove(args.dir)
    results = {name: {row: statistics.median(one[row] for one in of) for row in of[0]} for name, of in rounds.items()}
    show(results)
    for name, promise in durability.items():
        print(f"{name}: {promise}")
    if args.json:
        with open(args.json, "w") as out:
            json.dump({"medians": results, "rounds": rounds}, out, indent=1)


if __name__ == "__main__":
    main()
