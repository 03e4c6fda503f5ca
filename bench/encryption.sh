#!/usr/bin/env bash
# What each `cipherList` costs on large messages: the same test with each, in turns, beside iperf3 over as many connections, and
# what a core of the CPU does of its cipher (openssl speed; of AUTHONLY: of its tags). `allowed`: what both together leave where
# one core sends or receives and encrypts as well, 1 / (1/iperf3 + 1/openssl); `of it`: what was reached of that.
#   bench/encryption.sh        needs iperf3, openssl, jq; loopback, ports of its own
# env: CONNECTIONS="1 2"  REPEAT=3 (medians)  SECONDS_EACH=4  RW=target/release/ropewalk
set -euo pipefail
cd "$(dirname "$0")/.."
RW=${RW:-target/release/ropewalk} REPEAT=${REPEAT:-3} EACH=${SECONDS_EACH:-4} PORT=$((20000 + $$ % 10000))
[ -x "$RW" ] || { echo "$RW: build it with cargo build --release, or name another with RW" >&2; exit 1; }
LISTS="EMPTY AUTHONLY AES128-GCM-SHA256 AES256-GCM-SHA384 CHACHA20-POLY1305-SHA256"
declare -A OPENSSL=([AUTHONLY]=ghash [AES128-GCM-SHA256]="-evp aes-128-gcm" [AES256-GCM-SHA384]="-evp aes-256-gcm"
  [CHACHA20-POLY1305-SHA256]="-evp chacha20-poly1305") SPEED=()
"$RW" netperf server --listen "127.0.0.1:$PORT" > /dev/null &
server=$!
trap 'kill $server 2>/dev/null || true' EXIT
trap 'exit 130' INT TERM
sleep 1
median() { sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
test_() { # TEST CONNECTIONS LIST
  "$RW" netperf test "$1" --server "127.0.0.1:$PORT" --ttime "$EACH" --parallel "$2" --threads 4 --json --cipher-list "$3" |
    jq -r '.[0] | "\(.mb_per_second / 1000) \(.cpu_seconds_per_gb)"'
}
raw() {
  iperf3 -s -1 -p $((PORT + 1)) > /dev/null 2>&1 & sleep 0.5
  iperf3 -c 127.0.0.1 -p $((PORT + 1)) -t "$EACH" -P "$1" -J | jq '.end.sum_received.bits_per_second / 8e9'
  wait $!
}
for list in "${!OPENSSL[@]}"; do
  # shellcheck disable=SC2086 # several words
  SPEED[$list]=$(openssl speed -bytes 16384 -seconds 3 ${OPENSSL[$list]} 2> /dev/null | awk 'END { sub(/k$/, "", $NF); print $NF / 1e6 }')
done
echo "GB/s; medians of $REPEAT, messages of 4m; openssl: 16 KiB, a core"
printf '%11s %6s %26s %8s %10s %8s %8s %8s %6s\n' connections test cipherList reached 'CPU s/GB' iperf3 openssl allowed 'of it'
for connections in ${CONNECTIONS:-1 2}; do
  for test in nwrite read; do
    declare -A got=()
    tcp=''
    for _ in $(seq "$REPEAT"); do
      for list in $LISTS; do got[$list]+="$(test_ "$test" "$connections" "$list")"$'\n'; done
      tcp+="$(raw "$connections")"$'\n'
    done
    iperf=$(printf '%s' "$tcp" | median)
    for list in $LISTS; do
      awk -v n="$connections" -v t="$test" -v l="$list" -v s="$(printf '%s' "${got[$list]}" | cut -d' ' -f1 | median)" \
        -v c="$(printf '%s' "${got[$list]}" | cut -d' ' -f2 | median)" -v i="$iperf" -v o="${SPEED[$list]:-0}" 'BEGIN {
          cipher = "-"; a = i
          if (o > 0) { cipher = sprintf("%.2f", o); a = 1 / (1 / i + 1 / o) }
          printf "%11d %6s %26s %8.2f %10.2f %8.2f %8s %8.2f %6.2f\n", n, t, l, s, c, i, cipher, a, s / a }'
    done
  done
done
