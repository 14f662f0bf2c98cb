//! The command line: parse, call, print. It holds no rules.

mod args;
mod hook;
mod mounts;
mod place;
mod print;
mod sh;
mod terminal;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

use crate::classify;
use crate::daemon::client::{self, Answer};
use crate::proto::{
    ChangeLine, Code, DiffForm, Failure, HistoryChoice, PathBytes, Reply, RollbackTo, Verb,
};
use crate::report;
use crate::run::{self, say};
use crate::txn::{failpoint, store, workspace};
use args::{Cli, Command, Global};
use place::{Place, find};

pub use args::{OnFailure, OnSuccess};
pub(crate) use print::words;

/// Prints a failure on standard error.
fn print_failure(failure: &Failure) {
    if let Err(e) = print::failure(&mut io::stderr(), failure) {
        log::debug!("{e}");
    }
}

/// Lists changes on standard error.
pub(crate) fn print_changes(changes: &[ChangeLine]) -> io::Result<()> {
    let colours = terminal::has_colours(&io::stderr());
    print::changes(&mut io::BufWriter::new(io::stderr()), changes, colours)
}

/// The option that names a transaction, for a command in a hint.
pub(crate) fn txn_option(txn: &str) -> String {
    if txn == workspace::MAIN { String::new() } else { format!(" --txn {txn}") }
}

/// Runs the command that the process was started with.
pub fn main() -> ExitCode {
    env_logger::Builder::new()
        .filter_level(log::LevelFilter::Warn)
        .parse_env("TXFS_LOG")
        .format_timestamp(None)
        .init();
    let parsed = Cli::command().try_get_matches_from(sh::command_line());
    let cli = match parsed.and_then(|m| Cli::from_arg_matches(&m)) {
        Ok(cli) => cli,
        Err(e) => return usage(&e),
    };
    let kind = cli.command.word();
    match perform(&cli) {
        Ok(code) => code,
        Err(failure) => {
            let exit = exit_of(kind, failure.code);
            if cli.global.json {
                print_json(print::json_failure(kind, &failure, exit, serde_json::Map::new()));
            }
            print_failure(&failure);
            ExitCode::from(exit)
        }
    }
}

/// The exit code of a failure: `run` and `sh` keep all but one for their command.
fn exit_of(kind: &str, code: Code) -> u8 {
    if kind == "run" || kind == "sh" { run::FAILED } else { code.exit() }
}

/// Whoever does not read it misses nothing but this: what failed is on standard error too.
fn print_json(printed: io::Result<()>) {
    if let Err(e) = printed {
        log::debug!("{e}");
    }
}

fn usage(e: &clap::Error) -> ExitCode {
    if !e.use_stderr() {
        // --help and --version.
        return finish(write!(io::stdout(), "{e}"));
    }
    let lenient = Cli::command().ignore_errors(true).try_get_matches().ok();
    let kind = lenient.as_ref().and_then(|m| m.subcommand_name()).unwrap_or("usage");
    let exit = exit_of(kind, Code::Usage);
    if std::env::args_os().take_while(|a| a != "--").any(|a| a == "--json") {
        let text = e.to_string();
        let message = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
        let failure = Failure::new(Code::Usage, message).hint("txfs --help");
        print_json(print::json_failure(kind, &failure, exit, serde_json::Map::new()));
    }
    if let Err(e) = write!(io::stderr(), "{e}") {
        log::debug!("{e}");
    }
    ExitCode::from(exit)
}

/// A reader that has seen enough is no error.
fn finish(written: io::Result<()>) -> ExitCode {
    match written.and_then(|()| io::stdout().flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(e) => {
            say(&format!("cannot write the output: {e}"));
            ExitCode::from(Code::Io.exit())
        }
    }
}

fn ask(place: &Place, verb: Verb) -> Result<Reply, Failure> {
    let mut wire = client::connect(&place.target)?;
    client::ask(&mut wire, &place.txn, verb, None, |_| Ok(())).map(|answer| answer.reply)
}

/// Asks, with what is streamed on standard output.
fn ask_streaming(place: &Place, verb: Verb, form: DiffForm) -> Result<Reply, Failure> {
    let mut wire = client::connect(&place.target)?;
    let stdout = io::stdout();
    let mut out: Box<dyn Write> = match form {
        DiffForm::Patch if stdout.is_terminal() => {
            Box::new(terminal::Patch::new(stdout.lock(), terminal::has_colours(&stdout)))
        }
        DiffForm::Patch
        | DiffForm::Stat
        | DiffForm::NameStatus
        | DiffForm::NameStatusZ
        | DiffForm::Changes => Box::new(stdout.lock()),
    };
    let enough = |written: io::Result<()>| match written {
        // The reader has seen enough.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        other => other,
    };
    let answer: Answer =
        client::ask(&mut wire, &place.txn, verb, None, |bytes| enough(out.write_all(bytes)))?;
    enough(out.flush())
        .map_err(|e| Failure::new(Code::Io, format!("cannot write the output: {e}")))?;
    Ok(answer.reply)
}

fn perform(cli: &Cli) -> Result<ExitCode, Failure> {
    let global = &cli.global;
    let reply = match &cli.command {
        Command::Daemon(daemon) => return serve(global, daemon),
        Command::Failpoints => {
            return Ok(finish(
                failpoint::ALL.iter().try_for_each(|p| writeln!(io::stdout(), "{p}")),
            ));
        }
        Command::Classify(args) => {
            return classify::cli::run(args, global.json, io::stdin(), &mut io::stdout().lock())
                .map(ExitCode::from);
        }
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "txfs", &mut text);
            return Ok(print_text(cli, &text));
        }
        Command::Man { verb } => return man(verb.as_deref()).map(|text| print_text(cli, &text)),
        Command::Stop => {
            return mounts::stop(&find(global, false)?.target, global.force)
                .map(|()| ExitCode::SUCCESS);
        }
        Command::Run(options) => return perform_run(global, options),
        Command::Sh(args) => return sh::perform(global, args),
        Command::Hook(hook) => return hook::perform(global, hook),
        Command::Diff(diff) => return perform_diff(global, diff),
        Command::Mount { workspace, at } => mount(global, workspace.as_deref(), at)?,
        Command::Umount { at } => {
            let place = match at {
                Some(at) => mounts::place_of(global, at)?,
                None => find(global, false)?,
            };
            Reply::Txn(mounts::umount(&place.target, &place.txn, at.as_deref())?)
        }
        Command::Begin { name } => {
            let mut place = find(global, true)?;
            if let Some(name) = name {
                place.txn.clone_from(name);
            }
            announce(&place);
            ask(&place, Verb::Begin)?
        }
        Command::Status { paths } => {
            let place = find(global, false)?;
            let paths = place.paths(paths)?;
            ask(&place, Verb::Status { paths })?
        }
        Command::Trace { path } => {
            let place = find(global, false)?;
            let path = place.paths(std::slice::from_ref(path))?.pop().unwrap_or_default();
            ask(&place, Verb::Trace { path })?
        }
        Command::Show { generation, patch, form } => {
            let form = match (global.json, form.given(), patch) {
                (true, ..) | (false, None, false) => DiffForm::Changes,
                (false, Some(form), _) => form,
                (false, None, true) => DiffForm::Patch,
            };
            let verb = Verb::Show { generation: *generation, form };
            let reply = ask_streaming(&find(global, false)?, verb, form)?;
            if form != DiffForm::Changes {
                return Ok(ExitCode::SUCCESS);
            }
            reply
        }
        Command::Abort => abort(global)?,
        Command::Doctor { fix } => {
            let place = find(global, false)?;
            match ask(&place, Verb::Doctor { fix: *fix }) {
                Ok(reply) => reply,
                Err(failure) => Reply::Doctor(without_daemon(&place, &failure)),
            }
        }
        Command::List
        | Command::Log { .. }
        | Command::Commit(_)
        | Command::Savepoint { .. }
        | Command::Savepoints
        | Command::Rollback { .. }
        | Command::Rebase { .. }
        | Command::Undo { .. }
        | Command::History
        | Command::Gc { .. } => {
            let place = find(global, false)?;
            let Some(verb) = plain_verb(&cli.command) else {
                return Err(Failure::new(Code::Internal, "there is no such verb"));
            };
            ask(&place, verb)?
        }
    };
    print_reply(cli, &reply)
}

/// The request of a verb that is nothing but its request.
fn plain_verb(command: &Command) -> Option<Verb> {
    match command {
        Command::List => Some(Verb::List),
        Command::Log { processes } => Some(Verb::Log { processes: *processes }),
        Command::Commit(c) => Some(Verb::Commit {
            message: PathBytes(c.message.clone().map(OsString::into_vec).unwrap_or_default()),
            dry_run: c.dry_run,
            rebase: c.rebase,
            wait: c.wait.unwrap_or(0),
            allow_open_writers: c.allow_open_writers,
            history: match (c.keep, c.no_undo) {
                (true, _) => HistoryChoice::Keep,
                (false, true) => HistoryChoice::NoUndo,
                (false, false) => HistoryChoice::Ask,
            },
        }),
        Command::Savepoint { name, allow_open_writers } => {
            Some(Verb::Savepoint { name: name.clone(), allow_open_writers: *allow_open_writers })
        }
        Command::Savepoints => Some(Verb::Savepoints),
        Command::Rollback { name, step, last } => Some(Verb::Rollback {
            to: match (name, step, last) {
                (Some(name), ..) => RollbackTo::Savepoint(name.clone()),
                (None, Some(step), _) => RollbackTo::Step(*step),
                (None, None, true) => RollbackTo::LastStep,
                (None, None, false) => RollbackTo::Newest,
            },
        }),
        Command::Rebase { dry_run } => Some(Verb::Rebase { dry_run: *dry_run }),
        Command::Undo { generation, to, with_dependents, dry_run } => Some(Verb::Undo {
            generation: *generation,
            to: *to,
            with_dependents: *with_dependents,
            dry_run: *dry_run,
        }),
        Command::History => Some(Verb::History),
        Command::Gc { keep } => Some(Verb::Gc { keep: *keep }),
        Command::Run(_)
        | Command::Sh(_)
        | Command::Hook(_)
        | Command::Mount { .. }
        | Command::Umount { .. }
        | Command::Begin { .. }
        | Command::Status { .. }
        | Command::Diff(_)
        | Command::Trace { .. }
        | Command::Show { .. }
        | Command::Abort
        | Command::Doctor { .. }
        | Command::Classify(_)
        | Command::Completions { .. }
        | Command::Man { .. }
        | Command::Daemon(_)
        | Command::Stop
        | Command::Failpoints => None,
    }
}

fn print_reply(cli: &Cli, reply: &Reply) -> Result<ExitCode, Failure> {
    let unhealthy = matches!(reply, Reply::Doctor(d) if !d.healthy);
    let printed = match (&cli.command, reply) {
        _ if cli.global.json => print::reply_json(cli.command.word(), reply),
        (Command::Umount { .. }, Reply::Txn(txn)) => {
            writeln!(io::stdout(), "unmounted; transaction \"{}\" is {}", txn.txn, txn.state)
        }
        _ => {
            let colours = terminal::has_colours(&io::stdout());
            let mut out = io::BufWriter::new(io::stdout().lock());
            print::reply(&mut out, reply, colours).and_then(|()| out.flush())
        }
    };
    let code = finish(printed);
    Ok(if unhealthy { ExitCode::from(Code::Corrupt.exit()) } else { code })
}

/// Prints a text that was made here.
fn print_text(cli: &Cli, text: &[u8]) -> ExitCode {
    finish(if cli.global.json {
        let text = serde_json::json!({ "text": PathBytes(text.to_vec()) });
        print::json(cli.command.word(), &text)
    } else {
        io::stdout().write_all(text)
    })
}

fn serve(global: &Global, daemon: &args::Daemon) -> Result<ExitCode, Failure> {
    let number = daemon.ready_fd;
    let ready = crate::sys::adopt_fd(number)
        .map_err(|e| Failure::new(Code::Usage, format!("descriptor {number}: {e}")))?;
    let served =
        crate::daemon::serve(&daemon.workspace, global.store.as_deref(), global.force, ready);
    // A failure was told to whoever started us.
    Ok(served.map_or_else(|f| ExitCode::from(f.code.exit()), |()| ExitCode::SUCCESS))
}

fn perform_run(global: &Global, options: &args::Run) -> Result<ExitCode, Failure> {
    let place = find(global, true)?;
    announce(&place);
    let wrapper =
        if options.lower_shell { Some(crate::shell::wrapper(&place.target)?) } else { None };
    let run = run::Run {
        wrapper,
        target: place.target,
        txn: place.txn,
        command: options.command.clone(),
        on_success: options.on_success,
        on_failure: options.on_failure,
        message: options.message.clone().map(OsString::into_vec).unwrap_or_default(),
        rebase: options.rebase,
    };
    let done = run.execute()?;
    if global.json {
        let fields = print::fields(&done).map_err(|e| {
            Failure::new(Code::Internal, format!("cannot say what came of it: {e}"))
        })?;
        print_json(match &done.failure {
            Some(failure) => print::json_failure("run", failure, done.exit, fields),
            None => print::object("run", true, fields),
        });
    }
    if let Some(failure) = &done.failure {
        print_failure(failure);
    }
    Ok(ExitCode::from(done.exit))
}

fn perform_diff(global: &Global, diff: &args::Diff) -> Result<ExitCode, Failure> {
    let place = find(global, false)?;
    let form = match (global.json, diff.form.given()) {
        (true, _) => DiffForm::Changes,
        (false, given) => given.unwrap_or(DiffForm::Patch),
    };
    let paths = place.paths(&diff.paths)?;
    let reply = ask_streaming(&place, Verb::Diff { form, paths }, form)?;
    if global.json {
        return Ok(finish(print::reply_json("diff", &reply)));
    }
    if let (DiffForm::Patch, Reply::Changes(reply)) = (form, &reply) {
        let unsaid = report::unsaid(&reply.changes);
        if !unsaid.is_empty() {
            say("what a patch cannot say:");
            print_changes(&unsaid).map_err(|e| {
                Failure::new(Code::Io, format!("cannot write to standard error: {e}"))
            })?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn mount(global: &Global, workspace: Option<&Path>, at: &Path) -> Result<Reply, Failure> {
    // Taken from where we are before another directory is entered.
    let at = if workspace.is_some() {
        std::path::absolute(at).map_err(|e| {
            Failure::new(Code::Io, format!("cannot find the current directory: {e}"))
        })?
    } else {
        at.to_path_buf()
    };
    let place = match workspace {
        Some(dir) => find(&Global { directory: Some(dir.to_path_buf()), ..global.clone() }, true)?,
        None => find(global, true)?,
    };
    announce(&place);
    mounts::mount(&place.target, &place.txn, &at).map(Reply::Mount)
}

/// An abort is final: on a terminal it is asked for.
fn abort(global: &Global) -> Result<Reply, Failure> {
    let place = find(global, false)?;
    if terminal::can_ask(global) {
        let Reply::Status(status) = ask(&place, Verb::Status { paths: Vec::new() })? else {
            return Err(Failure::new(Code::Internal, "the daemon answered something else")
                .hint("txfs __stop, then run the command again"));
        };
        if !status.changes.is_empty() {
            let counts = words(&status.counts);
            terminal::ask(&format!("drop transaction \"{}\" ({counts})?", place.txn))?;
        }
    }
    ask(&place, Verb::Abort)
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
        say(&format!("{} is a workspace now", place::name(&place.target.workspace)));
    }
}

fn man(verb: Option<&str>) -> Result<Vec<u8>, Failure> {
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
        .map_err(|e| Failure::new(Code::Internal, format!("cannot render the page: {e}")))?;
    Ok(out)
}
