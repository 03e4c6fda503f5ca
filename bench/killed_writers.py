#!/usr/bin/env python3
"""Two mounts write every other block of one file, by direct calls of at most one request, whole blocks and parts; one mount is killed, and at
the same moment servers are stopped, or killed and started again. Then the other mount writes into the dead one's blocks, and every block is
compared with the history of its one writer: it has to be as one of its writes left it, none earlier than its last fdatasync, under what
the heir wrote; those of the living writer as its last write left them. A new mount has to see the same.

Not a measurement: an attack, for as many rounds as one likes. Needs root (FUSE). Ends with status 1 when anything was wrong.

usage: bench/killed_writers.py [options]
example: bench/killed_writers.py --rounds 100
example: bench/killed_writers.py --code 4+2p --nodes 6 --victims 2 --faults stop,restart
example: bench/killed_writers.py --code 2way --resolver --direct
example: bench/killed_writers.py --shift 16          memory 16 bytes into a page: one request as well, where the system's limit lets it be
"""
import argparse
import itertools
import json
import mmap
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

from systems import run, script, wait_for

BLOCK, CELL, UNIT, BLOCKS = 1 << 20, 512, 4096, 12
CELLS = BLOCK // CELL
# Numbers of the heir's writes; a writer's begin at 1.
HEIR = 1 << 27


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--code", default="2+1p")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--faults", default="none,stop,restart", help="of the servers: one of these a round")
    parser.add_argument("--victims", type=int, default=1, help="servers that a fault meets")
    parser.add_argument("--resolver", action="store_true", help="kill a third mount while it looks at what the first left")
    parser.add_argument("--direct", action="store_true", help="O_DIRECT")
    parser.add_argument("--shift", type=int, default=0, help="where in a page the memory begins")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--program", default="target/debug/ropewalk", help="the program under test [%(default)s]")
    parser.add_argument("--writer", nargs=4, help=argparse.SUPPRESS)
    return parser.parse_args()


def written(options, block, number):
    """The cells from..to of a block that its writer's write of this number covers."""
    chance = random.Random(f"{options.seed} {block} {number}")
    if chance.random() < 0.4:
        return 0, CELLS
    grain = UNIT // CELL if options.direct or chance.random() < 0.75 else 1
    length = chance.randint(1, 8 if chance.random() < 0.7 else CELLS // grain)
    first = chance.randint(0, CELLS // grain - length)
    return first * grain, (first + length) * grain


def content(block, number, first, end):
    return b"".join(struct.pack("<Q", (block + 1) << 52 | number << 20 | cell) * (CELL // 8) for cell in range(first, end))


def write(options, path, parity, counts, stop):
    """A process on one mount, a thread for each of its blocks. `counts` holds for each block the number of the last write that was begun,
    that was answered, and that was synced."""
    with open(counts, "r+b") as file:
        shared = mmap.mmap(file.fileno(), 0)
    file = os.open(path, os.O_WRONLY | (os.O_DIRECT if options.direct else 0))
    failed = []

    def work(block):
        memory = memoryview(mmap.mmap(-1, BLOCK + UNIT))
        chance = random.Random()
        number, at = struct.unpack_from("<Q", shared, block * 24)[0], block * 24
        try:
            while not os.path.exists(stop):
                number += 1
                first, end = written(options, block, number)
                data = memory[options.shift:options.shift + (end - first) * CELL]
                data[:] = content(block, number, first, end)
                struct.pack_into("<Q", shared, at, number)
                if os.pwrite(file, data, block * BLOCK + first * CELL) != len(data):
                    failed.append(f"block {block}, write {number}: only a part")
                struct.pack_into("<Q", shared, at + 8, number)
                if chance.random() < 0.15:
                    os.fdatasync(file)
                    struct.pack_into("<Q", shared, at + 16, number)
                if chance.random() < 0.1:
                    time.sleep(chance.random() * 0.05)
        except OSError as error:
            failed.append(f"block {block}: {error}")

    threads = [threading.Thread(target=work, args=(block,)) for block in range(int(parity), BLOCKS, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        sys.exit("; ".join(failed))


class Field:
    """The cluster, its mounts, and what is known of the file."""

    def __init__(self, options, base):
        self.options, self.dir = options, os.path.join(base, "cluster")
        self.mounts = [os.path.join(base, f"mount{number}") for number in range(3)]
        for mount in self.mounts:
            os.mkdir(mount)
        self.counts, self.chance, self.wrong = os.path.join(base, "counts"), random.Random(options.seed), 0
        with open(self.counts, "wb") as counts:
            counts.write(bytes(24 * BLOCKS))
        self.ropewalk("up", "--nodes", options.nodes, "--pdisks", 1, "--code", options.code, "--pdisk-size", "512m", "--block-size",
                      "1m", "--mount", self.mounts[0], "--detach")
        self.cells = [[0] * CELLS for _ in range(BLOCKS)]
        with open(self.path(0), "wb") as file:
            for block in range(BLOCKS):
                file.write(content(block, 0, 0, CELLS))

    def ropewalk(self, command, *rest):
        return run(self.options.program, *command.split(), "--dir", self.dir, *map(str, rest))

    def path(self, mount):
        return os.path.join(self.mounts[mount], "f")

    def pid(self, name):
        with open(os.path.join(self.dir, "run", name + ".pid")) as file:
            return int(file.read().split()[0])

    def known(self):
        with open(self.counts, "rb") as file:
            return list(struct.iter_unpack("<QQQ", file.read()))

    def mount(self, number):
        run(self.options.program, "mount", "--dir", self.dir, "fs1", self.mounts[number])

    def kill_mount(self, number):
        os.kill(self.pid("mount" + self.mounts[number].replace("/", "-")), signal.SIGKILL)

    def detach(self, number):
        """What the dead one holds goes to others now, instead of after its lease."""
        for session in json.loads(self.ropewalk("clients list", "--json")):
            if self.mounts[number] in json.dumps(session):
                self.ropewalk("clients detach", session["session"])
        run("umount", "-l", self.mounts[number])

    def fault(self, kind, victims):
        for victim in victims if kind != "none" else []:
            os.kill(victim, signal.SIGSTOP if kind == "stop" else signal.SIGKILL)

    def wrong_is(self, what):
        self.wrong += 1
        print(what, flush=True)

    def read(self, mount):
        """The numbers of the writes that each cell of each block is of."""
        found = []
        with open(self.path(mount), "rb", buffering=0) as file:
            for block in range(BLOCKS):
                data, numbers = os.pread(file.fileno(), BLOCK, block * BLOCK), []
                for cell in range(CELLS):
                    bytes_here = data[cell * CELL:(cell + 1) * CELL]
                    word = struct.unpack_from("<Q", bytes_here)[0] if len(bytes_here) == CELL else 0
                    number = word >> 20 & 0xffffffff
                    if bytes_here != content(block, number, cell, cell + 1):
                        words = [((each >> 52) - 1, each >> 20 & 0xffffffff, each & 0xfffff) for each, in struct.iter_unpack("<Q", bytes_here)]
                        runs = [(len(list(same)), *word) for word, same in itertools.groupby(words)]
                        self.wrong_is(f"block {block}, cell {cell}: not of one write; (words, block, write, cell): {runs}")
                    numbers.append(number)
                found.append(numbers)
        return found

    def inherit(self, round_number):
        """Writes into blocks of the dead one: cells of each block and their numbers."""
        over = [{} for _ in range(BLOCKS)]
        file = os.open(self.path(0), os.O_WRONLY)
        for step in range(24):
            block, number = self.chance.randrange(1, BLOCKS, 2), HEIR + round_number * 24 + step
            length = self.chance.choice([1, 1, 8, self.chance.randint(1, CELLS // 2)])
            first = self.chance.randint(0, CELLS - length)
            assert os.pwrite(file, content(block, number, first, first + length), block * BLOCK + first * CELL) == length * CELL
            over[block].update((cell, number) for cell in range(first, first + length))
        os.fdatasync(file)
        os.close(file)
        return over

    def check(self, block, cells, begun, known, over, dead):
        """`cells` as after some write since `begun`, of those that count."""
        state, nearest = list(self.cells[block]), None
        for number in range(begun, known[0] + 1):
            if number > begun:
                first, end = written(self.options, block, number)
                state[first:end] = [number] * (end - first)
            if number < known[2 if dead else 1]:
                continue
            differ = [cell for cell in range(CELLS) if cells[cell] != over.get(cell, state[cell])]
            if not differ:
                return
            if nearest is None or len(differ) < nearest[0]:
                nearest = len(differ), number, [(cell, cells[cell], over.get(cell, state[cell])) for cell in differ[:4]]
        begun_done_synced = f"{known[0]} begun, {known[1]} answered, {known[2]} synced"
        self.wrong_is(f"block {block} is as no write left it ({begun_done_synced}); nearest: {nearest}: (cell, is, should be)")

    def round(self, number):
        options, chance = self.options, self.chance
        self.mount(1)
        begun, stop = [known[0] for known in self.known()], f"{self.counts}-stop{number}"
        command = [sys.executable, __file__, *sys.argv[1:], "--seed", str(options.seed), "--writer"]
        writers = [subprocess.Popen([*command, self.path(parity), str(parity), self.counts, stop], stderr=subprocess.PIPE, text=True)
                   for parity in (0, 1)]
        wait_for("writes", lambda: all(any(now[1] > before for now, before in zip(self.known()[parity::2], begun[parity::2]))
                                       for parity in (0, 1)))
        time.sleep(chance.random() * 2)
        kind = chance.choice(options.faults.split(","))
        victims = [self.pid(f"n{node + 1}") for node in chance.sample(range(options.nodes), options.victims)]
        before = chance.random() < 0.5
        if before:
            self.fault(kind, victims)
            time.sleep(chance.random() * chance.choice([0.01, 1]))
        self.kill_mount(1)
        if not before:
            self.fault(kind, victims)
        try:
            if kind == "restart":
                self.ropewalk("up", "--no-mount", "--detach")
            self.detach(1)
            if options.resolver:
                self.mount(2)
                look = subprocess.Popen(["cat", self.path(2)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                time.sleep(chance.random() * chance.choice([0.05, 0.5]))
                self.kill_mount(2)
                self.detach(2)
                look.wait()
            with open(stop, "w"):
                said = [writer.communicate()[1] for writer in writers]
            if writers[0].returncode:
                self.wrong_is(f"the living writer failed: {said[0]}")
            over, known = self.inherit(number), self.known()
            cells = self.read(0)
            for block in range(BLOCKS):
                self.check(block, cells[block], begun[block], known[block], over[block], dead=block % 2 == 1)
        finally:
            for victim in victims if kind == "stop" else []:
                os.kill(victim, signal.SIGCONT)
        self.mount(1)
        if self.read(1) != cells:
            self.wrong_is("a new mount sees something else")
        run(options.program, "umount", self.mounts[1])
        self.cells = cells
        writes = sum(now[0] - old for now, old in zip(known[1::2], begun[1::2]))
        print(f"round {number}: {kind} {'before' if before else 'after'}, {writes} writes of the dead one, {self.wrong} wrong", flush=True)

    def stop(self):
        for mount in self.mounts[1:]:
            subprocess.run(["umount", "-l", mount], capture_output=True)
        subprocess.run([self.options.program, "down", "--force", "--dir", self.dir], capture_output=True, timeout=120)


def main():
    options = arguments()
    if options.writer:
        return write(options, *options.writer)
    base = tempfile.mkdtemp(prefix="ropewalk-killed-writers-")
    print(f"seed {options.seed}, in {base}", flush=True)
    field = None
    try:
        field = Field(options, base)
        for number in range(options.rounds):
            field.round(number)
            if field.wrong:
                sys.exit(1)
    finally:
        if field:
            field.stop()
    shutil.rmtree(base)


if __name__ == "__main__":
    script(main)
