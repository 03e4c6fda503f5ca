#!/bin/bash
# The layout tables, the codes and the wire format are the same on aarch64: their tests, golden vectors included,
# built for it and run under emulation.
# usage: tests/aarch64.sh [CARGO TEST OPTIONS]

. "$(dirname "$0")/lib.sh"
need rustup rustup
need qemu-aarch64-static qemu-user-static
TARGET=aarch64-unknown-linux-musl
rustup target list --installed | grep -qx "$TARGET" || step "the target $TARGET" rustup target add "$TARGET"
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=rust-lld
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUNNER=qemu-aarch64-static
cd "$TOP" || exit 1
cargo test --quiet --target "$TARGET" -p ropewalk-layout -p ropewalk-wire "$@" || fail "see above"
say "all held"
