# The two commands: `make run` shows the whole thing at work, `make test` runs every test.
# Both set up what they need on a fresh Debian 12 machine with Rust.

# `make chaos`: the campaign of faults (docs/reliability.md); ROPEWALK_CHAOS_ROUNDS says how long.

.PHONY: run test chaos setup build lint bench clean

run: setup build
	scripts/run.sh

test: setup
	scripts/test.sh

chaos: setup
	ROPEWALK_CHAOS_ROUNDS=$${ROPEWALK_CHAOS_ROUNDS:-1000} cargo test --workspace --test chaos campaign -- --nocapture

setup:
	scripts/setup.sh

build:
	cargo build --release --package ropewalk-cli

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

clean:
	cargo clean
