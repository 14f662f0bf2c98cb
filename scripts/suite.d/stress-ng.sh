# stress-ng: its stressors of the file system, verifying. Arguments: seconds for each (default 2), then names of stressors.
suite_install() { apt_need stress-ng:stress-ng; }

suite_run() {
  local seconds=${1:-2} s code
  [ $# = 0 ] || shift
  local all=(access aio aiol chattr chdir chmod chown copy-file dentry dir dirdeep dirmany dup eventfd fallocate fanotify fcntl fiemap
    file-ioctl filename flock fpunch fsize fstat getdent handle hdd inode-flags inotify io iomix lease link locka lockf lockofd mknod mmap
    mmapaddr mmapfixed msync open pipe rename readahead revio seek sendfile splice symlink sync-file touch utime verity xattr)
  [ $# = 0 ] || all=("$@")
  for s in "${all[@]}"; do
    local more=()
    case $s in
      mmap) more=(--mmap-file --mmap-bytes 4m) ;;
      hdd) more=(--hdd-bytes 8m) ;;
      dirdeep) more=(--dirdeep-inodes 3000) ;;
      copy-file) more=(--copy-file-bytes 128m) ;;
      seek) more=(--seek-size 8m) ;;
      sync-file) more=(--sync-file-bytes 4m) ;;
      fallocate) more=(--fallocate-bytes 16m) ;;
      iomix) more=(--iomix-bytes 16m) ;;
      readahead) more=(--readahead-bytes 16m) ;;
      aiol) more=(--aiol-requests 16) ;;
    esac
    timeout -k 5 $((seconds + 90)) stress-ng --temp-path "$T" --verify --timeout "$seconds" "--$s" 1 "${more[@]}" >"$OUT/$s.log" 2>&1
    code=$?
    # 3: could not, 4: not there, as stress-ng's manual says.
    case $code in
      0) if grep -q 'skipp' "$OUT/$s.log"; then skipped "$s" "$(grep -m1 skipp "$OUT/$s.log")"; else passed "$s"; fi ;;
      3 | 4) skipped "$s" "exit code $code" ;;
      *) failed "$s" "exit code $code: $(grep -m3 -iE 'fail|error' "$OUT/$s.log" | cut -c1-300)" ;;
    esac
  done
}
