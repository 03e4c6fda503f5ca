#!/usr/bin/env bash
# How long names stand still when the active one of three managers is killed, and how much memory managers have, against inodes: three
# managers over three members of etcd and one server on this machine. For each number of inodes a new cluster, whose names are not made one
# by one (bench/many_names.sh); two more managers copy the table, all attributes are read once through a mount. Then, ROUNDS times: the
# active manager is killed (SIGKILL), and it is timed until a mkdir that began then is answered. Beside it a planned takeover (`manager promote`).
# Last what a million inodes need, by the difference between the first and the last number. A machine that vanishes: bench/vanished.sh.
#   bench/takeover.sh          needs root (a mount), jq, python3, etcd (package etcd-server); a million inodes take some minutes
# env: INODES="10000 100000 1000000"  ROUNDS=3  DATA=/var/tmp  RW=target/release/ropewalk  NAMES=target/release/examples/many_names
set -euo pipefail
cd "$(dirname "$0")/.."
RW=${RW:-target/release/ropewalk} INODES=${INODES:-10000 100000 1000000} ROUNDS=${ROUNDS:-3}
[ -x "$RW" ] || { echo "$RW: build it with cargo build --release, or name another with RW" >&2; exit 1; }
RW=$(realpath "$RW") AT=$(mktemp -d "${DATA:-/var/tmp}/ropewalk-takeover.XXXXXX")
. bench/etcd.sh
trap '"$RW" down --dir "$AT/c" --force > /dev/null 2>&1 || true; etcd_end; rm -rf "$AT"' EXIT
trap 'exit 130' INT TERM
. bench/many_names.sh
list() { "$RW" manager list --dir "$AT/c" --json; }
all_stand() {
  local left=1500
  until list | jq -e 'all(.behind != null and .behind < 100) and any(.active)' > /dev/null 2>&1; do
    ((--left)) || { echo "the managers do not stand: $(list)" >&2; exit 1; }
    sleep 0.2
  done
}
# COMMAND: is given, and it is timed until a directory that is asked for then is there.
paused() {
  python3 - "$AT/m/at$RANDOM$RANDOM" "$@" <<'PY'
import os, subprocess, sys, time
began = time.monotonic()
given = subprocess.Popen(sys.argv[2:], stdout=subprocess.DEVNULL)
if sys.argv[2] == "kill":
    given.wait()
    began = time.monotonic()
worst, n = 0.0, 0
# Operations are in flight all the time: the longest is the pause.
while n == 0 or given.poll() is None or time.monotonic() - began < 1:
    at = time.monotonic()
    os.mkdir(f"{sys.argv[1]}.{n}")
    worst, n = max(worst, time.monotonic() - at), n + 1
assert given.wait() == 0
print(f"{worst:.2f}")
PY
}
etcd_of 3
printf '%9s %9s %9s %12s %12s %18s %s\n' inodes restore/s copies/s active/MiB standby/MiB killed/s promoted/s
for inodes in $INODES; do
  store_of "$inodes"
  "$RW" manager migrate --dir "$AT/c" --store "$PLACE$inodes" > /dev/null
  up
  began=$(date +%s.%N)
  for name in m2 m3; do "$RW" manager add --dir "$AT/c" "$name" > /dev/null; done
  all_stand
  copies=$(awk -v b="$began" -v e="$(date +%s.%N)" 'BEGIN { printf "%.1f", e - b }')
  find "$AT/m" -size +1 > /dev/null
  memory=$("$RW" status --dir "$AT/c" --json |
    jq '[.processes[] | select(.role == "manager") | .status.memory.process.resident_bytes]')
  names=$(list | jq '[.[] | .active]')
  of() { jq -rn --argjson m "$memory" --argjson a "$names" \
    "[range(\$m | length) | select(\$a[.] == $1) | \$m[.]] | max"; }
  now=("$(of true)" "$(of false)") killed='' promoted=''
  [ -n "${first:-}" ] || first=("$inodes" "${now[@]}")
  for ((round = 0; round < ROUNDS; round++)); do
    killed+="$(paused kill -9 "$(list | jq '.[] | select(.active) | .pid')") "
    up
    all_stand
    promoted+="$(paused "$RW" manager promote --dir "$AT/c" "$(list | jq -r '[.[] | select(.active == false)][0].name')") "
    all_stand
  done
  printf '%9s %9s %9s %12s %12s %18s %s\n' "$inodes" "$RESTORED" "$copies" $((now[0] >> 20)) $((now[1] >> 20)) "$killed" "$promoted"
  down
done
[ "$inodes" = "${first[0]}" ] || awk -v n=$((inodes - first[0])) -v a=$((now[0] - first[1])) -v s=$((now[1] - first[2])) \
  'BEGIN { printf "a million inodes: the active manager %.0f MiB, a standby %.0f\n", a / n * 1e6 / 1048576, s / n * 1e6 / 1048576 }'
