#!/usr/bin/env bash
# The strip store against fio, turn by turn in one run: sequential, random, synchronous writes with 1 and 32
# writers, opening a pdisk with 1,000,000 strips, and the tables of queues and coalescing.
# usage: bench/pdisk.sh [DIR ...]    directories on the disks to measure (default: one here, one on tmpfs)
#        PDISK_BENCH="--seconds 3 --rounds 3 --size 2147483648 --strips 1000000 --tables"
set -euo pipefail
cd "$(dirname "$0")/.."
command -v fio > /dev/null || echo "pdisk.sh: fio is not here; the store's figures will stand alone" >&2
made=()
if [ $# -eq 0 ]; then
  disk=$(mktemp -d "$PWD/target/pdisk-bench.XXXXXX")
  tmpfs=$(mktemp -d /dev/shm/pdisk-bench.XXXXXX)
  made=("$disk" "$tmpfs")
  set -- "${made[@]}"
fi
trap 'rm -rf ${made[@]+"${made[@]}"}' EXIT
echo "$(uname -r), $(nproc) CPUs, $(git describe --always --dirty 2> /dev/null || echo 'no git'), load $(cut -d' ' -f1-3 /proc/loadavg)"
# shellcheck disable=SC2086 # words are wanted
cargo bench --quiet --package ropewalk-pdisk --bench pdisk -- "$@" ${PDISK_BENCH:---tables}
