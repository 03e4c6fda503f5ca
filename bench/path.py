#!/usr/bin/env python3
"""Where the CPU of one request goes: a cluster of one server and one mount on tmpfs, one kind of request at a time; per request, for
each kind of thread: CPU, how often it slept and was woken, how often it was put aside for another,
its page faults, and its system calls by name; and the bytes
that the network moved. Counts depend little on how busy the machine is; microseconds do.

CPU and switches are the scheduler's (/proc/PID/task/TID); system calls are counted by `perf stat` in a second, shorter run of the same load.
The load is `ropewalk perf`, whose own CPU stands beside. Needs root, and perf for the system calls (`--no-calls` without).

usage: bench/path.py [options]
example: bench/path.py --code 1way --rows read-4k,write-4k-sync --threads 16
example: bench/path.py --dir target --rows write-64k-sync --transports auto      on a disk, one thread
example: bench/path.py --transports tcp,shm --rows read-4k,read-4m-library,write-4m-library
"""
import argparse
import collections
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from systems import run, script

# Name, arguments of `perf` (FILE, COUNT and THREADS are put in).
ROWS = {
    "read-4k": "read rand FILE -r 4k -n COUNTR -th THREADS -dio",
    "write-4k-sync": "write rand FILE -r 4k -n COUNTR -th THREADS -osync",
    "write-64k-sync": "write rand FILE -r 64k -n COUNTR -th 1 -osync",
    "read-4m": "read seq FILE -r 4m -n COUNTR -th 1",
    "write-4m": "write seq FILE -r 4m -n COUNTR -th 1 -fsync",
    "read-4k-library": "read rand FILE -r 4k -n COUNTR -th THREADS --direct-client",
    "read-4m-library": "read seq FILE -r 4m -n COUNTR -th 1 --direct-client",
    "write-4m-library": "write seq FILE -r 4m -n COUNTR -th 1 -fsync --direct-client",
}
COUNTS = {"read-4k": 40000, "write-4k-sync": 8000, "write-64k-sync": 3000, "read-4m": 256, "write-4m": 256, "read-4k-library": 40000, "read-4m-library": 256,
          "write-4m-library": 256}


def kind(name):
    """Threads that do the same have names that differ by a number."""
    return re.sub(r"[-:]?\d+$", "", name)


class Threads:
    """What the scheduler has counted for the threads of some processes."""

    def __init__(self, processes):
        self.of = {}
        for role, pid in processes:
            for tid in os.listdir(f"/proc/{pid}/task"):
                task = f"/proc/{pid}/task/{tid}"
                try:
                    with open(f"{task}/comm") as comm, open(f"{task}/schedstat") as schedstat, open(f"{task}/status") as status, open(f"{task}/stat") as stat:
                        cpu_ns = int(schedstat.read().split()[0])
                        switches = dict(re.findall(r"^(\w*voluntary)_ctxt_switches:\s+(\d+)", status.read(), re.M))
                        key = (role, kind(comm.read().strip()))
                        self.of[tid] = (key, cpu_ns, int(switches["voluntary"]), int(switches["nonvoluntary"]),
                                        int(stat.read().rpartition(")")[2].split()[7]))
                except FileNotFoundError:
                    pass  # It has ended.

    def since(self, before):
        """By kind of thread: [CPU ns, sleeps, put aside, page faults]."""
        total = collections.defaultdict(lambda: [0, 0, 0, 0])
        for tid, (key, *now) in self.of.items():
            then = before.of.get(tid, (key, 0, 0, 0, 0))[1:]
            for at, (a, b) in enumerate(zip(now, then)):
                total[key][at] += a - b
        return total


# System calls that a request may cost; counted in the kernel, each entry.
CALLS = ("read write readv writev pread64 pwrite64 recvfrom recvmsg sendto sendmsg epoll_wait futex io_uring_enter fdatasync fsync "
         "mmap munmap mprotect madvise sched_yield").split()


def calls_of(table, names):
    """System calls by kind of thread, from the table of `perf stat --per-thread -x,`."""
    total = collections.defaultdict(collections.Counter)
    for line in table.splitlines():
        row = re.match(r".*-(\d+),(\d+),[^,]*,syscalls:sys_enter_(\w+),", line)
        if row and row.group(1) in names:
            total[names[row.group(1)]][row.group(3)] += int(row.group(2))
    return total


class Cluster:
    """One server, one mount, by the program under test."""

    def __init__(self, args, base):
        self.program, self.dir, self.mount = args.program, os.path.join(base, "c"), os.path.join(base, "mnt")
        self.args = args

    def start(self):
        args = self.args
        os.makedirs(self.mount)
        run(self.program, "up", "--dir", self.dir, "--nodes", str(args.nodes), "--pdisks", str(args.pdisks), "--pdisk-size", "2g",
            "--code", args.code, "--mount", self.mount, "--detach")

    def processes(self):
        status = json.loads(run(self.program, "status", "--dir", self.dir, "--json"))
        return [(p["role"], p["pid"]) for p in status["processes"] if p.get("pid")]

    def go_by(self, transport):
        """What connections within the machine go by from now on, as `net status` says when all of them do."""
        run(self.program, "config", "set", f"transport={transport}", "--dir", self.dir)
        until = time.monotonic() + 30
        while True:
            # Connections are made, and made anew, while they are used.
            run(*self.perf("read-4k", 64, 1))
            answers = json.loads(run(self.program, "net", "status", "--dir", self.dir, "--json"))
            peers = [peer for a in answers for peer in a["answer"] or [] if not peer["name"].startswith("a command")]
            bulk = [c for peer in peers for c in peer["connections"] if c["lane"] == "bulk" and c["state"] == "active"]
            if bulk and all(c["transport"] == ("tcp" if transport == "tcp" else "shm") for c in bulk):
                return
            if time.monotonic() > until:
                raise SystemExit(f"after 30 s bulk connections go by {sorted(c['transport'] for c in bulk)}, not {transport}")
            time.sleep(0.2)

    def perf(self, row, count, threads):
        line = ROWS[row].replace("COUNT", str(count)).replace("THREADS", str(threads)).split()
        file = "/f" if row.endswith("library") else os.path.join(self.mount, "f")
        line = [file if word == "FILE" else word for word in line]
        return [self.program, "perf", *line, "--dir", self.dir, "--json"]

    def stop(self):
        subprocess.run([self.program, "down", "--dir", self.dir, "--force"], capture_output=True, timeout=120)


def loopback_bytes():
    with open("/proc/net/dev") as dev:
        return int(re.search(r"lo:\s*(\d+)", dev.read()).group(1))


def measure(cluster, row, count, threads, with_calls, transport):
    """One kind of request; what it took, as a value for --json."""
    processes = cluster.processes()
    before, bytes_before = Threads(processes), loopback_bytes()
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    report = json.loads(run(*cluster.perf(row, count, threads), timeout=600))["runs"][0]
    load = resource.getrusage(resource.RUSAGE_CHILDREN)
    took, moved = Threads(processes).since(before), loopback_bytes() - bytes_before

    def by_load(*names):
        return sum(getattr(load, name) - getattr(own, name) for name in names) / count

    value = {"row": row, "transport": transport, "requests": count, "operations_per_second": report["operations_per_second"], "network_bytes": moved / count,
             "threads": {},
             "load": {"cpu_us": by_load("ru_utime", "ru_stime") * 1e6, "sleeps": by_load("ru_nvcsw"), "put_aside": by_load("ru_nivcsw"),
                      "page_faults": by_load("ru_minflt", "ru_majflt"), "calls": {}}}
    calls = {}
    if with_calls:
        short = max(count // 4, 64)
        names = {tid: key for tid, (key, *_) in Threads(processes).of.items()}
        with tempfile.NamedTemporaryFile("r") as out:
            pids = ",".join(str(pid) for _, pid in processes)
            events = ",".join(f"syscalls:sys_enter_{call}" for call in CALLS)
            tracer = subprocess.Popen(["perf", "stat", "--per-thread", "-x,", "-e", events, "--pid", pids, "--output", out.name])
            time.sleep(1)  # It says nothing when it has begun; a request too few is counted at worst.
            try:
                run(*cluster.perf(row, short, threads), timeout=600)
            finally:
                tracer.send_signal(signal.SIGINT)
                tracer.wait(timeout=60)
            calls = {key: {name: n / short for name, n in counter.items()} for key, counter in calls_of(out.read(), names).items()}
    for key, (cpu_ns, sleeps, aside, faults) in took.items():
        of = calls.get(key, {})
        # The idle ones are left out: less than one thing in a hundred requests.
        if cpu_ns / count >= 100 or sleeps / count >= 0.01:
            value["threads"][" ".join(key)] = {
                "cpu_us": cpu_ns / count / 1000, "sleeps": sleeps / count, "put_aside": aside / count, "page_faults": faults / count,
                "calls": {name: n for name, n in sorted(of.items(), key=lambda item: -item[1]) if n >= 0.01}}
    return value


def show(value):
    print(f"\n{value['row']}, {value['transport']}: {value['operations_per_second']:,.0f}/s; {value['network_bytes']:,.0f} bytes of network a request")
    print(f"  {'thread':<26}{'CPU us':>9}{'sleeps':>8}{'aside':>7}{'faults':>8}  system calls")
    total = [0] * 5
    # The load's system calls are not counted.
    rows = sorted(value["threads"].items(), key=lambda item: -item[1]["cpu_us"]) + [("the load itself", value["load"])]
    for name, of in rows:
        calls = ", ".join(f"{call} {n:.2f}" for call, n in list(of["calls"].items())[:6])
        print(f"  {name:<26}{of['cpu_us']:>9.1f}{of['sleeps']:>8.2f}{of['put_aside']:>7.2f}{of['page_faults']:>8.2f}  {calls}")
        for at, n in enumerate((of["cpu_us"], of["sleeps"], of["put_aside"], of["page_faults"], sum(of["calls"].values()))):
            total[at] += n
    print(f"  {'in all':<26}{total[0]:>9.1f}{total[1]:>8.2f}{total[2]:>7.2f}{total[3]:>8.2f}  {total[4]:.2f} system calls")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="target/release/ropewalk", help="the program under test [%(default)s]")
    parser.add_argument("--dir", default="/dev/shm", help="where the cluster is made [%(default)s]")
    parser.add_argument("--code", default="1way")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--pdisks", type=int, default=1)
    parser.add_argument("--rows", default=",".join(ROWS), help="[%(default)s]")
    parser.add_argument("--transports", default="tcp", help="what connections go by, each row by each: auto, tcp, shm [%(default)s]")
    parser.add_argument("--threads", type=int, default=16, help="of small requests [%(default)s]")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of requests [%(default)s]")
    parser.add_argument("--no-calls", action="store_true", help="do not count system calls")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = args.rows.split(",")
    unknown = [row for row in rows if row not in ROWS]
    if unknown:
        parser.error(f"no row {unknown[0]}: there are {', '.join(ROWS)}")
    transports = args.transports.split(",")
    if not set(transports) <= {"auto", "tcp", "shm"}:
        parser.error(f"--transports {args.transports}: there are auto, tcp and shm")
    with_calls = not args.no_calls
    if with_calls and not shutil.which("perf"):
        parser.error("perf is not installed (Debian: linux-perf); --no-calls leaves the system calls out")
    base = tempfile.mkdtemp(prefix="ropewalk-path.", dir=args.dir)
    cluster = None
    try:
        cluster = Cluster(args, base)
        cluster.start()
        run(args.program, "perf", "create", "seq", os.path.join(cluster.mount, "f"), "-r", "4m", "-n", "1g", "-fsync")
        values = []
        count = lambda row: max(int(COUNTS[row] * args.scale), 64)
        # What is asked first pays for memory that the processes have not touched yet: it is asked once for nothing.
        cluster.go_by(transports[0])
        measure(cluster, rows[0], count(rows[0]), args.threads, False, transports[0])
        for row in rows:
            for transport in transports:
                cluster.go_by(transport)
                values.append(measure(cluster, row, count(row), args.threads, with_calls, transport))
                if not args.json:
                    show(values[-1])
        if args.json:
            json.dump(values, sys.stdout, indent=1)
            print()
    finally:
        if cluster:
            cluster.stop()
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    script(main)
