#!/usr/bin/env bash
# The main job, end to end: a cluster of 4 server nodes with 2 pdisks each (4+2p, blocks of 4 MiB), mounted;
# a real tree copied in and compared byte for byte; a server killed while the tree is read; compared again;
# the server started again. Ends with status 0 only if every comparison held. The cluster stays up.
set -euo pipefail
cd "$(dirname "$0")/.."

base=${ROPEWALK_RUN_DIR:-/var/tmp/ropewalk-run}
bytes_wanted=$((1 << 30)) files_wanted=20000
target=${CARGO_TARGET_DIR:-$PWD/target}
ropewalk=${ROPEWALK_BIN:-$target/release/ropewalk}
cluster=$base/cluster mnt=$base/mnt local=$base/local
export ROPEWALK_DIR=$cluster

say() { printf '\n== %s\n' "$*"; }
die() { printf 'run: %s\n' "$*" >&2; exit 1; }
now() { date +%s.%N; }
rate() { awk -v b="$1" -v s="$2" 'BEGIN { printf "%.3f", b / 1e9 / (s > 0.001 ? s : 0.001) }'; }
elapsed() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.1f", b - a }'; }

# progress LABEL PID: shows how much the mount has moved, by its device's counters, until the process ends; its status.
progress() {
  local label=$1 pid=$2 start ticks=0
  start=$(now)
  while kill -0 "$pid" 2>/dev/null; do
    if [ -t 1 ]; then printf '\r   %s: %s s ' "$label" "$(elapsed "$start" "$(now)")"
    elif ((ticks++ % 20 == 0)); then printf '   %s: %s s\n' "$label" "$(elapsed "$start" "$(now)")"; fi
    sleep 0.5
  done
  [ ! -t 1 ] || printf '\r   %s: %s s, done\n' "$label" "$(elapsed "$start" "$(now)")"
  wait "$pid"
}

# copy_parts ROOT: the tree to ROOT/tree.
copy_parts() {
  local dir
  for dir in "${parts[@]}"; do
    mkdir -p "$1/tree${dir%/*}"
    cp -a --one-file-system "$dir" "$1/tree${dir%/*}/" || return 1
  done
}

# forget: what the kernel has cached of files, the tree's own too, so that all comparisons begin alike. Only root may.
forget() { sync; if [ -w /proc/sys/vm/drop_caches ]; then echo 1 >/proc/sys/vm/drop_caches; fi; }

# compare LABEL ROOT: the tree as it is in ROOT against what was copied, byte for byte.
compare() {
  local start end
  forget
  start=$(now)
  compare_parts "$2" >"$base/diff.out" 2>&1 &
  comparing=$!
  progress "$1" "$comparing" || { head -20 "$base/diff.out" >&2; die "$1: the trees differ"; }
  end=$(now)
  compare_seconds=$(elapsed "$start" "$end")
  comparisons=$((comparisons + 1))
}
compare_parts() {
  local dir status=0
  for dir in "${parts[@]}"; do diff -r --no-dereference "$dir" "$1/tree$dir" || status=1; done
  return $status
}

# A cold client: everything is read from the servers again.
remount() { "$ropewalk" umount "$mnt"; "$ropewalk" mount fs1 "$mnt"; }

# row WHAT SECONDS BYTES LOCAL: LOCAL are the seconds that the same took on the local disk.
rows=()
row() {
  local part
  part=$(awk -v a="$2" -v b="$4" 'BEGIN { printf "%.0f %%", 100 * b / (a > 0.05 ? a : 0.05) }')
  rows+=("$(printf '%-38s %9s %7s %11s %7s %9s' "$1" "$2 s" "$(rate "$3" "$2")" "$4 s" "$(rate "$3" "$4")" "$part")")
}
comparisons=0

trap 'printf "\nrun: stopped; the cluster is left as it is: ropewalk down --dir %s\n" "$cluster" >&2; exit 130' INT TERM

mkdir -p "$mnt" "$base"
rm -rf "$local"
say "the tree: at least 1 GiB and $files_wanted files of this machine"
# Candidates in this order until there is enough; a copy of the list keeps what is compared fixed.
candidates=("$(rustc --print sysroot)" /usr/share /usr/lib /usr/include /usr/bin /usr/src)
tree_bytes=0 tree_files=0 parts=()
for dir in "${candidates[@]}"; do
  [ -d "$dir" ] || continue
  read -r bytes files < <(find "$dir" -xdev -type f -printf '%s\n' 2>/dev/null | awk '{ b += $1 } END { print b + 0, NR }')
  parts+=("$dir") tree_bytes=$((tree_bytes + bytes)) tree_files=$((tree_files + files))
  ((tree_bytes >= bytes_wanted && tree_files >= files_wanted)) && break
done
((tree_bytes >= bytes_wanted && tree_files >= files_wanted)) ||
  die "this machine has only $tree_files files with $tree_bytes bytes under ${candidates[*]}"
echo "   $tree_files files, $(rate "$tree_bytes" 1) GB: ${parts[*]}"

say "raw ceilings of this machine"
ceilings=$("$ropewalk" lab ceilings --dir "$base" --size 2g --json)
ceiling() { jq -r "$1" <<<"$ceilings"; }
two() { printf '%.2f' "$(ceiling "$1")"; }
tcp=$(two .loopback_tcp_gb_per_second) disk_w=$(two .disk_write_gb_per_second) disk_r=$(two .disk_read_gb_per_second)
echo "   loopback TCP $tcp GB/s, disk write $disk_w GB/s, disk read $disk_r GB/s"

say "the same jobs on the local disk, for comparison"
cat_parts() { find "${parts[@]}" -xdev -type f -print0 2>/dev/null | xargs -0 cat; }
# Read once, so that neither copy has an advantage from what the other has read.
cat_parts >/dev/null &
progress "reading" $! || die "the tree cannot be read"
start=$(now)
{ copy_parts "$local" && sync -f "$local"; } &
progress "copying" $! || die "copying to $local failed"
local_copy=$(elapsed "$start" "$(now)")
compare "comparing" "$local"
local_compare=$compare_seconds
rm -rf "${local:?}/tree"
start=$(now)
dd if=/dev/zero of="$local/stream" bs=1M count=2048 conv=fsync status=none
local_write=$(elapsed "$start" "$(now)")
forget
start=$(now)
dd if="$local/stream" of=/dev/null bs=1M status=none
local_read=$(elapsed "$start" "$(now)")
rm -rf "$local"
comparisons=0
echo "   copy $local_copy s, compare $local_compare s, write 2 GiB $local_write s, read 2 GiB $local_read s"

say "cluster up: 4 nodes x 2 pdisks, 4+2p, blocks of 4m"
"$ropewalk" up --dir "$cluster" --nodes 4 --pdisks 2 --pdisk-size 2g --code 4+2p --block-size 4m --mount "$mnt" --detach
rm -rf "$mnt/tree" "$mnt/stream"

say "copy the tree in"
start=$(now)
copy_parts "$mnt" &
progress "copying" $! || die "copying failed"
# Unmounting returns when everything is durable; mounting again makes a cold client.
remount
end=$(now)
seconds=$(elapsed "$start" "$end")
row "copy $tree_files files in, all durable" "$seconds" "$tree_bytes" "$local_copy"

say "compare it, read back from the servers"
compare "comparing" "$mnt"
row "compare them" "$compare_seconds" "$tree_bytes" "$local_compare"

say "one large file: written with fsync, read back"
stream_bytes=$((2 << 30))
start=$(now)
dd if=/dev/zero of="$mnt/stream" bs=1M count=2048 conv=fsync status=none
seconds=$(elapsed "$start" "$(now)")
row "write 2 GiB, fsync" "$seconds" $stream_bytes "$local_write"
remount
forget
start=$(now)
dd if="$mnt/stream" of=/dev/null bs=1M status=none
seconds=$(elapsed "$start" "$(now)")
row "read 2 GiB" "$seconds" $stream_bytes "$local_read"
rm -f "$mnt/stream"

say "kill server n3 while the tree is read"
remount
forget
victim=$(head -1 "$cluster/run/n3.pid")
( sleep 3; kill -KILL "$victim" ) &
compare "comparing, n3 killed after 3 s" "$mnt"
wait $! 2>/dev/null || true
! kill -0 "$victim" 2>/dev/null || die "n3 (process $victim) still lives"
row "compare, n3 killed meanwhile" "$compare_seconds" "$tree_bytes" "$local_compare"

say "compare again, n3 still dead"
remount
compare "comparing, degraded" "$mnt"
row "compare without n3" "$compare_seconds" "$tree_bytes" "$local_compare"

say "start n3 again"
start=$(now)
"$ropewalk" up --dir "$cluster" --mount "$mnt" --detach
until [ "$("$ropewalk" pdisk list --json | jq -r 'map(select(.state != "ok")) | length')" = 0 ]; do
  [ "$(elapsed "$start" "$(now)" | cut -d. -f1)" -lt 300 ] || die "pdisks of n3 are not back after 300 s"
  sleep 0.5
done
back=$(elapsed "$start" "$(now)")

say "done: $comparisons comparisons of $tree_files files, all equal"
head='%-38s %9s %7s %11s %7s %9s\n'
# shellcheck disable=SC2059 # the format is ours
printf "$head" "WHAT" "TIME" "GB/s" "LOCAL DISK" "GB/s" "OF LOCAL"
printf '%s\n' "${rows[@]}"
echo "n3 was back and had caught up after $back s."
[ -w /proc/sys/vm/drop_caches ] || echo "The local disk's reads may come from memory: only root can empty the caches."
echo "Raw: loopback TCP $tcp GB/s, disk write $disk_w GB/s, disk read $disk_r GB/s. The cluster stores 1.5 bytes for each (4+2p)."
"$ropewalk" status
cat <<TXT

The file system is mounted on $mnt. Try it, then:
  $ropewalk status --dir $cluster
  $ropewalk fs df  --dir $cluster
  $ropewalk down   --dir $cluster      stops it; \`up\` brings the same data back
TXT
