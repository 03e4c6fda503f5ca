#!/usr/bin/env bash
# Installs the distribution packages that building, running and testing need. Does nothing where they
# are there. Needs root (or sudo) only if something is missing.
set -euo pipefail

# command or file that proves it -> package
need=(
  "cc:gcc" "make:make" "fusermount3:fuse3" "git:git" "rsync:rsync" "sqlite3:sqlite3" "fio:fio" "getfattr:attr"
  "iperf3:iperf3" "ip:iproute2" "jq:jq" "diff:diffutils" "setfacl:acl" "losetup:mount" "nsenter:util-linux"
  "taskset:util-linux" "protoc:protobuf-compiler"
  "/usr/include/google/protobuf/descriptor.proto:libprotobuf-dev" "etcd:etcd-server" "python3:python3" "zstd:zstd"
  "curl:curl" "promtool:prometheus"
)
missing=()
for entry in "${need[@]}"; do
  command -v "${entry%%:*}" >/dev/null || [ -e "${entry%%:*}" ] || missing+=("${entry##*:}")
done

if ((${#missing[@]})); then
  echo "setup: installing ${missing[*]}"
  as_root=()
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { echo "setup: packages are missing (${missing[*]}); run as root: apt-get install ${missing[*]}" >&2; exit 1; }
    as_root=(sudo)
  fi
  export DEBIAN_FRONTEND=noninteractive
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

# The page of analytics and the lab's report are looked at in a real browser: 121 MB to fetch, 382 MB on disk. The test of the page fails
# without; the others run.
if ! command -v chromedriver >/dev/null; then
  if [ "$(id -u)" = 0 ]; then as_root=(); else as_root=(sudo -n); fi
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive sh -c \
    'get() { apt-get install -y -qq --no-install-recommends chromium chromium-driver; }; get || { apt-get update -qq && get; }' >/dev/null 2>&1 ||
    echo "setup: no browser could be installed (chromium, chromium-driver); the test of the page of analytics will fail" >&2
fi

command -v cargo >/dev/null || { echo "setup: Rust is missing; install it (rustup, version 1.95 or newer)" >&2; exit 1; }
if [ ! -e /dev/fuse ]; then
  echo "setup: /dev/fuse is missing; load the fuse module (modprobe fuse) or run where FUSE is allowed" >&2
  exit 1
fi
