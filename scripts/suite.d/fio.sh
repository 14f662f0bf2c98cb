# fio: writes with checksums by every way of doing input and output, read back and verified.
# Arguments: MiB for each job (default 32).
suite_install() { apt_need fio:fio; }

job() {
  local case=$1
  shift
  mkdir "$T/$case"
  step "$case" fio --aux-path="$OUT" --name="$case" --directory="$T/$case" --size="${size}M" --verify=crc32c --verify_fatal=1 \
    --do_verify=1 --group_reporting "$@"
  if grep -q 'err= *[1-9]' "$OUT/$case.log"; then failed "$case" "$(grep 'err=' "$OUT/$case.log")"; fi
}

suite_run() {
  size=${1:-32}
  # Where a file has a job's name, fio takes that.
  cd "$OUT" || return
  job sequential --rw=write --bs=128k
  job random --rw=randwrite --bs=4k --ioengine=psync
  job odd-sizes --rw=randwrite --bsrange=512-9k --bs_unaligned --ioengine=psync
  job mixed-fsync --rw=randrw --bs=8k --fsync=32 --ioengine=psync --io_size=8M
  job mapped --rw=randwrite --bs=4k --ioengine=mmap
  job libaio --rw=randwrite --bs=4k --ioengine=libaio --iodepth=8
  job io_uring --rw=randwrite --bs=4k --ioengine=io_uring --iodepth=8
  job direct --rw=randwrite --bs=4k --ioengine=psync --direct=1
  job direct-aio --rw=randwrite --bs=4k --ioengine=libaio --direct=1 --iodepth=8
  job four-jobs --rw=randwrite --bs=4k --numjobs=4 --size=8M
  job one-file-four-jobs --rw=randwrite --bs=4k --numjobs=4 --size=8M --offset_increment=8M --filename=shared
  job preallocated --rw=write --bs=16k --fallocate=posix
  job vectored --rw=randwrite --bs=16k --ioengine=pvsync2
  job splice --rw=write --bs=64k --ioengine=splice
}
