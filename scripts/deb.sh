#!/usr/bin/env bash
# Makes the Debian package: target/deb/ropewalk_VERSION_ARCH.deb, by dpkg-deb alone, of the program that `make build` built.
# ROPEWALK_BIN names another program, ROPEWALK_DEB_VERSION another version, SOURCE_DATE_EPOCH the time in it.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-$PWD/target}
program=${ROPEWALK_BIN:-$target/release/ropewalk}
version=${ROPEWALK_DEB_VERSION:-$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)}
arch=$(dpkg --print-architecture)
out=$target/deb
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
[ -x "$program" ] || { echo "deb: $program is missing; make build" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/ropewalk
chmod 755 "$work"
umask 022

# put MODE FILE PLACE: a file of the package.
put() { install -D -m "$1" "$2" "$root$3"; }
put 755 "$program" /usr/bin/ropewalk
strip --strip-unneeded "$root/usr/bin/ropewalk"
# Where mount(8) and umount(8) look for helpers; where /sbin is a link to /usr/sbin as well.
mkdir -p "$root/sbin"
ln -s /usr/bin/ropewalk "$root/sbin/mount.ropewalk"
ln -s /usr/bin/ropewalk "$root/sbin/umount.fuse.ropewalk"
for unit in packaging/systemd/*.service; do put 644 "$unit" "/lib/systemd/system/${unit##*/}"; done

"$program" man "$work/man" >/dev/null
for page in "$work"/man/*.1; do put 644 "$page" "/usr/share/man/man1/${page##*/}"; done
put 644 packaging/man/mount.ropewalk.8 /usr/share/man/man8/mount.ropewalk.8
find "$root/usr/share/man" -type f -exec gzip -9n {} +
ln -s mount.ropewalk.8.gz "$root/usr/share/man/man8/umount.fuse.ropewalk.8.gz"

# completion SHELL PLACE
completion() { "$program" completion "$1" >"$work/completion"; put 644 "$work/completion" "$2"; }
completion bash /usr/share/bash-completion/completions/ropewalk
completion zsh /usr/share/zsh/vendor-completions/_ropewalk
completion fish /usr/share/fish/vendor_completions.d/ropewalk.fish

for file in packaging/prometheus/*; do put 644 "$file" "/usr/share/ropewalk/prometheus/${file##*/}"; done

doc=/usr/share/doc/ropewalk
for file in README.md GLOSSARY.md docs/*.md docs/pictures/*.png; do put 644 "$file" "$doc/$file"; done
cat >"$work/copyright" <<TXT
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: ropewalk

Files: *
Copyright: 2026 the Ropewalk authors
License: Apache-2.0
 On Debian systems the text of this licence is in /usr/share/common-licenses/Apache-2.0.
TXT
put 644 "$work/copyright" $doc/copyright
cat >"$work/changelog" <<TXT
ropewalk ($version) unstable; urgency=medium

  * What changed is told by the repository's history.

 -- The Ropewalk authors <ropewalk@ropewalk.invalid>  $(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")
TXT
gzip -9n "$work/changelog"
put 644 "$work/changelog.gz" $doc/changelog.gz

# The C library's version is the newest of the symbols that the program asks for.
glibc=$(objdump -T "$root/usr/bin/ropewalk" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -1)
mkdir -p "$root/DEBIAN"
cat >"$root/DEBIAN/control" <<TXT
Package: ropewalk
Version: $version
Architecture: $arch
Maintainer: The Ropewalk authors <ropewalk@ropewalk.invalid>
Depends: libc6 (>= ${glibc#GLIBC_}), libgcc-s1, fuse3
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f1)
Section: admin
Priority: optional
Description: parallel file system for analytics
 Blocks of a file are erasure-coded or replicated over the disks of many
 servers, with checksums from end to end, and mounted through FUSE. The same
 program measures it and the hardware under it, and says what to tune.
 .
 Installing starts nothing and makes nothing.
TXT
for script in postinst prerm postrm; do install -m 755 packaging/debian/$script "$root/DEBIAN/$script"; done
(cd "$root" && find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"

# The same sources make the same bytes.
find "$root" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
mkdir -p "$out"
dpkg-deb --build --root-owner-group -Zxz "$root" "$out/ropewalk_${version}_$arch.deb"
