//! The verb `sh` behind its words.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use clap::ValueEnum;

use super::args::Global;
use super::place::Place;
use super::{find, print, print_json, terminal};
use crate::classify::Tier;
use crate::proto::{Code, Failure};
use crate::report::quote;
use crate::shell::{self, Call, Policy, words};

/// The words of the verb.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// How much is performed without a shell [default: $TXFS_SH_TIER, else bare]
    #[arg(long, value_enum)]
    tier: Option<Tier>,
    /// What to do with the rest [default: $TXFS_SH_POLICY, else ask on a terminal, else deny]
    #[arg(long, value_enum)]
    policy: Option<Policy>,
    /// The shell that runs the rest [default: /bin/bash, else /bin/sh]
    #[arg(long, value_name = "PROGRAM")]
    shell: Option<OsString>,
    /// `-c TEXT`, `-lc TEXT`, or whatever else a shell is called with
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// The words of this process; called by a shell's name, it is the verb `sh`.
pub(super) fn command_line() -> Vec<OsString> {
    let mut given: Vec<_> = std::env::args_os().collect();
    if given.first().is_some_and(|program| words::is_shell(program)) {
        given.splice(..1, ["txfs", "sh", "--"].map(OsString::from));
    }
    given
}

/// A value from the environment, where none was given.
fn from_env<T: ValueEnum>(name: &str, given: Option<T>) -> Result<Option<T>, Failure> {
    let value = std::env::var_os(name).filter(|v| !v.is_empty());
    let (None, Some(value)) = (&given, value) else { return Ok(given) };
    let known = value.to_str().and_then(|v| T::from_str(v, false).ok());
    known.map(Some).ok_or_else(|| {
        let value = quote::shown(value.as_bytes());
        Failure::new(Code::Usage, format!("{name} is {value}, which is not known"))
            .hint(format!("unset {name}, or see txfs sh --help"))
    })
}

/// Runs the verb.
///
/// # Errors
/// What kept the text from being performed or run.
pub(super) fn perform(global: &Global, args: &Args) -> Result<ExitCode, Failure> {
    let tier = from_env("TXFS_SH_TIER", args.tier)?.unwrap_or_default();
    let can_ask = terminal::can_ask(global);
    let policy = match from_env("TXFS_SH_POLICY", args.policy)? {
        Some(Policy::Ask) if global.yes => Policy::Run,
        Some(Policy::Ask) | None if !can_ask => Policy::Deny,
        Some(policy) => policy,
        None => Policy::Ask,
    };
    let place = find(global, true)?;
    super::announce(&place);
    let mounted = place.mounted();
    let Place { target, txn, .. } = place;
    let call = Call {
        target,
        txn,
        mounted,
        tier,
        policy,
        shell: args.shell.clone().unwrap_or_else(shell::usual),
        words: &args.words,
        ask: &|question| terminal::ask(question),
    };
    let done = call.execute()?;
    if global.json {
        let fields = print::fields(&done).map_err(|e| {
            Failure::new(Code::Internal, format!("cannot say what came of it: {e}"))
        })?;
        print_json(match &done.refused {
            Some(failure) => print::json_failure("sh", failure, done.exit, fields),
            None => print::object("sh", true, fields),
        });
    }
    if let Some(failure) = &done.refused {
        super::print_failure(failure);
    }
    Ok(ExitCode::from(done.exit))
}
