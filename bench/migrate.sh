#!/usr/bin/env bash
# How long a manager's store takes to get into etcd and back, and how much memory a single manager has, against inodes: empty files in one
# directory, an etcd of one member on this machine. Beside it the time of a dump, and of a copy of that dump with sync.
# Most of it is making the files: 100000 take a minute or two, 1000000 a quarter of an hour.
#   bench/migrate.sh          needs root (a mount), jq, python3, etcd (package etcd-server)
# env: INODES="10000 100000"  DATA=/var/tmp  RW=target/release/ropewalk
set -euo pipefail
cd "$(dirname "$0")/.."
RW=${RW:-target/release/ropewalk} INODES=${INODES:-10000 100000}
[ -x "$RW" ] || { echo "$RW: build it with cargo build --release, or name another with RW" >&2; exit 1; }
RW=$(realpath "$RW") AT=$(mktemp -d "${DATA:-/var/tmp}/ropewalk-migrate.XXXXXX")
. bench/etcd.sh
trap '"$RW" down --dir "$AT/c" --force > /dev/null 2>&1 || true; etcd_end; rm -rf "$AT"' EXIT
trap 'exit 130' INT TERM
mkdir "$AT/m"
up() { "$RW" up --dir "$AT/c" --mount "$AT/m" --detach "$@" > /dev/null; }
down() { "$RW" down --dir "$AT/c" > /dev/null; }
resident() { "$RW" status --dir "$AT/c" --json | jq '.processes[] | select(.name == "manager") | .status.memory.process.resident_bytes'; }
timed() {
  local began
  began=$(date +%s.%N)
  "$@" > /dev/null
  awk -v b="$began" -v e="$(date +%s.%N)" 'BEGIN { printf "%.2f", e - b }'
}
up --nodes 1 --pdisks 1 --code 1way --pdisk-size 1g --cipher-list EMPTY
empty=$(resident) made=0
etcd_of 1
printf '%9s %9s %12s %12s %11s %9s %7s %7s\n' inodes made/s manager/MiB bytes/inode to-etcd/s to-file/s dump/s copy/s
for inodes in $INODES; do
  mkdir "$AT/m/to$inodes"
  rate=$(cd bench && python3 -c 'import sys, metadata; print(round(metadata.fill_all(sys.argv[1], int(sys.argv[2]))))' \
    "$AT/m/to$inodes" $((inodes - made)))
  made=$inodes
  sync -f "$AT/m"
  now=$(resident)
  down
  dump=$(timed "$RW" manager dump --dir "$AT/c" "$AT/dump")
  copy=$(timed dd if="$AT/dump" of="$AT/copy" bs=1M conv=fsync status=none)
  rm "$AT/dump" "$AT/copy"
  there=$(timed "$RW" manager migrate --dir "$AT/c" --store "${PLACE}$inodes")
  back=$(timed "$RW" manager migrate --dir "$AT/c" --to-file)
  printf '%9s %9s %12s %12s %11s %9s %7s %7s\n' "$inodes" "$rate" $((now >> 20)) $(((now - empty) / inodes)) "$there" "$back" "$dump" "$copy"
  up
done
