#!/usr/bin/env bash
# Names a second by where the manager's store is: on one disk (redb), with a copy in another directory (mirror) or on another manager
# (mirror+node), with its journal in an etcd of one and of three members, these also with a round trip of 1 and 5 ms between them
# (bench/delayed.py, whose CPU counts too); create, stat and unlink of 4 KiB files by so many workers at a time, each name durable when its
# call returns (with ROPEWALK_NAMES=ahead: made ahead of the manager, and told to it in batches). The files hold text, rows of numbers, or
# with CONTENT=random what cannot be packed. Beside it, in the same run: what etcd
# itself commits a second (guarded transactions of 4 KiB, one at a time and one connection a worker:
# crates/manager/examples/etcd_transactions.rs).
# `ratio` is the creates divided by those of redb with as many workers; then the CPU of one create, of all processes of the program, etcd
# and the load (python3), and what of it etcd takes: nothing else of these may run. Everything is on loopback and in DATA. Some minutes.
# Memory, and takeovers against inodes: bench/takeover.sh, of a copy: bench/promote.sh; the time to migrate: bench/migrate.sh; a machine that
# vanishes: bench/vanished.sh.
#   bench/managers.sh          needs root (a mount), jq, python3, etcd (package etcd-server)
# env: FILES=4000  WORKERS="1 4 16 64"  STORES="redb mirror mirror+node etcd1 etcd3 etcd3+1ms etcd3+5ms"  DATA=/var/tmp
#      CONTENT=text
#      RW=target/release/ropewalk  RAW=target/release/examples/etcd_transactions     (FILES is for 8 workers and more, with fewer 500 for each)
set -euo pipefail
cd "$(dirname "$0")/.."
RW=${RW:-target/release/ropewalk} RAW=${RAW:-target/release/examples/etcd_transactions}
CONTENT=${CONTENT:-text} FILES=${FILES:-4000} WORKERS=${WORKERS:-1 4 16 64} STORES=${STORES:-redb mirror mirror+node etcd1 etcd3 etcd3+1ms etcd3+5ms}
for built in "$RW" "$RAW"; do
  [ -x "$built" ] ||
    { echo "$built: cargo build --release --workspace --bin ropewalk --example etcd_transactions, or name another with RW, RAW" >&2; exit 1; }
done
RW=$(realpath "$RW") AT=$(mktemp -d "${DATA:-/var/tmp}/ropewalk-managers.XXXXXX")
export ROPEWALK_NAMES=${ROPEWALK_NAMES:-durable}
. bench/etcd.sh
. bench/copy.sh
end() {
  local dir
  for dir in c other; do "$RW" down --dir "$AT/$dir" > /dev/null 2>&1 || true; done
  etcd_end
}
trap 'end; rm -rf "$AT"' EXIT
trap 'exit 130' INT TERM
names() { # WORKERS FILES: rates of create, stat, unlink; CPU a create, of all and of etcd
  (cd bench && python3 -c '
import glob, os, random, sys, metadata
mount, workers, files, kind, program = sys.argv[1:]
number = random.Random(int(workers)).random
row = lambda: b"%d,%.4f,%.2f,2026-%02d-%02d\n" % (number() * 1e6, number(), number() * 1e3, 1 + number() * 12, 1 + number() * 28)
pool = {"text": lambda: b"".join(row() for _ in range(100_000)), "random": lambda: os.urandom(4 << 20)}[kind]()
def content():
    at = int(number() * (len(pool) - len(metadata.CONTENT)))
    return pool[at : at + len(metadata.CONTENT)]
metadata.content = content
def cpu():
    used = dict.fromkeys((os.path.basename(program)[:15], "etcd", "python3"), 0)
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            name, rest = open(path).read().split("(", 1)[1].rsplit(") ", 1)
        except OSError:
            continue
        # One that has ended counts until somebody asks for its end.
        if name in used and rest[0] != "Z":
            used[name] += sum(map(int, rest.split()[11:13]))
    return used
marks, span = [None], metadata.span
def watched(times):
    if len(marks) == 1:
        marks.append(cpu())
    ended = span(times)
    marks.append(cpu() if len(marks) <= int(workers) + 1 else None)
    return ended
metadata.span = watched
rates = metadata.small_files([mount], int(workers), int(files), False)
begun, made = marks[1], marks[int(workers) + 1]
each = {name: (made[name] - begun[name]) * 1e6 / os.sysconf("SC_CLK_TCK") / int(files) for name in made}
print(*[round(rates[phase]) for phase in ("create", "stat", "unlink")], round(sum(each.values())), round(each["etcd"]))' "$AT/m" "$@" "$CONTENT" "$RW")
}
up() { "$RW" up --dir "$AT/c" --mount "$AT/m" --detach "$@" > /dev/null; }
fresh=(--nodes 1 --pdisks 1 --code 1way --pdisk-size 4g --cipher-list EMPTY)
declare -A REDB=()
printf '%11s %8s %10s %10s %10s %10s %8s %8s %8s\n' store workers create/s stat/s unlink/s etcd/s ratio cpu/us etcd/us
for store in $STORES; do
  rm -rf "$AT"/c "$AT"/other "$AT"/copy "$AT"/etcd* && mkdir -p "$AT/m"
  case $store in
    redb) up "${fresh[@]}" ;;
    mirror | mirror+node)
      up "${fresh[@]}"
      case $store in mirror) copy_to dir ;; *) copy_to node ;; esac
      copy_whole
      ;;
    etcd[13] | etcd3+*ms)
      members=${store%%+*} ms=0
      [ "$members" = "$store" ] || { ms=${store#*+} && ms=${ms%ms}; }
      etcd_of "${members#etcd}" "$ms" && up "${fresh[@]}" --store "$PLACE"
      ;;
    *) echo "STORES: $store is none" >&2; exit 1 ;;
  esac
  for workers in $WORKERS; do
    raw=- files=$((workers * 500 < FILES ? workers * 500 : FILES))
    case $store in etcd*) raw=$("$RAW" "$ENDPOINTS" "$workers" "$files" 4096) ;; esac
    read -r create stat unlink cpu etcd <<< "$(names "$workers" "$files")"
    [ "$store" = redb ] && REDB[$workers]=$create
    ratio=$(awk -v a="$create" -v b="${REDB[$workers]:-0}" 'BEGIN { if (b) printf "%.2f", a / b; else print "-" }')
    printf '%11s %8s %10s %10s %10s %10s %8s %8s %8s\n' "$store" "$workers" "$create" "$stat" "$unlink" "$raw" "$ratio" "$cpu" "$etcd"
  done
  end
done
