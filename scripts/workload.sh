#!/usr/bin/env bash
# The mixed analytics workload in its short form with all engines: the environment from the configured package index, then 20 tests on
# a local directory and on a small mounted cluster, then both held against each other. Ends with status 0 only if every result was right.
set -euo pipefail
cd "$(dirname "$0")/.."

# The environment is made by Python's own means, which Debian has in a package of its own.
if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
  as_root=(); [ "$(id -u)" = 0 ] || as_root=(sudo -n)
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-venv
fi
target=${CARGO_TARGET_DIR:-$PWD/target}
ropewalk=${ROPEWALK_BIN:-$target/release/ropewalk}
base=$(mktemp -d /var/tmp/ropewalk-workload-XXXXXX)
trap '"$ropewalk" down --dir "$base/cluster" --force >/dev/null 2>&1 || true; rm -rf "$base"' EXIT
trap 'exit 130' INT TERM

"$ropewalk" lab workload setup --env "$target/workload-env"
mkdir "$base/local" "$base/mnt"
run() { "$ropewalk" lab workload analytics-20 --short --env "$target/workload-env" --values "$base/values.json" "$@"; }
run --dir "$base/local" --out "$base/on-local"
"$ropewalk" up --dir "$base/cluster" --pdisk-size 1g --mount "$base/mnt" --detach
mkdir "$base/mnt/"{data,work,util}
run --dir "$base/mnt/data,$base/mnt/work,$base/mnt/util" --out "$base/on-ropewalk"
# Another file system may well be slower: what counts here is that every result was right.
"$ropewalk" lab compare "$base/on-local" "$base/on-ropewalk" || true
mkdir -p "$target/workload"
cp "$base/on-local/report.html" "$target/workload/local.html"
cp "$base/on-ropewalk/report.html" "$target/workload/ropewalk.html"
echo "workload: all results were right; reports in $target/workload"
