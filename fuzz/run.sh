#!/bin/sh
# Builds the fuzzer as cargo-fuzz would (which need not be installed) and runs it for some seconds on the seeds.
# fuzz/run.sh [SECONDS=60]. Needs a nightly compiler and a C++ compiler. New inputs are kept in fuzz/corpus, a crash in fuzz/crash-*.
set -eu
cd "$(dirname "$0")"
host=$(rustc -vV | sed -n 's/^host: //p')
export RUSTFLAGS="--cfg fuzzing -Cdebug-assertions -Coverflow-checks -Zsanitizer=address -Cpasses=sancov-module \
-Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
-Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"
cargo +nightly build --release --target "$host"
mkdir -p corpus/net_frame
"target/$host/release/net_frame" -max_total_time="${1:-60}" -max_len=4096 -rss_limit_mb=2048 -malloc_limit_mb=4 \
    -print_final_stats=1 corpus/net_frame seeds/net_frame
