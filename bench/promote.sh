#!/usr/bin/env bash
# How long a copy of a manager's store takes to become the store, against inodes, with one server and a mount on this machine. For each
# number and each place (dir: a directory; node: another manager, with a directory of its own) a new cluster, whose names are not made one
# by one (bench/many_names.sh). copied/s goes from its start until the copy has all. Then the manager is killed (SIGKILL) and its store
# removed: promoted/s is what `manager promote --from-mirror` takes, names/s goes from the kill until a mkdir that began then is answered,
# with `promote` and `up`, one after the other, in between.
#   bench/promote.sh          needs root (a mount), jq, python3; a million inodes take some minutes
# env: INODES="10000 100000 1000000"  PLACES="dir node"  DATA=/var/tmp  RW=target/release/ropewalk  NAMES=target/release/examples/many_names
set -euo pipefail
cd "$(dirname "$0")/.."
RW=${RW:-target/release/ropewalk} INODES=${INODES:-10000 100000 1000000} PLACES=${PLACES:-dir node}
[ -x "$RW" ] || { echo "$RW: build it with cargo build --release, or name another with RW" >&2; exit 1; }
RW=$(realpath "$RW") AT=$(mktemp -d "${DATA:-/var/tmp}/ropewalk-promote.XXXXXX")
end() {
  local dir
  for dir in c other; do "$RW" down --dir "$AT/$dir" --force > /dev/null 2>&1 || true; done
}
trap 'end; rm -rf --one-file-system "$AT"' EXIT
trap 'exit 130' INT TERM
. bench/many_names.sh
. bench/copy.sh
since() { awk -v b="$1" -v e="$(date +%s.%N)" 'BEGIN { printf "%.2f", e - b }'; }
# PID: gone with all its threads, the last of which may hold the store's files a moment longer. One that nobody waits for stays as a zombie.
gone() {
  local left=3000
  while [ -e "/proc/$1" ] && [ "$(sed 's/.*) \(.\).*/\1/' "/proc/$1/stat" 2> /dev/null)$(ls "/proc/$1/task" 2> /dev/null)" != "Z$1" ]; do
    ((--left)) || { echo "the killed manager does not end" >&2; exit 1; }
    sleep 0.02
  done
}
printf '%9s %6s %11s %9s %11s %8s\n' inodes place copied/MiB copied/s promoted/s names/s
for inodes in $INODES; do
  for place in $PLACES; do
    rm -rf "$AT/other" "$AT/copy"
    store_of "$inodes"
    up
    copy_to "$place"
    copy_whole
    copied=$(since "$BEGAN") size=$(du -sm "$COPY_AT" | cut -f1)
    pid=$(head -1 "$AT/c/run/manager.pid")
    began=$(date +%s.%N)
    kill -9 "$pid"
    (mkdir "$AT/m/after" && since "$began" > "$AT/names") &
    waits=$!
    gone "$pid"
    rm -r "$AT/c/manager"
    case $place in
      dir)
        promoted=$(timed "$RW" manager promote --dir "$AT/c" --from-mirror "$COPY")
        up
        ;;
      node)
        "$RW" down --dir "$AT/other" > /dev/null
        promoted=$(timed "$RW" manager promote --dir "$AT/other" --from-mirror)
        "$RW" up --dir "$AT/other" --detach > /dev/null
        ;;
    esac
    wait "$waits"
    printf '%9s %6s %11s %9s %11s %8s\n' "$inodes" "$place" "$size" "$copied" "$promoted" "$(cat "$AT/names")"
    # The mount tells what it has while there is a manager.
    "$RW" umount "$AT/m" > /dev/null
    end
  done
done
