"""A program that takes locks as it is told, a line each, and says what came of it, a line each.

usage: locks.py             commands from standard input, see `Program`
       locks.py count FILE TIMES fcntl|flock
                            adds 1 to the number in FILE, under the lock, so many times
"""
import errno
import fcntl
import os
import signal
import struct
import sys

MODES = {"shared": fcntl.LOCK_SH, "exclusive": fcntl.LOCK_EX, "none": fcntl.LOCK_UN}
TYPES = {"shared": fcntl.F_RDLCK, "exclusive": fcntl.F_WRLCK, "none": fcntl.F_UNLCK}
FORMAT = "hhqqi4x"  # struct flock of 64-bit Linux


class Interrupted(Exception):
    pass


def interrupt(_signal, _frame):
    raise Interrupted


class Program:
    def __init__(self):
        self.files = {}

    def open(self, name, path):
        self.files[name] = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)

    def close(self, name):
        os.close(self.files.pop(name))

    def fork(self):
        """A child that has inherited what is open, and does nothing until it or this one ends."""
        ends, self.child_lives = os.pipe()
        self.child = os.fork()
        if self.child == 0:
            os.close(self.child_lives)
            os.read(ends, 1)
            os._exit(0)
        os.close(ends)

    def end(self):
        os.close(self.child_lives)
        os.waitpid(self.child, 0)

    def fcntl(self, name, mode, start, length, wait="try"):
        command = fcntl.F_SETLKW if wait == "wait" else fcntl.F_SETLK
        wish = struct.pack(FORMAT, TYPES[mode], os.SEEK_SET, int(start), int(length), 0)
        fcntl.fcntl(self.files[name], command, wish)

    def test(self, name, mode, start, length):
        wish = struct.pack(FORMAT, TYPES[mode], os.SEEK_SET, int(start), int(length), 0)
        kind, _, start, length, pid = struct.unpack(FORMAT, fcntl.fcntl(self.files[name], fcntl.F_GETLK, wish))
        names = {value: name for name, value in TYPES.items()}
        return "none" if kind == fcntl.F_UNLCK else f"{names[kind]} {start} {length} {pid}"

    def flock(self, name, mode, wait="try"):
        fcntl.flock(self.files[name], MODES[mode] | (0 if wait == "wait" else fcntl.LOCK_NB))

    def run(self):
        signal.signal(signal.SIGUSR1, interrupt)
        for line in sys.stdin:
            command, *words = line.split()
            try:
                said = getattr(self, command)(*words) or "ok"
            except Interrupted:
                said = "EINTR"
            except OSError as error:
                # Two names for one number.
                said = "EDEADLK" if error.errno == errno.EDEADLK else errno.errorcode[error.errno]
            print(said, flush=True)


def count(path, times, kind):
    program = Program()
    program.open("f", path)
    for _ in range(int(times)):
        if kind == "fcntl":
            program.fcntl("f", "exclusive", 1000, 1, "wait")
        else:
            program.flock("f", "exclusive", "wait")
        value = int(os.pread(program.files["f"], 20, 0) or b"0")
        os.pwrite(program.files["f"], b"%d" % (value + 1), 0)
        if kind == "fcntl":
            program.fcntl("f", "none", 0, 0)
        else:
            program.flock("f", "none")


if sys.argv[1:2] == ["count"]:
    count(*sys.argv[2:])
else:
    Program().run()
