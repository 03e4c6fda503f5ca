#!/usr/bin/env python3
"""Many clients on one server: 4 KiB random reads by 1, 16, 64 and 256 clients at once, each a process of its own with a session, a page
pool and connections of its own (the library, no mount), by one thread each. The sum of their reads a second must not
collapse with their number. The ceiling of the same run is one client with as many threads.

The same numbers of processes also ask a plain server for 4 KiB each, over TCP: one thread that waits for all its sockets and answers, nothing
else. What that loses with their number is lost to the machine's switches between processes.

All read one file in memory (tmpfs), and begin at the same time. Beside the rate stands the CPU per read, of all processes of
the cluster and the load, the server's own part of it, the share of the machine's CPU that was idle meanwhile, and the longest time of one read.
Clients that are machines of their own bring their own CPU: what the number of them takes from a server then is what a read costs the server.

usage: bench/clients.py [options]
example: bench/clients.py --clients 16,64,256 --reads 40000
"""
import argparse
import json
import multiprocessing
import os
import re
import selectors
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from systems import cpu_of, cpu_seconds, run, script


def one_round(perf, server, clients, threads, reads):
    """Rate, CPU us a read in all and in the server, idle share and longest read of so many clients."""
    each = max(reads // clients, threads)
    # A client takes some time to begin its session, on a busy machine more.
    for room in (0.1, 0.3, 0.9):
        start_at = time.time() + 2 + clients * room
        loads = [subprocess.Popen([*perf, "-n", f"{each}R", "-th", str(threads), "--seed", str(n + 1), "--start-at", f"{start_at:.3f}"],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for n in range(clients)]
        try:
            time.sleep(max(start_at - time.time(), 0))
            (busy, idle), served = cpu_seconds(), cpu_of(server)
            answers = [load.communicate(timeout=300) for load in loads]
            (busy_now, idle_now), served_now = cpu_seconds(), cpu_of(server)
        finally:
            for load in loads:
                load.kill()
                load.wait()
        errors = [error for load, (_, error) in zip(loads, answers) if load.returncode]
        if not errors:
            break
        if not all("that time has passed" in error for error in errors):
            raise SystemExit(f"{len(errors)} of {clients} clients failed: {errors[0]}")
    else:
        raise SystemExit("the machine is too slow to start so many clients at once")
    reports = [json.loads(out)["runs"][0] for out, _ in answers]
    total = sum(report["operations"] for report in reports)
    seconds = max(report["took_s"] for report in reports)
    return (total / seconds, (busy_now - busy) / total * 1e6, (served_now - served) / total * 1e6, (idle_now - idle) / (busy_now - busy + idle_now - idle),
            max(report["reads"]["latency"]["max_ms"] for report in reports))


def plain_server(listener):
    """Answers 4 KiB to each 64 bytes, until it is ended."""
    answer, waiting = bytes(4096), selectors.DefaultSelector()
    waiting.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in waiting.select():
            if key.fileobj is listener:
                waiting.register(listener.accept()[0], selectors.EVENT_READ)
            elif key.fileobj.recv(64):
                key.fileobj.sendall(answer)
            else:
                waiting.unregister(key.fileobj)
                key.fileobj.close()


def plain_client(address, begin, each, longest):
    with socket.create_connection(address) as server:
        begin.wait()
        slowest = 0
        for _ in range(each):
            asked = time.monotonic()
            server.sendall(bytes(64))
            left = 4096
            while left:
                left -= len(server.recv(left))
            slowest = max(slowest, time.monotonic() - asked)
        longest.put(slowest)


def plain_round(clients, reads):
    """As one_round, of clients of the plain server."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=clients)
    begin, longest, each = multiprocessing.Barrier(clients + 1), multiprocessing.Queue(), max(reads // clients, 1)
    server = multiprocessing.Process(target=plain_server, args=(listener,), daemon=True)
    server.start()
    loads = [multiprocessing.Process(target=plain_client, args=(listener.getsockname(), begin, each, longest), daemon=True) for _ in range(clients)]
    try:
        for load in loads:
            load.start()
        begin.wait(timeout=60)
        began, (busy, idle), served = time.monotonic(), cpu_seconds(), cpu_of(server.pid)
        waits = [longest.get(timeout=300) for _ in loads]
        took, (busy_now, idle_now), served_now = time.monotonic() - began, cpu_seconds(), cpu_of(server.pid)
    finally:
        for process in [*loads, server]:
            process.kill()
            process.join()
        listener.close()
    total = each * clients
    return total / took, (busy_now - busy) / total * 1e6, (served_now - served) / total * 1e6, (idle_now - idle) / (busy_now - busy + idle_now - idle), max(waits) * 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="target/release/ropewalk", help="the program under test [%(default)s]")
    parser.add_argument("--dir", default="/dev/shm", help="where the cluster is made [%(default)s]")
    parser.add_argument("--clients", default="1,16,64,256", help="[%(default)s]")
    parser.add_argument("--reads", type=int, default=40000, help="of all clients together [%(default)s]")
    parser.add_argument("--transport", default="auto", help="[%(default)s]")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    counts = [int(count) for count in args.clients.split(",")]
    base = tempfile.mkdtemp(prefix="ropewalk-clients.", dir=args.dir)
    cluster = os.path.join(base, "c")
    try:
        run(args.program, "up", "--dir", cluster, "--nodes", "1", "--pdisks", "1", "--pdisk-size", "2g", "--code", "1way", "--detach")
        run(args.program, "config", "set", f"transport={args.transport}", "--dir", cluster)
        direct = ["--direct-client", "--dir", cluster, "--json"]
        run(args.program, "perf", "create", "seq", "/f", "-r", "4m", "-n", "1g", "-fsync", *direct)
        serve = f"serve --dir {cluster} --name n1"
        server = int(run("pgrep", "-f", serve).split()[0])
        perf = [args.program, "perf", "read", "rand", "/f", "-r", "4k", *direct]
        # Name: clients, threads of each.
        cases = {f"{count} clients": (count, 1) for count in counts}
        cases |= {f"1 client, {count} threads": (1, count) for count in counts if count > 1}
        rounds = {name: [] for name in [*cases, *(f"plain, {count} clients" for count in counts)]}
        for _ in range(args.rounds):
            for name, (clients, threads) in cases.items():
                rounds[name].append(one_round(perf, server, clients, threads, args.reads))
            for count in counts:
                rounds[f"plain, {count} clients"].append(plain_round(count, args.reads))
        values = []
        for name, found in rounds.items():
            rate, cpu_us, server_us, idle, longest = (statistics.median(column) for column in zip(*found))
            values.append({"case": name, "reads_per_second": rate, "cpu_us": cpu_us, "server_us": server_us, "idle": idle, "longest_ms": longest})
        bests = {}
        for value in values:
            kind = value["kind"] = re.sub(r"\d+ clients$", "", value["case"])
            bests[kind] = max(bests.get(kind, 0), value["reads_per_second"])
        if args.json:
            json.dump(values, sys.stdout, indent=1)
            print()
            return
        for value in values:
            share = f"{value['reads_per_second'] / bests[value['kind']]:.2f} of the best" if value["case"].endswith("clients") else "the ceiling"
            print(f"{value['case']:<24}{value['reads_per_second']:>9,.0f} reads/s  {share:<16}{value['cpu_us']:>7.1f} us CPU a read,{value['server_us']:>6.1f} of the server"
                  f"{value['idle']:>7.0%} idle{value['longest_ms']:>9.1f} ms the longest")
    finally:
        subprocess.run([args.program, "down", "--dir", cluster, "--force"], capture_output=True, timeout=120)
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    script(main)
