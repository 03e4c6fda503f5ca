# For scripts in bench: a copy of the store of the manager of the cluster in $AT/c, which runs.
#   copy_to dir|node   keeps one from now on: in the directory $AT/copy, or on another manager, m2, with the directory $AT/other. It is made
#                      from BEGAN on; COPY is what `manager promote --from-mirror` finds it by, COPY_AT where it lies
#   copy_whole         waits until it has all
copy_to() {
  local port
  case $1 in
    dir)
      COPY=$AT/copy COPY_AT=$AT/copy
      mkdir "$COPY"
      ;;
    node)
      COPY=m2 COPY_AT=$AT/other/copy
      port=$(python3 -c 'import socket; at = socket.create_server(("127.0.0.1", 0)); print(at.getsockname()[1])')
      "$RW" join --dir "$AT/other" "$("$RW" node token --dir "$AT/c" --role manager)" \
        --address 127.0.0.1 --port "$port" --name m2 --no-service > /dev/null
      ;;
    *) echo "a copy to $1: neither dir nor node" >&2; exit 1 ;;
  esac
  "$RW" down --dir "$AT/c" > /dev/null
  "$RW" manager mirror --dir "$AT/c" "$COPY" > /dev/null
  BEGAN=$(date +%s.%N)
  up
}
copy_whole() {
  local left=3000
  until "$RW" status --dir "$AT/c" --json 2> /dev/null | jq -e '.store | contains("with a copy ")' > /dev/null; do
    ((--left)) || { echo "the copy does not get whole: $("$RW" status --dir "$AT/c")" >&2; exit 1; }
    sleep 0.1
  done
}
