#!/usr/bin/env bash
# Tries the Debian package in a bare Debian 12: installed, upgraded, removed and purged; then booted under systemd (in
# systemd-nspawn), a cluster as services, mounted by fstab, killed, shut down and booted again. Root only; some minutes and 4 GB.
# It installs debootstrap and systemd-container if they are missing, and takes packages from where apt takes them here.
# ROPEWALK_DEB_TRY_DIR is the place (default /var/tmp/ropewalk-deb-try), ROPEWALK_BIN the program instead of the release's.
set -euo pipefail
cd "$(dirname "$0")/.."

place=${ROPEWALK_DEB_TRY_DIR:-/var/tmp/ropewalk-deb-try}
base=$place/base root=$place/root
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
arch=$(dpkg --print-architecture)
out=${CARGO_TARGET_DIR:-$PWD/target}/deb
say() { printf '\n== %s\n' "$*"; }
die() { printf 'deb-try: %s\n' "$*" >&2; exit 1; }
[ "$(id -u)" = 0 ] || die "run it as root"

machine= leader=
# Ends the machine if it still runs: cut off, as by pulling the plug.
finish() { [ -z "$machine" ] || kill -KILL ${leader:+"$leader"} "$machine" 2>/dev/null || true; }
trap finish EXIT
trap 'exit 130' INT TERM

say "two versions of the package"
scripts/deb.sh
ROPEWALK_DEB_VERSION=$version+1 scripts/deb.sh
command -v debootstrap systemd-nspawn >/dev/null ||
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends debootstrap systemd-container >/dev/null

if [ ! -e "$base/made" ]; then
  say "a bare Debian 12"
  mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Release: bookworm' | head -1)
  [ -n "$mirror" ] || die "apt has no source of bookworm here"
  rm -rf "$base"
  mkdir -p "$base"
  debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus,udev,fuse3,man-db,iproute2,procps bookworm "$base" "$mirror" \
    >"$place/debootstrap.log" 2>&1 || die "debootstrap failed: $place/debootstrap.log"
  touch "$base/made"
fi
rm -rf "$root"
cp -a "$base" "$root"
cp "$out/ropewalk_${version}_$arch.deb" "$out/ropewalk_${version}+1_$arch.deb" "$root/tmp/"
inside() { chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root "$@"; }
# All there is but what apt and dpkg note of their own work.
contents() { (cd "$root" && find . -xdev ! -path './var/lib/dpkg*' ! -path './var/log*' ! -path './var/cache*' ! -path './tmp*' ! -path './run*' | sort); }

say "install: everything is there, nothing runs, nothing is made"
contents >"$place/before"
inside dpkg -i "/tmp/ropewalk_${version}_$arch.deb"
inside ropewalk --version
inside man --pager=cat ropewalk-mount >/dev/null
inside man --pager=cat mount.ropewalk >/dev/null
for file in lib/systemd/system/ropewalk-{manager,analytics,server@,mount@}.service usr/share/bash-completion/completions/ropewalk \
  usr/share/zsh/vendor-completions/_ropewalk usr/share/fish/vendor_completions.d/ropewalk.fish; do
  [ -f "$root/$file" ] || die "$file is missing"
done
[ "$(readlink "$root/sbin/mount.ropewalk")" = /usr/bin/ropewalk ] || die "no helper of mount"
[ ! -e "$root/var/lib/ropewalk" ] || die "installing made a cluster's directory"
! find "$root/etc/systemd" -name 'ropewalk*' | grep . || die "installing enabled a unit"
inside systemd-analyze verify --man=no /lib/systemd/system/ropewalk-{manager,analytics}.service ropewalk-server@n1.service ropewalk-mount@mnt.service

say "upgrade: data stay"
mkdir -p "$root/var/lib/ropewalk" && echo years >"$root/var/lib/ropewalk/of-work"
inside dpkg -i "/tmp/ropewalk_${version}+1_$arch.deb"
[ "$(inside dpkg-query -f '${Version}' -W ropewalk)" = "$version+1" ] || die "not upgraded"

say "remove and purge: nothing of the package is left, data stay"
inside dpkg -r ropewalk
inside dpkg -P ropewalk
[ "$(cat "$root/var/lib/ropewalk/of-work")" = years ] || die "purging took data away"
rm -r "$root/var/lib/ropewalk"
contents | diff "$place/before" - || die "purging left something"

say "boot it"
inside dpkg -i "/tmp/ropewalk_${version}_$arch.deb" >/dev/null
rm "$root"/tmp/*.deb
install -m 755 scripts/deb-try-inside.sh "$root/root/try"
mkdir -p "$root/var/log/journal" # the journal stays from boot to boot

# boot: starts the machine, and waits until systemd has started everything. `leader` is its first process.
boot() {
  systemd-nspawn --quiet --boot --directory="$root" --machine=ropewalk-try --register=no --keep-unit --private-network \
    --bind=/dev/fuse --capability=CAP_SYS_RESOURCE --console=pipe </dev/null >>"$place/console.log" 2>&1 &
  machine=$!
  for _ in $(seq 100); do
    leader=$(pgrep -P "$machine" || true)
    if [ -n "$leader" ] && booted systemctl is-system-running --wait 2>/dev/null | grep -Eq 'running|degraded'; then
      return 0
    fi
    kill -0 "$machine" 2>/dev/null || die "no systemd can be booted here: $place/console.log; the units were only verified"
    sleep 0.2
  done
  die "systemd has not started: $place/console.log"
}
booted() { nsenter --target "$leader" --all -- /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root "$@"; }
# Shuts the machine down in order, as `poweroff` does.
shut_down() {
  booted systemctl poweroff
  wait "$machine" || die "the machine did not end in order: $place/console.log"
  machine= leader=
}

boot
booted /root/try first
say "shut down with data that is not written yet"
shut_down
say "boot again: services and mount come by themselves"
boot
booted /root/try second
shut_down
say "done"
rm -rf "$root"
