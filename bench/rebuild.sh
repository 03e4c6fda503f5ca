#!/bin/sh
# Time to rebuild one lost pdisk with 8, 12 and 16 pdisks, each held to RATE MB/s (20) for rebuild (reads and
# writes together) so that this machine is not the limit, beside what the simulator says.
#   bench/rebuild.sh [DIR] [MIB_ON_EACH_PDISK]
set -eu
ropewalk=${ROPEWALK:-target/release/ropewalk}
dir=${1:-/var/tmp/ropewalk-rebuild}
mib=${2:-200}
rate=${RATE:-20}
for pdisks in ${PDISKS:-8 12 16}; do
    rm -rf "$dir"
    mkdir -p "$dir/mnt"
    "$ropewalk" up --dir "$dir/c" --nodes "$pdisks" --pdisks 1 --pdisk-size $((mib * 2 + 128))m --block-size 1m \
        --mount "$dir/mnt" --detach >/dev/null
    dd if=/dev/urandom of="$dir/mnt/data" bs=1M count=$((mib * pdisks * 4 / 6)) conv=fsync status=none
    "$ropewalk" config set --dir "$dir/c" rebuild_rate=$rate rebuild_aggressiveness=100 >/dev/null
    sleep 3 # servers read it every two seconds
    held=$("$ropewalk" pdisk list --dir "$dir/c" --json | tr -d ' ,' | sed -n 's/"used_bytes"://p' | head -1)
    begun=$(date +%s%N)
    "$ropewalk" pdisk fail --dir "$dir/c" n1p1 >/dev/null
    "$ropewalk" rebuild status --dir "$dir/c" --watch >/dev/null
    took=$(($(date +%s%N) - begun))
    said=$("$ropewalk" lab array --nodes "$pdisks" --pdisks 1 --code 4+2p --pdisk-size "$((held / 1048576))m" --rate $rate |
        sed -n '/^REBUILD/,$p')
    echo "$pdisks pdisks, $((held / 1048576)) MiB on the lost one: rebuilt in $((took / 1000000000)).$((took / 100000000 % 10)) s; the simulator:"
    echo "$said"
    "$ropewalk" down --dir "$dir/c" >/dev/null
done
rm -rf "$dir"
