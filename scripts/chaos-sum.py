#!/usr/bin/env python3
"""Adds up the figures of several runs of the campaign of faults (docs/reliability.md): scripts/chaos-sum.py LOG..."""
import json
import sys
from collections import Counter

total, longest, stories = Counter(), {}, []
faults, violations = Counter(), Counter()
for path in sys.argv[1:]:
    with open(path, errors="replace") as log:
        lines = [line for line in log if "figures: {" in line]
    if not lines:
        print(f"{path}: no figures", file=sys.stderr)
        continue
    # A run says them again and again: the last are those of all its rounds.
    run = json.loads(lines[-1].split("figures: ", 1)[1])
    for key in ("rounds", "clusters", "two_pools", "volatile", "failed", "load_s", "rest_s"):
        total[key] += run[key]
    faults.update(run["faults"])
    violations.update(run["violations"])
    stories += [f"seed {run['seed']}, {story}" for story in run["stories"]]
    for key in ("longest_call_s", "longest_recovery_s"):
        longest[key] = max(longest.get(key, 0), run[key])

rounds = max(total["rounds"], 1)
print(f"{total['rounds']} rounds on {total['clusters']} clusters ({total['two_pools']} rounds with two pools, "
      f"{total['volatile']} with disks that forget what was not flushed)")
print(", ".join(f"{name} {count}" for name, count in sorted(faults.items())))
print(f"a round: {total['load_s'] / rounds:.1f} s of load and faults, {total['rest_s'] / rounds:.1f} s until all was judged")
print(f"longest call of a mount in no fault: {longest.get('longest_call_s', 0):.1f} s; "
      f"longest time to all ok: {longest.get('longest_recovery_s', 0):.1f} s")
print(f"{total['failed']} rounds failed: {dict(violations)}")
print(*stories, sep="\n")
