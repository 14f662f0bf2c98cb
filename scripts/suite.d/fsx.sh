# fsx (the crate): random reads, writes, truncations, mappings, holes of one file against a copy in memory.
# Arguments: operations (default 3000), then seeds (default 1 2). A case is a profile with a seed.
suite_install() {
  apt_need cc:gcc
  cargo_need fsx 0.3.2
}

suite_run() {
  local operations=${1:-3000} profile seed
  [ $# = 0 ] || shift
  mkdir "$OUT/profiles"
  cd "$OUT/profiles" || return
  : >default.toml
  printf '%s\n' 'flen = 262144' '[weights]' 'close_open = 1' 'invalidate = 1' 'fsync = 1' 'fdatasync = 1' 'sendfile = 2' \
    'posix_fadvise = 1' 'copy_file_range = 2' >sync.toml
  printf '%s\n' 'flen = 262144' '[weights]' 'mapread = 0' 'mapwrite = 0' 'close_open = 2' 'fsync = 1' >unmapped.toml
  printf '%s\n' 'flen = 1048576' '[weights]' 'posix_fallocate = 2' 'punch_hole = 2' 'close_open = 1' 'invalidate = 1' \
    'copy_file_range = 1' >holes.toml
  printf '%s\n' 'flen = 100000000' '[opsize]' 'max = 1000000' '[weights]' 'close_open = 2' 'truncate = 2' 'punch_hole = 2' >big.toml
  printf '%s\n' 'flen = 1048576' 'blockmode = true' '[opsize]' 'min = 4096' 'max = 65536' 'align = 4096' '[weights]' \
    'invalidate = 1' 'truncate = 0' >block.toml
  for profile in *.toml; do
    profile=${profile%.toml}
    for seed in "${@:-1 2}"; do
      for seed in $seed; do
        [ "$profile" = block ] && truncate -s 1M "$T/$profile-$seed"
        step "$profile-seed-$seed" "$CACHE/cargo/bin/fsx" -f "$profile.toml" -N "$operations" -S "$seed" -P "$OUT" "$T/$profile-$seed"
      done
    done
  done
}
