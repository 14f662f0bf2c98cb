//! The verb `hook` behind its words.

use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;

use super::args::Global;
use super::{finish, say, terminal};
use crate::classify::Tier;
use crate::hook::{self, Host, Rules, install};
use crate::proto::{Code, Failure};
use crate::report::quote;
use crate::shell::Policy;

/// The words of the verb.
#[derive(Debug, Subcommand)]
pub(super) enum Hook {
    /// Answer an event of Claude Code on standard input
    ClaudeCode(Options),
    /// Answer an event of Codex
    Codex {
        #[command(flatten)]
        options: Options,
        #[command(flatten)]
        rewrite: Rewrite,
    },
    /// Answer an event of Gemini CLI
    Gemini(Options),
    /// Put the hook into a host's settings
    Install {
        /// Which host
        host: Host,
        #[command(flatten)]
        scope: Scope,
        #[command(flatten)]
        options: Options,
        #[command(flatten)]
        rewrite: Rewrite,
    },
    /// Take it out again
    Uninstall {
        /// Which host
        host: Host,
        #[command(flatten)]
        scope: Scope,
    },
}

#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// How much is performed without a shell, and so without a question
    #[arg(long, value_enum, default_value_t)]
    tier: Tier,
    /// What to do with the rest: ask, deny, or allow it to run in the transaction
    #[arg(long, value_enum, default_value = "ask")]
    policy: Policy,
}

#[derive(Debug, Default, clap::Args)]
pub(super) struct Rewrite {
    /// Codex: replace the command instead of naming the one to run (releases that cannot do so run the old one)
    #[arg(long)]
    rewrite: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Scope {
    /// The settings of the current directory's project (the default)
    #[arg(long, conflicts_with = "user")]
    project: bool,
    /// The settings of the user
    #[arg(long)]
    user: bool,
}

/// Runs the verb.
///
/// # Errors
/// Only of `install` and `uninstall`: a hook answers with what failed.
pub(super) fn perform(global: &Global, hook: &Hook) -> Result<ExitCode, Failure> {
    match hook {
        Hook::ClaudeCode(options) => Ok(answer(Host::ClaudeCode, options, false)),
        Hook::Codex { options, rewrite } => Ok(answer(Host::Codex, options, rewrite.rewrite)),
        Hook::Gemini(options) => Ok(answer(Host::Gemini, options, false)),
        Hook::Install { host, scope, options, rewrite } => {
            let command = command(*host, options, rewrite.rewrite)?;
            change(global, *host, scope, Some(&command))
        }
        Hook::Uninstall { host, scope } => change(global, *host, scope, None),
    }
}

/// The code by which every host understands that a command is blocked.
const BLOCKED: u8 = 2;

fn answer(host: Host, options: &Options, rewrite: bool) -> ExitCode {
    let mut event = Vec::new();
    let read = io::stdin().lock().take(hook::MAX_EVENT + 1).read_to_end(&mut event);
    let program = std::env::current_exe().map(|path| path.into_os_string().into_string());
    let answer = match (read, program) {
        (Ok(n), Ok(Ok(program))) if n as u64 <= hook::MAX_EVENT => {
            let rules = Rules { tier: options.tier, policy: options.policy, rewrite, program };
            hook::answer(host, &event, &rules)
        }
        (Ok(_), Ok(Ok(_))) => hook::failed(host, None, "the event is too long"),
        (Ok(_), Ok(Err(_))) => hook::failed(host, None, "this program's path is no UTF-8"),
        (Err(e), _) | (_, Err(e)) => hook::failed(host, None, &e.to_string()),
    };
    let Some(answer) = answer else { return ExitCode::SUCCESS };
    if goes_nowhere() {
        say("the answer would go to /dev/null: the hook needs its standard output");
        return ExitCode::from(BLOCKED);
    }
    match writeln!(io::stdout(), "{answer}").and_then(|()| io::stdout().flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            say(&format!("cannot write the answer: {e}"));
            ExitCode::from(BLOCKED)
        }
    }
}

/// Whether nobody can read standard output. A descriptor that is closed when a program starts is
/// opened on /dev/null by Rust's runtime, so that writing to it does not fail.
fn goes_nowhere() -> bool {
    let (stdout, null) = (rustix::fs::fstat(io::stdout()), rustix::fs::stat("/dev/null"));
    stdout.is_ok_and(|out| {
        let device = rustix::fs::FileType::from_raw_mode(out.st_mode).is_char_device();
        device && null.is_ok_and(|null| null.st_rdev == out.st_rdev)
    })
}

/// What the host calls. A program that is gone or dies must not count as consent.
///
/// Two hosts take code 2 for a block only if something is said on standard error with it.
fn command(host: Host, options: &Options, rewrite: bool) -> Result<String, Failure> {
    let program = std::env::current_exe().map_err(|e| {
        Failure::new(Code::Io, format!("cannot find this program: {e}"))
            .hint("check that /proc is mounted")
    })?;
    let word = String::from_utf8(hook::word(program.as_os_str())).map_err(|_| {
        let name = quote::shown(program.as_os_str().as_bytes());
        Failure::new(Code::Usage, format!("settings cannot hold the path {name}"))
            .hint("move txfs to a path that is UTF-8")
    })?;
    let (name, tier, policy) = (host.name(), options.tier.name(), options.policy.name());
    if rewrite && host != Host::Codex {
        let what = format!("{name} always replaces the command: --rewrite is for codex");
        return Err(Failure::new(Code::Usage, what).hint("leave --rewrite out"));
    }
    let rewrite = if rewrite { " --rewrite" } else { "" };
    let call = format!("{word} hook {name} --tier {tier} --policy {policy}{rewrite}");
    Ok(format!("{call} || {{ echo 'txfs: the hook failed' >&2; exit 2; }}"))
}

/// What the host wants before it heeds the hook.
fn next_step(host: Host) -> Option<&'static str> {
    match host {
        Host::ClaudeCode => None,
        Host::Codex => Some(
            "Codex runs the hook only after a review (/hooks in its prompt), and a project's only in a trusted project",
        ),
        Host::Gemini => Some(
            "Gemini CLI goes by its own rules for what the hook allows; docs/hooks.md has the rule to add",
        ),
    }
}

fn change(
    global: &Global,
    host: Host,
    scope: &Scope,
    command: Option<&str>,
) -> Result<ExitCode, Failure> {
    let below = match (scope.user, &global.directory) {
        (true, _) => std::env::var_os("HOME")
            .filter(|h| !h.is_empty())
            .map(PathBuf::from)
            .ok_or_else(|| {
                Failure::new(Code::NotFound, "HOME is not set").hint("set HOME, or say --project")
            })?,
        (false, Some(dir)) => dir.clone(),
        (false, None) => PathBuf::from("."),
    };
    let path = install::settings(host, &below);
    let name = quote::shown(path.as_os_str().as_bytes());
    let Some(change) = install::plan(host, &path, command)? else {
        say(&format!("{name} needs no change"));
        return Ok(ExitCode::SUCCESS);
    };
    let stdout = io::stdout();
    let mut shown = Vec::new();
    let patch = change.show(&mut shown).and_then(|()| {
        if stdout.is_terminal() {
            let colours = terminal::has_colours(&stdout);
            let mut out = terminal::Patch::new(stdout.lock(), colours);
            out.write_all(&shown).and_then(|()| out.flush())
        } else {
            stdout.lock().write_all(&shown)
        }
    });
    let code = finish(patch);
    if terminal::can_ask(global) {
        terminal::ask(&format!("change {name}?"))?;
    }
    match change.make()? {
        Some(backup) => {
            let backup = quote::shown(backup.as_os_str().as_bytes());
            say(&format!("changed {name}; what it was is in {backup}"));
        }
        None => say(&format!("made {name}")),
    }
    if let Some(next) = command.and_then(|_| next_step(host)) {
        say(next);
    }
    Ok(code)
}
