#!/usr/bin/env bash
# How long a manager's store takes to get into etcd and back, and how much memory a single manager has once all attributes were read through
# a mount, against inodes: empty files, which are not made one by one (bench/many_names.sh), an etcd of one member on this machine. Beside it
# the time of a restore, of a dump, and of a copy of that dump with sync.
#   bench/migrate.sh          needs root (a mount), jq, python3, etcd (package etcd-server); a million inodes take some minutes
# env: INODES="10000 100000 1000000"  DATA=/var/tmp  RW=target/release/ropewalk  NAMES=target/release/examples/many_names
set -euo pipefail
cd "$(dirname "$0")/.."
RW=${RW:-target/release/ropewalk} INODES=${INODES:-10000 100000 1000000}
[ -x "$RW" ] || { echo "$RW: build it with cargo build --release, or name another with RW" >&2; exit 1; }
RW=$(realpath "$RW") AT=$(mktemp -d "${DATA:-/var/tmp}/ropewalk-migrate.XXXXXX")
. bench/etcd.sh
trap '"$RW" down --dir "$AT/c" --force > /dev/null 2>&1 || true; etcd_end; rm -rf "$AT"' EXIT
trap 'exit 130' INT TERM
. bench/many_names.sh
resident() { "$RW" status --dir "$AT/c" --json | jq '.processes[] | select(.name == "manager") | .status.memory.process.resident_bytes'; }
etcd_of 1
printf '%9s %9s %9s %12s %12s %11s %9s %7s %7s\n' inodes restore/s looks/s manager/MiB bytes/inode to-etcd/s to-file/s dump/s copy/s
for inodes in $INODES; do
  store_of "$inodes"
  up
  empty=$(resident)
  looks=$(timed find "$AT/m" -size +1)
  now=$(resident)
  down
  dump=$(timed "$RW" manager dump --dir "$AT/c" "$AT/dump")
  copy=$(timed dd if="$AT/dump" of="$AT/copy" bs=1M conv=fsync status=none)
  rm "$AT/dump" "$AT/copy"
  there=$(timed "$RW" manager migrate --dir "$AT/c" --store "${PLACE}$inodes")
  back=$(timed "$RW" manager migrate --dir "$AT/c" --to-file)
  printf '%9s %9s %9s %12s %12s %11s %9s %7s %7s\n' "$inodes" "$RESTORED" "$looks" $((now >> 20)) $(((now - empty) / inodes)) "$there" "$back" "$dump" "$copy"
done
