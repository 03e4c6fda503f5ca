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

# run ARGUMENT...: cargo test, always of the whole workspace: with fewer packages their dependencies would be built anew with fewer features.
# What fails once has failed.
run() {
  cargo test --workspace --no-fail-fast "$@"
}

# named FILE...: arguments that choose these test programs; one in a directory of its own has its name.
named() {
  local file
  for file in "${@%/main.rs}"; do echo --test "$(basename "$file" .rs)"; done
}

# Examples are programs that the tests of the mount call.
cargo build --workspace --examples
run --no-run "$@"
run --no-run --test fsx --test lab_stagings

alone=(fsx lab_stagings pjdfstest)                 # not in a stream: see below; pjdfstest is a command of its own
measuring=(crates/lab/tests/*.rs crates/cli/tests/{lab_nodes,lab_runs,perf}.rs)
clusters=$(named crates/cli/tests/*.rs | sort -u | grep -vxF -f <(named "${alone[@]}" "${measuring[@]}"))
computing=$(named simulation token_model)
clusters=$(grep -vxF -f <(echo "$computing") <<<"$clusters")
libraries=$(named crates/*/tests/{*.rs,*/main.rs} | sort -u | grep -vxF -f <(echo "$clusters"; echo "$computing"; named "${alone[@]}" "${measuring[@]}"))

# Three streams. fsx, which computes: not at 19, beside those who compute each message would wait for a CPU, and leases are of seconds.
# timeout hands a signal on to all that it runs.
timeout 1h nice -n 10 cargo test --workspace --test fsx >"$work/fsx" 2>&1 &
beside+=($!)

# The libraries, the mount's tests once more by the classic transport (the default takes io_uring where it is to be had), and the clusters
# that exist in memory alone, beside the clusters of the command line: either waits for most of its time.
export -f run
export libraries computing classic="$(named crates/fuse/tests/*.rs)"
timeout 1h bash -c '
  failed=0
  run --lib --bins "$@" || failed=1
  run $libraries "$@" || failed=1
  run $computing "$@" || failed=1
  run --doc "$@" || failed=1
  ROPEWALK_FUSE_TRANSPORT=classic run $classic "$@" || failed=1
  exit $failed' libraries "$@" >"$work/libraries" 2>&1 &
beside+=($!)

status=0
run $clusters "$@" || status=1
for job in "${beside[@]}"; do wait "$job" || status=1; done
beside=()
echo "test: fsx and the libraries, which ran beside:"
cat "$work/fsx" "$work/libraries"

# What measures comes last, with the machine to itself; on one that others use lab_stagings stages what it draws up to three times.
run $(named "${measuring[@]}") "$@" || status=1
run --test lab_stagings || status=1
[ "$status" -eq 0 ] || echo "test: FAILED; see above" >&2
exit "$status"
