# Shared by the scripts that exercise a directory, usually on a mount. Sourced, not run.
# Gives: TOP (repository), say, fail, need, and a work directory under $1 that is removed at the end.

set -u -o pipefail
export LC_ALL=C
TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
NAME=$(basename "$0" .sh)
CACHE=${ROPEWALK_TEST_CACHE:-$TOP/target/test-tools}

say() { printf '%s: %s\n' "$NAME" "$*"; }
fail() { printf '%s: FAILED: %s\n' "$NAME" "$*" >&2; exit 1; }

# need PROGRAM PACKAGE: stops with the remedy if a program is missing.
need() { command -v "$1" >/dev/null || fail "$1 is not installed; apt-get install $2"; }

# work_in DIR: checks the directory and makes $WORK under it, removed at the end.
work_in() {
    [ $# -eq 1 ] && [ -n "$1" ] || { echo "usage: $0 DIRECTORY ..." >&2; exit 2; }
    [ -d "$1" ] || fail "$1 is not a directory; give a directory on the file system to test"
    WORK=$(mktemp -d "$1/$NAME.XXXXXX") || fail "cannot make a directory in $1"
    chmod 755 "$WORK"
    trap cleanup EXIT
    trap 'exit 130' INT TERM
}
cleanup() {
    cd /
    [ -n "${LOCAL:-}" ] && rm -rf "$LOCAL"
    rm -rf "$WORK" || { echo "$NAME: FAILED: $WORK could not be removed" >&2; exit 1; }
}

# step TEXT COMMAND...: runs, shows the output only if it fails.
step() {
    local what=$1 log
    shift
    log=$(mktemp)
    # In a shell of its own, and not as a condition: where it is one, its `set -e` counts for nothing.
    ("$@") >"$log" 2>&1
    if [ $? != 0 ]; then
        sed 's/^/    /' "$log" | tail -40 >&2
        rm -f "$log"
        fail "$what"
    fi
    rm -f "$log"
    say "$what"
}

# fscall: the helper for calls that a shell cannot make.
build_fscall() {
    FSCALL=${FSCALL:-}
    [ -n "$FSCALL" ] && return
    (cd "$TOP" && cargo build -q -p ropewalk-fuse --example fscall) || fail "building fscall"
    FSCALL=${CARGO_TARGET_DIR:-$TOP/target}/debug/examples/fscall
}
