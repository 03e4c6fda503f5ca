#!/bin/bash
# The pjdfstest suite (POSIX behaviour of file systems) on the directory given; needs root.
# usage: tests/pjdfstest.sh DIRECTORY [TEST...]     e.g. tests/pjdfstest.sh /mnt chmod rename
# PJDFSTEST_LOG=FILE keeps the whole log.

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

# A second file system, for renames and links across.
second=
[ "$(stat -c %d "$LOCAL")" != "$(stat -c %d "$WORK")" ] && second="secondary_fs = \"$LOCAL\""
# What Linux has; the rest is of the BSDs. Users and groups that Debian has.
cat >"$LOCAL/config.toml" <<END
[features]
$second
posix_fallocate = {}
rename_ctime = {}
stat_st_birthtime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.05
allow_remount = false
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"], ["bin", "bin"]]
END
chmod 1777 "$WORK"
"$TOOL/bin/pjdfstest" -c "$LOCAL/config.toml" -p "$WORK" "$@" >"$LOCAL/log" 2>&1
status=$?
# A test's line, and below a failed one its reason.
grep -A1 ' FAILED$' "$LOCAL/log" | grep -v '^--'
summary=$(grep '^Summary' "$LOCAL/log") || { tail -20 "$LOCAL/log"; fail "the suite did not run"; }
say "$summary"
say "skipped: $(grep -A1 ' skipped$' "$LOCAL/log" | grep '^.[A-Z]' | sort | uniq -c | xargs -d '\n' printf '%s;')"
[ -n "${PJDFSTEST_LOG:-}" ] && cp "$LOCAL/log" "$PJDFSTEST_LOG"
[ "$status" = 0 ] || fail "see above"
say "all held"
