"""What every job has: its directories, buffered reading and writing in units of 256 KiB, exact sums, and its result.

A job is called as PROGRAM TEST DATA WORK UTIL MEMORY: three directories, and the bytes of memory that sorting may take. It prints its
result as JSON: values that must be the same wherever the same input is read. Sums over integers and checksums are exact, so one wrong
byte of an input or of a file that was written and read again shows.
"""
import importlib
import json
import os
import sys
import zlib

UNIT = 256 * 1024  # bytes of one read or write of a data step
ROW = 64  # bytes of a row of the usual tables: id 12, key 8, group 4, quantity 6, price 8 digits, a word, a newline
COLUMNS = ["id", "key", "grp", "qty", "price", "word"]


class Place:
    """The directories of one job."""

    def __init__(self, data, work, util, memory):
        self.data, self.work, self.util, self.memory = data, work, util, memory

    def input(self, name):
        return os.path.join(self.data, name)


def blocks(path):
    """A file from its beginning, 256 KiB a read."""
    with open(path, "rb", buffering=0) as file:
        while True:
            block = file.read(UNIT)
            if not block:
                return
            # A read may give less; rows are whole within a unit.
            while len(block) < UNIT:
                more = file.read(UNIT - len(block))
                if not more:
                    break
                block += more
            yield block


class Writer:
    """A file that is written 256 KiB a time, and made durable at its end."""

    def __init__(self, path):
        self.path, self.file, self.rest = path, open(path, "wb", buffering=0), bytearray()

    def write(self, data):
        self.rest += data
        while len(self.rest) >= UNIT:
            self._all(self.rest[:UNIT])
            del self.rest[:UNIT]

    def _all(self, data):
        view = memoryview(data)
        while view:
            view = view[self.file.write(view):]

    def close(self):
        self._all(bytes(self.rest))
        os.fsync(self.file.fileno())
        self.file.close()


def checksum(path):
    """Bytes and CRC-32 of a file, read 256 KiB a time."""
    crc = size = 0
    for block in blocks(path):
        crc, size = zlib.crc32(block, crc), size + len(block)
    return size, crc


def matrix(np, path, columns):
    """A file of numbers as a matrix, with the CRC-32 of its bytes: no changed byte goes unseen."""
    data = np.fromfile(path, dtype="<f8")
    return data.reshape(-1, columns), zlib.crc32(data)


def main(tests):
    """Imports what a test needs, runs it, prints its values."""
    name = sys.argv[1]
    needs, function = tests[name]
    modules = [importlib.import_module(need) for need in needs]
    with open("/proc/self/io") as lines:
        before = {key: int(value) for key, value in (line.split(":") for line in lines)}
    place = Place(*sys.argv[2:5], int(sys.argv[5]))
    values = function(place, *modules)
    print(json.dumps({"io_before": before, "values": values}))
