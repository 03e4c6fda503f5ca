#!/usr/bin/env bash
# One client against the connections between it and one server, over 2 and over 4 links of 1 Gbit/s: the figure of
# the source on several TCP connections. Server and client are hosts of a testbed (network namespaces), data lies on tmpfs.
# Beside it: what the links carry together, and what iperf3 brings over as many connections (one run each; where
# its connections go is left to chance, ours are placed).
#   bench/connections.sh        needs root, iperf3, jq
# env: LINKS="2 4"  CONNECTIONS="1 2 4 8"  REPEAT=3 (medians)  SIZE=512m  RW=target/release/ropewalk
set -euo pipefail
cd "$(dirname "$0")/.."
RW=${RW:-target/release/ropewalk} SIZE=${SIZE:-512m} REPEAT=${REPEAT:-3}
[ -x "$RW" ] || { echo "$RW: build it with cargo build --release, or name another with RW" >&2; exit 1; }
NAME=c$$ DATA=$(mktemp -d /dev/shm/ropewalk-connections.XXXXXX)
down() {
  "$RW" down --dir "$DATA/c" > /dev/null 2>&1 || true
  "$RW" lab testbed down "$NAME" > /dev/null 2>&1 || true
  rm -rf "$DATA/c"
}
trap 'down; rm -rf "$DATA"' EXIT
trap 'exit 130' INT TERM
on() { "$RW" lab testbed exec --name "$NAME" "$@"; }
perf() { on h2 "$RW" perf "$@" -r 1m -n "$SIZE" --direct-client --dir "$DATA/c" --json | jq '.runs[0].bytes_per_second / 1e9'; }
median() { sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
raw() {
  on h1 iperf3 -s -1 -B "$ADDRESS" > /dev/null 2>&1 & sleep 0.5
  on h2 iperf3 -c "$ADDRESS" -t 2 -P "$1" "${@:2}" -J | jq '.end.sum_received.bits_per_second / 8e9'
  wait $!
}
echo "GB/s; medians of $REPEAT, files of $SIZE, 1way, one server, one client (library)"
printf '%5s %11s %7s %7s %13s %12s %7s\n' links connections write read iperf3-write iperf3-read links
for links in ${LINKS:-2 4}; do
  "$RW" lab testbed up --name "$NAME" --links "$links" --rate 1g > /dev/null
  ADDRESS=$("$RW" lab testbed status --json | jq -r --arg n "$NAME" '.[] | select(.spec.name == $n) | .hosts[0].addrs[0]')
  on h1 "$RW" up --dir "$DATA/c" --nodes 1 --pdisks 1 --code 1way --pdisk-size 3g --listen "$ADDRESS" --no-mount --detach > /dev/null
  for connections in ${CONNECTIONS:-1 2 4 8}; do
    on h2 "$RW" config set --dir "$DATA/c" "maxTcpConnsPerNodeConn=$connections" > /dev/null
    sleep 3 # processes ask for tunables every two seconds
    write=() read=()
    for _ in $(seq "$REPEAT"); do
      write+=("$(perf create seq /f -fsync)")
      read+=("$(perf read seq /f)")
    done
    printf '%5s %11s %7.3f %7.3f %13.3f %12.3f %7.3f\n' "$links" "$connections" "$(printf '%s\n' "${write[@]}" | median)" \
      "$(printf '%s\n' "${read[@]}" | median)" "$(raw "$connections")" "$(raw "$connections" -R)" "$(jq -n "$links / 8")"
  done
  down
done
