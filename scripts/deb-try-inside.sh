#!/usr/bin/env bash
# The part of scripts/deb-try.sh that runs in the booted Debian: `first` makes a cluster and its services, mounts by fstab, kills
# what runs; `second`, after a shutdown with dirty data and another boot, looks whether all came back.
set -euo pipefail

say() { printf '\n-- %s\n' "$*"; }
die() { printf 'deb-try: %s\n' "$*" >&2; journalctl --boot --no-pager --lines=60 >&2; exit 1; }
# until_true SECONDS COMMAND...
until_true() {
  local end=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $end ] || die "not in time: $*"
    sleep 0.2
  done
}
active() { [ "$(systemctl is-active "$1")" = active ] || die "$1 is $(systemctl is-active "$1")"; }
main() { systemctl show --property MainPID --value "$1"; }
# restarted UNIT PID: it runs by another process than that. Right after a kill systemd may not know of it yet.
restarted() { [ "$(main "$1")" != "$2" ] && [ "$(systemctl is-active "$1")" = active ]; }
same() { [ "$(sha256sum </mnt/fs1/big)" = "$(cat /root/sum)" ] || die "other bytes than were written"; }
# page: it answers.
page() (
  exec 3<>/dev/tcp/127.0.0.1/9470
  printf 'GET /api/statistics HTTP/1.0\r\nHost: 127.0.0.1:9470\r\n\r\n' >&3
  grep -q file.ops <&3
)
servers="ropewalk-manager ropewalk-server@n1"
mount=ropewalk-mount@mnt-fs1

first() {
  ip link set lo up
  say "a cluster, and its processes as services"
  mkdir -p /disks/{1,2,3} /mnt/fs1
  init="ropewalk init --name rope --address 127.0.0.1 --node n1 --pdisk-size 1g"
  disks="--pdisk /disks/1 --pdisk /disks/2 --pdisk /disks/3"
  # shellcheck disable=SC2086 # words
  $init $disks --dir /data/rope --no-service
  for unit in $servers; do [ "$(systemctl is-active "$unit")" = inactive ] || die "$unit serves another directory"; done
  ropewalk down --dir /data/rope
  rm -r /data /disks/*/*
  # shellcheck disable=SC2086
  $init $disks
  for unit in $servers; do
    active "$unit"
    [ "$(systemctl is-enabled "$unit")" = enabled ] || die "$unit does not come back by itself"
  done
  ropewalk pool create data --code 2+1p --block-size 1m
  ropewalk fs create fs1 --pool data
  ropewalk health || die "it is not well"
  grep 'Max locked' "/proc/$(main ropewalk-server@n1)/limits"

  say "the page of analytics as a service"
  systemctl enable --quiet --now ropewalk-analytics
  until_true 60 page

  say "mounted by fstab"
  echo "fs1 /mnt/fs1 ropewalk _netdev,nofail,noatime 0 0" >>/etc/fstab
  systemctl daemon-reload
  mount -a
  mount -a
  findmnt /mnt/fs1
  active $mount
  head -c 100M /dev/urandom >/mnt/fs1/big
  sha256sum </mnt/fs1/big >/root/sum
  pid=$(main $mount)
  umount /mnt/fs1
  [ ! -e "/proc/$pid" ] || grep -q 'State:.Z' "/proc/$pid/status" || die "umount came back before everything was written"
  systemctl start mnt-fs1.mount
  same

  say "what is wrong is said"
  ! mount -t ropewalk -o cache=none fs1 /mnt 2>/tmp/said || die "a bad option was taken"
  grep 'cache=none' /tmp/said
  mkdir -p /mnt/other
  ! mount -t ropewalk fs9 /mnt/other 2>/tmp/said || die "a file system that is not there was mounted"
  grep 'there is no file system fs9' /tmp/said
  [ "$(systemctl is-active ropewalk-mount@mnt-other)" = inactive ] || die "a mount that failed is tried again"

  say "a mount point whose name systemd must quote"
  mkdir -p "/mnt/my data-2"
  mount -t ropewalk fs1 "/mnt/my data-2"
  cmp /mnt/fs1/big "/mnt/my data-2/big"
  umount "/mnt/my data-2"

  say "killed: they come back"
  sync /mnt/fs1/big
  pid=$(main ropewalk-server@n1)
  kill -KILL "$pid"
  until_true 30 restarted ropewalk-server@n1 "$pid"
  until_true 60 ropewalk health
  same
  pid=$(main $mount)
  kill -KILL "$pid"
  until_true 90 restarted $mount "$pid"
  until_true 10 mountpoint -q /mnt/fs1
  same

  say "by force, with the process stopped: it is gone, and stays gone"
  kill -STOP "$(main $mount)"
  ropewalk umount --force /mnt/fs1
  sleep 7
  ! mountpoint -q /mnt/fs1 || die "it is mounted again"

  say "a process that hangs is started again"
  kill -STOP "$(main ropewalk-manager)"
  until_true 60 sh -c 'journalctl --boot --unit ropewalk-manager --output cat | grep -q "Watchdog timeout"'
  until_true 30 systemctl is-active --quiet ropewalk-manager

  say "down and systemd do not fight"
  ropewalk down
  sleep 5
  for unit in $servers; do [ "$(systemctl is-active "$unit")" = inactive ] || die "$unit came back after down"; done
  ropewalk up
  for unit in $servers; do active "$unit"; done
  mount /mnt/fs1
  same

  say "ropewalk mount is a service as well, unless told otherwise"
  ropewalk mount fs1 /mnt/other --read-only
  active ropewalk-mount@mnt-other
  cmp /mnt/fs1/big /mnt/other/big
  ropewalk umount /mnt/other
  ropewalk mount fs1 /mnt/other --no-service
  [ "$(systemctl is-active ropewalk-mount@mnt-other)" = inactive ] || die "a mount became a service although told not to"
  ropewalk umount /mnt/other

  say "what cannot serve is said at once, and left behind by nothing"
  ropewalk down
  systemctl disable --quiet ropewalk-manager ropewalk-server@n1
  mv /var/lib/ropewalk/manager/store.redb /root/
  ! ropewalk up 2>/tmp/said || die "it came up without its store"
  grep 'ended at its start' /tmp/said
  for unit in $servers; do
    [ "$(systemctl is-active "$unit")" != active ] || die "$unit runs after a start that failed"
    [ "$(systemctl is-enabled "$unit")" = disabled ] || die "$unit stayed enabled after a start that failed"
  done
  mv /root/store.redb /var/lib/ropewalk/manager/
  ropewalk up
  for unit in $servers; do active "$unit"; done
  mount /mnt/fs1
  same

  say "the level of the log"
  ropewalk config set logLevel=debug
  until_true 10 sh -c 'journalctl --boot --unit ropewalk-server@n1 --output cat | grep -q "level is debug now"'
  ropewalk config set logLevel=info

  # Not synced: the mount has to write it at the shutdown, while the servers still run.
  head -c 300M /dev/urandom >/root/new
  sha256sum </root/new >/root/sum
  cp /root/new /mnt/fs1/big
}

second() {
  ip link set lo up
  for unit in $servers; do until_true 120 systemctl is-active --quiet "$unit"; done
  until_true 120 mountpoint -q /mnt/fs1
  same
  until_true 60 page
  say "the order of the shutdown"
  journalctl --boot=-1 --no-pager --output short-precise |
    grep -E 'systemd\[1\]: (Unmounted mnt-fs1|Unmounting mnt-fs1|(Stopped|Stopping) ropewalk-)' | tee /root/order
  unmounted=$(grep -n 'Unmounted mnt-fs1' /root/order | tail -1 | cut -d: -f1)
  stopping=$(grep -nE 'Stopping ropewalk-(manager|server)' /root/order | tail -2 | head -1 | cut -d: -f1)
  [ -n "$unmounted" ] && [ -n "$stopping" ] && [ "$unmounted" -lt "$stopping" ] ||
    die "servers were stopped before the mount was gone"
}

"$1"
