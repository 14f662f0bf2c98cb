# PostgreSQL: a cluster with checksums is made, loaded, killed, recovered, checked. Arguments: seconds of pgbench (default 10).
suite_install() { apt_need '/usr/lib/postgresql/*/bin/initdb:postgresql' '/usr/share/postgresql/*/extension/amcheck.control:postgresql-contrib'; }

suite_run() {
  local seconds=${1:-10} bin d=$T/cluster port=54399 sockets owner=() pid
  bin=$(ls -d /usr/lib/postgresql/*/bin | tail -1)
  # It refuses to run as root.
  [ "$(id -u)" = 0 ] && owner=(setpriv --reuid=postgres --regid=postgres --clear-groups)
  sockets=$(mktemp -d /tmp/suite-XXXXXX)
  mkdir "$d"
  [ "$(id -u)" = 0 ] && chown postgres: "$d" "$sockets"
  pg() { (cd / && exec "${owner[@]}" env -i PATH="$bin:/usr/bin:/bin" HOME="$sockets" PGHOST="$sockets" PGPORT=$port LC_ALL=C.UTF-8 "$@"); }
  start() {
    pg pg_ctl -D "$d" -w -t 120 -l "$sockets/server.log" \
      -o "-p $port -k $sockets -c listen_addresses='' -c log_min_messages=warning" start
  }
  # `timeout` starts programs only, and these are functions with their own limits.
  try() { local case=$1; shift; if "$@" >"$OUT/$case.log" 2>&1; then passed "$case"; else failed "$case" "exit code $?: $(tail -3 "$OUT/$case.log")"; fi; }
  trap 'pid=$(head -1 "$d/postmaster.pid" 2>/dev/null) && kill -QUIT "$pid"; rm -rf "$sockets"' EXIT
  try initdb pg initdb -D "$d" -A trust -k
  try start start
  try createdb pg createdb b
  try fill pg pgbench -i -s 2 -q b
  try bench pg timeout 300 pgbench -n -c 4 -j 2 -T "$seconds" b
  local round
  for round in 1 2; do
    pg timeout 300 pgbench -n -c 4 -j 2 -T 30 b >"$OUT/under-way-$round.log" 2>&1 &
    local load=$!
    # Not before there is something to lose.
    pg psql -d b -qtAc "do \$\$ declare n bigint; begin select count(*) into n from pgbench_history; for i in 1..500 loop perform pg_sleep(0.05); exit when (select count(*) from pgbench_history) > n + 100; end loop; end \$\$" >"$OUT/waited-$round.log" 2>&1
    pid=$(head -1 "$d/postmaster.pid" 2>/dev/null)
    if [ -n "$pid" ]; then
      # shellcheck disable=SC2046
      kill -9 "$pid" $(ps -o pid= --ppid "$pid")
      timeout 60 tail --pid="$pid" -f /dev/null
    fi
    wait "$load"
    rm -f "$d/postmaster.pid" "$sockets"/.s.PGSQL.*
    try "recover-$round" start
    try "sums-$round" pg psql -d b -v ON_ERROR_STOP=1 -tAc "do \$\$ begin if (select sum(abalance) from pgbench_accounts) is distinct from (select sum(delta) from pgbench_history) then raise 'sums differ'; end if; end \$\$"
  done
  try amcheck pg psql -d b -v ON_ERROR_STOP=1 -c 'create extension amcheck' \
    -c "select bt_index_check(oid, true) from pg_class where relkind = 'i' and relam = 403 and relpersistence = 'p'"
  try rewrite pg psql -d b -v ON_ERROR_STOP=1 -c 'create table z as select generate_series(1, 100000) g' -c 'vacuum full z' -c 'drop table z' -c 'checkpoint'
  try new-database pg psql -d b -v ON_ERROR_STOP=1 -c 'create database c template template0' -c 'drop database c'
  try stop pg pg_ctl -D "$d" -w stop -m fast
  try checksums pg pg_checksums -c -D "$d"
}
