# dbench: the file traffic of an office on a server. Arguments: clients (default 4), seconds (default 20).
suite_install() { apt_need dbench:dbench; }

suite_run() {
  local load
  load=$(compgen -G '/usr/share/dbench/client.txt') || { failed dbench "no load file"; return; }
  step "${1:-4}-clients" dbench --directory="$T" --loadfile="$load" --timelimit="${2:-20}" "${1:-4}"
  step "${1:-4}-clients-synchronous" dbench --sync-dir --fsync --directory="$T" --loadfile="$load" --timelimit="$((${2:-20} / 2))" "${1:-4}"
  grep -h Throughput "$OUT"/*.log
}
