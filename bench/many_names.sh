# For scripts in bench: a cluster in $AT/c whose manager's store has so many inodes, without making them one by one
# (crates/manager/examples/many_names.rs: a dump made larger, and restored).
#   store_of INODES    a new cluster of one node, which does not run; RESTORED: seconds that `manager restore` took
NAMES=${NAMES:-target/release/examples/many_names}
[ -x "$NAMES" ] || { echo "$NAMES: cargo build --release --workspace --bin ropewalk --example many_names, or name another with NAMES" >&2; exit 1; }
timed() { # COMMAND: seconds
  local began
  began=$(date +%s.%N)
  "$@" > /dev/null
  awk -v b="$began" -v e="$(date +%s.%N)" 'BEGIN { printf "%.2f", e - b }'
}
up() { "$RW" up --dir "$AT/c" --mount "$AT/m" --detach "$@" > /dev/null; }
down() { "$RW" down --dir "$AT/c" > /dev/null; }
store_of() {
  rm -rf "$AT/c" && mkdir -p "$AT/m"
  up --nodes 1 --pdisks 1 --code 1way --pdisk-size 4g --cipher-list EMPTY
  down
  "$RW" manager dump --dir "$AT/c" "$AT/small" > /dev/null
  "$NAMES" "$AT/small" "$AT/large" "$1" > /dev/null
  mv "$AT/c/manager" "$AT/c/manager.small"
  RESTORED=$(timed "$RW" manager restore --dir "$AT/c" "$AT/large")
  rm -r "$AT/small" "$AT/large" "$AT/c/manager.small"
}
