#!/usr/bin/env python3
"""Medians and ratios of bench/client.sh: client_table.py results.jsonl"""
import json, sys, statistics as st
from collections import defaultdict

rows = defaultdict(lambda: defaultdict(list))
for line in open(sys.argv[1]):
    r = json.loads(line)
    if r["row"] != "-":
        rows[r["row"]][r["system"]].append(r)


def mid(row, system, key="mb_s"):
    v = [r[key] for r in rows.get(row, {}).get(system, []) if r.get(key) is not None]
    return st.median(v) if v else None


def durability(system):
    if system.startswith("ropewalk-"):
        return "data: every ack after the pdisks' flush; code " + system.split("-")[1]
    if system == "raw" or system == "local" or system.startswith("pass-"):
        return "none (memory, or fsync of tmpfs)"
    return "as it comes, on tmpfs; syncs nothing of its own"


print("| work | system | MB/s | op/s | p99 ms | CPU-s/GB | of ceiling | of 1way | durability |\n|---|---|---|---|---|---|---|---|---|")
for row in rows:
    for system in rows[row]:
        mb, ops = mid(row, system), mid(row, system, "ops_s")
        ceiling, oneway = None, None
        if system.startswith("ropewalk-"):
            code, how = system.split("-")[1:3]
            unit = "ops_s"
            if how == "library":
                ceiling = mid("pipeline-read" if "read" in row else "pipeline-write", "raw")
                ceiling = mb / ceiling if ceiling else None
            elif row == "reread-kernel":
                base = mid(row, "local", unit)
                ceiling = ops / base if base else None
            else:
                base = mid(row, "pass-" + how, unit)
                ceiling = ops / base if base else None
            base = mid(row, "ropewalk-1way-" + how, unit)
            oneway = ops / base if base and code != "1way" else None
        f = lambda v, d=2: "" if v is None else f"{v:,.{d}f}"
        p99, cpu = mid(row, system, "p99_ms"), mid(row, system, "cpu_s_per_gb")
        print(f"| {row} | {system} | {f(mb, 0)} | {f(ops, 0)} | {f(p99)} | {f(cpu)} | {f(ceiling)} | {f(oneway)} | {durability(system)} |")
