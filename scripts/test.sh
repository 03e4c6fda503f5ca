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
all="cargo test --workspace --no-fail-fast"
run() {
  $all "$@"
}

# names FILE...: of these test programs; one in a directory of its own has its name.
names() {
  local file
  for file in "${@%/main.rs}"; do basename "$file" .rs; done | sort -u
}

# Examples are programs that the tests of the mount call.
cargo build --workspace --examples
run --no-run "$@"
run --no-run --test fsx --test lab_stagings

measuring=(crates/lab/tests/*.rs crates/cli/tests/{lab_nodes,lab_runs,perf}.rs) # last, with the machine to itself
long=(failures last_copies mirror_cuts catch_up arrays posix chaos authority machines managers takeovers)
# They compute, and give way: beside them at the same priority each message of a cluster would wait for a CPU, and leases are of seconds.
computing=(simulation token_model fsx)
# pjdfstest is a command of its own (make over-etcd).
rest=$(names crates/*/tests/{*.rs,*/main.rs} | grep -vxF -f <(names "${measuring[@]}"; printf '%s\n' "${long[@]}" "${computing[@]}" lab_stagings pjdfstest))

# one COMMAND...: what it says comes in one piece, when it has ended. One that hangs is ended after several times what the longest takes, so
# that its last lines are seen; what gives way to others begins early and may take longer. timeout hands a signal on to all that it runs, but
# is in no group of others, so it is told itself.
one() {
  local said limit=12m
  [ "$1" != nice ] || limit=35m
  said=$(mktemp -p "$work")
  timeout $limit "$@" >"$said" 2>&1 &
  trap "kill $!; exit 143" TERM
  wait $! || echo "$*" >>"$work/failed"
  flock "$work" cat "$said"
}
export -f one
export work

# Program by program, one more at a time than there are CPUs, as most of them wait most of the time: for leases, for rebuilds. The long ones
# first, that none is left over. The mount's tests go once more by the classic transport; by default it takes io_uring where that is to be had.
# ROPEWALK_BESIDE is one more command, which takes what is left of the CPUs.
queue() {
  [ -z "${ROPEWALK_BESIDE:-}" ] || echo "nice $ROPEWALK_BESIDE"
  echo "$all --lib --bins"
  printf "nice $all --test %s\n" "${computing[@]}"
  printf "$all --test %s\n" "${long[@]}" $rest
  printf "env ROPEWALK_FUSE_TRANSPORT=classic $all --test %s\n" $(names crates/fuse/tests/*.rs)
  echo "$all --doc"
}
queue | timeout 65m xargs -P $(($(nproc) + 1)) -I {} bash -c 'one {} "$@"' one "$@" &
beside+=($!)
wait "${beside[0]}" || echo "the queue" >>"$work/failed"
beside=()

timeout 20m $all $(printf -- '--test %s ' $(names "${measuring[@]}")) "$@" || echo "${measuring[@]}" >>"$work/failed"
# On a machine that others use it stages what it draws up to three times.
timeout 20m $all --test lab_stagings "$@" || echo lab_stagings >>"$work/failed"
if [ -s "$work/failed" ]; then
  { echo "test: FAILED; see above:"; cat "$work/failed"; } >&2
  exit 1
fi
