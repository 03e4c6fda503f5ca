#!/usr/bin/env python3
"""What a disk that does one thing after the other leaves of large durable writes: a model, to tell what the store's code costs
from what its order of writes and flushes costs. Writers each have one write of 1 MiB at a time; times are in milliseconds.

    bench/commit_model.py [--write 0.68] [--log 0.06] [--flush 0.25] [--hand-over 0.06] [--writers 8]

plain     fio without flushes: nothing is durable
jobs      fio --fdatasync=1: each writer waits for its own flush; the kernel joins flushes that wait
commit    the pdisk: flush of the data, the log's record, flush of the log, for all that wait at once; each goes behind what was
          written meanwhile
one flush the same if one flush after the record were enough (it is not: the record must not be there before the data)
"""
import argparse
import heapq


class Disk:
    """Does what it is asked for in order; `hand_over` passes until who asked goes on."""

    def __init__(self, hand_over):
        self.now, self.events, self.count, self.queue, self.busy, self.hand_over = 0.0, [], 0, [], False, hand_over

    def after(self, time, then):
        self.count += 1
        heapq.heappush(self.events, (self.now + time, self.count, then))

    def do(self, time, then):
        self.queue.append((time, then))
        self.next()

    def next(self):
        if self.busy or not self.queue:
            return
        time, then = self.queue.pop(0)
        self.busy = True

        def done():
            self.busy = False
            self.after(self.hand_over, then)
            self.next()

        self.after(time, done)

    def steps(self, times, then):
        if times:
            self.do(times[0], lambda: self.steps(times[1:], then))
        else:
            then()

    def run(self, until):
        while self.events and self.now < until:
            self.now, _, then = heapq.heappop(self.events)
            then()


def rate(order, options):
    """MB/s that writers reach if `order` are the steps after a write; they are joined for all that wait."""
    disk, waiting, state = Disk(options.hand_over), [], {"committing": False, "done": 0}

    def write():
        disk.do(options.write, ready)

    def ready():
        waiting.append(1)
        commit()

    def commit():
        if state["committing"] or not waiting:
            return
        group = len(waiting)
        waiting.clear()
        state["committing"] = bool(order)

        def durable():
            state["committing"] = False
            state["done"] += group
            for _ in range(group):
                write()
            commit()

        disk.steps(order, durable)

    for _ in range(options.writers):
        write()
    disk.run(20_000)
    return state["done"] * 1.048576 / disk.now * 1000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("write", 0.68), ("log", 0.06), ("flush", 0.25), ("hand-over", 0.06)):
        parser.add_argument(f"--{name}", type=float, default=value)
    parser.add_argument("--writers", type=int, default=8)
    options = parser.parse_args()
    flush, log = options.flush, options.log
    plain = rate([], options)
    for name, order in (("plain", []), ("jobs", [flush]), ("commit", [flush, log, flush]), ("one flush", [log, flush])):
        reached = rate(order, options)
        print(f"{name:10} {reached:6.0f} MB/s  {reached / plain:.2f} of plain")


main()
