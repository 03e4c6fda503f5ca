#!/bin/bash
# The pjdfstest suite (POSIX behaviour of file systems) on the directory given; needs root.
# usage: tests/pjdfstest.sh DIRECTORY [TEST...]     e.g. tests/pjdfstest.sh /mnt chmod rename
# PJDFSTEST_EXPECTED: a file of test names, one a line, that are known to fail; others fail the script.

. "$(dirname "$0")/lib.sh"
need cargo cargo
VERSION=0.2.0
TOOL=$CACHE/pjdfstest-$VERSION
[ "$(id -u)" = 0 ] || fail "needs root: it changes owners and makes devices"
work_in "${1:-}"
shift
LOCAL=$(mktemp -d /tmp/$NAME.local.XXXXXX)
if [ ! -x "$TOOL/bin/pjdfstest" ]; then
    step "building pjdfstest $VERSION" cargo install -q --locked --root "$TOOL" --version "$VERSION" pjdfstest
fi

# What Linux and a FUSE mount have: see the suite's own configuration.
cat >"$LOCAL/config.toml" <<'END'
[features]
posix_fallocate = {}
rename_ctime = {}
stat_st_birthtime = {}
utimensat = {}
utime_now = {}
[settings]
naptime = 0.05
allow_remount = false
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"], ["bin", "bin"]]
END
chmod 1777 "$WORK"
"$TOOL/bin/pjdfstest" -c "$LOCAL/config.toml" -p "$WORK" "$@" >"$LOCAL/log" 2>&1
status=$?
grep -E 'FAILED|failed|panicked' "$LOCAL/log" | head -60
tail -3 "$LOCAL/log"
cp "$LOCAL/log" "${PJDFSTEST_LOG:-/tmp/pjdfstest.log}"
exit $status
