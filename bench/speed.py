#!/usr/bin/env python3
"""Figures of speed, each beside its ceiling in the same run: medians of the rounds, and of the rounds' ratios with the least and the most.

A subject (a class in SUBJECTS; a file of its own for each kind) sets up what it needs, gives its figures once a round, and takes
all away. Rounds go through what is compared in turn, who begins changes. The first round is not counted: it writes where
nothing was written before. Needs root (mounts), fio; peers only where they are installed.

usage: bench/speed.py [options]
example: bench/speed.py --subjects codes,disk-write --rounds 5
example: bench/speed.py --subjects sync-64k --program target/release/ropewalk,/tmp/before/ropewalk      two programs in turn
"""
import argparse
import collections
import json
import os
import shutil
import statistics
import sys
import tempfile

import speed_large

from systems import script

# Each file of subjects has such a table.
SUBJECTS = {**speed_large.SUBJECTS}


def rounds_of(subject_of, programs, rounds, say):
    """All figures of a subject, by program and row: [(value, ceiling), ...]."""
    found = {program: collections.defaultdict(list) for program in programs}
    goals = {}
    subjects = {}
    try:
        for program in programs:
            subjects[program] = subject_of(program)
            subjects[program].start()
        for number in range(rounds + 1):
            turn = programs if number % 2 else programs[::-1]
            for program in turn:
                for row in subjects[program].round(number):
                    say(f"    {number} {program if len(programs) > 1 else ''} {row.name}: {row.value:,.1f} {row.unit}, {row.against}: {row.ceiling:,.1f}")
                    if number:
                        found[program][row.name].append((row.value, row.ceiling))
                        goals[row.name] = row
    finally:
        for subject in subjects.values():
            subject.stop()
    return found, goals


def line(program, name, pairs, row):
    """A row of the table, as a value for --json."""
    ratios = [value / ceiling for value, ceiling in pairs]
    ratio = statistics.median(ratios)
    reached = None if row.goal is None else (ratio >= row.goal if row.more_is_better else ratio <= row.goal)
    return {"program": program, "row": name, "unit": row.unit, "value": statistics.median(v for v, _ in pairs), "against": row.against,
            "ceiling": statistics.median(c for _, c in pairs), "ratio": ratio, "least": min(ratios), "most": max(ratios), "goal": row.goal,
            "reached": reached}


def show(lines, programs):
    print(f"| row | measured | ceiling | ratio | goal |{' program |' if len(programs) > 1 else ''}")
    print(f"|---|---|---|---|---|{'---|' if len(programs) > 1 else ''}")
    for of in lines:
        sign = "" if of["goal"] is None else f"{of['goal']}{'' if of['reached'] else ', missed'}"
        print(f"| {of['row']} | {of['value']:,.1f} {of['unit']} | {of['against']}: {of['ceiling']:,.1f} | {of['ratio']:.2f} ({of['least']:.2f}-{of['most']:.2f}) | {sign} |"
              + (f" {of['program']} |" if len(programs) > 1 else ""))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="subjects:\n" + "\n".join(f"  {name:<14} {subject.__doc__.splitlines()[0]}" for name, subject in SUBJECTS.items()))
    parser.add_argument("--program", default="target/release/ropewalk", help="the program under test, or several to compare in turn [%(default)s]")
    parser.add_argument("--subjects", default=",".join(SUBJECTS), help="[%(default)s]")
    parser.add_argument("--rounds", type=int, default=5, help="[%(default)s]")
    parser.add_argument("--memory", default="/dev/shm", help="where clusters in memory are made [%(default)s]")
    parser.add_argument("--disk", default="target", help="where those on a disk are [%(default)s]")
    parser.add_argument("--scale", type=float, default=1.0, help="of bytes and requests [%(default)s]")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    names, programs = args.subjects.split(","), args.program.split(",")
    unknown = [name for name in names if name not in SUBJECTS]
    if unknown:
        parser.error(f"no subject {unknown[0]}: there are {', '.join(SUBJECTS)}")
    for program in programs:
        if not os.access(program, os.X_OK):
            parser.error(f"{program} is not built (make build)")
    if args.rounds < 1:
        parser.error("--rounds: at least 1")
    if not shutil.which("fio"):
        parser.error("fio is not installed (Debian: fio)")
    say = lambda text: print(text, file=sys.stderr, flush=True)
    lines = []
    for name in names:
        say(f"{name}: {SUBJECTS[name].__doc__.splitlines()[0]}")
        medium = args.disk if SUBJECTS[name].on_disk else args.memory
        base = tempfile.mkdtemp(prefix="ropewalk-speed.", dir=medium)
        try:
            make = lambda program: SUBJECTS[name](program, os.path.join(base, str(programs.index(program))), args.scale)
            found, goals = rounds_of(make, programs, args.rounds, say)
        finally:
            shutil.rmtree(base, ignore_errors=True)
        lines += [line(program, row, pairs, goals[row]) for row in goals for program in programs for pairs in [found[program][row]]]
    if args.json:
        json.dump(lines, sys.stdout, indent=1)
        print()
    else:
        show(lines, programs)


if __name__ == "__main__":
    script(main)
