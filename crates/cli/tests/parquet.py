"""The sum of a column of a Parquet file for each value of another, as duckdb and pyarrow read it: `parquet.py FILE BY SUM`.
Prints JSON: {engine: {value: sum}}, of those engines that this Python has."""

import json
import sys

file, by, column = sys.argv[1:]
found = {}
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
