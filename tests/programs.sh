#!/bin/bash
# Real programs on the directory given: git, SQLite, cargo, tar, rsync, dd, cp, find.
# usage: tests/programs.sh DIRECTORY

. "$(dirname "$0")/lib.sh"
need git git
need sqlite3 sqlite3
need rsync rsync
need cargo cargo
work_in "${1:-}"
LOCAL=$(mktemp -d /tmp/$NAME.local.XXXXXX)
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
export GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@invalid GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@invalid

with_git() {
    set -e
    git clone -q --no-local --no-hardlinks "$TOP" "$WORK/clone"
    cd "$WORK/clone"
    git -c safe.directory='*' fsck --full --strict
    git checkout -q -b work
    for i in $(seq 30); do
        seq "$i" 2000 >"file-$i"
        git add . && git commit -qm "commit $i"
    done
    git gc -q --aggressive --prune=now
    git fsck --full --strict
    git checkout -q -b other HEAD~10
    echo x >merged && git add merged && git commit -qm other
    git checkout -q work && git merge -q -m merge other
    git diff --quiet HEAD
    git clone -q "$WORK/clone" "$LOCAL/back"
    git worktree add -q "$WORK/worktree" HEAD~5
    rm -rf "$WORK/worktree" && git worktree prune
    git fsck --full
    [ -z "$(git status --porcelain)" ]
    diff -r --exclude .git "$WORK/clone" "$LOCAL/back"
}

# with_sqlite MODE: writers in turn and at once, then an integrity check.
with_sqlite() {
    set -e
    local db=$WORK/$1.db i
    sqlite3 "$db" "pragma journal_mode=$1; create table t(id integer primary key, who int, v blob);" >"$LOCAL/mode"
    [ "$(cat "$LOCAL/mode")" = "$1" ]
    for i in 1 2 3; do
        (for j in $(seq 20); do
            sqlite3 -cmd ".timeout 600000" "$db" "insert into t(who, v) select $i, randomblob(500) from (with recursive n(x) as (select 1 union all select x + 1 from n where x < 20) select x from n);"
        done) &
    done
    wait
    [ "$(sqlite3 "$db" 'select count(*) from t')" = 1200 ]
    sqlite3 "$db" "update t set v = randomblob(3000) where id % 3 = 0; delete from t where id % 7 = 0; create index i on t(who, v); vacuum;"
    [ "$(sqlite3 "$db" 'pragma integrity_check')" = ok ]
    sqlite3 "$db" "begin; delete from t; rollback; select count(*) from t;" | grep -qx 1029
    [ "$(sqlite3 "$db" 'pragma integrity_check')" = ok ]
}

with_cargo() {
    set -e
    mkdir -p "$WORK/crate/src" && cd "$WORK/crate"
    printf '[package]\nname = "small"\nversion = "0.1.0"\nedition = "2024"\n[workspace]\n' >Cargo.toml
    printf 'pub fn twice(n: u64) -> u64 {\n    n * 2\n}\n#[test]\nfn doubles() {\n    assert_eq!(twice(21), 42);\n}\n' >src/lib.rs
    printf 'fn main() {\n    println!("{}", small::twice(21));\n}\n' >src/main.rs
    CARGO_TARGET_DIR=$WORK/crate/target cargo build -q --offline
    [ "$(target/debug/small)" = 42 ]
    CARGO_TARGET_DIR=$WORK/crate/target cargo test -q --offline
    touch src/lib.rs
    CARGO_TARGET_DIR=$WORK/crate/target cargo run -q --offline | grep -qx 42
}

tree() {
    # Files of many sizes, with holes, links, and names that need care.
    set -e
    mkdir -p "$1/a/b/c" "$1/blank name" && cd "$1"
    local i
    for i in 0 1 511 512 4095 4096 4097 16383 16384 16385 65536 1048575 1048576 1048577 5000000; do
        head -c "$i" /dev/urandom >"a/size-$i"
    done
    for i in $(seq 300); do head -c $((i * 37)) /dev/urandom >"a/b/f$i"; done
    truncate -s 3M a/sparse && printf x >>a/sparse
    ln -s ../a "blank name/link" && ln a/size-4097 a/b/c/hard
    chmod 750 a/b && chmod 600 a/size-1
    touch -d '2020-01-02 03:04:05.678901234' a/size-511 a/b
}
same_tree() { diff -r --no-dereference "$1" "$2" && diff <(list "$1") <(list "$2"); }
# Directories' sizes differ between file systems.
list() { (cd "$1" && { find . ! -type d -printf '%P %y %m %s %n %T@ %l\n'; find . -mindepth 1 -type d -printf '%P %y %m %T@\n'; } | sort); }

with_tar() {
    set -e
    mkdir "$WORK/tar" && tar -C "$LOCAL/tree" --format=posix -cf - . | tar -C "$WORK/tar" -xpf -
    same_tree "$LOCAL/tree" "$WORK/tar"
    tar -C "$WORK/tar" --format=posix -cSzf "$WORK/tar.tgz" . && mkdir "$LOCAL/untar" && tar -C "$LOCAL/untar" -xpzf "$WORK/tar.tgz"
    same_tree "$LOCAL/untar" "$WORK/tar"
}

with_rsync() {
    set -e
    # Times of the same second are the same to it, unless it is told otherwise.
    rsync -aHS -@-1 "$LOCAL/tree/" "$WORK/rsync/"
    same_tree "$LOCAL/tree" "$WORK/rsync"
    echo changed >"$LOCAL/tree/a/b/f7" && rm "$LOCAL/tree/a/b/f8" && echo new >"$LOCAL/tree/new"
    rsync -aHS -@-1 --delete --checksum "$LOCAL/tree/" "$WORK/rsync/"
    same_tree "$LOCAL/tree" "$WORK/rsync"
    rsync -aH -@-1 --inplace --no-whole-file --delete "$LOCAL/tree/" "$WORK/rsync/"
    same_tree "$LOCAL/tree" "$WORK/rsync"
    [ -z "$(rsync -aHnc -@-1 --itemize-changes "$LOCAL/tree/" "$WORK/rsync/")" ]
}

with_cp() {
    set -e
    cp -a "$LOCAL/tree" "$WORK/cp"
    same_tree "$LOCAL/tree" "$WORK/cp"
    cp -a "$WORK/cp" "$WORK/cp2"
    same_tree "$WORK/cp" "$WORK/cp2"
    mv "$WORK/cp2" "$WORK/cp3" && rm -r "$WORK/cp3"
    [ ! -e "$WORK/cp3" ]
}

with_dd() {
    set -e
    head -c 20M /dev/urandom >"$LOCAL/random"
    dd if="$LOCAL/random" of="$WORK/direct" bs=1M oflag=direct status=none
    cmp "$LOCAL/random" "$WORK/direct"
    dd if="$WORK/direct" of="$LOCAL/direct" bs=256k iflag=direct status=none
    cmp "$LOCAL/random" "$LOCAL/direct"
    dd if="$LOCAL/random" of="$WORK/direct" bs=4k count=1000 seek=100 skip=500 oflag=direct conv=notrunc status=none
    dd if="$LOCAL/random" of="$LOCAL/direct" bs=4k count=1000 seek=100 skip=500 conv=notrunc status=none
    cmp "$LOCAL/direct" "$WORK/direct"
}

step "git: clone, commits, gc, fsck, merge, worktree" with_git
step "SQLite, rollback journal: three writers, integrity" with_sqlite delete
step "SQLite, write-ahead log: three writers, integrity" with_sqlite wal
step "cargo: build, test, run of a small crate" with_cargo
step "a tree to copy" tree "$LOCAL/tree"
step "tar: there and back" with_tar
step "rsync: first copy, changes, in place" with_rsync
step "cp -a, mv, rm -r" with_cp
step "dd with O_DIRECT" with_dd
say "all held"
