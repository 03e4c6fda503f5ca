#!/bin/bash
# fsx: random reads, writes, truncations, mappings, holes and copies on one file, each checked.
# With OTHER, DIRECTORY as another mount shows it, somebody there has the file open, and reads and looks at it all the time.
# usage: [OTHER=DIRECTORY] tests/fsx.sh DIRECTORY [OPERATIONS [SEED]]

. "$(dirname "$0")/lib.sh"
need cargo cargo
VERSION=0.3.0
TOOL=$CACHE/fsx-$VERSION
operations=${2:-20000}
seed=${3:-$RANDOM$RANDOM}
work_in "${1:-}"
if [ ! -x "$TOOL/bin/fsx" ]; then
    step "building fsx $VERSION" cargo install -q --locked --root "$TOOL" --version "$VERSION" fsx
fi
# All operations Linux has; files a little over a block of the inode and of the kernel's requests.
cat >"$WORK/fsx.toml" <<'END'
flen = 3000000
[opsize]
max = 200000
[weights]
close_open = 3
read = 10
write = 10
mapread = 10
mapwrite = 10
invalidate = 1
truncate = 5
fsync = 1
fdatasync = 1
posix_fallocate = 2
punch_hole = 5
sendfile = 2
posix_fadvise = 2
copy_file_range = 4
END
if [ -n "${OTHER:-}" ]; then
    other=$OTHER/$(basename "$WORK")/file
    touch "$WORK/file"
    exec 9<"$other" || fail "$other cannot be opened"
    (while [ -e "$WORK" ]; do cat "$other" && stat "$other"; sleep 0.02; done >/dev/null 2>&1) &
    watcher=$!
    trap 'kill $watcher; cleanup' EXIT
fi
say "seed $seed, $operations operations"
"$TOOL/bin/fsx" -f "$WORK/fsx.toml" -P "$WORK" -S "$seed" -N "$operations" "$WORK/file" \
    || fail "seed $seed; again with: ${OTHER:+OTHER=$OTHER }$0 $1 $operations $seed"
[ -z "${OTHER:-}" ] || cmp "$WORK/file" "$other" || fail "the mounts show different bytes"
say "all held"
