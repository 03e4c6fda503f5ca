# The two commands: `make run` shows the whole thing at work, `make test` runs every test.
# Both set up what they need on a fresh Debian 12 machine with Rust.

.PHONY: run test setup build lint bench clean

run: setup build
	scripts/run.sh

test: setup
	scripts/test.sh

setup:
	scripts/setup.sh

build:
	cargo build --release --package ropewalk-cli

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

clean:
	cargo clean
