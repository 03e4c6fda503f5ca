#!/usr/bin/env bash
# Runs every test: units and properties, then real clusters with real mounts. What computes for long (fsx) runs beside the others,
# with the CPU that they leave. The closing lines are the runner's own summary.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ ! -w /dev/fuse ]; then
  echo "test: /dev/fuse cannot be opened for writing; the tests of the mount need it (run as root, or with FUSE allowed)" >&2
  exit 1
fi
work=$(mktemp -d)
beside=
trap '[ -z "$beside" ] || kill "$beside" 2>/dev/null; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# tests ARGUMENT...: cargo test. What fails once has failed.
tests() {
  cargo test --workspace --no-fail-fast "$@"
}

# Examples are programs that the tests of the mount call.
cargo build --workspace --examples
cargo test --workspace --no-run "$@"
cargo test --workspace --no-run --test fsx --test lab_stagings

# Not at 19: beside those who compute, each message would wait for a CPU, and leases are of seconds. timeout hands a signal on to
# all that it runs.
timeout 1h nice -n 10 cargo test --workspace --test fsx >"$work/fsx" 2>&1 &
beside=$!
status=0
tests "$@" || status=1

# The mount's tests once more by the classic transport: the default takes io_uring where it is to be had.
mount=()
for file in crates/fuse/tests/*.rs; do mount+=(--test "$(basename "$file" .rs)"); done
ROPEWALK_FUSE_TRANSPORT=classic tests "${mount[@]}" "$@" || status=1

echo "test: fsx, which ran beside the others:"
ended=0
wait "$beside" || ended=$?
beside=
cat "$work/fsx"
[ "$ended" -eq 0 ] || status=1
# On a machine that others use it stages what it draws up to three times: last, and alone.
tests --test lab_stagings || status=1
[ "$status" -eq 0 ] || echo "test: FAILED; see above" >&2
exit "$status"
