//! `txfs sh`: a shell that performs what it can prove, and asks before it runs the rest.
//!
//! A witnessed text is lowered: performed in the view by system calls, without a shell. Anything
//! else, and what does not fit the lowering at the moment, goes to the [`Policy`]. The transaction's
//! journal has a step for each text with what is about to be done and why.

pub mod words;

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use serde::Serialize;

use crate::classify::{Tier, Verdict, Witness, classify, reads, render_from, rewrite};
use crate::daemon::client::{self, Target};
use crate::lower::{self, Facts, Lowered};
use crate::proto::{Code, Failure, PathBytes, Verb};
use crate::report::quote;
use crate::run;
use words::Asked;

/// What happens to a text that is not witnessed, or that does not fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// Ask on the terminal; without one it is refused.
    Ask,
    /// Refuse it.
    Deny,
    /// Run it in the view, with nothing else to write to.
    Confine,
    /// Run it in the view.
    Run,
}

impl Policy {
    /// The word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Policy::Ask => "ask",
            Policy::Deny => "deny",
            Policy::Confine => "confine",
            Policy::Run => "run",
        }
    }
}

/// A call of the shell.
pub struct Call<'a> {
    /// The workspace.
    pub target: Target,
    /// The transaction.
    pub txn: String,
    /// Where the view that we are in is mounted, if it is not over the workspace itself.
    pub mounted: Option<PathBuf>,
    /// How much of the language is witnessed.
    pub tier: Tier,
    /// For the rest.
    pub policy: Policy,
    /// The shell that runs the rest.
    pub shell: OsString,
    /// The words behind the shell's name.
    pub words: &'a [OsString],
    /// Asks a question on the terminal; fails unless the answer is yes.
    pub ask: &'a dyn Fn(&str) -> Result<(), Failure>,
}

/// What was done: the fields of `--json`.
#[derive(Debug, Serialize)]
pub struct Done {
    /// The exit code.
    pub exit: u8,
    /// The transaction.
    pub txn: String,
    /// Whether it was performed without a shell.
    pub lowered: bool,
    /// Why it was not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
    /// That it was refused, and why.
    #[serde(skip)]
    pub refused: Option<Failure>,
}

/// How the directory of a `cd` is held.
const IN_DIR: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Why a text, or what is left of it, is not lowered.
#[derive(Clone, Copy)]
struct Why {
    code: &'static str,
    words: &'static str,
}

const OPTIONS: Why =
    Why { code: "shell-options", words: "the shell's options change how the text runs" };
const NO_TEXT: Why = Why { code: "no-text", words: "it is not of the form -c TEXT" };

/// The environment of what runs, beside the descriptors that keep the view.
struct View {
    target: Target,
    root: PathBuf,
    env: Vec<(&'static str, OsString)>,
    _inside: Option<run::Inside>,
}

impl Call<'_> {
    /// Performs or runs the text, as the policy says.
    ///
    /// # Errors
    /// txfs's own. A text that is refused is none: see [`Done::refused`].
    pub fn execute(&self) -> Result<Done, Failure> {
        // What is asked about and written down is what would run: with options that a shell reads in
        // its own way, only all the words say that.
        let whole = run::quoted(self.words);
        let (shown, why) = match words::read(self.words) {
            Asked::Other => (&whole[..], NO_TEXT),
            Asked::Options => (&whole[..], OPTIONS),
            Asked::Text(text) => match classify(text.as_bytes(), self.tier) {
                Verdict::Witnessed(witness) => {
                    let text = text.as_bytes();
                    let view =
                        self.enter(&format!("sh lowers ({}): ", witness.tier.name()), text)?;
                    return self.lower(&view, text, &witness);
                }
                Verdict::Emission(emission) => {
                    let why = Why { code: emission.reason.code(), words: emission.reason.why() };
                    (text.as_bytes(), why)
                }
            },
        };
        self.decide(None, why, shown, self.words)
    }

    /// Performs a witnessed text in the view.
    fn lower(&self, view: &View, text: &[u8], witness: &Witness<'_>) -> Result<Done, Failure> {
        let device = std::fs::metadata(&view.root).map_err(|e| cannot_look(&view.root, &e))?.dev();
        let cdpath = std::env::var_os("CDPATH").is_some_and(|p| !p.is_empty());
        let asks = rustix::termios::isatty(rustix::stdio::stdin());
        let facts = Facts { dir: CWD, within: Some(device), asks, utf8: is_utf8(), cdpath };
        // A command may move the directory that it is in: what comes after it is still done there.
        let inside = witness.cd.map(|dir| rustix::fs::open(dir, IN_DIR, Mode::empty()));
        let lowered =
            without_capabilities(|| lower::perform(witness, &facts, &mut io::stderr().lock()))?;
        match lowered {
            Lowered::Done(exit) => {
                Ok(Done { exit, txn: self.txn.clone(), lowered: true, reason: None, refused: None })
            }
            Lowered::Back { first, split } => {
                let why = Why { code: split.code(), words: split.why() };
                if first == 0 {
                    return self.decide(Some(view), why, text, self.words);
                }
                if let Some(dir) = inside {
                    dir.and_then(rustix::process::fchdir).map_err(|e| {
                        Failure::new(Code::Io, format!("cannot go on in the directory of cd: {e}"))
                            .hint("txfs diff shows what was done before")
                    })?;
                }
                let rest = render_from(witness, first);
                let words = [OsString::from("-c"), OsStr::from_bytes(&rest).to_owned()];
                self.decide(Some(view), why, &rest, &words)
            }
        }
    }

    /// Runs or refuses what is not lowered. What was done before it stays done.
    fn decide(
        &self,
        view: Option<&View>,
        why: Why,
        text: &[u8],
        words: &[OsString],
    ) -> Result<Done, Failure> {
        let say = |what: &str| format!("sh {what} ({}): ", why.code);
        let refuse = |failure: Failure| {
            self.step(view, &say("refused"), text)?;
            let (txn, reason) = (self.txn.clone(), Some(why.code));
            let exit = failure.code.exit();
            Ok(Done { exit, txn, lowered: false, reason, refused: Some(failure) })
        };
        let granted = match self.policy {
            Policy::Run => "run (policy run)",
            Policy::Deny => return refuse(refusal(why, text, view.is_none())),
            Policy::Confine => {
                let what = "the policy is confine, and this txfs cannot confine a command";
                return refuse(
                    Failure::new(Code::Unavailable, what)
                        .hint("txfs sh --policy run runs it in the view without a confinement"),
                );
            }
            Policy::Ask => {
                let shown = quote::shown(text);
                let reads = if reads::reads_only(text) { " (it seems to read only)" } else { "" };
                let question = format!("{}: run {shown}{reads} in the view?", why.words);
                match (self.ask)(&question) {
                    Ok(()) => "run (asked)",
                    Err(_) => return refuse(refusal(why, text, view.is_none())),
                }
            }
        };
        let entered;
        let view = match view {
            Some(view) => {
                self.step(Some(view), &say(granted), text)?;
                view
            }
            None => {
                entered = self.enter(&say(granted), text)?;
                &entered
            }
        };
        let mut command = vec![self.shell.clone()];
        command.extend(words.iter().cloned());
        let exit = run::child(&command, &view.env)?;
        Ok(Done {
            exit,
            txn: self.txn.clone(),
            lowered: false,
            reason: Some(why.code),
            refused: None,
        })
    }

    /// Writes a step to the journal.
    fn step(&self, view: Option<&View>, what: &str, text: &[u8]) -> Result<(), Failure> {
        let what = PathBytes([what.as_bytes(), text].concat());
        let target = view.map_or(&self.target, |view| &view.target);
        let mut wire = client::connect(target)?;
        client::ask(&mut wire, &self.txn, Verb::Step { what }, None, |_| Ok(())).map(drop)
    }

    /// Into the view, with a step for what is about to be done.
    fn enter(&self, what: &str, text: &[u8]) -> Result<View, Failure> {
        if let Some(root) = &self.mounted {
            self.step(None, what, text)?;
            let target = self.target.clone();
            let env = run::environment(&target, &self.txn);
            return Ok(View { target, root: root.clone(), env, _inside: None });
        }
        let step = [what.as_bytes(), text].concat();
        let inside = run::enter_view(&self.target, &self.txn, step)?;
        let target = inside.target.clone();
        let env = run::environment(&target, &self.txn);
        Ok(View { root: target.workspace.clone(), target, env, _inside: Some(inside) })
    }
}

fn cannot_look(path: &Path, e: &io::Error) -> Failure {
    let name = quote::shown(path.as_os_str().as_bytes());
    Failure::new(Code::Io, format!("cannot look at the view at {name}: {e}")).hint("txfs status")
}

/// That a text is not run. What does not fit the moment does not fit it in other words either.
fn refusal(why: Why, text: &[u8], in_other_words: bool) -> Failure {
    let failure = Failure::new(Code::Refused, format!("not run ({}): {}", why.code, why.words));
    match rewrite(text).filter(|_| in_other_words) {
        Some(better) => failure.hint(format!(
            "this is performed without asking: txfs sh --tier exact -c {}",
            quote::terminal(&run::quoted(&[OsString::from(OsStr::from_bytes(&better))]))
        )),
        None => {
            failure.hint("txfs sh --policy run runs it in the view; txfs diff shows what it did")
        }
    }
}

/// Performs something with the permissions of the user alone. Who has made a namespace to place the
/// view in has every capability in it, which the tools, being programs of their own, would not have.
fn without_capabilities<T>(perform: impl FnOnce() -> T) -> Result<T, Failure> {
    if rustix::process::geteuid().is_root() {
        return Ok(perform());
    }
    let cannot = |e: rustix::io::Errno| {
        Failure::new(Code::Internal, format!("cannot set aside capabilities: {e}"))
            .hint("txfs run -- sh -c TEXT")
    };
    let had = capabilities(None).map_err(cannot)?;
    let none = CapabilitySets { effective: CapabilitySet::empty(), ..had };
    set_capabilities(None, none).map_err(cannot)?;
    let done = perform();
    set_capabilities(None, had).map_err(cannot)?;
    Ok(done)
}

/// Whether the locale that messages are written in has UTF-8, by the variable that decides.
fn is_utf8() -> bool {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty());
    let locale = set("LC_ALL").or_else(|| set("LC_CTYPE")).or_else(|| set("LANG"));
    locale.is_some_and(|l| {
        let lower = l.as_bytes().to_ascii_lowercase();
        lower.ends_with(b"utf-8") || lower.ends_with(b"utf8")
    })
}

/// The shell that runs what is not lowered: bash, else sh.
#[must_use]
pub fn usual() -> OsString {
    let bash = "/bin/bash";
    OsString::from(if Path::new(bash).exists() { bash } else { "/bin/sh" })
}

/// A link by which this program is called as a shell, in the workspace's runtime directory.
///
/// # Errors
/// If it cannot be made.
pub fn wrapper(target: &Target) -> Result<PathBuf, Failure> {
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
    let dir = crate::daemon::place::own_socket(&target.workspace)?.with_extension("shell");
    let link = dir.join("bash");
    let make = || {
        let program = std::env::current_exe()?;
        match std::fs::DirBuilder::new().mode(0o755).create(&dir) {
            // Whatever the umask.
            Ok(()) => std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755))?,
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
        if std::fs::read_link(&link).is_ok_and(|led| led == program) {
            return Ok(());
        }
        // Another run may be using the old one.
        let new = dir.join(format!("bash.{}", std::process::id()));
        std::os::unix::fs::symlink(&program, &new)?;
        std::fs::rename(&new, &link)
    };
    make().map_err(|e| {
        let name = quote::shown(link.as_os_str().as_bytes());
        Failure::new(Code::Io, format!("cannot make the shell {name}: {e}"))
            .hint("set XDG_RUNTIME_DIR to a directory of yours with mode 0700")
    })?;
    Ok(link)
}
