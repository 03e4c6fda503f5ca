#!/usr/bin/env bash
# How long names stand still when the machine of the active manager vanishes without a word: its link is cut (packets are lost, and nobody
# is told) or goes down; for comparison its manager is killed. Three managers, a server with a mount, and an etcd of one member are hosts
# of a testbed (network namespaces), each with a link of its own. ROUNDS times each: operations are in flight all the time, and the longest
# is what is printed, in seconds.
#   bench/vanished.sh          needs root, jq, python3, etcd (package etcd-server)
# env: ROUNDS=3  WAYS="cut down killed"  DATA=/var/tmp  RW=target/release/ropewalk
set -euo pipefail
cd "$(dirname "$0")/.."
RW=${RW:-target/release/ropewalk} ROUNDS=${ROUNDS:-3} WAYS=${WAYS:-cut down killed}
[ -x "$RW" ] || { echo "$RW: build it with cargo build --release, or name another with RW" >&2; exit 1; }
RW=$(realpath "$RW") AT=$(mktemp -d "${DATA:-/var/tmp}/ropewalk-vanished.XXXXXX") NAME=v$$
end() {
  local host
  for host in 5 4 3 2; do "$RW" down --dir "$AT/h$host" --force > /dev/null 2>&1 || true; done
  "$RW" lab testbed down "$NAME" > /dev/null 2>&1 || true
  umount -l "$AT/m" 2> /dev/null || true
  rm -rf "$AT"
}
trap end EXIT
trap 'exit 130' INT TERM
mkdir "$AT/m"
"$RW" lab testbed up --name "$NAME" --hosts 5 --links 1 --join ecmp > /dev/null
# What is mounted is seen here, too.
on() { nsenter --net="/run/netns/ropewalk-$NAME-h$1" "${@:2}"; }
rw() { on "$1" "$RW" "${@:2}" --dir "$AT/h$1"; }
address() { "$RW" lab testbed status --json | jq -r --arg n "$NAME" ".[] | select(.spec.name == \$n) | .hosts[$1 - 1].addrs[0]"; }
link() { "$RW" lab testbed link --name "$NAME" "h$1" 1 "$2" > /dev/null; }
token() { rw 2 node token "$@"; }
etcd=http://$(address 1)
on 1 etcd --log-level error --name m0 --data-dir "$AT/etcd" --listen-client-urls "$etcd:2379" --advertise-client-urls "$etcd:2379" \
  --listen-peer-urls "$etcd:2380" --initial-advertise-peer-urls "$etcd:2380" --initial-cluster "m0=$etcd:2380" > /dev/null 2>&1 &
until on 1 python3 -c 'import sys, urllib.request as u; u.urlopen(sys.argv[1] + ":2379/health", timeout=5)' "$etcd" 2> /dev/null; do sleep 0.2; done
rw 2 init --name rope --node h2 --address "$(address 2)" --store "etcd://${etcd#http://}:2379/rope" > /dev/null
for host in 3 4; do
  rw "$host" join "$(token --role manager)" --name "m$host" --address "$(address "$host")" > /dev/null
done
rw 5 join "$(token)" --name h5 --address "$(address 5)" --pdisk "$AT/disk" --pdisk-size 1g > /dev/null
rw 2 pool create data --code 1way --block-size 1m > /dev/null
rw 2 fs create fs1 --pool data > /dev/null
rw 5 mount fs1 "$AT/m" > /dev/null
active() { rw 5 manager list --json | jq -r '[.[] | select(.active)][0].addresses[0] // "" | split(":")[0]'; }
all_stand() {
  local left=300
  until rw 5 manager list --json | jq -e 'all(.behind != null and .behind < 100) and any(.active)' > /dev/null 2>&1; do
    ((--left)) || { echo "the managers do not stand: $(rw 5 manager list)" >&2; exit 1; }
    sleep 0.2
  done
}
host_of() { # ADDRESS
  local host
  for host in 2 3 4; do [ "$(address "$host")" != "$1" ] || echo "$host"; done
}
# COMMAND: is given while directories are made one after the other; the longest of these.
longest() {
  python3 - "$AT/m/at$RANDOM$RANDOM" "$@" <<'PY'
import os, subprocess, sys, time
given = subprocess.Popen(sys.argv[2:], stdout=subprocess.DEVNULL)
began, worst, n = time.monotonic(), 0.0, 0
# With the command done there is at least one more, and what stood still has gone on.
while time.monotonic() - began < 10 or worst < 1 and time.monotonic() - began < 60:
    at = time.monotonic()
    os.mkdir(f"{sys.argv[1]}.{n}")
    worst, n = max(worst, time.monotonic() - at), n + 1
assert given.wait() == 0
print(f"{worst:.2f}")
PY
}
for way in $WAYS; do
  times=''
  for ((round = 0; round < ROUNDS; round++)); do
    all_stand
    host=$(host_of "$(active)")
    case $way in
      killed) times+="$(longest kill -9 "$(head -1 "$AT/h$host/run/manager.pid")") " && rw "$host" up --detach > /dev/null ;;
      *) times+="$(longest "$RW" lab testbed link --name "$NAME" "h$host" 1 "$way") " && link "$host" up ;;
    esac
  done
  printf '%8s %s\n' "$way" "$times"
done
