#!/usr/bin/env bash
# Runs every test: units and properties, real clusters with real mounts. The closing lines are the runner's own summary.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ ! -w /dev/fuse ]; then
  echo "test: /dev/fuse cannot be opened for writing; the tests of the mount need it (run as root, or with FUSE allowed)" >&2
  exit 1
fi
work=$(mktemp -d)
beside=()
trap '((${#beside[@]} == 0)) || kill "${beside[@]}" 2>/dev/null; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# run ARGUMENT...: cargo test. What fails once has failed.
run() {
  cargo test --no-fail-fast "$@"
}

# Examples are programs that the tests of the mount call.
cargo build --workspace --examples
cargo test --workspace --no-run "$@"
cargo test --workspace --no-run --test fsx --test lab_stagings

# Three streams. fsx, which computes: not at 19, beside those who compute each message would wait for a CPU, and leases are of seconds.
# timeout hands a signal on to all that it runs.
timeout 1h nice -n 10 cargo test --workspace --test fsx >"$work/fsx" 2>&1 &
beside+=($!)

# The libraries, and the mount's tests once more by the classic transport (the default takes io_uring where it is to be had), beside the clusters
# of the command line: either waits for most of its time.
libraries() {
  local failed=0 mount=() file
  for file in crates/fuse/tests/*.rs; do mount+=(--test "$(basename "$file" .rs)"); done
  run --workspace --exclude ropewalk-cli --exclude ropewalk-lab "$@" || failed=1
  ROPEWALK_FUSE_TRANSPORT=classic run --package ropewalk-fuse "${mount[@]}" "$@" || failed=1
  return $failed
}
export -f run libraries
timeout 1h bash -c 'libraries "$@"' libraries "$@" >"$work/libraries" 2>&1 &
beside+=($!)

status=0
run --package ropewalk-cli "$@" || status=1
for job in "${beside[@]}"; do wait "$job" || status=1; done
beside=()
echo "test: fsx and the libraries, which ran beside:"
cat "$work/fsx" "$work/libraries"

# What measures comes last, with the machine to itself; on one that others use it stages what it draws up to three times.
run --package ropewalk-lab "$@" || status=1
run --package ropewalk-cli --test lab_stagings || status=1
[ "$status" -eq 0 ] || echo "test: FAILED; see above" >&2
exit "$status"
