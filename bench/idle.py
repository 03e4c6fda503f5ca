#!/usr/bin/env python3
"""What a cluster costs that does nothing: for each of its processes, how often its threads wake up in a second, and the CPU that it takes. A cluster on
tmpfs with a mount, and as many idle clients of the library beside it, each a process with a session of its own. Nothing is used while it is counted.

A wake-up is a voluntary switch of a thread (/proc/PID/task/TID/status): it slept, and something woke it. The counts hold on a busy machine, too; CPU is
counted in ticks of the kernel (10 ms), and says something only over --seconds 60 and more.

usage: bench/idle.py [options]
example: bench/idle.py --clients 64 --seconds 30
"""
import argparse
import collections
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

from systems import cpu_of, run, script

# The manager takes some time after its start until it declares anybody gone, and looks at the clock more often until then.
SETTLED = 25
# Of a client its first thread is the load's, which looks ten times a second whether its time has come.
LOAD = "ropewalk"
# Clients begin one after the other, so that each has begun when it is counted.
BEGIN = 0.3


def wakeups(pid):
    """Voluntary switches of each thread of a process, by the name of the thread without its number."""
    found = collections.Counter()
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{task}/comm") as comm, open(f"/proc/{pid}/task/{task}/status") as status:
                switches = next(line for line in status if line.startswith("voluntary_ctxt_switches"))
                found[comm.read().strip().rstrip("0123456789").rstrip("-")] += int(switches.split()[1])
        except FileNotFoundError:
            pass  # the thread has ended
    return found


def processes(cluster):
    """Those of the cluster: name, process id."""
    found = {}
    for line in run("pgrep", "-fa", cluster).splitlines():
        pid, _, command = line.partition(" ")
        words = command.split()
        if "serve" in words[1:2]:
            name = words[words.index("--name") + 1]
            found[name if name == "manager" else f"server {name}"] = int(pid)
        elif "mount" in words[1:2]:
            found["mount"] = int(pid)
    return found


def count(pids, seconds):
    """For each process, wake-ups a second by thread and CPU ms a second."""
    before = {name: (wakeups(pid), cpu_of(pid)) for name, pid in pids.items()}
    began = time.monotonic()
    time.sleep(seconds)
    rows = []
    for name, pid in pids.items():
        (woken, cpu), took = before[name], time.monotonic() - began
        threads = {thread: round((now - woken[thread]) / took, 2) for thread, now in wakeups(pid).items() if now > woken[thread]}
        if name.startswith("client "):
            threads.pop(LOAD, None)
        rows.append({"process": name, "wakeups": round(sum(threads.values()), 2), "cpu_ms": round((cpu_of(pid) - cpu) / took * 1e3, 2), "threads": threads})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="target/release/ropewalk", help="the program under test [%(default)s]")
    parser.add_argument("--dir", default="/dev/shm", help="where the cluster is made [%(default)s]")
    parser.add_argument("--nodes", type=int, default=3, help="servers [%(default)s]")
    parser.add_argument("--clients", type=int, default=0, help="idle clients of the library beside the mount [%(default)s]")
    parser.add_argument("--seconds", type=float, default=20, help="counted [%(default)s]")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    base = tempfile.mkdtemp(prefix="ropewalk-idle.", dir=args.dir)
    cluster, mount = os.path.join(base, "c"), tempfile.mkdtemp(prefix="ropewalk-idle.")
    clients = []
    try:
        run(args.program, "up", "--dir", cluster, "--nodes", str(args.nodes), "--mount", mount, "--detach")
        with open(os.path.join(mount, "f"), "wb") as file:
            file.write(bytes(1 << 20))
            file.flush()
            os.fsync(file.fileno())
        # They have begun, and wait for a time that does not come.
        perf = [args.program, "perf", "read", "rand", "/f", "-r", "4k", "-n", "1R", "--direct-client", "--dir", cluster, "--start-at", f"{time.time() + 86400:.0f}"]
        for _ in range(args.clients):
            clients.append(subprocess.Popen(perf, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
            time.sleep(BEGIN)
        time.sleep(SETTLED)
        ended = [client.stderr.read() for client in clients if client.poll() is not None]
        if ended:
            raise SystemExit(f"{len(ended)} of {args.clients} clients ended: {ended[0]}")
        rows = count(processes(cluster) | {f"client {n + 1}": client.pid for n, client in enumerate(clients)}, args.seconds)
        if args.json:
            json.dump(rows, sys.stdout, indent=1)
            print()
            return
        alone = [row for row in rows if not row["process"].startswith("client ")]
        crowd = rows[len(alone):]
        if crowd:
            threads = collections.Counter()
            for row in crowd:
                threads.update(row["threads"])
            mean = {name: round(sum(row[name] for row in crowd) / len(crowd), 2) for name in ("wakeups", "cpu_ms")}
            alone.append({"process": f"each of {len(crowd)} clients", **mean, "threads": {name: round(all_of / len(crowd), 2) for name, all_of in threads.items()}})
        for row in alone:
            each = ", ".join(f"{name} {n:.1f}" for name, n in sorted(row["threads"].items(), key=lambda one: -one[1]))
            print(f"{row['process']:<22}{row['wakeups']:>7.1f} wake-ups a second{row['cpu_ms']:>8.1f} ms CPU a second   {each}")
    finally:
        for client in clients:
            client.kill()
            client.wait()
        subprocess.run([args.program, "down", "--dir", cluster, "--force"], capture_output=True, timeout=120)
        shutil.rmtree(base, ignore_errors=True)
        if os.path.isdir(mount) and not os.path.ismount(mount):
            os.rmdir(mount)


if __name__ == "__main__":
    script(main)
