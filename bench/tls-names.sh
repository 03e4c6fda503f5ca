#!/usr/bin/env bash
# What TLS on the control path costs in names: files created a second, the same cluster with and without it, in turns. The cluster
# is changed while it runs (`config set cipherList`); `net status` says that the change has arrived before anything is measured.
# The bound: at most 5 % fewer. Of each round the two are compared with each other; what is printed last is the median of these.
#   bench/tls-names.sh         needs root (a mount), jq; loopback, data on tmpfs
# env: ROUNDS=7  FILES=4000  TASKS=4 (directories filled at a time)  LISTS="EMPTY DEFAULT"  RW=target/release/ropewalk
set -euo pipefail
cd "$(dirname "$0")/.."
RW=${RW:-target/release/ropewalk} ROUNDS=${ROUNDS:-7} FILES=${FILES:-4000} TASKS=${TASKS:-4}
read -r -a LISTS <<< "${LISTS:-EMPTY DEFAULT}"
[ -x "$RW" ] || { echo "$RW: build it with cargo build --release, or name another with RW" >&2; exit 1; }
RW=$(realpath "$RW") DATA=$(mktemp -d /dev/shm/ropewalk-tls-names.XXXXXX)
trap '"$RW" down --dir "$DATA/c" > /dev/null 2>&1 || true; rm -rf "$DATA"' EXIT
trap 'exit 130' INT TERM
mkdir "$DATA/m"
"$RW" up --dir "$DATA/c" --nodes 1 --pdisks 1 --code 1way --pdisk-size 2g --cipher-list "${LISTS[0]}" \
  --mount "$DATA/m" --detach > /dev/null
change() { # LIST: until every connection between processes of the cluster has it
  "$RW" config set --dir "$DATA/c" "cipherList=$1" > /dev/null
  local is='.encrypted' left=300
  case $1 in EMPTY | AUTHONLY) is=".protection == \"$1\"" ;; esac
  # Those of commands come and go.
  until "$RW" net status --dir "$DATA/c" --json |
    jq -e "[.[].answer[] | select(.role != \"admin\") | .connections[] | select(.state == \"active\") | $is] | length > 0 and all" > /dev/null; do
    ((--left)) || { echo "the connections do not become $1" >&2; exit 1; }
    sleep 0.1
  done
}
creates() { # DIRECTORY: files a second
  local task began ended each=$((FILES / TASKS)) tasks=()
  for ((task = 0; task < TASKS; task++)); do mkdir -p "$1/$task"; done
  began=$(date +%s.%N)
  for ((task = 0; task < TASKS; task++)); do
    python3 - "$1/$task" "$each" <<'PY' &
import os, sys
for i in range(int(sys.argv[2])):
    os.close(os.open(f"{sys.argv[1]}/{i}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
PY
    tasks+=($!)
  done
  for task in "${tasks[@]}"; do wait "$task"; done
  # Names that are on their way count when they are there.
  sync -f "$1"
  ended=$(date +%s.%N)
  awk -v n="$((each * TASKS))" -v b="$began" -v e="$ended" 'BEGIN { print n / (e - b) }'
}
median() { sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
echo "creates/s; $FILES files in $TASKS directories at a time, $ROUNDS rounds"
printf '%6s %12s %12s %8s\n' round "${LISTS[0]}" "${LISTS[1]}" ratio
ratios=''
for ((round = 0; round <= ROUNDS; round++)); do
  declare -A got=()
  # The first of a pair is each in turn.
  for i in $((round % 2)) $(((round + 1) % 2)); do
    change "${LISTS[i]}"
    got[$i]=$(creates "$DATA/m/$round-$i")
  done
  [ "$round" = 0 ] && continue # what is done once is done in the first
  ratio=$(awk -v a="${got[0]}" -v b="${got[1]}" 'BEGIN { print b / a }')
  ratios+="$ratio"$'\n'
  printf '%6d %12.0f %12.0f %8.3f\n' "$round" "${got[0]}" "${got[1]}" "$ratio"
done
printf 'median of the ratios: %.3f (bound: 0.95)\n' "$(printf '%s' "$ratios" | median)"
