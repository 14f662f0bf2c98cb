//! The command line: parse, call, print. It holds no rules.

mod args;
mod mounts;
mod print;

use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

use crate::daemon::client::{self, Answer, Target};
use crate::proto::{
    Code, DiffForm, Failure, HistoryChoice, PathBytes, Reply, SCHEMA_VERSION, Verb,
};
use crate::run;
use crate::txn::{failpoint, store, workspace};
use args::{Cli, Command, Global};

pub use args::{OnFailure, OnSuccess};

/// Prints a failure on standard error.
pub(crate) fn print_failure(failure: &Failure) {
    if let Err(e) = print::failure(&mut io::stderr(), failure) {
        log::debug!("{e}");
    }
}

/// Lists changes on standard error.
pub(crate) fn print_changes(changes: &[crate::proto::ChangeLine]) -> io::Result<()> {
    print::changes(&mut io::stderr(), changes)
}

/// Runs the command that the process was started with.
pub fn main() -> ExitCode {
    env_logger::Builder::new()
        .filter_level(log::LevelFilter::Warn)
        .parse_env("TXFS_LOG")
        .format_timestamp(None)
        .init();
    let wants_json = std::env::args_os().take_while(|a| a != "--").any(|a| a == "--json");
    let cli = match Cli::command().try_get_matches().and_then(|m| Cli::from_arg_matches(&m)) {
        Ok(cli) => cli,
        Err(e) => return usage(&e, wants_json),
    };
    let kind = cli.command.word();
    let json = cli.global.json;
    match perform(&cli) {
        Ok(code) => code,
        Err(failure) => {
            let code = if matches!(cli.command, Command::Run(_)) {
                run::FAILED
            } else {
                failure.code.exit()
            };
            report(kind, json, &failure, code);
            ExitCode::from(code)
        }
    }
}

fn usage(e: &clap::Error, json: bool) -> ExitCode {
    if !e.use_stderr() {
        // --help and --version.
        return finish(write!(io::stdout(), "{e}"));
    }
    if json {
        let failure =
            Failure::new(Code::Usage, e.to_string().trim().to_owned()).hint("txfs --help");
        report("usage", true, &failure, Code::Usage.exit());
    } else {
        eprint!("{e}");
    }
    ExitCode::from(Code::Usage.exit())
}

/// A reader that has seen enough is no error.
fn finish(written: io::Result<()>) -> ExitCode {
    match written.and_then(|()| io::stdout().flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("txfs: cannot write the output: {e}");
            ExitCode::from(Code::Io.exit())
        }
    }
}

fn report(kind: &str, json: bool, failure: &Failure, exit: u8) {
    if json {
        let mut object = serde_json::to_value(failure)
            .ok()
            .and_then(|value| value.as_object().cloned())
            .unwrap_or_default();
        object.insert("schema_version".into(), SCHEMA_VERSION.into());
        object.insert("kind".into(), kind.into());
        object.insert("ok".into(), false.into());
        object.insert("exit".into(), exit.into());
        // Whoever does not read it misses nothing but this.
        if let Err(e) = writeln!(io::stdout(), "{}", serde_json::Value::Object(object)) {
            log::debug!("{e}");
        }
    }
    print_failure(failure);
}

/// The directory that commands are about, and how to reach its daemon.
struct Place {
    target: Target,
    txn: String,
    /// Whether there is a store already.
    has_store: bool,
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    path.canonicalize().map_err(|e| {
        Failure::new(Code::NotFound, format!("cannot open {}: {e}", path.display()))
            .hint("txfs -C DIRECTORY ...")
    })
}

/// What the view around a directory says of itself, if there is one.
fn about_view(dir: &Path, what: &str) -> Option<Vec<u8>> {
    let mut buf = vec![0u8; 4096];
    dir.ancestors().find_map(|at| {
        let len = rustix::fs::getxattr(at, format!("user.txfs.{what}"), &mut buf).ok()?;
        Some(buf[..len].to_vec())
    })
}

fn find(global: &Global, make: bool) -> Result<Place, Failure> {
    let start = absolute(global.directory.as_deref().unwrap_or(Path::new(".")))?;
    if !start.is_dir() {
        return Err(Failure::new(Code::NotFound, format!("{} is no directory", start.display()))
            .hint("txfs -C DIRECTORY ..."));
    }
    if global.directory.is_some() {
        std::env::set_current_dir(&start).map_err(|e| {
            Failure::new(Code::NotFound, format!("cannot enter {}: {e}", start.display()))
                .hint("txfs -C DIRECTORY ...")
        })?;
    }
    let named = global.txn.clone().or_else(|| std::env::var("TXFS_TXN").ok());
    if let Some(workspace) = about_view(&start, "workspace") {
        let txn = named
            .or_else(|| about_view(&start, "txn").and_then(|t| String::from_utf8(t).ok()))
            .unwrap_or_else(|| workspace::MAIN.into());
        let socket =
            about_view(&start, "socket").map(|s| PathBuf::from(std::ffi::OsString::from_vec(s)));
        let workspace = PathBuf::from(std::ffi::OsString::from_vec(workspace));
        let target = Target { workspace, store: None, force: global.force, socket };
        return Ok(Place { target, txn, has_store: true });
    }
    let txn = named.unwrap_or_else(|| workspace::MAIN.into());
    let target = |workspace: &Path| Target {
        workspace: workspace.to_path_buf(),
        store: global.store.clone(),
        force: global.force,
        socket: None,
    };
    if let Some(store) = &global.store {
        return Ok(Place { target: target(&start), txn, has_store: store.join("lock").exists() });
    }
    match start.ancestors().find(|dir| client::has_store(dir)) {
        Some(dir) => Ok(Place { target: target(dir), txn, has_store: true }),
        None if make => Ok(Place { target: target(&start), txn, has_store: false }),
        None => {
            Err(Failure::new(Code::NotFound, format!("{} is in no workspace", start.display()))
                .hint("txfs run -- COMMAND makes the current directory one"))
        }
    }
}

fn ask(place: &Place, verb: Verb) -> Result<Reply, Failure> {
    let mut wire = client::connect(&place.target)?;
    client::ask(&mut wire, &place.txn, verb, None, |_| Ok(())).map(|answer| answer.reply)
}

/// Asks, with what is streamed on standard output.
fn ask_streaming(place: &Place, verb: Verb) -> Result<Reply, Failure> {
    let mut wire = client::connect(&place.target)?;
    let mut out = io::stdout().lock();
    let answer: Result<Answer, Failure> = client::ask(&mut wire, &place.txn, verb, None, |bytes| {
        match out.write_all(bytes) {
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => {
                // The reader has seen enough.
                std::process::exit(0);
            }
            other => other,
        }
    });
    answer.map(|a| a.reply)
}

fn paths(place: &Place, given: &[PathBuf]) -> Result<Vec<PathBytes>, Failure> {
    let here = std::env::current_dir()
        .map_err(|e| Failure::new(Code::Io, format!("cannot find the current directory: {e}")))?;
    let mut out = Vec::new();
    for path in given {
        let full = if path.is_absolute() { path.clone() } else { here.join(path) };
        let mut clean = PathBuf::new();
        for part in full.components() {
            match part {
                std::path::Component::CurDir => {}
                std::path::Component::ParentDir => drop(clean.pop()),
                part @ (std::path::Component::Prefix(_)
                | std::path::Component::RootDir
                | std::path::Component::Normal(_)) => clean.push(part),
            }
        }
        let rel = clean.strip_prefix(&place.target.workspace).map_err(|_| {
            Failure::new(Code::Usage, format!("{} is outside the workspace", path.display()))
                .hint(format!("name paths below {}", place.target.workspace.display()))
        })?;
        out.push(PathBytes(rel.as_os_str().as_bytes().to_vec()));
    }
    Ok(out)
}

fn perform(cli: &Cli) -> Result<ExitCode, Failure> {
    let global = &cli.global;
    let kind = cli.command.word();
    let reply = match &cli.command {
        Command::Daemon(d) => {
            let ready = crate::sys::adopt_fd(d.ready_fd).map_err(|e| {
                Failure::new(Code::Usage, format!("descriptor {}: {e}", d.ready_fd))
            })?;
            return match crate::daemon::serve(
                &d.workspace,
                global.store.as_deref(),
                global.force,
                ready,
            ) {
                Ok(()) => Ok(ExitCode::SUCCESS),
                // It was told to whoever started us.
                Err(failure) => Ok(ExitCode::from(failure.code.exit())),
            };
        }
        Command::Failpoints => {
            return Ok(finish(
                failpoint::ALL.iter().try_for_each(|p| writeln!(io::stdout(), "{p}")),
            ));
        }
        Command::Completions { shell } => {
            clap_complete::generate(*shell, &mut Cli::command(), "txfs", &mut io::stdout());
            return Ok(ExitCode::SUCCESS);
        }
        Command::Man { verb } => return man(verb.as_deref()),
        Command::Stop => {
            return mounts::stop(&find(global, false)?.target, global.force)
                .map(|()| ExitCode::SUCCESS);
        }
        Command::Run(options) => {
            let place = find(global, true)?;
            announce(&place);
            let run = run::Run {
                target: place.target,
                txn: place.txn,
                command: options.command.clone(),
                on_success: options.on_success,
                on_failure: options.on_failure,
                message: options.message.clone().unwrap_or_default(),
            };
            let done = run.execute()?;
            if global.json {
                print::json(
                    "run",
                    &serde_json::json!({"exit": done.exit, "txn": run.txn, "then": done.then}),
                )
                .map_err(|e| Failure::new(Code::Io, e.to_string()))?;
            }
            return Ok(ExitCode::from(done.exit));
        }
        Command::Mount { at } => {
            let place = find(global, true)?;
            announce(&place);
            Reply::Mount(mounts::mount(&place.target, &place.txn, at)?)
        }
        Command::Umount { at } => {
            let place = match at {
                Some(at) => mounts::place_of(global, at)?,
                None => find(global, false)?,
            };
            Reply::Txn(mounts::umount(&place.target, &place.txn, at.as_deref())?)
        }
        Command::Begin => {
            let place = find(global, true)?;
            announce(&place);
            workspace::check_name(&place.txn)?;
            ask(&place, Verb::Begin)?
        }
        Command::List => ask(&find(global, false)?, Verb::List)?,
        Command::Status { paths: given } => {
            let place = find(global, false)?;
            let paths = paths(&place, given)?;
            ask(&place, Verb::Status { paths })?
        }
        Command::Diff(d) => {
            let place = find(global, false)?;
            let form = if global.json { DiffForm::Changes } else { d.form() };
            let paths = paths(&place, &d.paths)?;
            let reply = ask_streaming(&place, Verb::Diff { form, paths })?;
            if !global.json {
                return Ok(finish(Ok(())));
            }
            reply
        }
        Command::Log { processes } => {
            ask(&find(global, false)?, Verb::Log { processes: *processes })?
        }
        Command::Show { generation, diff } => {
            let listed = global.json || (diff.form() == DiffForm::Patch && !diff.patch);
            let form = if listed { DiffForm::Changes } else { diff.form() };
            let place = find(global, false)?;
            ask_streaming(&place, Verb::Show { generation: *generation, form })?
        }
        Command::Commit(c) => ask(
            &find(global, false)?,
            Verb::Commit {
                message: PathBytes(c.message.clone().unwrap_or_default().into_bytes()),
                dry_run: c.dry_run,
                wait: c.wait.unwrap_or(0),
                allow_open_writers: c.allow_open_writers,
                history: match (c.keep, c.no_undo) {
                    (true, _) => HistoryChoice::Keep,
                    (_, true) => HistoryChoice::NoUndo,
                    _ => HistoryChoice::Ask,
                },
            },
        )?,
        Command::Abort => ask(&find(global, false)?, Verb::Abort)?,
        Command::Undo { generation, to, with_dependents, dry_run } => ask(
            &find(global, false)?,
            Verb::Undo {
                generation: *generation,
                to: *to,
                with_dependents: *with_dependents,
                dry_run: *dry_run,
            },
        )?,
        Command::History => ask(&find(global, false)?, Verb::History)?,
        Command::Gc { keep } => ask(&find(global, false)?, Verb::Gc { keep: *keep })?,
        Command::Doctor { fix } => {
            let place = find(global, false)?;
            match ask(&place, Verb::Doctor { fix: *fix }) {
                Ok(reply) => reply,
                Err(failure) => Reply::Doctor(without_daemon(&place, &failure)),
            }
        }
    };
    let unhealthy = matches!(&reply, Reply::Doctor(d) if !d.healthy);
    let printed = if global.json {
        print::reply_json(kind, &reply)
    } else {
        print::reply(&mut io::stdout(), &reply)
    };
    let code = finish(printed);
    Ok(if unhealthy { ExitCode::from(Code::Corrupt.exit()) } else { code })
}

/// What can be said of a store that no daemon opens: what is wrong, and what content there is.
fn without_daemon(place: &Place, failure: &Failure) -> crate::proto::DoctorReply {
    use crate::proto::Finding;
    let store = store::place(&place.target.workspace, place.target.store.as_deref());
    let mut findings = vec![Finding {
        level: "error".into(),
        what: failure.message.clone(),
        path: None,
        remedy: failure.hint.clone(),
    }];
    let staged = store.join("staged");
    for txn in std::fs::read_dir(&staged).into_iter().flatten().flatten() {
        for file in std::fs::read_dir(txn.path()).into_iter().flatten().flatten() {
            findings.push(Finding {
                level: "ok".into(),
                what: "staged content is there".into(),
                path: Some(PathBytes(file.path().as_os_str().as_bytes().to_vec())),
                remedy: None,
            });
        }
    }
    findings.push(Finding {
        level: "ok".into(),
        what: "the base is untouched".into(),
        path: Some(PathBytes(place.target.workspace.as_os_str().as_bytes().to_vec())),
        remedy: Some(format!(
            "copy what you need from {}, then: mv {} {}.broken",
            staged.display(),
            store.display(),
            store.display()
        )),
    });
    crate::proto::DoctorReply { healthy: false, findings }
}

fn announce(place: &Place) {
    if !place.has_store {
        eprintln!("txfs: {} is a workspace now", place.target.workspace.display());
    }
}

fn man(verb: Option<&str>) -> Result<ExitCode, Failure> {
    let mut command = Cli::command();
    command.build();
    let page = match verb {
        None => command,
        Some(verb) => command
            .get_subcommands()
            .find(|c| c.get_name() == verb)
            .map(|c| c.clone().name(format!("txfs-{verb}")))
            .ok_or_else(|| {
                Failure::new(Code::Usage, format!("there is no verb {verb:?}")).hint("txfs --help")
            })?,
    };
    let mut out = Vec::new();
    clap_mangen::Man::new(page)
        .render(&mut out)
        .map_err(|e| Failure::new(Code::Io, format!("cannot render the page: {e}")))?;
    Ok(finish(io::stdout().write_all(&out)))
}
