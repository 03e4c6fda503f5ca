#!/usr/bin/env python3
"""Medians, ratios and goals of bench/client.sh: client_table.py results.jsonl

Each system's durability and redundancy stand in its row. Against other systems a row counts only where both are
at least ours: those that are weaker are marked "unequal" and never compared with."""
import json, sys, statistics as st
from collections import defaultdict

rows = defaultdict(lambda: defaultdict(list))
for line in open(sys.argv[1]):
    r = json.loads(line)
    if r["row"] != "-":
        rows[r["row"]][r["system"]].append(r)

# Durability, losses survived, and whether its rows count against ours.
PEERS = {
    "gluster:plain": ("fsync and O_DSYNC reach the brick's fsync", 0, True),
    "gluster:dist4": ("fsync and O_DSYNC reach the brick's fsync", 0, True),
    "gluster:rep3": ("fsync and O_DSYNC reach every brick's fsync", 2, True),
    "gluster:replica": ("fsync and O_DSYNC reach every brick's fsync", 2, True),
    "gluster:disperse": ("fsync and O_DSYNC reach every brick's fsync", 2, True),
    "gluster:disp42": ("fsync and O_DSYNC reach every brick's fsync", 2, True),
    "moosefs:goal1": ("fsync reaches the chunkserver's memory: it syncs nothing", 0, False),
    "moosefs:goal2": ("fsync reaches the chunkservers' memory: they sync nothing", 1, False),
}
LOSSES = {"1way": 0, "4+2p": 2, "8+2p": 2}


def mid(row, system, key="mb_s"):
    v = [r[key] for r in rows.get(row, {}).get(system, []) if r.get(key) is not None]
    return st.median(v) if v else None


def over(a, b):
    return a / b if a is not None and b else None


def durability(system):
    if system.startswith("ropewalk-"):
        code = system.split("-")[1]
        return f"every ack after the pdisks' flush; survives {LOSSES.get(code, '?')} losses"
    if system in PEERS:
        text, losses, counts = PEERS[system]
        return f"{text}; survives {losses} losses" + ("" if counts else "; **unequal**")
    if system.startswith("pass-") or system.startswith("local"):
        return "ceiling: no network, no copies, fsync as its medium has it; **unequal**"
    return "ceiling" if system == "raw" else "not known; **unequal**"


def unit(row):
    return "mb_s" if "seq" in row or "pipeline" in row or "iperf" in row else "ops_s"


def best_peer(row, code):
    """The best other system that survives as much and promises as much."""
    equal = [s for s in rows[row] if s in PEERS and PEERS[s][2] and PEERS[s][1] >= LOSSES.get(code, 9)]
    found = [(mid(row, s, unit(row)), s) for s in equal if mid(row, s, unit(row))]
    return max(found) if found else (None, None)


def ceiling(row, how):
    """What the row is divided by, and its name."""
    if how == "library":
        return mid("pipeline-read" if "read" in row else "pipeline-write", "raw"), "raw pipeline"
    if row == "reread-kernel":
        return mid(row, "local-disk", unit(row)), "local file system"
    return mid(row, "pass-" + how, unit(row)), "pass-through"


def least_cpu(row, code):
    """The least CPU a gigabyte that another system needs which survives as much, whatever else it promises."""
    equal = [s for s in rows[row] if s in PEERS and PEERS[s][1] >= LOSSES.get(code, 9)]
    found = [mid(row, s, "cpu_s_per_gb") for s in equal]
    return min((f for f in found if f), default=None)


def goals(row, code, how, of_ceiling, of_1way, of_peer, cpu):
    """Each goal that the row has: its bound, and what was reached."""
    if how == "library" and code == "1way":
        yield "0.85 of ceiling", 0.85, of_ceiling
        return
    if how == "library":
        return
    if "seqread" in row and code == "1way":
        yield "0.6 of ceiling", 0.6, of_ceiling
    if row.startswith("reread"):
        yield "0.9 of ceiling", 0.9, of_ceiling
    if row.startswith("seq") and code == "1way":
        yield "2 x peer", 2, of_peer
    if row.startswith("seq") and code != "1way":
        yield "3 x peer", 3, of_peer
        need = 0.9 if "read" in row else 0.6
        yield f"{need} of 1way", need, of_1way
    if "randread" in row or "dsync" in row:
        yield "ahead of peer", 1, of_peer
    if row.startswith("seq"):
        yield "least CPU", 1, over(least_cpu(row, code), cpu)


def number(v, digits=2):
    return "" if v is None else f"{v:,.{digits}f}"


reached, missed = 0, []
print("| work | system | MB/s | op/s | runs | p99 ms | CPU-s/GB | of ceiling | of 1way | of the best equal peer | goals | durability |")
print("|---|---|---|---|---|---|---|---|---|---|---|---|")
for row in rows:
    for system in rows[row]:
        mb, ops = mid(row, system), mid(row, system, "ops_s")
        of_ceiling = of_1way = of_peer = None
        peer, verdicts, of = "", [], ""
        if system.startswith("ropewalk-"):
            code, how = system.split("-")[1:3]
            own = mid(row, system, unit(row))
            bound, of = ceiling(row, how)
            of_ceiling = over(own, bound)
            if code != "1way":
                of_1way = over(own, mid(row, "ropewalk-1way-" + how, unit(row)))
            if how != "library":
                best, peer = best_peer(row, code)
                of_peer = over(own, best)
            for name, need, got in goals(row, code, how, of_ceiling, of_1way, of_peer, mid(row, system, "cpu_s_per_gb")):
                verdicts.append(f"{name}: " + ("not measured" if got is None else "yes" if got >= need else "**no**"))
                if got is not None and got >= need:
                    reached += 1
                elif got is not None:
                    missed.append(f"{row}, {system.removeprefix('ropewalk-')}: {name} ({number(got)})")
        cells = [
            row, system, number(mb, 0), number(ops, 0), str(len(rows[row][system])),
            number(mid(row, system, "p99_ms")), number(mid(row, system, "cpu_s_per_gb")),
            number(of_ceiling) + (f" ({of})" if of_ceiling is not None else ""), number(of_1way),
            number(of_peer) + (f" ({peer})" if of_peer is not None else ""), "; ".join(verdicts), durability(system),
        ]
        print("| " + " | ".join(cells) + " |")

print()
print(f"Goals by these medians: {reached} reached, {len(missed)} missed" + (":" if missed else "."))
for line in missed:
    print("- " + line)
print()
print("FUSE over io_uring against classic, in the same runs:")
print()
print("| work | system | io_uring / classic | CPU, io_uring / classic |")
print("|---|---|---|---|")
for row in rows:
    for system in rows[row]:
        if system.endswith("-uring"):
            classic = system.removesuffix("uring") + "classic"
            rate = over(mid(row, system, unit(row)), mid(row, classic, unit(row)))
            cpu = over(mid(row, system, "cpu_s_per_gb"), mid(row, classic, "cpu_s_per_gb"))
            if rate is not None:
                print(f"| {row} | {system.removesuffix('-uring')} | {number(rate)}{'' if rate >= 1 else ' **slower**'} | {number(cpu)} |")
