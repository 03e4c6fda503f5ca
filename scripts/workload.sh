#!/usr/bin/env bash
# workload.sh [gluster]: the mixed analytics workload in its short form with all engines: the environment from the configured package
# index, then 20 tests on a local directory and on a small mounted cluster, and with `gluster` on a GlusterFS of the same machine as well
# (root; its package is installed if it is missing); each held against the local directory. DATA, WORK and UTIL have pools of their own
# on the cluster. Ends with status 0 only if every result was right.
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1-} in "" | gluster) ;; *) echo "workload.sh: $1: not gluster" >&2; exit 2 ;; esac

install() {
  local as_root=(); [ "$(id -u)" = 0 ] || as_root=(sudo -n)
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$1"
}
# The environment is made by Python's own means, which Debian has in a package of its own.
python3 -c 'import ensurepip, venv' 2>/dev/null || install python3-venv
[ -z "${1-}" ] || command -v glusterd >/dev/null || install glusterfs-server
target=${CARGO_TARGET_DIR:-$PWD/target}
ropewalk=${ROPEWALK_BIN:-$target/release/ropewalk}
env=${ROPEWALK_WORKLOAD_ENV:-$target/workload-env}
base=$(mktemp -d /var/tmp/ropewalk-workload-XXXXXX)
gluster=
ends() {
  # It takes itself away at the end of its input; the shell forgets it once it has ended.
  if [ -n "$gluster" ]; then eval "exec ${GLUSTER[1]:-9}>&-"; wait "$gluster" || true; fi
  "$ropewalk" down --dir "$base/cluster" --force >/dev/null 2>&1 || true
  rm -rf --one-file-system "$base"
}
trap ends EXIT
trap 'exit 130' INT TERM

"$ropewalk" lab workload setup --env "$env"
mkdir "$base/local" "$base/mnt" "$target/workload" -p
run() {
  "$ropewalk" lab workload analytics-20 --short --env "$env" --values "$base/values.json" --dir "$2" --out "$base/on-$1"
  cp "$base/on-$1/report.html" "$target/workload/$1.html"
}
# Another file system may well be slower: what counts here is that every result was right.
against_local() { "$ropewalk" lab compare "$base/on-local" "$base/on-$1" || true; }
run local "$base/local"

"$ropewalk" up --dir "$base/cluster" --pdisk-size 1g --mount "$base/mnt" --detach
pool() {
  "$ropewalk" pool create --dir "$base/cluster" "$1" --code "$2" --block-size "$3"
  mkdir "$base/mnt/$1"
  "$ropewalk" fs set-pool --dir "$base/cluster" "$base/mnt/$1" "$1"
}
# Inputs for long and in large units; what jobs keep; what sorting throws away.
pool data 4+2p 4m
pool work 2+1p 1m
pool util 1way 1m
run ropewalk "$base/mnt/data,$base/mnt/work,$base/mnt/util"
against_local ropewalk
"$ropewalk" down --dir "$base/cluster"

if [ -n "${1-}" ]; then
  mkdir "$base/gluster"
  coproc GLUSTER { exec python3 bench/systems.py gluster:disperse "$base/gluster"; }
  gluster=$GLUSTER_PID
  read -r mnt <&"${GLUSTER[0]}" || { echo "workload.sh: GlusterFS did not start" >&2; exit 1; }
  mkdir "$mnt/data" "$mnt/work" "$mnt/util"
  run gluster "$mnt/data,$mnt/work,$mnt/util"
  against_local gluster
fi
echo "workload: all results were right; reports in $target/workload"
