"""Subjects of bench/speed.py: large requests, codes, and what is durable on a disk."""
import json
import os
import re
import socket
import subprocess
import time
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass

from systems import Gluster, cpu_seconds, remove, run


@dataclass
class Row:
    """One figure beside what it is compared with, of one round."""

    name: str
    value: float
    unit: str
    against: str
    ceiling: float
    goal: float = None
    more_is_better: bool = True


class Cluster:
    """One cluster by the program under test, a mount for each code."""

    on_disk = False

    def __init__(self, program, base, scale):
        self.program, self.base, self.scale = os.path.abspath(program), base, scale
        self.dir = os.path.join(base, "c")

    def up(self, codes, nodes, pdisks, size, *options):
        """A pool, a file system and a mount for each code, over the same pdisks; with further options of `up`."""
        os.makedirs(self.base, exist_ok=True)
        self.mounts = {code: os.path.join(self.base, f"mnt-{code}") for code in codes}
        for mount in self.mounts.values():
            os.makedirs(mount)
        first, *others = codes
        self.ropewalk("up", "--nodes", str(nodes), "--pdisks", str(pdisks), "--pdisk-size", size, "--code", first, "--block-size", "4m",
                      "--mount", self.mounts[first], "--detach", *options)
        for code in others:
            name = "of-" + code.replace("+", "-")
            self.ropewalk("pool", "create", name, "--code", code, "--block-size", "4m")
            self.ropewalk("fs", "create", name, "--pool", name)
            self.ropewalk("mount", name, self.mounts[code])

    def ropewalk(self, *words):
        return run(self.program, *words, "--dir", self.dir, timeout=600)

    def file(self, code, name="f"):
        return os.path.join(self.mounts[code], name)

    def stop(self):
        if os.path.exists(self.dir):
            subprocess.run([self.program, "down", "--dir", self.dir, "--force"], capture_output=True, timeout=120)
        if os.path.exists(self.base):
            remove(self.base)

    def perf(self, *words):
        """One run of `ropewalk perf`."""
        return json.loads(run(self.program, "perf", *words, "--json", timeout=900))["runs"][0]

    def mb(self, *words):
        return self.perf(*words)["bytes_per_second"] / 1e6


def in_turn(number, *parts):
    """Calls each part; who is first changes with every round. Results in the order of the parts."""
    done = {}
    for at in range(len(parts)):
        at = (at + number) % len(parts)
        done[at] = parts[at]()
    return [done[at] for at in range(len(parts))]


class Codes(Cluster):
    """sequential reads of 4+2p and 8+2p beside 1way, by one job and by four"""

    codes = ["1way", "4+2p", "8+2p"]
    goals = {1: 0.9, 4: 0.85}

    def start(self):
        self.up(self.codes, 5, 2, "1g")
        self.size = f"{int(512 * self.scale)}m"
        for code in self.codes:
            self.perf("create", "seq", self.file(code), "-r", "4m", "-n", self.size, "-fsync")

    def round(self, number):
        for jobs, goal in self.goals.items():
            read = lambda code: lambda: self.mb("read", "seq", self.file(code), "-r", "1m", "-th", str(jobs))
            rates = dict(zip(self.codes, in_turn(number, *[read(code) for code in self.codes])))
            for code in self.codes[1:]:
                yield Row(f"read {code}, {jobs} jobs", rates[code], "MB/s", "1way", rates["1way"], goal)


class OneWay(Cluster):
    """sequential write and read of 1way on a mount, beside GlusterFS of one brick, or a local directory where that is not installed"""

    def start(self):
        self.up(["1way"], 1, 1, "4g")
        self.size = f"{int(1024 * self.scale)}m"
        self.peer = None if Gluster.missing else Gluster(self.base, 1, "plain")
        if self.peer:
            self.peer.start()
            self.beside, self.against, self.goal = self.peer.mounts[0], "GlusterFS", 2
        else:
            self.beside, self.against, self.goal = os.path.join(self.base, "local"), "local directory", None
            os.makedirs(self.beside)

    def round(self, number):
        other = os.path.join(self.beside, "f")
        for jobs in 1, 4:
            for what, words, end in ("write", ["create", "seq"], ["-n", self.size, "-fsync"]), ("read", ["read", "seq"], []):
                if what == "read" and self.peer:
                    self.peer.only(0)  # Its caches are empty then.
                    self.peer.only(1)
                job = lambda file: self.perf(*words, file, "-r", "1m", "-th", str(jobs), *end)
                own, beside = in_turn(number, lambda: job(self.file("1way")), lambda: job(other))
                yield Row(f"{what} 1way, {jobs} jobs", own["bytes_per_second"] / 1e6, "MB/s", self.against, beside["bytes_per_second"] / 1e6, self.goal)
                cpu = own["client_cpu_seconds_per_gb"] + own["server_cpu_seconds_per_gb"]
                yield Row(f"CPU of {what} 1way, {jobs} jobs", cpu, "s/GB", "goal", 1.2, 1, False)

    def stop(self):
        if getattr(self, "peer", None):
            self.peer.stop()
        super().stop()


class DiskWrite(Cluster):
    """a new file of 2 GiB with fsync in 4+2p, eight pdisks on one disk, beside fio writing one and a half times the bytes to eight files; how busy the CPUs are"""

    on_disk = True

    def start(self):
        self.up(["4+2p"], 4, 2, "1g")
        self.bytes = int((2 << 30) * self.scale) >> 22 << 22

    def fio(self):
        """Each file flushed before its last MiB, within the time that counts (`end_fsync` is not in it); MB/s of file data, two thirds of what it writes."""
        files = os.path.join(self.base, "fio")
        os.makedirs(files, exist_ok=True)
        each = self.bytes * 3 // 2 // 8 >> 20
        report = json.loads(run("fio", "--name=w", f"--directory={files}", "--rw=write", "--bs=1m", "--direct=1", "--ioengine=io_uring", "--iodepth=8",
                                "--numjobs=8", f"--size={each}m", f"--fsync={each - 1}", "--output-format=json", timeout=900))
        took = max(job["job_runtime"] for job in report["jobs"]) / 1000
        return (each << 20) * 8 / 1.5 / took / 1e6

    def round(self, number):
        def own():
            busy, idle = cpu_seconds()
            rate = self.mb("create", "seq", self.file("4+2p"), "-r", "4m", "-n", str(self.bytes), "-fsync")
            busy_now, idle_now = cpu_seconds()
            return rate, 100 * (busy_now - busy) / (busy_now - busy + idle_now - idle)
        (rate, busy), ceiling = in_turn(number, own, self.fio)
        yield Row("2 GiB with fsync, 4+2p on one disk", rate, "MB/s", "fio", ceiling, 0.75)
        yield Row("CPUs busy meanwhile", busy, "%", "all", 100.0)


class Sync64k(Cluster):
    """O_DSYNC overwrites of 64 KiB by one thread on a disk, 1way and 4+2p, beside the same on the disk's own file system"""

    on_disk = True
    goals = {"1way": 0.4, "4+2p": None}

    def start(self):
        self.up(list(self.goals), 4, 2, "1g")
        self.files = {code: self.file(code) for code in self.goals} | {"local": os.path.join(self.base, "local")}
        for file in self.files.values():
            self.perf("create", "seq", file, "-r", "1m", "-n", "128m", "-fsync")

    def round(self, number):
        count = max(int(600 * self.scale), 16)
        write = lambda file: lambda: self.perf("write", "rand", file, "-r", "64k", "-n", f"{count}R", "-osync", "-noinv", "--seed", str(number + 1))["operations_per_second"]
        rates = dict(zip(self.files, in_turn(number, *[write(file) for file in self.files.values()])))
        for code, goal in self.goals.items():
            yield Row(f"O_DSYNC overwrites of 64 KiB, {code}", rates[code], "/s", "local", rates["local"], goal)


def free_ports(count):
    """So many in a row that nobody has now, below those that the kernel gives away."""
    for first in range(20000, 30000, count):
        with ExitStack() as held:
            try:
                for port in range(first, first + count):
                    held.enter_context(socket.socket()).bind(("127.0.0.1", port))
                return range(first, first + count)
            except OSError:
                continue
    raise RuntimeError(f"no {count} ports in a row are free")


class SmallBytes(Cluster):
    """bytes that a 4 KiB write with O_DSYNC in 4+2p moves over the network"""

    processes = 1 + 4 + 1

    def start(self):
        self.ports = free_ports(self.processes)
        self.up(["4+2p"], 4, 2, "1g", "--metrics", f"127.0.0.1:{self.ports[0]}")
        self.ropewalk("config", "set", "transport=tcp")
        self.perf("create", "seq", self.file("4+2p"), "-r", "1m", "-n", "256m", "-fsync")

    def bytes_sent(self):
        """By manager, servers and mount since they began, as they count it: other programs use the loopback interface as well, and `net status` tells
        of the connections that are there, not of those that have ended. The counters are brought up to date each second."""
        time.sleep(1.2)
        total = 0
        for port in self.ports:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
                counters = re.findall(r"^ropewalk_net_sent_bytes_total(?:\{.*\})? (\d+)$", answer.read().decode(), re.M)
            total += sum(map(int, counters))
        return total

    def round(self, number):
        count = max(int(2000 * self.scale), 16)
        for jobs in 1, 16:
            before = self.bytes_sent()
            self.perf("write", "rand", self.file("4+2p"), "-r", "4k", "-n", f"{count}R", "-th", str(jobs), "-osync", "--seed", str(number + 1))
            yield Row(f"4 KiB O_DSYNC write in 4+2p, {jobs} jobs", (self.bytes_sent() - before) / count / 1024, "KiB", "bound", 64.0, 1, False)


SUBJECTS = {"codes": Codes, "1way": OneWay, "disk-write": DiskWrite, "sync-64k": Sync64k, "small-bytes": SmallBytes}
