#!/usr/bin/env bash
# The client's figures: ropewalk, the raw ceilings and other systems, in one run; ratios beside them.
#   bench/client.sh install            the packages it uses (Debian's names), other systems included; none of them is started
#   bench/client.sh [OUT]              OUT defaults to target/client-figures
# env: CODES="1way 4+2p 8+2p"  TRANSPORTS="uring classic"  REPEAT=5  SIZE=1g (of a file)
#      ROWS="raw direct seq rand dsync reread"   which groups of rows
#      PEERS="gluster:plain gluster:disperse"    other systems; empty: none. What is not installed is left out, and said so
#      PEER_SCRIPTS=DIR                      where peer-X.sh (start/remount/stop VARIANT, mounts /mnt/peers/X) of further PEERS are
#      APPEND=1                              adds to what OUT has already: a table filled in several short runs
#      RW=BINARY PASS=PASSFS BUILD=0         measures these instead of building the tree
#      DATA=/dev/shm/ropewalk-figures        where servers keep their data (tmpfs)
#      WARM=0                                do not fill free memory with page cache before sequential jobs
# Every repetition goes through all systems once, so that what changes on the machine meanwhile changes all of them.
# The load is `ropewalk perf` on every mount; before it reads it gives up the client's caches; others' are mounted anew for it.
# CPU is the whole machine's while a job runs, per 10^9 bytes.
# First touch: a virtual machine's host backs free memory anew, at 2 us a KiB; so free memory is turned into
# clean page cache before each sequential job, and allocations then take pages that are backed.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "${1:-}" = install ]; then
  # A daemon that a package starts by itself would be in the way of the figures.
  if [ ! -e /usr/sbin/policy-rc.d ]; then
    printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d && chmod +x /usr/sbin/policy-rc.d
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
  fi
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends jq python3 iperf3 fuse3 \
    glusterfs-server glusterfs-client moosefs-master moosefs-chunkserver moosefs-client
  exit 0
fi
OUT=${1:-target/client-figures}
CODES=${CODES:-"1way 4+2p 8+2p"} TRANSPORTS=${TRANSPORTS:-"uring classic"} REPEAT=${REPEAT:-5} SIZE=${SIZE:-1g}
ROWS=${ROWS:-"raw direct seq rand dsync reread"} DATA=${DATA:-/dev/shm/ropewalk-figures} WARM=${WARM:-1}
PEERS=${PEERS-"gluster:plain gluster:disperse"}
RW=${RW:-target/release/ropewalk} PASS=${PASS:-target/release/examples/passfs}
[ "${BUILD:-1}" = 0 ] || cargo build --release -q -p ropewalk-cli -p ropewalk-fuse --bins --examples
mkdir -p "$OUT" "$DATA"
R=$OUT/results.jsonl; [ "${APPEND:-0}" = 1 ] || : > "$R"
MNT=$(mktemp -d /tmp/ropewalk-figures.XXXXXX)
SPARSE=$OUT/warm.sparse
PASSPID= PEERPID= REMOUNT= STOP= WARMED=0
stop_all() {
  mountpoint -q "$MNT/pass" && umount "$MNT/pass"
  [ -z "$PASSPID" ] || wait "$PASSPID" 2> /dev/null || true
  # A system held by systems.py ends with its input.
  [ -z "$PEERPID" ] || { exec {TO_PEER}>&- {FROM_PEER}<&-; wait "$PEERPID" 2> /dev/null || true; }
  [ -z "$STOP" ] || $STOP > /dev/null 2>&1 || true
  PASSPID= PEERPID= REMOUNT= STOP=
  if [ -e "$DATA/c/cluster.toml" ]; then "$RW" down --dir "$DATA/c" --force > /dev/null 2>&1 || true; fi
  rm -rf "$DATA/c" "$DATA/pass" "$DATA/peer" "$OUT/local"
}
trap 'stop_all; rm -rf "$SPARSE" "$DATA"; rmdir "$MNT"/* "$MNT" 2>/dev/null || true' EXIT
trap 'exit 130' INT TERM

has() { case " $ROWS " in *" $1 "*) return 0 ;; esac; return 1; }
# Every page is read once, never again: what was used twice is not given up first.
warm() {
  [ "$WARM" = 0 ] && return 0
  [ -e "$SPARSE" ] || truncate -s 4T "$SPARSE"
  WARMED=$(python3 - "$SPARSE" "$WARMED" << 'P'
import os, re, sys
fd, buf, pos = os.open(sys.argv[1], os.O_RDONLY), bytearray(4 << 20), int(sys.argv[2])
free = int(re.search(r"MemFree:\s+(\d+)", open("/proc/meminfo").read()).group(1)) >> 10
for _ in range(0, free - 400, 4):
    pos += os.preadv(fd, [buf], pos)
print(pos)
P
)
}
# job SYSTEM ROW ARGS...: one run of perf, its result kept; a row named "-" only prepares
job() {
  local system=$1 row=$2; shift 2
  case $row in *read*) [ -z "$REMOUNT" ] || [ "${COLD:-1}" = 0 ] || $REMOUNT ;; esac
  case $row in *seq*) warm ;; esac
  "$RW" perf "$@" --json > "$OUT/one.json" 2> "$OUT/one.err" || { echo "$system $row: $(tail -1 "$OUT/one.err")" >&2; return 0; }
  jq -c --arg s "$system" --arg r "$row" --argjson cpus "$(nproc)" '.runs[0] | {system: $s, row: $r,
    mb_s: (.bytes_per_second / 1e6), ops_s: .operations_per_second, p99_ms: ([.reads.latency.p99_ms, .writes.latency.p99_ms] | max),
    cpu_s_per_gb: (if .machine_percent and .bytes > 0 then (.machine_percent[0] + .machine_percent[1]) / 100 * $cpus * .took_s / (.bytes / 1e9) else null end),
    client_cpu: .client_cpu_seconds_per_gb, server_cpu: .server_cpu_seconds_per_gb}' "$OUT/one.json" >> "$R"
}
# loads SYSTEM DIR: what every mount is asked for
loads() {
  local s=$1 d=$2 n
  if has seq; then
    job "$s" seqwrite1 create seq "$d/s0" -r 1m -n "$SIZE" -fsync
    job "$s" seqread1 read seq "$d/s0" -r 1m
    job "$s" seqwrite4 create seq "$d/s0" -r 1m -n "$SIZE" -th 4 -fsync
    job "$s" seqread4 read seq "$d/s0" -r 1m -th 4
  fi
  if has rand; then
    [ -e "$d/s0" ] || job "$s" - create seq "$d/s0" -r 1m -n "$SIZE" -fsync
    job "$s" randread4k read rand "$d/s0" -r 4k -n 20000R -th 16 -dio
  fi
  if has dsync; then
    for n in 1 16 80; do
      job "$s" - create seq "$d/w" -r 1m -n 128m -fsync
      job "$s" dsync4k-$n write rand "$d/w" -r 4k -n $((n == 1 ? 1000 : 3000))R -th $n -osync -noinv
    done
  fi
  if has reread; then
    job "$s" - create seq "$d/k" -r 1m -n 256m -fsync
    job "$s" - read seq "$d/k" -r 1m -noinv
    COLD=0 job "$s" reread-kernel read seq "$d/k" -r 1m -noinv
    # Direct reads go round the kernel's cache: they come from the client's page pool.
    job "$s" - read seq "$d/k" -r 1m -dio -noinv
    COLD=0 job "$s" reread-pool read seq "$d/k" -r 1m -dio -noinv
  fi
}

raw() {
  local n
  if command -v iperf3 > /dev/null; then
    for n in 1 2 4; do
      iperf3 -s -1 -B 127.0.0.1 -p 47321 > /dev/null 2>&1 & sleep 0.4
      iperf3 -c 127.0.0.1 -p 47321 -t 1 -P $n -J 2> /dev/null | jq -c --arg r "iperf3-$n" \
        '{system: "raw", row: $r, mb_s: (.end.sum_received.bits_per_second / 8e6)}' >> "$R" || true
      wait %% 2> /dev/null || true
    done
  fi
  warm
  "$RW" lab ceilings --dir "$DATA" --size "$SIZE" --json | jq -c '{system: "raw", row: "pipeline-read", mb_s: (.pipeline_read_gb_per_second * 1000), cpu_s_per_gb: .pipeline_read_cpu_seconds_per_gb},
    {system: "raw", row: "pipeline-write", mb_s: (.pipeline_write_gb_per_second * 1000), cpu_s_per_gb: .pipeline_write_cpu_seconds_per_gb}' >> "$R"
}
local_dirs() {
  mkdir -p "$DATA/pass" "$OUT/local"
  loads local "$DATA/pass"
  rm -f "$DATA"/pass/*
  # Read again from the kernel's page cache: tmpfs has none, so a local file system on a disk is the ceiling there.
  if has reread; then (ROWS=reread && loads local-disk "$OUT/local"); fi
}
pass_through() {
  local i
  mkdir -p "$MNT/pass" "$DATA/pass"
  ROPEWALK_FUSE_TRANSPORT=$1 "$PASS" "$DATA/pass" "$MNT/pass" 2> "$OUT/pass.log" & PASSPID=$!
  for i in $(seq 50); do mountpoint -q "$MNT/pass" && break; sleep 0.1; done
  mountpoint -q "$MNT/pass" || { echo "pass-through over $1: no mount: $(tail -1 "$OUT/pass.log")" >&2; return 0; }
  loads "pass-$1" "$MNT/pass"
}
ropewalk() {
  local code=$1 transport=$2 n p z D
  mkdir -p "$MNT/rw"
  # Enough pdisks for the code; 1way on one.
  case $code in 1way) n=1 p=1 z=6g ;; 4+2p) n=3 p=2 z=2g ;; *) n=5 p=2 z=1500m ;; esac
  ROPEWALK_FUSE_TRANSPORT=$transport "$RW" up --dir "$DATA/c" --nodes $n --pdisks $p --pdisk-size $z --code "$code" \
    --block-size 4m --mount "$MNT/rw" --detach > "$OUT/up.log" 2>&1 || { cat "$OUT/up.log" >&2; exit 1; }
  loads "ropewalk-$code-$transport" "$MNT/rw"
  if has direct && [ "$transport" = "${TRANSPORTS%% *}" ]; then
    "$RW" umount "$MNT/rw" > /dev/null
    D=(--direct-client --dir "$DATA/c")
    job "ropewalk-$code-library" seqwrite1 create seq /d0 -r 1m -n "$SIZE" -fsync "${D[@]}"
    job "ropewalk-$code-library" seqread1 read seq /d0 -r 1m "${D[@]}"
  fi
}
peer_remount() { echo remount >&"$TO_PEER"; read -r -t 60 -u "$FROM_PEER" _; }
peer() {
  local what=$1 script mount
  script=${PEER_SCRIPTS:-}/peer-${what%%:*}.sh
  if [ "${what%%:*}" = gluster ]; then
    mkdir -p "$DATA/peer"
    coproc HELD { exec python3 bench/systems.py "$what" "$DATA/peer" 2> "$OUT/peer.log"; }
    PEERPID=$HELD_PID FROM_PEER=${HELD[0]} TO_PEER=${HELD[1]}
    read -r -t 120 -u "$FROM_PEER" mount || { echo "$what is left out: $(tail -1 "$OUT/peer.log")" >&2; return 0; }
    REMOUNT=peer_remount
    loads "$what" "$mount"
  elif [ -n "${PEER_SCRIPTS:-}" ] && [ -x "$script" ]; then
    export PEERS_TMPFS=$DATA/peer MEDIUM=tmpfs
    STOP="$script stop"
    "$script" start "${what#*:}" > "$OUT/peer.log" 2>&1 || { echo "$what is left out: $(tail -1 "$OUT/peer.log")" >&2; return 0; }
    REMOUNT="script_remount $script ${what#*:}"
    loads "$what" "/mnt/peers/${what%%:*}"
  else
    echo "$what is left out: no ${script#/}" >&2
  fi
}
script_remount() { "$1" remount "$2" > /dev/null 2>&1 || echo "$1: not mounted again" >&2; }
part() { local begin=$SECONDS; "$@"; stop_all; echo "  $* ($((SECONDS - begin)) s)" >&2; }

for round in $(seq "$REPEAT"); do
  echo "round $round of $REPEAT" >&2
  if has raw; then part raw; fi
  if has seq || has rand || has dsync || has reread; then
    part local_dirs
    for transport in $TRANSPORTS; do part pass_through "$transport"; done
  fi
  for code in $CODES; do
    for transport in $TRANSPORTS; do part ropewalk "$code" "$transport"; done
  done
  for what in $PEERS; do part peer "$what"; done
done
python3 bench/client_table.py "$R" | tee "$OUT/table.md"
