#!/usr/bin/env python3
"""What fio says of its latencies, beside what analytics recorded of the same operations.
   bench/analytics_fio.py DIR MOUNT [ROPEWALK [FIO OPTIONS...]]       DIR: the cluster's directory
Both sides' distributions are put into the buckets of analytics. fio counts from its system call to that call's return; the mount from
when it has the kernel's request to when it hands over the answer. In between is the kernel's path, and the waiting for a CPU of fio's
thread and of the mount's. As root both run at a real-time priority, so that a busy machine does not decide what is compared.
"""
import bisect, json, os, re, subprocess, sys, time

EDGES = sorted([1 << k for k in range(8, 40)] + [3 << k for k in range(7, 39)])  # nanoseconds: powers of two and their halves
UNITS = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}


def bucket(ns):
    return max(bisect.bisect_right(EDGES, ns) - 1, 0)


def shown(text):
    """The bucket that analytics calls so, by its beginning with three digits."""
    number, unit = re.fullmatch(r"([\d.]+)([a-z]+)", text).groups()
    ns = float(number) * UNITS[unit]
    return min(range(len(EDGES)), key=lambda at: abs(EDGES[at] - ns))


def quantile(counts, share):
    total, all_of = 0, sum(counts.values())
    for at in sorted(counts):
        total += counts[at]
        if total >= share * all_of:
            return at


def in_buckets(times, less=0):
    counts = {}
    for ns, n in times.items():
        at = bucket(max(ns - less, 1))
        counts[at] = counts.get(at, 0) + n
    return counts


def elsewhere(a, b):
    return sum(abs(a.get(at, 0) - b.get(at, 0)) for at in a.keys() | b.keys()) / 2


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    place, mount = sys.argv[1:3]
    ropewalk = sys.argv[3] if len(sys.argv) > 3 else "target/release/ropewalk"

    def ask(*words):
        return json.loads(subprocess.run([ropewalk, *words, "--dir", place, "--json"], check=True, stdout=subprocess.PIPE).stdout)

    name = f"compared-{os.getpid()}"
    pid = next(c["pid"] for c in ask("clients", "list") if c["mount"] == os.path.abspath(mount))
    first = os.geteuid() == 0
    if first:
        subprocess.run(["chrt", "-a", "-f", "-p", "20", str(pid)], check=True)
    try:
        fio = ["chrt", "-f", "10"] if first else []
        fio += ["fio", "--name=c", f"--filename={mount}/{name}", "--rw=randwrite", "--bs=4k", "--size=4m", "--fsync=1"]
        fio += ["--number_ios=400", "--output-format=json+", *sys.argv[4:]]
        said = subprocess.run(fio, check=True, stdout=subprocess.PIPE).stdout
        said = json.loads(said[said.index(b"{"):])["jobs"][0]
        time.sleep(3)  # the last second is closed
        for op, of in (("fsync", said["sync"]["lat_ns"]), ("write", said["write"]["clat_ns"])):
            query = f"file.ops[file=/{name}][op={op}][latency]"
            ours = {shown(r["key"]["latency"]): r["total"] for r in ask("analytics", "query", query, "--from", "-10m")["rows"]}
            times = {int(ns): n for ns, n in of["bins"].items() if n}
            theirs = in_buckets(times)
            print(f"{op}: fio counted {sum(times.values())}, analytics {sum(ours.values()):.0f}")
            for share in (0.5, 0.9, 0.99):
                a, b = quantile(theirs, share), quantile(ours, share)
                print(f"  P{share * 100:g}: fio {quantile(times, share) / 1e3:.0f} us, analytics {EDGES[b] / 1e3:.0f} to {EDGES[b + 1] / 1e3:.0f} us: {a - b:+d} buckets")
            far, less = min((elsewhere(in_buckets(times, us * 1000), ours), us) for us in range(0, 2000, 5))
            print(f"  in another bucket: {elsewhere(theirs, ours):.0f}; with {less} us less in fio's times {far:.0f}")
    finally:
        if first:
            subprocess.run(["chrt", "-a", "-o", "-p", "0", str(pid)], check=True)
        os.unlink(f"{mount}/{name}")


main()
