//! Answers for people, and as JSON.

use std::io::{self, Write};

use serde::Serialize;

use crate::proto::{
    ChangeKind, ChangeLine, Conflict, Counts, Failure, GenerationInfo, LogLine, MarkInfo,
    PathBytes, ProcessInfo, Reply, SCHEMA_VERSION, StatusReply, TxnInfo, Writer,
};
use crate::report::letter;
use crate::report::quote::{shown, terminal};

/// Prints a failure: the message, every path in the way, the next step.
pub(crate) fn failure(out: &mut dyn Write, failure: &Failure) -> io::Result<()> {
    writeln!(out, "txfs: {}", terminal(failure.message.as_bytes()))?;
    failure.conflicts.iter().try_for_each(|c| conflict(out, c))?;
    match &failure.hint {
        Some(hint) => writeln!(out, "Hint: {}", terminal(hint.as_bytes())),
        None => Ok(()),
    }
}

fn conflict(out: &mut dyn Write, c: &Conflict) -> io::Result<()> {
    writeln!(out, "  {}: {}", shown(&c.path.0), terminal(c.reason.as_bytes()))
}

type Object = serde_json::Map<String, serde_json::Value>;

/// The fields of an answer.
pub(super) fn fields(value: &impl Serialize) -> io::Result<Object> {
    match serde_json::to_value(value)? {
        serde_json::Value::Object(object) => Ok(object),
        serde_json::Value::Null
        | serde_json::Value::Bool(_)
        | serde_json::Value::Number(_)
        | serde_json::Value::String(_)
        | serde_json::Value::Array(_) => Err(io::Error::other("an answer is an object")),
    }
}

/// Prints one object with `schema_version`, `kind` and `ok` beside its fields.
pub(super) fn object(kind: &str, ok: bool, mut object: Object) -> io::Result<()> {
    object.insert("schema_version".into(), SCHEMA_VERSION.into());
    object.insert("kind".into(), kind.into());
    object.insert("ok".into(), ok.into());
    writeln!(io::stdout(), "{}", serde_json::Value::Object(object))
}

/// Prints a value of a verb that did what it should.
pub(super) fn json(kind: &str, value: &impl Serialize) -> io::Result<()> {
    object(kind, true, fields(value)?)
}

/// Prints a failure and the exit code that goes with it, beside what else is known.
pub(super) fn json_failure(
    kind: &str,
    failure: &Failure,
    exit: u8,
    known: Object,
) -> io::Result<()> {
    let mut all = known;
    all.extend(fields(failure)?);
    all.insert("exit".into(), exit.into());
    object(kind, false, all)
}

/// Prints an answer as JSON.
pub(super) fn reply_json(kind: &str, reply: &Reply) -> io::Result<()> {
    match reply {
        Reply::Failed(f) => json(kind, f),
        Reply::Daemon(r) => json(kind, r),
        Reply::Txn(r) => json(kind, r),
        Reply::List(r) => json(kind, r),
        Reply::Status(r) => json(kind, r),
        Reply::Changes(r) => json(kind, r),
        Reply::Log(r) => json(kind, r),
        Reply::Show(r) => json(kind, r),
        Reply::Commit(r) => json(kind, r),
        Reply::Rebase(r) => json(kind, r),
        Reply::Abort(r) => json(kind, r),
        Reply::Undo(r) => json(kind, r),
        Reply::History(r) => json(kind, r),
        Reply::Gc(r) => json(kind, r),
        Reply::Doctor(r) => json(kind, r),
        Reply::Mount(r) => json(kind, r),
        Reply::Step(r) => json(kind, r),
        Reply::Savepoint(r) => json(kind, r),
        Reply::Savepoints(r) => json(kind, r),
        Reply::Rollback(r) => json(kind, r),
    }
}

/// Prints an answer for people.
pub(super) fn reply(out: &mut dyn Write, reply: &Reply, colours: bool) -> io::Result<()> {
    match reply {
        Reply::Failed(f) => failure(out, f),
        Reply::Daemon(d) => writeln!(
            out,
            "daemon {} serves {} views of {}",
            d.daemon_pid,
            d.mounts,
            shown(&d.workspace.0)
        ),
        Reply::Txn(t) => txn(out, t),
        Reply::List(l) => l.txns.iter().try_for_each(|t| txn(out, t)),
        Reply::Status(s) => status(out, s, colours),
        Reply::Changes(r) => changes(out, &r.changes, colours),
        Reply::Log(l) => l.records.iter().try_for_each(|line| log_line(out, line)),
        Reply::Show(s) => {
            generation(out, &s.info)?;
            changes(out, &s.changes, colours)
        }
        Reply::Commit(r) if r.dry_run => writeln!(out, "would commit: {}", words(&r.counts)),
        Reply::Commit(r) if !r.changed => {
            writeln!(out, "nothing to commit; generation {} is live", r.generation)
        }
        Reply::Commit(r) => {
            writeln!(out, "generation {}: {}", r.generation, words(&r.counts))?;
            for path in &r.copied_open {
                writeln!(out, "  {} is open: committed as a copy of what it held", shown(&path.0))?;
            }
            undo_line(out, r.undo.as_deref(), r.reason.as_deref())
        }
        Reply::Rebase(r) => {
            let verb = if r.dry_run { "would be" } else { "is" };
            writeln!(
                out,
                "transaction \"{}\" {verb} on generation {}, {} entries changed",
                r.txn, r.generation, r.entries
            )
        }
        Reply::Abort(r) => {
            writeln!(out, "transaction \"{}\": {} effects dropped; {}", r.txn, r.effects, r.reason)
        }
        Reply::Undo(r) => {
            let list: Vec<_> = r.undone.iter().map(u64::to_string).collect();
            let would = if r.dry_run { "would take back" } else { "took back" };
            writeln!(
                out,
                "{would} generation {} ({} entries); generation {} is live",
                list.join(", "),
                r.entries,
                r.generation
            )?;
            if r.dry_run { Ok(()) } else { undo_line(out, r.undo.as_deref(), None) }
        }
        Reply::History(h) => h.generations.iter().try_for_each(|g| generation(out, g)),
        Reply::Gc(r) => {
            writeln!(
                out,
                "{} generations collected, {} freed, {} kept",
                r.pruned.len(),
                size(r.freed_bytes),
                size(r.history_bytes)
            )?;
            r.pinned.iter().try_for_each(|p| writeln!(out, "  needed: {p}"))
        }
        Reply::Doctor(r) => {
            for f in &r.findings {
                let path =
                    f.path.as_ref().map(|p| format!(": {}", shown(&p.0))).unwrap_or_default();
                writeln!(out, "{:<8}{}{path}", f.level, f.what)?;
                if let Some(remedy) = &f.remedy {
                    writeln!(out, "        Hint: {remedy}")?;
                }
            }
            Ok(())
        }
        Reply::Mount(r) => {
            let at =
                r.txn.mount.as_ref().map_or_else(String::new, |p| format!(" at {}", shown(&p.0)));
            writeln!(out, "transaction \"{}\" is mounted{at}", r.txn.txn)
        }
        Reply::Step(s) => writeln!(out, "step {}", s.step),
        Reply::Savepoint(m) => {
            writeln!(out, "{} is set; to go back to it: {}", mark_name(m), m.rollback)
        }
        Reply::Savepoints(r) => r.marks.iter().try_for_each(|m| {
            let (name, since) = (mark_name(m), m.effects_since);
            writeln!(out, "{:>6}  {}  {name}  ({since} effects since)", m.seq, time(m.time))
        }),
        Reply::Rollback(r) => {
            let before = if r.to.mark == "step" { "before " } else { "" };
            writeln!(
                out,
                "back to {before}{}: {} effects taken back",
                mark_name(&r.to),
                r.effects
            )?;
            r.stale.iter().try_for_each(|path| {
                writeln!(out, "  {} is open: its handles lead nowhere now", shown(&path.0))
            })
        }
    }
}

/// A savepoint or a step in words.
fn mark_name(m: &MarkInfo) -> String {
    match m.mark.as_str() {
        "step" => format!("step {} {}", m.step, terminal(&m.name.0)),
        kind => format!("{kind} {}", terminal(&m.name.0)),
    }
}

fn undo_line(out: &mut dyn Write, undo: Option<&str>, reason: Option<&str>) -> io::Result<()> {
    match undo {
        Some(call) => writeln!(out, "to take it back: {call}"),
        None => writeln!(out, "it cannot be taken back: {}", reason.unwrap_or("unknown")),
    }
}

fn txn(out: &mut dyn Write, t: &TxnInfo) -> io::Result<()> {
    let stale = if t.stale {
        format!(" (stale: generation {} is live)", t.generation)
    } else {
        String::new()
    };
    let mount =
        t.mount.as_ref().map_or_else(String::new, |p| format!(", mounted at {}", shown(&p.0)));
    writeln!(
        out,
        "{}: {}, {} effects on generation {}{stale}, {} staged{mount}",
        t.txn,
        t.state,
        t.effects,
        t.base_generation,
        size(t.staged_bytes)
    )
}

/// Counts as words.
pub(crate) fn words(n: &Counts) -> String {
    let all = [
        (n.deleted, "deleted"),
        (n.renamed, "renamed"),
        (n.type_changed, "of another kind"),
        (n.modified, "modified"),
        (n.metadata, "with other metadata"),
        (n.added, "added"),
    ];
    let some: Vec<_> =
        all.iter().filter(|(n, _)| *n > 0).map(|(n, w)| format!("{n} {w}")).collect();
    if some.is_empty() { "no changes".into() } else { some.join(", ") }
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.1} GiB", bytes as f64 / 1_073_741_824.0),
    }
}

fn status(out: &mut dyn Write, s: &StatusReply, colours: bool) -> io::Result<()> {
    txn(out, &s.txn)?;
    writeln!(
        out,
        "{}; store {}, history {}",
        words(&s.counts),
        size(s.store_bytes),
        size(s.history_bytes)
    )?;
    changes(out, &s.changes, colours)?;
    if !s.drift.is_empty() {
        writeln!(out, "edited outside the transaction:")?;
        s.drift.iter().try_for_each(|d| conflict(out, d))?;
    }
    if !s.open_writers.is_empty() {
        writeln!(out, "open for writing:")?;
        s.open_writers.iter().try_for_each(|w| writer(out, w))?;
    }
    if let Some(why) = &s.poisoned {
        writeln!(out, "blocked: {}", terminal(why.as_bytes()))?;
    }
    writeln!(out, "next: {}", s.next_step)
}

fn writer(out: &mut dyn Write, w: &Writer) -> io::Result<()> {
    let pids: Vec<_> = w.pids.iter().map(u32::to_string).collect();
    let by = if pids.is_empty() { String::new() } else { format!("  (by {})", pids.join(", ")) };
    writeln!(out, "  {}{by}", shown(&w.path.0))
}

/// Lists changes: a letter, the paths, what of the metadata.
pub(crate) fn changes(out: &mut dyn Write, lines: &[ChangeLine], colours: bool) -> io::Result<()> {
    for line in lines {
        let path = shown(&line.path.0);
        let slash = if line.kind == "dir" { "/" } else { "" };
        let from =
            line.from.as_ref().map_or_else(String::new, |f| format!("{}{slash} -> ", shown(&f.0)));
        let meta = meta(line);
        let on = match (colours, line.change) {
            (false, _) => "",
            (true, ChangeKind::Deleted) => "\x1b[31m",
            (true, ChangeKind::Added) => "\x1b[32m",
            (
                true,
                ChangeKind::Renamed
                | ChangeKind::TypeChanged
                | ChangeKind::Modified
                | ChangeKind::Metadata,
            ) => "\x1b[33m",
        };
        let off = if colours { "\x1b[0m" } else { "" };
        writeln!(out, "  {on}{}{off} {from}{path}{slash}{meta}", letter(line.change))?;
    }
    Ok(())
}

/// What of the metadata changed, in brackets.
fn meta(line: &ChangeLine) -> String {
    let what = |word: &String| match (word.as_str(), line.old_mode, line.new_mode) {
        ("mode", Some(old), Some(new)) => format!("mode {old:04o} -> {new:04o}"),
        _ => word.clone(),
    };
    let all: Vec<_> = line.meta.iter().map(what).collect();
    if all.is_empty() { String::new() } else { format!("  ({})", all.join(", ")) }
}

fn generation(out: &mut dyn Write, g: &GenerationInfo) -> io::Result<()> {
    let what = match g.undo_of.as_slice() {
        [] => String::new(),
        list => {
            format!(" undo of {}", list.iter().map(u64::to_string).collect::<Vec<_>>().join(", "))
        }
    };
    let message =
        if g.message.0.is_empty() { String::new() } else { format!("  {}", shown(&g.message.0)) };
    let kept = if g.pruned { "collected".into() } else { size(g.history_bytes) };
    writeln!(
        out,
        "{:>6}  {}  uid {}  {} entries  {kept}{what}{message}",
        g.generation,
        time(g.time),
        g.uid,
        g.entries
    )
}

/// A time in UTC, to the second.
fn time(secs: i64) -> String {
    let (days, rest) = (secs.div_euclid(86400), secs.rem_euclid(86400));
    // Civil from days, with the year beginning in March (Howard Hinnant's algorithm).
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let doe = shifted.rem_euclid(146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let (day, month) = (doy - (153 * mp + 2) / 5 + 1, if mp < 10 { mp + 3 } else { mp - 9 });
    let year = yoe + era * 400 + i64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}Z",
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    )
}

fn log_line(out: &mut dyn Write, line: &LogLine) -> io::Result<()> {
    let to =
        line.to.as_ref().map_or_else(String::new, |t: &PathBytes| format!(" -> {}", shown(&t.0)));
    let detail = line.detail.as_ref().map_or_else(String::new, |d| format!(" {d}"));
    let inverse = line.inverse.as_ref().map_or_else(String::new, |i| format!("  [{i}]"));
    let seq = line.seq;
    match line.effect.as_str() {
        // What was run, and when, above what it did.
        "step" => writeln!(
            out,
            "{seq:>6}  step {}  {}  {}",
            line.step,
            time(line.time),
            terminal(&line.path.0)
        )?,
        effect => {
            let taken = if line.taken_back { "  (taken back)" } else { "" };
            let path = shown(&line.path.0);
            writeln!(out, "{seq:>6}  {effect}{detail} {path}{to}{inverse}{taken}")?;
        }
    }
    let Some(p) = &line.process else { return Ok(()) };
    process(out, "by", p)?;
    p.parents.iter().try_for_each(|parent| process(out, "  of", parent))
}

fn process(out: &mut dyn Write, word: &str, p: &ProcessInfo) -> io::Result<()> {
    let exe = if p.exe.0.is_empty() { "unknown".into() } else { shown(&p.exe.0) };
    let argv: Vec<_> = p.argv.iter().map(|a| shown(&a.0)).collect();
    writeln!(out, "        {word} {} {exe}: {}", p.pid, argv.join(" "))
}
