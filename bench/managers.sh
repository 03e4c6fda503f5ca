#!/usr/bin/env bash
# Names a second by where the manager's store is: on one disk (redb), with a copy on another directory (mirror), with its journal in an etcd
# of one and of three members; create, stat and unlink of 4 KiB files by so many workers at a time. Beside it, in the same run: what etcd
# itself puts a second (4 KiB, one connection a worker, over its JSON gateway). Then the manager's memory, and the time to migrate.
# The last column is the rate divided by that of redb with as many workers. Everything is on loopback and in DATA; nothing between the members
# of etcd is slowed down.
#   bench/managers.sh          needs root (a mount), jq, python3, etcd (package etcd-server)
# env: FILES=4000  WORKERS="1 4 16 64"  STORES="redb mirror etcd1 etcd3"  DATA=/var/tmp  RW=target/release/ropewalk
set -euo pipefail
cd "$(dirname "$0")/.."
RW=${RW:-target/release/ropewalk} FILES=${FILES:-4000} WORKERS=${WORKERS:-1 4 16 64} STORES=${STORES:-redb mirror etcd1 etcd3}
[ -x "$RW" ] || { echo "$RW: build it with cargo build --release, or name another with RW" >&2; exit 1; }
RW=$(realpath "$RW") AT=$(mktemp -d "${DATA:-/var/tmp}/ropewalk-managers.XXXXXX")
ETCD=()
end() {
  "$RW" down --dir "$AT/c" > /dev/null 2>&1 || true
  for pid in "${ETCD[@]}"; do kill "$pid" 2> /dev/null || true; wait "$pid" 2> /dev/null || true; done
  ETCD=()
}
trap 'end; rm -rf "$AT"' EXIT
trap 'exit 130' INT TERM
etcd_of() { # MEMBERS: starts them; PLACE and GATEWAY say where
  local n ports cluster='' PLACES=()
  # A member has two ports: that of clients, and that of members.
  read -r -a ports <<< "$(python3 -c '
import socket, sys
held = [socket.socket() for _ in range(2 * int(sys.argv[1]))]
[one.bind(("127.0.0.1", 0)) for one in held]
print(*[one.getsockname()[1] for one in held])' "$1")"
  for ((n = 0; n < $1; n++)); do cluster+="${cluster:+,}m$n=http://127.0.0.1:${ports[2 * n + 1]}"; done
  for ((n = 0; n < $1; n++)); do
    local client=http://127.0.0.1:${ports[2 * n]} peer=http://127.0.0.1:${ports[2 * n + 1]}
    etcd --log-level error --name "m$n" --data-dir "$AT/etcd$n" --snapshot-count 1000 --listen-client-urls "$client" \
      --advertise-client-urls "$client" --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" \
      --initial-cluster "$cluster" > /dev/null 2>&1 &
    ETCD+=($!)
    PLACES+=("127.0.0.1:${ports[2 * n]}")
  done
  GATEWAY=${PLACES[0]} PLACE=etcd://$(IFS=,; echo "${PLACES[*]}")/rope
  local left=300
  until python3 -c 'import sys, urllib.request as u; sys.exit(b"true" not in u.urlopen("http://" + sys.argv[1] + "/health").read())' \
    "$GATEWAY" 2> /dev/null; do
    ((--left)) || { echo "etcd does not start" >&2; exit 1; }
    sleep 0.1
  done
}
names() { # MOUNT WORKERS: rates of create, stat, unlink
  (cd bench && python3 -c '
import sys, metadata
rates = metadata.small_files([sys.argv[1]], int(sys.argv[2]), int(sys.argv[3]), False)
print(*[round(rates[phase]) for phase in ("create", "stat", "unlink")])' "$1" "$2" "$FILES")
}
puts() { # WORKERS: what etcd puts a second
  python3 - "$GATEWAY" "$1" "$FILES" <<'PY'
import base64, http.client, json, multiprocessing, sys, time
gateway, workers, files = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
value = base64.b64encode(bytes(4096)).decode()
def work(worker):
    link = http.client.HTTPConnection(gateway, timeout=60)
    for i in range(files // workers):
        key = base64.b64encode(f"raw/{worker}/{i % 64}".encode()).decode()
        link.request("POST", "/v3/kv/put", json.dumps({"key": key, "value": value}))
        answer = link.getresponse()
        answer.read()
        assert answer.status == 200, answer.status
jobs = [multiprocessing.Process(target=work, args=(worker,)) for worker in range(workers)]
began = time.monotonic()
[job.start() for job in jobs]
[job.join() for job in jobs]
assert not any(job.exitcode for job in jobs)
print(round(files // workers * workers / (time.monotonic() - began)))
PY
}
status() { "$RW" status --dir "$AT/c" --json; }
up() { "$RW" up --dir "$AT/c" --mount "$AT/m" --detach "$@" > /dev/null; }
fresh=(--nodes 1 --pdisks 1 --code 1way --pdisk-size 4g --cipher-list EMPTY)
declare -A REDB=()
printf '%8s %8s %10s %10s %10s %10s %8s\n' store workers create/s stat/s unlink/s etcd/s ratio
for store in $STORES; do
  rm -rf "$AT"/c "$AT"/copy "$AT"/etcd* && mkdir -p "$AT/m"
  case $store in
    redb) up "${fresh[@]}" ;;
    mirror)
      mkdir "$AT/copy"
      up "${fresh[@]}" && "$RW" down --dir "$AT/c" > /dev/null
      "$RW" manager mirror --dir "$AT/c" "$AT/copy" > /dev/null
      up
      until status | jq -e '.store | contains("with a copy in")' > /dev/null; do sleep 0.2; done
      ;;
    etcd*) etcd_of "${store#etcd}" && up "${fresh[@]}" --store "$PLACE" ;;
    *) echo "STORES: $store is none" >&2; exit 1 ;;
  esac
  for workers in $WORKERS; do
    raw=-
    case $store in etcd*) raw=$(puts "$workers") ;; esac
    read -r create stat unlink <<< "$(names "$AT/m" "$workers")"
    [ "$store" = redb ] && REDB[$workers]=$create
    ratio=$(awk -v a="$create" -v b="${REDB[$workers]:-0}" 'BEGIN { if (b) printf "%.2f", a / b; else print "-" }')
    printf '%8s %8s %10s %10s %10s %10s %8s\n' "$store" "$workers" "$create" "$stat" "$unlink" "$raw" "$ratio"
  done
  before=$(status | jq '.processes[] | select(.name == "manager") | .status.memory.process.resident_bytes')
  python3 - "$AT/m" "$FILES" <<'PY'
import os, sys
os.mkdir(f"{sys.argv[1]}/kept")
for i in range(int(sys.argv[2])):
    os.close(os.open(f"{sys.argv[1]}/kept/{i}", os.O_CREAT | os.O_WRONLY))
PY
  sync -f "$AT/m"
  after=$(status | jq '.processes[] | select(.name == "manager") | .status.memory.process.resident_bytes')
  echo "$store: the manager has $((after >> 20)) MiB, $(((after - before) / FILES)) bytes more for each of $FILES inodes"
  "$RW" down --dir "$AT/c" > /dev/null
  began=$(date +%s.%N)
  case $store in
    redb)
      etcd_of 1
      "$RW" manager migrate --dir "$AT/c" --store "$PLACE" > /dev/null
      ;;
    etcd*) "$RW" manager migrate --dir "$AT/c" --to-file > /dev/null ;;
    *) began= ;;
  esac
  [ -z "$began" ] || awk -v s="$store" -v n="$FILES" -v b="$began" -v e="$(date +%s.%N)" \
    'BEGIN { printf "%s: %.1f s to migrate %d inodes%s\n", s, e - b, n, s == "redb" ? " (etcd is started in it)" : "" }'
  end
done
