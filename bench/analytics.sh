#!/usr/bin/env bash
# What counting every operation costs: the same load with `analytics=yes` and `analytics=no`, in turns.
#   bench/analytics.sh [OUT]          OUT defaults to target/analytics-figures
# env: REPEAT=5  SECONDS_EACH=10  JOBS=4 (threads of the load)  DATA=/dev/shm/ropewalk-analytics  RW=BINARY  BUILD=0
# The load is fio: 4 KiB random reads through a mount, direct, of a file that is in its page pool: small operations, as many as the machine gives.
# Before that what recording an operation costs by itself (crates/base/examples/recording.rs), three times.
# At the end, where perf is there, the share of the mount's CPU by samples: what single operations are recorded by, and the threads that
# keep the history. Turns differ by more than the cost as soon as anything else uses the machine; samples do not.
# Printed: operations a second and CPU of the mount's process for each turn, the medians, and what the mount itself says that counting took.
set -euo pipefail
cd "$(dirname "$0")/.."
OUT=${1:-target/analytics-figures}
REPEAT=${REPEAT:-5} SECONDS_EACH=${SECONDS_EACH:-10} JOBS=${JOBS:-4} DATA=${DATA:-/dev/shm/ropewalk-analytics}
RW=${RW:-target/release/ropewalk}
for n in 1 2 3; do cargo run --release -q -p ropewalk-base --example recording; done
[ "${BUILD:-1}" = 0 ] || cargo build --release -q -p ropewalk-cli
mkdir -p "$OUT" "$DATA"
MNT=$(mktemp -d /tmp/ropewalk-analytics.XXXXXX)
stop() { "$RW" down --dir "$DATA/c" --force > /dev/null 2>&1 || true; rm -rf "$DATA"; rmdir "$MNT" 2> /dev/null || true; }
trap stop EXIT
trap 'exit 130' INT TERM
"$RW" up --dir "$DATA/c" --mount "$MNT" --nodes 1 --pdisks 1 --code 1way --pdisk-size 1g --detach > /dev/null
dd if=/dev/zero of="$MNT/file" bs=1M count=128 conv=fsync status=none
PID=$("$RW" clients list --dir "$DATA/c" --json | jq -r '.[0].pid')
[ -r "/proc/$PID/stat" ] || { echo "the mount's process $PID cannot be looked at" >&2; exit 1; }
ticks() { awk '{ sub(/.*\) /, ""); print $12 + $13 }' "/proc/$PID/stat"; }

turn() { # WORD: one line "WORD OPS_A_SECOND CPU_SECONDS"
  "$RW" config set --dir "$DATA/c" "analytics=$1" > /dev/null
  sleep 12 # every process has read it: they look every few seconds
  local before after iops
  before=$(ticks)
  iops=$(fio --name=read --filename="$MNT/file" --rw=randread --bs=4k --size=128m --direct=1 --ioengine=psync --numjobs="$JOBS" \
    --time_based --runtime="$SECONDS_EACH" --group_reporting --output-format=json | jq '.jobs[0].read.iops')
  after=$(ticks)
  echo "$1 $iops $(awk -v t=$((after - before)) -v hz="$(getconf CLK_TCK)" 'BEGIN { print t / hz }')"
  if [ "$1" = yes ]; then
    "$RW" analytics query 'analytics.cost[process]' --dir "$DATA/c" --from "-${SECONDS_EACH}s" --json \
      | jq -r --arg mnt "$MNT" '.rows[] | select(.key.process == $mnt) | "said \(.total / 10000) % of a CPU"' >> "$OUT/said"
  fi
}

: > "$OUT/turns"; : > "$OUT/said"
for n in $(seq "$REPEAT"); do
  # Whoever is first changes from turn to turn.
  if [ $((n % 2)) = 1 ]; then order="yes no"; else order="no yes"; fi
  for word in $order; do turn "$word" | tee -a "$OUT/turns"; done
done
median() { awk -v w="$1" -v c="$2" '$1 == w { print $c }' "$OUT/turns" | sort -g | awk '{ v[NR] = $1 } END { print (v[int((NR + 1) / 2)] + v[int((NR + 2) / 2)]) / 2 }'; }
for word in yes no; do
  echo "analytics=$word: $(median $word 2) operations a second, $(median $word 3) CPU-seconds in $SECONDS_EACH s (medians of $REPEAT)"
done
awk -v a="$(median yes 2)" -v ca="$(median yes 3)" -v b="$(median no 2)" -v cb="$(median no 3)" \
  'BEGIN { printf "CPU of the mount for each operation: %+.2f %% with counting\n", (ca / a) / (cb / b) * 100 - 100 }'
cat "$OUT/said"
if command -v perf > /dev/null; then
  turn yes > /dev/null &
  sleep 14 # the load runs
  perf record -q -o "$OUT/perf.data" -e cpu-clock -F 4000 -p "$PID" sleep "$((SECONDS_EACH > 4 ? SECONDS_EACH - 3 : 1))"
  wait
  report() { perf report -i "$OUT/perf.data" --stdio --no-children --sort "$1" 2> /dev/null | grep -v '^#'; }
  { report symbol | grep -E 'stats::operations::|Histogram::record'; report comm | grep -E ' (statistics|history|usage)'; } \
    | awk '{ sub("%", "", $1); sum += $1 } END { printf "by samples: %.2f %% of the CPU of the mount\n", sum }'
fi
