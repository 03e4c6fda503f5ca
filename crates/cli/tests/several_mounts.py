"""Random operations on one file, each from another mount of the same file system, against a model in memory:
pread, pwrite, truncate, append, mapped reads and writes, sizes, reopening. In the manner of fsx (Apple, 1991).

usage: several_mounts.py SEED OPERATIONS MOUNT...
"""
import mmap
import os
import random
import sys

SIZE_MAX = 3_000_000


def main():
    seed, operations, mounts = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    draw = random.Random(seed)
    paths = [os.path.join(mount, f"random-{seed}") for mount in mounts]
    open(paths[0], "wb").close()
    files = [os.open(path, os.O_RDWR) for path in paths]
    model = bytearray()
    history = []

    def check(holds, what):
        if not holds:
            sys.exit(f"seed {seed}: operation {len(history)}, {what}; before it: {history[-10:]}")

    def place():
        offset = draw.randrange(SIZE_MAX)
        return offset // 50 if draw.random() < 0.5 else offset

    for _ in range(operations):
        at = draw.randrange(len(mounts))
        operation = draw.choice(["write", "write", "write", "read", "read", "read", "truncate", "append",
                                 "mapped read", "mapped write", "size", "reopen"])
        if operation == "write":
            offset = place()
            data = draw.randbytes(draw.choice([1, 10, 4096, draw.randrange(1, 200_000)]))
            check(os.pwrite(files[at], data, offset) == len(data), "short write")
            model.extend(bytes(max(0, offset - len(model))))
            model[offset:offset + len(data)] = data
        elif operation == "read":
            offset, length = place(), draw.randrange(1, 200_000)
            data = os.pread(files[at], length, offset)
            check(data == bytes(model[offset:offset + length]), f"read of {length} at {offset} by {at}")
        elif operation == "truncate":
            size = draw.choice([draw.randrange(SIZE_MAX), draw.randrange(20_000), len(model)])
            os.ftruncate(files[at], size)
            del model[size:]
            model.extend(bytes(size - len(model)))
        elif operation == "append":
            data = draw.randbytes(draw.randrange(1, 9000))
            file = os.open(paths[at], os.O_WRONLY | os.O_APPEND)
            check(os.write(file, data) == len(data), "short append")
            os.close(file)
            model.extend(data)
        elif operation.startswith("mapped") and model:
            with mmap.mmap(files[at], len(model)) as mapped:
                offset = draw.randrange(len(model))
                length = min(draw.randrange(1, 20_000), len(model) - offset)
                if operation == "mapped read":
                    data = mapped[offset:offset + length]
                    check(data == bytes(model[offset:offset + length]), f"mapped read at {offset} by {at}")
                else:
                    data = draw.randbytes(length)
                    mapped[offset:offset + length] = data
                    model[offset:offset + length] = data
        elif operation == "size":
            sizes = (os.fstat(files[at]).st_size, os.stat(paths[at]).st_size)
            check(sizes == (len(model), len(model)), f"sizes {sizes} by {at}, not {len(model)}")
        elif operation == "reopen":
            os.close(files[at])
            files[at] = os.open(paths[at], os.O_RDWR)
        history.append((operation, at, len(model)))
    for at, file in enumerate(files):
        check(os.pread(file, 2 * SIZE_MAX, 0) == bytes(model), f"the end, by {at}")
    os.unlink(paths[0])
    print(f"{operations} operations on {len(mounts)} mounts, seed {seed}")


main()
