"""The sum of a column of a Parquet file for each value of another: `parquet.py FILE BY SUM`. As duckdb and pyarrow read it, where this
Python has them, and always as the few lines here do, which follow the format's description and share nothing with what wrote it.
Prints JSON: {engine: {value: sum}}."""

import io
import json
import struct
import sys


def varint(data):
    value, shift = 0, 0
    while True:
        byte = data.read(1)[0]
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value


def thrift(data, kind):
    """A value of Thrift's compact protocol; a struct as {number: value}."""
    if kind in (1, 2):
        return kind == 1
    if kind == 3:
        return data.read(1)[0]
    if kind in (4, 5, 6):
        number = varint(data)
        return number >> 1 ^ -(number & 1)
    if kind == 7:
        return struct.unpack("<d", data.read(8))[0]
    if kind == 8:
        return data.read(varint(data)).decode()
    if kind in (9, 10):
        head = data.read(1)[0]
        count = head >> 4 if head >> 4 < 15 else varint(data)
        return [thrift(data, head & 15) for _ in range(count)]
    assert kind == 12, f"a type that Parquet does not use: {kind}"
    fields, number = {}, 0
    while (head := data.read(1)[0]) != 0:
        number = number + (head >> 4) if head >> 4 else thrift(data, 4)
        fields[number] = thrift(data, head & 15)
    return fields


def present(page, count):
    """The definition levels of an optional column: runs and bit-packed groups, one bit each."""
    (length,) = struct.unpack("<I", page.read(4))
    levels, bits = io.BytesIO(page.read(length)), []
    while len(bits) < count:
        head = varint(levels)
        if head & 1:
            packed = levels.read(head >> 1)
            bits += [byte >> n & 1 for byte in packed for n in range(8)]
        else:
            bits += [levels.read(1)[0]] * (head >> 1)
    assert levels.read() == b"", "more levels than values"
    return bits[:count]


def plain(page, kind):
    if kind == 6:
        return page.read(struct.unpack("<I", page.read(4))[0]).decode()
    return struct.unpack("<q" if kind == 2 else "<d", page.read(8))[0]


def columns(path):
    with open(path, "rb") as whole:
        data = whole.read()
    assert data[:4] == data[-4:] == b"PAR1"
    (length,) = struct.unpack("<I", data[-8:-4])
    footer_data = io.BytesIO(data[-8 - length : -8])
    footer = thrift(footer_data, 12)
    assert footer_data.read() == b"", "the footer is longer than what it holds"
    root, *leaves = footer[2]
    assert root[5] == len(leaves)
    table = {leaf[4]: [] for leaf in leaves}
    for group in footer[4]:
        for leaf, chunk in zip(leaves, group[1]):
            meta = chunk[3]
            assert (meta[1], meta[3], meta[4]) == (leaf[1], [leaf[4]], 0), meta
            page = io.BytesIO(data[meta[9] : meta[9] + meta[7]])
            header = thrift(page, 12)
            assert header[1] == 0 and header[5][1] == meta[5] == group[3] and header[5][2] == 0
            assert header[2] == header[3] == meta[7] - page.tell()
            levels = present(page, meta[5]) if leaf[3] else [1] * meta[5]
            table[leaf[4]] += [plain(page, leaf[1]) if there else None for there in levels]
            assert page.read() == b"", "the page is longer than its values"
    assert all(len(values) == footer[3] for values in table.values())
    return table


file, by, column = sys.argv[1:]
found = {"the format's description": {}}
table = columns(file)
for value, number in zip(table[by], table[column]):
    sums = found["the format's description"]
    sums[value] = sums.get(value, 0.0) + (number or 0)
try:
    import duckdb

    rows = duckdb.sql(f'SELECT "{by}", sum("{column}") FROM read_parquet(\'{file}\') GROUP BY 1').fetchall()
    found["duckdb"] = {value: float(total or 0) for value, total in rows}
except ImportError:
    pass
try:
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(file)
    sums = {}
    for value, number in zip(table[by].to_pylist(), table[column].to_pylist()):
        sums[value] = sums.get(value, 0.0) + (number or 0)
    found["pyarrow"] = sums
except ImportError:
    pass
print(json.dumps(found))
