#!/usr/bin/env bash
# What encryption costs on large messages: the same test in the clear and encrypted, in turns, beside iperf3 over as many
# connections, and what the CPU encrypts (openssl, a core). `allowed`: what both together leave where one core sends or receives
# and encrypts as well, 1 / (1/iperf3 + 1/openssl); `of it`: encrypted against that.
#   bench/encryption.sh        needs iperf3, openssl, jq; loopback, ports of its own
# env: CONNECTIONS="1 2"  REPEAT=3 (medians)  SECONDS_EACH=4  RW=target/release/ropewalk
set -euo pipefail
cd "$(dirname "$0")/.."
RW=${RW:-target/release/ropewalk} REPEAT=${REPEAT:-3} EACH=${SECONDS_EACH:-4} PORT=$((20000 + $$ % 10000))
[ -x "$RW" ] || { echo "$RW: build it with cargo build --release, or name another with RW" >&2; exit 1; }
"$RW" netperf server --listen "127.0.0.1:$PORT" > /dev/null &
server=$!
trap 'kill $server 2>/dev/null || true' EXIT
trap 'exit 130' INT TERM
sleep 1
median() { cut -d' ' -f1 | sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
median2() { cut -d' ' -f2 | sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
test_() { # TEST CONNECTIONS [--encrypted]
  "$RW" netperf test "$1" --server "127.0.0.1:$PORT" --ttime "$EACH" --parallel "$2" --threads 4 --json "${@:3}" |
    jq -r '.[0] | "\(.mb_per_second / 1000) \(.cpu_seconds_per_gb)"'
}
raw() {
  iperf3 -s -1 -p $((PORT + 1)) > /dev/null 2>&1 & sleep 0.5
  iperf3 -c 127.0.0.1 -p $((PORT + 1)) -t "$EACH" -P "$1" -J | jq '.end.sum_received.bits_per_second / 8e9'
  wait $!
}
aes=$(openssl speed -evp aes-128-gcm -bytes 16384 -seconds 3 2>/dev/null | awk 'END { sub(/k$/, "", $NF); print $NF / 1e6 }')
echo "GB/s; medians of $REPEAT, messages of 4m; openssl aes-128-gcm, 16 KiB: $aes GB/s a core"
printf '%11s %6s %7s %10s %8s %8s %6s %13s %17s\n' connections test clear encrypted iperf3 allowed 'of it' 'CPU s/GB clear' 'CPU s/GB encrypted'
for connections in ${CONNECTIONS:-1 2}; do
  for test in nwrite read; do
    clear='' sealed='' tcp=''
    for _ in $(seq "$REPEAT"); do
      clear+="$(test_ "$test" "$connections")"$'\n'
      sealed+="$(test_ "$test" "$connections" --encrypted)"$'\n'
      tcp+="$(raw "$connections")"$'\n'
    done
    of() { printf '%s' "$1" | "$2"; }
    awk -v n="$connections" -v t="$test" -v c="$(of "$clear" median)" -v s="$(of "$sealed" median)" -v i="$(of "$tcp" median)" \
      -v cc="$(of "$clear" median2)" -v sc="$(of "$sealed" median2)" -v a="$aes" 'BEGIN {
      l = 1 / (1 / i + 1 / a)
      printf "%11d %6s %7.2f %10.2f %8.2f %8.2f %6.2f %14.2f %18.2f\n", n, t, c, s, i, l, s / l, cc, sc }'
  done
done
