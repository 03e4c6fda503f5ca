# For scripts in bench: members of an etcd on this machine, with their data in $AT, and with one thread at a time each unless GOMAXPROCS says
# otherwise, as `up` starts them.
#   etcd_of MEMBERS [MS]   starts them, each in a round trip of MS milliseconds from the others; PLACE and ENDPOINTS say where
#   etcd_end               ends them
ETCD=() DELAY_IN=
etcd_end() {
  local pid
  for pid in "${ETCD[@]}"; do kill "$pid" 2> /dev/null || true; wait "$pid" 2> /dev/null || true; done
  ETCD=()
}
etcd_of() {
  local n ports cluster='' pairs=() places=()
  # A member has a port of clients and one of members, and one at which the others find it.
  read -r -a ports <<< "$(python3 -c '
import socket, sys
held = [socket.socket() for _ in range(3 * int(sys.argv[1]))]
[one.bind(("127.0.0.1", 0)) for one in held]
print(*[one.getsockname()[1] for one in held])' "$1")"
  for ((n = 0; n < $1; n++)); do
    [ "${2:-0}" != 0 ] || ports[3 * n + 2]=${ports[3 * n + 1]}
    pairs+=("${ports[3 * n + 2]}=${ports[3 * n + 1]}")
    cluster+="${cluster:+,}m$n=http://127.0.0.1:${ports[3 * n + 2]}"
  done
  if [ "${2:-0}" != 0 ]; then
    # Its input is open as long as this script lives.
    mkfifo "$AT/delayed.$$"
    bench/delayed.py "$2" "${pairs[@]}" < "$AT/delayed.$$" > "$AT/delayed.log" &
    ETCD+=($!)
    exec {DELAY_IN}> "$AT/delayed.$$"
    rm "$AT/delayed.$$"
  fi
  for ((n = 0; n < $1; n++)); do
    local client=http://127.0.0.1:${ports[3 * n]} peer=http://127.0.0.1:${ports[3 * n + 1]}
    GOMAXPROCS=${GOMAXPROCS:-1} etcd --log-level error --name "m$n" --data-dir "$AT/etcd$n" --snapshot-count 1000 --listen-client-urls "$client" \
      --advertise-client-urls "$client" --listen-peer-urls "$peer" \
      --initial-advertise-peer-urls "http://127.0.0.1:${ports[3 * n + 2]}" --initial-cluster "$cluster" > /dev/null 2>&1 &
    ETCD+=($!)
    places+=("127.0.0.1:${ports[3 * n]}")
  done
  ENDPOINTS=$(IFS=,; echo "${places[*]}") PLACE=etcd://$ENDPOINTS/rope
  local left=300
  until python3 -c 'import sys, urllib.request as u
for place in sys.argv[1].split(","): assert b"true" in u.urlopen("http://" + place + "/health", timeout=5).read()' \
    "$ENDPOINTS" 2> /dev/null; do
    ((--left)) || { echo "etcd does not start" >&2; exit 1; }
    sleep 0.1
  done
}
