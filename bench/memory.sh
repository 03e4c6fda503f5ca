#!/usr/bin/env bash
# Memory of a mount under load, as the system counts it, beside the sum of its bounds (docs/client.md, "Memory of a mount").
#
#   POOL=1g bench/memory.sh [BINARY]
#
# A cluster of three servers in memory (BASE, default /dev/shm; it needs some 5 GB), one mount over it; four writers of
# 300 MiB, then 32 direct readers of 1 MiB each, then 64 direct writers. Prints a line after each, and where the process's
# memory is by kind of mapping at the end.
set -euo pipefail
binary=${1:-target/release/ropewalk}
base=$(mktemp -d "${BASE:-/dev/shm}/ropewalk-memory.XXXXXX")
mount=$base/mnt
mkdir "$mount"
trap '"$binary" down --dir "$base/cluster" >/dev/null 2>&1 || true; rm -rf "$base"' EXIT
"$binary" up --dir "$base/cluster" --mount "$mount" --nodes 3 --pdisks 1 --pdisk-size 1500m --code 2+1p --detach >/dev/null
"$binary" config set --dir "$base/cluster" pagepool="${POOL:-1g}" >/dev/null
sleep 3
pid=$(head -n 1 "$base"/cluster/run/mount*.pid)

shows() {
    echo "== $1"
    "$binary" pagepool --dir "$base/cluster" | grep -A 1 RESIDENT
}

for i in 1 2 3 4; do dd if=/dev/zero of="$mount/f$i" bs=1M count=300 status=none & done
wait
sync "$mount"/f*
shows "4 writers of 300 MiB"
for at in 1 2 3 4 5 6 7 8; do
    for i in 1 2 3 4; do
        dd if="$mount/f$i" of=/dev/null bs=1M iflag=direct skip=$((at * 30 - 30)) count=90 status=none &
    done
done
wait
shows "32 direct readers"
for i in $(seq 64); do dd if=/dev/zero of="$mount/d$i" bs=1M oflag=direct count=12 status=none & done
wait
shows "64 direct writers"
sleep 5
shows "5 s later"
awk '/^[0-9a-f]+-[0-9a-f]+ /{ kind = $6 ? $6 : "anonymous" } /^Rss:/{ rss[kind] += $2 }
     END { for (kind in rss) if (rss[kind] > 1024) printf "%8.1f MiB  %s\n", rss[kind] / 1024, kind }' "/proc/$pid/smaps" | sort -rn
