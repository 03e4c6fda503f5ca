#!/usr/bin/env bash
# The strip store against fio, turn by turn in one run: sequential, random, synchronous writes with 1 and 32
# writers, aging, opening a pdisk with 1,000,000 strips, and the tables of queues and coalescing.
# usage: bench/pdisk.sh [DIR ...]    directories on the disks to measure (default: one here, one on tmpfs)
#        PDISK_BENCH="--seconds 3 --rounds 3 --tables --aging --strips 1000000"    options (default: these)
#        ROPEWALK=PATH    the program (default: built here)
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -z "${ROPEWALK:-}" ]; then
  cargo build --quiet --release --package ropewalk-cli
  ROPEWALK=${CARGO_TARGET_DIR:-target}/release/ropewalk
fi
made=()
if [ $# -eq 0 ]; then
  mkdir -p target
  made=("$(mktemp -d "$PWD/target/pdisk-bench.XXXXXX")" "$(mktemp -d /dev/shm/pdisk-bench.XXXXXX)")
  set -- "${made[@]}"
fi
trap 'rm -rf ${made[@]+"${made[@]}"}' EXIT
echo "$(uname -r), $(nproc) CPUs, $(git describe --always --dirty 2> /dev/null || echo 'no git'), load $(cut -d' ' -f1-3 /proc/loadavg)"
# shellcheck disable=SC2086 # words are wanted
"$ROPEWALK" pdisk bench "$@" ${PDISK_BENCH:---seconds 3 --rounds 3 --tables --aging --strips 1000000}
