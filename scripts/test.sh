#!/usr/bin/env bash
# Runs every test: units and properties, then real clusters with real mounts. The closing lines are the
# runner's own summary.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ ! -w /dev/fuse ]; then
  echo "test: /dev/fuse cannot be opened for writing; the tests of the mount need it (run as root, or with FUSE allowed)" >&2
  exit 1
fi
# Examples are programs that the tests of the mount call.
cargo build --workspace --examples
cargo test --workspace "$@"
# The mount's tests once more over io_uring, where it is to be had.
ROPEWALK_FUSE_TRANSPORT=auto exec cargo test --package ropewalk-fuse "$@"
