"""The I/O class: eight tests that mostly read and write files."""
import itertools
import os
import random
import subprocess
import zlib

from common import COLUMNS, ROW, UNIT, Writer, blocks, checksum, main


def census1(place):
    """Data step: reads fixed-width text, keeps every row of an even group, writes it as a file of its own, reads that again."""
    rows = kept = crc = 0
    out = Writer(place.work + "/kept")
    for block in blocks(place.input("census")):
        crc = zlib.crc32(block, crc)
        for at in range(0, len(block), ROW):
            rows += 1
            # The last digit of the group.
            if block[at + 25] % 2 == 0:
                kept += 1
                out.write(block[at:at + ROW])
    out.close()
    return {"rows": rows, "input": crc, "kept": kept, "written": checksum(out.path)}


def ranrw(place):
    """Data step: reads a tenth of three tables at random places (narrow, middle and wide rows), writes what it read, changes a tenth
    of that in place, reads it again. Rows of the first unit are always among them."""
    values = {}
    for name, width in (("skinny", 64), ("medium", 512), ("wide", 4096)):
        path, copy = place.input(name), place.work + "/" + name
        rows = os.path.getsize(path) // width
        draw = random.Random(rows)
        count = max(rows // 10, 1)
        wanted = (draw.randrange(rows) for _ in range(count))
        crc = 0
        out = Writer(copy)
        with open(path, "rb", buffering=0) as file:
            for row in itertools.chain(range(min(rows, UNIT // width)), wanted):
                data = os.pread(file.fileno(), width, row * width)
                crc = zlib.crc32(data, crc)
                out.write(data)
        out.close()
        with open(copy, "r+b", buffering=0) as file:
            for row in draw.sample(range(count), count // 10):
                os.pwrite(file.fileno(), b"changed-", row * width)
            os.fsync(file.fileno())
        values[name] = [count, crc, *checksum(copy)]
    return values


def gsort(place):
    """GNU sort by the last column, its temporary files on UTIL: more than memory may hold. The result is read again."""
    out = place.work + "/sorted"
    sort = ["sort", "-t", ",", "-k6,6", "-T", place.util, "-S", f"{max(place.memory, 1 << 20)}b", "--parallel=1", "-o", out,
            place.input("gsort")]
    subprocess.run(sort, check=True, env={**os.environ, "LC_ALL": "C"})
    last, ordered = b"", True
    for block in blocks(out):
        for at in range(0, len(block), ROW):
            word = block[at + 43:at + ROW]
            ordered, last = ordered and last <= word, word
    return {"ordered": ordered, "sorted": checksum(out)}


def packed(place, name, pack, unpack):
    """Compresses a file, reads the compressed one, compares with what went in."""
    source, small, again = place.input(name), place.work + "/small", place.work + "/again"
    for command, path, out in ((pack, source, small), (unpack, small, again)):
        with open(path, "rb") as file, open(out, "wb") as to:
            subprocess.run(command, stdin=file, stdout=to, check=True)
            os.fsync(to.fileno())
    return {"small": checksum(small), "again": checksum(again)}


def customer1(place):
    """zstd, one thread: a file through it and back."""
    return packed(place, "customer", ["zstd", "-q", "-3", "-T1", "-c"], ["zstd", "-q", "-d", "-c"])


def focus2(place):
    """gzip: a file through it and back."""
    return packed(place, "focus", ["gzip", "-n", "-3", "-c"], ["gzip", "-d", "-c"])


def io2(place, sqlite3):
    """SQLite: loads a table, makes an index, counts a semi-join: rows whose key is also an id of another group."""
    os.environ["SQLITE_TMPDIR"] = place.util
    base = sqlite3.connect(place.work + "/base")
    base.execute("pragma synchronous = full")
    base.execute("create table t (id integer, key integer, grp integer, qty integer, price integer, word text)")

    def rows():
        for block in blocks(place.input("io2")):
            for line in block.decode("latin-1").splitlines():
                yield line.split(",")

    with base:
        base.executemany("insert into t values (?, ?, ?, ?, ?, ?)", rows())
    with base:
        base.execute("create index by_key on t (key)")
    sums = base.execute(
        "select count(*), sum(id), sum(key), sum(grp), sum(qty), sum(price), count(distinct word), max(word) from t").fetchone()
    semi = base.execute("select count(*) from t a where a.id in (select b.key from t b where b.grp % 2 = 1)").fetchone()
    order = base.execute("select word from t order by word desc limit 1 offset (select count(*) / 2 from t)").fetchone()
    words = 0
    for (word,) in base.execute("select word from t order by id"):
        words = zlib.crc32(word.encode("latin-1"), words)
    base.close()
    return {"sums": sums, "semi": semi[0], "middle": order[0], "words": words}


def table(place, name):
    """A text table as DuckDB reads it, each column with its type."""
    types = ", ".join(f"'{column}': '{'VARCHAR' if column == 'word' else 'BIGINT'}'" for column in COLUMNS)
    return f"read_csv('{place.input(name)}', header = false, delim = ',', columns = {{{types}}})"


def duck(place, duckdb):
    base = duckdb.connect()
    base.execute(f"set threads = 1; set temp_directory = '{place.util}'")
    base.execute(f"set memory_limit = '{max(place.memory, 128 << 20)}B'; set preserve_insertion_order = false")
    return base


SUMS = "count(*)::BIGINT, sum(id)::VARCHAR, sum(key)::VARCHAR, sum(grp)::VARCHAR, sum(qty)::VARCHAR, sum(price)::VARCHAR, " \
       "bit_xor(hash(word))::VARCHAR"


def io1(place, duckdb):
    """DuckDB: a text table into Parquet, read again by group, and written out as text."""
    base, parquet, text = duck(place, duckdb), place.work + "/t.parquet", place.work + "/groups.csv"
    base.execute(f"copy (from {table(place, 'io1')}) to '{parquet}' (format parquet, compression zstd)")
    sums = base.execute(f"select {SUMS} from '{parquet}'").fetchone()
    base.execute(f"copy (select grp, count(*), sum(price) from '{parquet}' group by grp order by grp) to '{text}'")
    return {"sums": sums, "groups": checksum(text)}


def dim_50mil(place, duckdb):
    """DuckDB: a large table looked up in a smaller one by key, the result sorted through UTIL and written."""
    base, out = duck(place, duckdb), place.work + "/looked-up.csv"
    base.execute(
        f"copy (select a.id, a.word, count(b.id) as found, coalesce(sum(b.price), 0) as price from {table(place, 'dim')} a left join "
        f"(from {table(place, 'dim-small')}) b on a.key = b.key group by all order by a.word, a.id) to '{out}'")
    sums = [base.execute(f"select {SUMS} from {table(place, name)}").fetchone() for name in ("dim", "dim-small")]
    return {"sums": sums, "sorted": checksum(out)}


main({
    "census1": ([], census1),
    "io1": (["duckdb"], io1),
    "dim_50mil": (["duckdb"], dim_50mil),
    "gsort": ([], gsort),
    "io2": (["sqlite3"], io2),
    "ranrw": ([], ranrw),
    "customer1": ([], customer1),
    "focus2": ([], focus2),
})
