# pjdfstest (the crate): what POSIX says of each system call on files, as several users. Arguments: patterns of cases.
suite_install() {
  apt_need /usr/include/sys/acl.h:libacl1-dev setfacl:acl cc:gcc
  cargo_need pjdfstest 0.2.2
  getent group tests >/dev/null || groupadd --system tests || missing "no group tests"
  id tests >/dev/null 2>&1 || useradd --system --gid tests --no-create-home tests || missing "no user tests"
}

suite_allowed() { [ "$1" = root ] || { echo "it changes to other users"; return 1; }; }

suite_run() {
  cat >"$OUT/config.toml" <<'C'
[features]
posix_fallocate = {}
rename_ctime = {}
stat_st_birthtime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.01
allow_remount = false
[dummy_auth]
entries = [["nobody", "nogroup"], ["tests", "tests"]]
C
  # Cases about two file systems get a second one.
  local second
  second=$(mktemp -d /dev/shm/txfs-suite-XXXXXX)
  chmod 777 "$T" "$second"
  "$CACHE/cargo/bin/pjdfstest" -c "$OUT/config.toml" -p "$T" -s "$second" "$@" >"$OUT/out" 2>&1
  rm -rf "$second"
  sed -i 's/\x1b\[[0-9;]*m//g' "$OUT/out"
  grep -q Summary "$OUT/out" || failed "pjdfstest itself" "$(tail -3 "$OUT/out")"
  awk '$NF == "ok" { print $1 }' "$OUT/out" >"$OUT/passed"
  awk '/^[a-z_0-9:]+ +FAILED$/ { print $1 }' "$OUT/out" >>"$OUT/failed"
  awk '$NF == "skipped" { print $1 }' "$OUT/out" >"$OUT/skipped"
}
