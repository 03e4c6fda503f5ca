# The two commands: `make run` shows the whole thing at work, `make test` runs every test.
# Both set up what they need on a fresh Debian 12 machine with Rust.

# `make chaos`: the campaign of faults (docs/reliability.md); ROPEWALK_CHAOS_ROUNDS says how long.

# `make takeovers`: managers taking over from each other under load; ROPEWALK_TAKEOVERS says how often, ROPEWALK_TAKEOVERS_AT_ONCE on how
# many clusters at once.

# `make over-etcd`: pjdfstest, fsx and the coherence suite on clusters of three managers over three members of etcd (not what is about
# one manager with its journal in a file).

# `make deb`: the Debian package, in target/deb; `make deb-try`: the same tried in a bare Debian 12 (docs/admin.md).

# `make workload`: the mixed analytics workload with all its engines, short (docs/workload.md); `WITH=gluster`: on GlusterFS as well.

.PHONY: run test chaos takeovers over-etcd workload setup build deb deb-try lint bench clean

run: setup build
	scripts/run.sh

test: setup
	scripts/test.sh

chaos: setup
	ROPEWALK_CHAOS_ROUNDS=$${ROPEWALK_CHAOS_ROUNDS:-1000} cargo test --workspace --test chaos campaign -- --nocapture

takeovers: setup
	ROPEWALK_TAKEOVERS=$${ROPEWALK_TAKEOVERS:-200} cargo test --workspace --test takeovers takes_over -- --nocapture

over-etcd: setup
	ROPEWALK_TEST_STORE=etcd cargo test --workspace --test pjdfstest --test coherence --test fsx -- --nocapture

workload: setup build
	scripts/workload.sh $(WITH)

setup:
	scripts/setup.sh

build:
	cargo build --release --package ropewalk-cli

deb: setup build
	scripts/deb.sh

deb-try: setup build
	scripts/deb-try.sh

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

clean:
	cargo clean
