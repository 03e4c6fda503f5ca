#!/bin/bash
# fio writes with checksums and reads them back: buffered, O_DIRECT, mapped, O_DSYNC, several jobs.
# usage: tests/fio-verify.sh DIRECTORY [SIZE]       SIZE per job, default 64m

. "$(dirname "$0")/lib.sh"
need fio fio
size=${2:-64m}
work_in "${1:-}"

# verify NAME OPTIONS...: one fio run with verification.
verify() {
    local name=$1
    shift
    step "$name" fio --name="$name" --directory="$WORK" --size="$size" --verify=crc32c --verify_fatal=1 \
        --do_verify=1 --verify_state_save=0 --group_reporting --randseed=1 --output-format=terse "$@"
    rm -f "$WORK"/*
}

verify sequential-1m --rw=write --bs=1m --ioengine=psync
verify sequential-odd --rw=write --bs=37k --ioengine=psync
verify random-4k --rw=randwrite --bs=4k --ioengine=psync
verify random-mixed --rw=randwrite --bsrange=512-256k --ioengine=psync
verify direct-1m --rw=write --bs=1m --direct=1 --ioengine=libaio --iodepth=8
verify direct-random-4k --rw=randwrite --bs=4k --direct=1 --ioengine=libaio --iodepth=16
verify uring-random-64k --rw=randwrite --bs=64k --direct=1 --ioengine=io_uring --iodepth=16
verify mapped-4k --rw=randwrite --bs=4k --ioengine=mmap
verify dsync-4k --rw=randwrite --bs=4k --ioengine=psync --sync=dsync --io_size=8m
verify four-jobs --rw=randwrite --bs=16k --numjobs=4 --ioengine=psync --fsync=64
verify reread-while-writing --rw=randrw --bs=8k --ioengine=psync --verify_backlog=64
say "all held"
