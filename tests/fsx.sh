#!/bin/bash
# fsx: random reads, writes, truncations, mappings, holes and copies on one file, each checked.
# usage: tests/fsx.sh DIRECTORY [OPERATIONS [SEED]]

. "$(dirname "$0")/lib.sh"
need cargo cargo
VERSION=0.3.0
TOOL=$CACHE/fsx-$VERSION
operations=${2:-20000}
seed=${3:-$RANDOM$RANDOM}
work_in "${1:-}"
if [ ! -x "$TOOL/bin/fsx" ]; then
    step "building fsx $VERSION" cargo install -q --locked --root "$TOOL" --version "$VERSION" fsx
fi
say "seed $seed, $operations operations"
"$TOOL/bin/fsx" -S "$seed" -N "$operations" "$WORK/file" || fail "seed $seed; again with: $0 $1 $operations $seed"
say "all held"
