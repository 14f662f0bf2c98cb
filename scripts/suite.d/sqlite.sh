# SQLite: every journal mode with several processes, SIGKILL in the middle, integrity checks, vacuum, backup.
suite_install() { apt_need sqlite3:sqlite3 python3:python3; }

suite_run() {
  local mode sync
  for mode in delete truncate persist memory wal off; do
    for sync in off normal full extra; do
      step "load-$mode-$sync" python3 "$lib/sqlite-load.py" "$T/$mode-$sync.db" "$mode" "$sync"
    done
    [ "$mode" = off ] || [ "$mode" = memory ] || step "killed-$mode" python3 "$lib/sqlite-load.py" --kill 8 "$T/killed-$mode.db" "$mode" full
    step "shell-$mode" sqlite3 "$T/shell-$mode.db" "pragma journal_mode=$mode" "create table t(a, b)" \
      "with recursive n(i) as (select 1 union all select i+1 from n where i<20000) insert into t select i, hex(randomblob(20)) from n" \
      "create index x on t(b)" "delete from t where a % 3 = 0" "vacuum" "pragma integrity_check" ".backup $T/backup-$mode.db"
    step "backup-$mode" bash -c "[ \"\$(sqlite3 '$T/backup-$mode.db' 'pragma integrity_check; select count(*) from t' | tr '\n' ' ')\" = 'ok 13334 ' ]"
  done
  step big-pages-mapped sqlite3 "$T/mapped.db" "pragma page_size=65536" "pragma mmap_size=268435456" "pragma journal_mode=wal" "create table t(a blob)" \
    "with recursive n(i) as (select 1 union all select i+1 from n where i<400) insert into t select randomblob(60000) from n" \
    "pragma wal_checkpoint(truncate)" "pragma integrity_check"
}
