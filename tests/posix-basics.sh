#!/bin/bash
# Every ordinary file operation on the directory given, each compared with what a local file system
# (under /tmp, or $ROPEWALK_LOCAL_DIR) does with the same.
# usage: tests/posix-basics.sh DIRECTORY        KEEP_GOING=1 goes on after a difference

. "$(dirname "$0")/lib.sh"
build_fscall
work_in "${1:-}"
LOCAL=$(mktemp -d "${ROPEWALK_LOCAL_DIR:-/tmp}/$NAME.local.XXXXXX")
chmod 755 "$LOCAL"

if [ "$(id -u)" = 0 ]; then
    as_user() { setpriv --reuid=65534 --regid=65534 --clear-groups -- "$@"; }
else
    as_user() { "$@"; }
fi
has_xattr=no
command -v setfattr >/dev/null && has_xattr=yes

# try COMMAND...: into the transcript go the command, its output and its status.
try() {
    if [ "$1" = near ]; then printf '> near %s\n' "$2"; else printf '> %s\n' "$*"; fi
    "$@" 2>&1
    printf '= %d\n' $?
}
modes() { stat -c '%n %F %a %u:%g %h %s' "$@"; }
sums() { cksum "$@"; }

# near POSITION FOUND: found at the position, or up to a block of 16 MiB before it: how finely holes are
# kept is the file system's own matter.
near() { shift_by=$(($1 - $2)) && [ $shift_by -ge 0 ] && [ $shift_by -le 16777216 ]; }

creating() {
    try sh -c 'echo one > a; printf two > b; : > empty; cat a b empty'
    try modes a b empty
    try "$FSCALL" open creat+excl+w a
    try "$FSCALL" open creat+excl+w fresh
    try "$FSCALL" open trunc+rw b
    try "$FSCALL" open r missing
    try "$FSCALL" open directory+r a
    try "$FSCALL" open w .
    try sh -c 'umask 027; : > masked; mkdir maskedd; stat -c "%a %n" masked maskedd'
    try touch "$(printf 'n%.0s' $(seq 255))"
    try touch "$(printf 'n%.0s' $(seq 256))"
    try touch 'blank and	tab' $'new\nline' $'\xff\xfe' '-dash'
    try sh -c 'ls -b | sort'
    try touch a/b
    try mkdir a
    try mkdir -p x/y/z
    try rmdir x
    try rmdir x/y/z
    try rmdir x/y
    try rmdir a
    try rm x
    try rm missing
    try mkfifo pipe
    try sh -c 'echo through > pipe & cat pipe; wait'
    try modes pipe
    try sh -c '"$0" try-lock a' "$FSCALL"
}

content() {
    try sh -c 'seq 100000 > big; cksum < big; tail -n 1 big'
    try sh -c 'echo more >> big; tail -n 2 big'
    try "$FSCALL" append log 200 "0123456789"
    try sums log
    try sh -c 'for i in 1 2 3 4; do for j in $(seq 50); do echo "$i$i$i$i$i$i$i"; done >> both & done; wait; sort both | uniq -c'
    try "$FSCALL" pwrite big 5000 OVERWRITTEN
    try sums big
    try truncate -s 1000 big
    try sums big
    try truncate -s 70000 big
    try sums big
    try "$FSCALL" truncate big 10
    try "$FSCALL" truncate big 5000
    try sums big
    try truncate -s -1 big
    try "$FSCALL" pread big 4990 100
    try "$FSCALL" pread big 4999 100
    try "$FSCALL" pread big 100000 100
    try "$FSCALL" truncate missing 5
    try truncate -s 5 .
    try dd if=/dev/zero of=zeros bs=1M count=9 status=none
    try sums zeros
    try dd if=/dev/zero of=zeros bs=512 count=3 seek=7 conv=notrunc status=none
    try sums zeros
    try "$FSCALL" direct d
    try dd if=zeros of=odirect bs=1M iflag=direct oflag=direct status=none
    try cmp zeros odirect
    try dd if=zeros of=osync bs=64k count=20 oflag=sync status=none
    try dd if=zeros of=odsync bs=64k count=20 oflag=dsync status=none
    try dd if=zeros of=fsynced bs=64k count=20 conv=fsync status=none
    try dd if=zeros of=fdsynced bs=64k count=20 conv=fdatasync status=none
    try sums osync odsync fsynced fdsynced
    try sync big
    try sync -d big
    try "$FSCALL" fsync-dir .
    try sync -f .
}

large() {
    try "$FSCALL" pwrite huge 5000000000 end
    try "$FSCALL" pread huge 4999999990 100
    try stat -c '%s' huge
    try near 5000000000 "$("$FSCALL" seek data 0 huge)"
    try "$FSCALL" seek hole 0 huge
    try "$FSCALL" seek hole 5000000001 huge
}

sparse() {
    try truncate -s 64M holes
    try "$FSCALL" pwrite holes 20971520 data
    try "$FSCALL" pread holes 20971516 12
    try sums holes
    try "$FSCALL" fallocate none 0 100000 reserved
    try sh -c ': > reserved'
    try "$FSCALL" fallocate none 0 100000 reserved
    try "$FSCALL" fallocate keep 50000 50000 reserved
    try sh -c 'seq 20000 > punched'
    try "$FSCALL" fallocate keep+punch 10000 30000 punched
    try sums punched
    try "$FSCALL" fallocate punch 10000 30000 punched
    try "$FSCALL" fallocate zero 100 5000 punched
    try sums punched
    try "$FSCALL" fallocate zero+keep 100000 50000 punched
    try sums punched
    try "$FSCALL" fallocate zero 100000 50000 punched
    try sums punched
    try sh -c 'seq 10 > h; truncate -s 4G h; echo last >> h; tail -c 5 h'
    try "$FSCALL" seek data 999999999999 h
    try "$FSCALL" seek hole 999999999999 h
    try "$FSCALL" copy punched 10 copied 0 50
    try sh -c ': > copied'
    try "$FSCALL" copy punched 10 copied 5 500000
    try sums copied
    try cp --sparse=always holes holes2
    try cmp holes holes2
    try cp --reflink=auto zeros2 zeros3
}

names() {
    try sh -c 'echo A > a; echo B > b; mkdir d e; echo F > d/f'
    try mv a c
    try mv b c
    try cat c
    try mv c d/
    try mv d e/
    try sh -c 'find . -mindepth 1 -printf "%P %y\n" | sort'
    try sh -c 'find . | sort'
    try mv e e/d/inside
    try "$FSCALL" rename none e/d/c e/d/f
    try sh -c 'echo 1 > p; echo 2 > q; mkdir full empty dir; : > full/x'
    try "$FSCALL" rename noreplace p q
    try "$FSCALL" rename noreplace p r
    try "$FSCALL" rename exchange q r
    try cat q r
    try "$FSCALL" rename exchange r dir
    try sh -c 'cat dir; ls -d r/'
    try "$FSCALL" rename exchange q missing
    try "$FSCALL" rename noreplace+exchange q r
    try "$FSCALL" rename none empty full
    try "$FSCALL" rename none full empty
    try "$FSCALL" rename none q empty
    try "$FSCALL" rename none empty q
    try "$FSCALL" rename none q q
    try "$FSCALL" rename none missing q
    try sh -c 'find . | sort'
    try sh -c 'ln q hard; ln hard hard2; stat -c %h q; cmp q hard2; rm q; stat -c %h hard; cat hard2'
    try "$FSCALL" rename none hard hard2
    try sh -c 'ls hard hard2; stat -c %h hard2'
    try ln r hard3
    try ln missing x
    try ln hard hard2
    try ln -s target sym
    try readlink sym
    try cat sym
    try sh -c 'echo t > target; cat sym; stat -c "%F %s %a" sym; stat -Lc %F sym'
    try ln -s "$(printf 's%.0s' $(seq 4095))" long
    try ln -s "$(printf 's%.0s' $(seq 4000))" long4000
    try sh -c 'readlink long4000 | wc -c'
    try ln -s loop loop
    try cat loop
    try "$FSCALL" open nofollow+r sym
    try mv sym sym2
    try readlink sym2
    try rm sym2
    try cat target
    try "$FSCALL" unlinked gone
    try "$FSCALL" removed-dir gonedir
    try "$FSCALL" list-while-removing many 3000
    try sh -c 'mkdir thousands; cd thousands; seq -f f%g 5000 | xargs touch; ls | wc -l; ls -l | wc -l; ls -a | head -2; find . -type f | wc -l; cd ..; rm -r thousands; ls -d thousands'
    try sh -c 'mkdir -p deep/$(printf "d/%.0s" $(seq 200)); cd deep; find . | wc -l; cd ..; rm -r deep'
    try sh -c 'mkdir cwd; cd cwd; rmdir ../cwd; ls; touch x; cd ..; ls -d cwd'
    try sh -c 'exec 3> held; rm held; echo text >&3; ls held; cat /proc/self/fd/3'
}

attributes() {
    try sh -c 'umask 022; echo x > f; mkdir d; stat -c %a f d'
    try chmod 640 f
    try modes f
    try chmod u+s,g+s,o+t f
    try modes f
    try chmod 2775 d
    try sh -c 'umask 022; : > d/inherits; mkdir d/sub; stat -c "%a %n" d/inherits d/sub'
    try "$FSCALL" times f 1234567890.123456789 987654321.000000001
    try "$FSCALL" times f omit 5.5
    try "$FSCALL" times f 4294967296.7 omit
    try "$FSCALL" times f -5.999999999 -1.1
    try "$FSCALL" times f now now
    try touch -d '2001-02-03 04:05:06.789' f
    try stat -c '%x %y' f
    try touch -d @1000000000 d
    try stat -c '%y' d
    try sh -c ': > d/new; test "$(stat -c %Y d)" -gt 1000000000 && echo directory changed'
    try sh -c 'touch -d @1000000000 f; echo y >> f; test "$(stat -c %Y f)" -gt 1000000000 && echo file changed'
    try sh -c 'touch -d @1000000000 f; c=$(stat -c %z f); sleep 0.02; chmod 600 f; test "$c" != "$(stat -c %z f)" && echo status changed; stat -c %Y f'
    try sh -c 'touch -d @1000000000 f; c=$(stat -c %z f); sleep 0.02; ln f l; test "$c" != "$(stat -c %z f)" && echo status changed by link; c=$(stat -c %z f); sleep 0.02; mv l m; test "$c" != "$(stat -c %z f)" && echo status changed by rename; rm m'
    try "$FSCALL" birth f
    try sh -c 'stat -fc "%l" .'
    try test -w f
}

owners() {
    try sh -c 'echo x > f; chmod 644 f; mkdir d; chmod 755 d; mkdir -m 1777 open'
    try chown 1000:2000 f
    try modes f
    try chown :3000 f
    try modes f
    try chmod 6755 f
    try chown 1001 f
    try modes f
    try chmod 6745 f
    try chown :3001 f
    try modes f
    try as_user sh -c 'echo y >> f'
    try as_user touch d/x
    try as_user sh -c 'echo mine > open/mine; cat open/mine; chmod 600 open/mine'
    try as_user chown 0 open/mine
    try as_user chmod 777 f
    try sh -c 'echo root > open/roots'
    try as_user rm open/roots
    try as_user mv open/roots open/x
    try as_user sh -c 'touch open/roots'
    try chmod 000 open/mine
    try as_user cat open/mine
    try chmod 6777 f
    try as_user sh -c 'echo z >> f'
    try modes f
    try chmod 6777 f
    try as_user truncate -s 1 f
    try modes f
    try chmod 6777 f
    try as_user sh -c ': > f'
    try modes f
    try chmod 6777 f
    try sh -c 'echo root writes >> f'
    try modes f
    try mknod null c 1 3
    try stat -c '%F %t %T' null
    try mknod blk b 7 300
    try stat -c '%F %t %T' blk
}

xattrs() {
    try sh -c 'echo x > f; mkdir d; ln -s f l'
    try setfattr -n user.one -v first f
    try setfattr -n user.two -v 0x00ff00 f
    try getfattr -d -e hex f
    try setfattr -n user.one -v changed f
    try getfattr --only-values -n user.one f
    try setfattr -x user.one f
    try getfattr -n user.one f
    try setfattr -x user.one f
    try setfattr -n user.empty f
    try getfattr -d f
    try setfattr -n user.dir -v d d
    try getfattr -d d
    try setfattr -h -n user.link -v l l
    try setfattr -n trusted.t -v t f
    try getfattr -d -m - f
    try sh -c 'cp --preserve=xattr f copy && getfattr -d copy | grep -v ^#'
}

mapping() {
    try sh -c 'seq 30000 > m'
    try "$FSCALL" mmap-write m 50000 MAPPED
    try sums m
    try "$FSCALL" pread m 49998 10
    try "$FSCALL" pwrite m 50002 written
    try "$FSCALL" mmap-write m 50020 AGAIN
    try sums m
    try "$FSCALL" mmap-private m 100 PRIVATE
    try "$FSCALL" mmap-append m
    try sums m
    try "$FSCALL" locks m
}

# both FUNCTION: the same on both sides, compared.
both() {
    local what=$1 count
    mkdir -p "$WORK/$what" "$LOCAL/$what"
    (cd "$WORK/$what" && "$what") 2>&1 | sed "s|$WORK|DIR|g" >"$LOCAL/$what.here"
    (cd "$LOCAL/$what" && "$what") 2>&1 | sed "s|$LOCAL|DIR|g" >"$LOCAL/$what.local"
    count=$(grep -c '^> ' "$LOCAL/$what.here")
    if ! diff -U3 "$LOCAL/$what.local" "$LOCAL/$what.here" >"$LOCAL/diff"; then
        sed 's/^/    /' "$LOCAL/diff" >&2
        [ -n "${KEEP_GOING:-}" ] || fail "$what: differs from a local file system (- local, + here)"
        say "FAILED: $what: differs from a local file system (- local, + here)"
        differs="${differs:-} $what"
        return
    fi
    say "$what: $count operations as on a local file system"
}

both creating
both content
both large
both sparse
both names
both attributes
if [ "$(id -u)" = 0 ]; then both owners; else say "owners: skipped, needs root"; fi
if [ $has_xattr = yes ]; then both xattrs; else say "xattrs: skipped, setfattr is not installed (apt-get install attr)"; fi
both mapping

# What a local file system answers differently, or need not have.
cd "$WORK"
beyond=$("$FSCALL" pwrite beyond 9007199254740990 xy)
if [ "$beyond" = EFBIG ] && [[ $(stat -fc %T .) != fuse* ]]; then
    say "sizes above 53 bits: skipped, this is a local file system with a lower limit"
else
    [ "$beyond" = "size 9007199254740992" ] || fail "a write at 8 PiB: $beyond"
    [ "$("$FSCALL" pread beyond 9007199254740988 10)" = '4 "\0\0xy"' ] || fail "a read at 8 PiB"
    say "sizes above 53 bits"
fi
rm -f beyond
truncate -s 1T thin && [ "$(stat -c %b thin)" -lt 2048 ] || fail "an empty file of 1 TiB takes space"
[ "$("$FSCALL" seek data 0 thin)" = ENXIO ] || fail "an empty file of 1 TiB has data"
[ "$("$FSCALL" seek hole 0 thin)" = 0 ] || fail "an empty file of 1 TiB begins with a hole"
rm thin
say "holes take no space"
df -P . | awk 'NR == 2 && $2 > 0 && $4 <= $2 { ok = 1 } END { exit !ok }' || fail "statfs: $(df -P . | tail -1)"
say "statfs: $(df -h --output=size,avail . | tail -1 | xargs)"
[ -z "${differs:-}" ] || fail "differences in:$differs"
say "all held"
