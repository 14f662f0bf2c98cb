#!/usr/bin/env bash
# run.sh NAME install | allowed root|user | run DIRECTORY RESULTS [ARGUMENTS]     what scripts/suite starts
#
# Sources suite.d/NAME.sh, which defines suite_install (as root, fetches and builds, cheap if nothing is missing),
# suite_run (in an empty directory, $T; reports each case) and, if not everybody can run it, suite_allowed WHO.
set -uo pipefail
lib=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
name=$1 verb=$2
shift 2
CACHE=${TXFS_SUITES:-/var/tmp/txfs-suites}

passed() { printf '%s\n' "$1" >>"$OUT/passed"; }
failed() { printf '%s\t%s\n' "$1" "${2:-}" | tr '\n' ' ' >>"$OUT/failed"; echo >>"$OUT/failed"; }
skipped() { printf '%s\t%s\n' "$1" "${2:-}" >>"$OUT/skipped"; }

# step CASE COMMAND...: one case, that is one command with its own log.
step() {
  local case=$1
  shift
  if timeout -k 10 "${STEP_LIMIT:-600}" "$@" >"$OUT/$case.log" 2>&1; then passed "$case"; else
    failed "$case" "exit code $?: $(tail -3 "$OUT/$case.log" | cut -c1-300)"
  fi
}

missing() { echo "suite: $1" >&2; exit 1; }

# apt_need PROGRAM-OR-FILE:PACKAGE...: asked by program, so that other package sources are left alone.
apt_need() {
  local pair want=()
  for pair in "$@"; do
    case $pair in
      /*) compgen -G "${pair%%:*}" >/dev/null || want+=("${pair#*:}") ;;
      *) PATH=$PATH:/usr/sbin:/sbin command -v "${pair%%:*}" >/dev/null 2>&1 || want+=("${pair#*:}") ;;
    esac
  done
  [ ${#want[@]} = 0 ] && return
  [ "$(id -u)" = 0 ] || missing "not installed, and only root can: ${want[*]}"
  echo "suite: installing ${want[*]}" >&2
  apt-get update -qq || missing "apt-get update failed"
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${want[@]}" >/dev/null || missing "apt-get install failed: ${want[*]}"
}

# cargo_need CRATE VERSION: its program in $CACHE/cargo/bin.
cargo_need() {
  [ -x "$CACHE/cargo/bin/$1" ] && return
  cargo install --quiet --root "$CACHE/cargo" --locked "$1@$2" >&2 || missing "cargo install $1@$2 failed"
}

# apt_source PACKAGE: its source, unpacked by dpkg in $CACHE/source/PACKAGE, with an apt configuration of its own.
apt_source() {
  local a=$CACHE/apt to=$CACHE/source/$1 f
  [ -e "$to/.whole" ] && return
  apt_need dpkg-source:dpkg-dev
  mkdir -p "$a/lists/partial" "$a/cache/archives/partial" "$a/etc/sources.list.d" "$CACHE/source"
  : >"$a/etc/sources.list"
  for f in /etc/apt/sources.list.d/*.sources; do
    [ -f "$f" ] && grep -q debian "$f" && sed 's/^Types: .*/Types: deb-src/' "$f" >"$a/etc/sources.list.d/${f##*/}"
  done
  [ -f /etc/apt/sources.list ] && sed -n 's/^deb /deb-src /p' /etc/apt/sources.list >>"$a/etc/sources.list"
  printf 'Dir::Etc::sourcelist "%s";\nDir::Etc::sourceparts "%s";\nDir::State::lists "%s";\nDir::Cache "%s";\nAPT::Sandbox::User "root";\n' \
    "$a/etc/sources.list" "$a/etc/sources.list.d" "$a/lists" "$a/cache" >"$a/apt.conf"
  APT_CONFIG=$a/apt.conf apt-get update -qq || missing "no lists of source packages"
  rm -rf "$to" "$a/unpack"
  mkdir -p "$a/unpack"
  (cd "$a/unpack" && APT_CONFIG=$a/apt.conf apt-get source -qq "$1" >/dev/null) || missing "no source package $1"
  mv "$a"/unpack/*/ "$to" && touch "$to/.whole"
}

suite_allowed() { :; }
# shellcheck source=/dev/null
. "$lib/../suite.d/$name.sh"

case $verb in
  install) mkdir -p "$CACHE" && suite_install ;;
  allowed) suite_allowed "$1" ;;
  run)
    T=$1 OUT=$2
    shift 2
    cd "$T" || exit 1
    umask 022
    suite_run "$@"
    ;;
  *) echo "run.sh: no verb $verb" >&2; exit 2 ;;
esac
