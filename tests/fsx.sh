#!/bin/bash
# fsx: random reads, writes, truncations, mappings, holes and copies on one file, each checked.
# With OTHER, DIRECTORY as another mount shows it, somebody there has the file open, and reads and looks at it every PAUSE
# seconds (default 0.02: all the time). With DIRECT=1 the file is opened with O_DIRECT: fsx has no option for it, so its open
# is changed on the way to the C library. With MSYNC=0 what was written by a mapping is not written out at once.
# usage: [OTHER=DIRECTORY [PAUSE=SECONDS]] [DIRECT=1] [MSYNC=0] tests/fsx.sh DIRECTORY [OPERATIONS [SEED]]

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
# All operations Linux has, none of no bytes: fsx takes the EINVAL that POSIX asks for then for a file system without posix_fallocate.
# Files a little over a block of the inode and of the kernel's requests.
[ "${MSYNC:-1}" = 1 ] && later=false || later=true
cat >"$WORK/fsx.toml" <<END
flen = 3000000
nomsyncafterwrite = $later
[opsize]
min = 1
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
    (while [ -e "$WORK" ]; do cat "$other" && stat "$other"; sleep "${PAUSE:-0.02}"; done >/dev/null 2>&1) &
    watcher=$!
    trap 'kill $watcher; cleanup' EXIT
fi
preload=
if [ -n "${DIRECT:-}" ]; then
    need cc gcc
    preload=$WORK/direct.so
    cc -shared -fPIC -o "$preload" -x c - -ldl <<'END' || fail "building the change of open"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
int open64(const char *path, int flags, ...) {
    int (*next)(const char *, int, ...) = dlsym(RTLD_NEXT, "open64");
    va_list rest;
    va_start(rest, flags);
    int mode = va_arg(rest, int);
    va_end(rest);
    return next(path, strcmp(path, getenv("DIRECT_FILE")) ? flags : flags | O_DIRECT, mode);
}
END
fi
say "seed $seed, $operations operations"
LD_PRELOAD=$preload DIRECT_FILE=$WORK/file "$TOOL/bin/fsx" -f "$WORK/fsx.toml" -P "$WORK" -S "$seed" -N "$operations" "$WORK/file" \
    || fail "seed $seed; again with: ${OTHER:+OTHER=$OTHER }${DIRECT:+DIRECT=1 }${MSYNC:+MSYNC=$MSYNC }$0 $1 $operations $seed"
[ -z "${OTHER:-}" ] || cmp "$WORK/file" "$other" || fail "the mounts show different bytes"
say "all held"
