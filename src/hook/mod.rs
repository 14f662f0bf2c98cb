//! `txfs hook`: answers the hooks by which agent hosts ask about a shell command before they run it.
//!
//! A hook must not allow a text and let the host's shell run it: what aliases, functions and `PATH`
//! make of it is not in the text. So an answer allows another command, which performs or runs the
//! text in the transaction (`txfs sh`), or asks, or denies. Whatever fails is answered with a
//! question, or a denial where the host's hooks cannot ask: hosts take a failed hook for consent.

pub mod edit;
pub mod install;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use serde_json::{Map, Value, json};

use crate::classify::{Tier, Verdict, classify, reads};
use crate::run;
use crate::shell::Policy;

/// The longest event that is read, in bytes.
pub const MAX_EVENT: u64 = 16 << 20;

/// A host of agents.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Host {
    /// Claude Code: `PreToolUse` of the tool `Bash`.
    ClaudeCode,
    /// Codex: `PreToolUse` and `PermissionRequest` of the tool `Bash`.
    Codex,
    /// Gemini CLI: `BeforeTool` of the tool `run_shell_command`.
    Gemini,
}

impl Host {
    /// The word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Host::ClaudeCode => "claude-code",
            Host::Codex => "codex",
            Host::Gemini => "gemini",
        }
    }

    /// The tool that runs a shell.
    #[must_use]
    pub fn tool(self) -> &'static str {
        match self {
            Host::ClaudeCode | Host::Codex => "Bash",
            Host::Gemini => "run_shell_command",
        }
    }

    /// The events that are answered.
    #[must_use]
    pub fn events(self) -> &'static [&'static str] {
        match self {
            Host::ClaudeCode => &["PreToolUse"],
            Host::Codex => &["PreToolUse", "PermissionRequest"],
            Host::Gemini => &["BeforeTool"],
        }
    }
}

/// How a hook decides.
#[derive(Clone, Debug)]
pub struct Rules {
    /// How much of the shell's language is performed without a shell.
    pub tier: Tier,
    /// What happens to the rest: asked about, denied, or run in the transaction.
    pub policy: Policy,
    /// Whether the host is known to replace a command where not every release of it does (Codex).
    pub rewrite: bool,
    /// This program's path.
    pub program: String,
}

/// What a hook answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decision {
    /// Nothing: the host goes on as without a hook.
    Nothing,
    /// It may run, as this command if one is given.
    Allow(String, Option<String>),
    /// The user is asked, about this command if one is given.
    Ask(String, Option<String>),
    /// It may not run; the reason says what may.
    Deny(String),
}

/// The answer to an event: what is written to standard output, if anything.
#[must_use]
pub fn answer(host: Host, event: &[u8], rules: &Rules) -> Option<Value> {
    let event: Value = match serde_json::from_slice(event) {
        Ok(event) => event,
        Err(e) => return failed(host, None, &format!("the event does not decode: {e}")),
    };
    let kind = event["hook_event_name"].as_str();
    if kind.is_some_and(|kind| !host.events().contains(&kind))
        || event["tool_name"].as_str().is_some_and(|tool| tool != host.tool())
    {
        return None;
    }
    let (Some(kind), Some(_)) = (kind, event["tool_name"].as_str()) else {
        return failed(host, kind, "the event has no hook_event_name or no tool_name");
    };
    let input = event["tool_input"].as_object();
    let Some((input, command)) = input.and_then(|i| Some((i, i.get("command")?.as_str()?))) else {
        return failed(host, Some(kind), "the event has no tool_input with a command");
    };
    let decision = decide(host, kind, command, rules);
    express(host, kind, input, decision, rules.rewrite)
}

/// The answer where none could be found.
#[must_use]
pub fn failed(host: Host, kind: Option<&str>, what: &str) -> Option<Value> {
    let kind = kind.unwrap_or(host.events()[0]);
    let reason = format!("txfs: {what}");
    let decision = match host {
        Host::ClaudeCode => Decision::Ask(reason, None),
        // One cannot ask, and of the other not every release can.
        Host::Codex | Host::Gemini => Decision::Deny(reason),
    };
    express(host, kind, &Map::new(), decision, false)
}

/// The command that performs or runs a text in the transaction.
fn command(rules: &Rules, policy: Policy, text: &str) -> Option<String> {
    let words = [
        OsString::from(&rules.program),
        "sh".into(),
        "--tier".into(),
        rules.tier.name().into(),
        "--policy".into(),
        policy.name().into(),
        "-c".into(),
        text.into(),
    ];
    // Quotes keep UTF-8 what it is.
    String::from_utf8(run::quoted(&words)).ok()
}

/// Whether a command is one that [`command`] makes, and with which policy.
fn own(rules: &Rules, given: &str) -> Option<Policy> {
    let policies = [Policy::Deny, Policy::Confine, Policy::Run];
    policies.into_iter().find(|&policy| {
        let head = command(rules, policy, "");
        let head = head.as_deref().and_then(|head| head.strip_suffix("''"));
        let text = head.and_then(|head| given.strip_prefix(head)).and_then(unquoted);
        // Only our own way to write it is known to be one word.
        text.is_some_and(|text| command(rules, policy, &text).as_deref() == Some(given))
    })
}

/// A word without its quotes; only what comes out the same when it is quoted again is one.
fn unquoted(word: &str) -> Option<String> {
    match word.strip_prefix('\'').and_then(|w| w.strip_suffix('\'')) {
        Some(inner) => Some(inner.replace("'\\''", "'")),
        None => (!word.is_empty()).then(|| word.to_owned()),
    }
}

fn decide(host: Host, kind: &str, text: &str, rules: &Rules) -> Decision {
    let decided = if text.contains('\0') { None } else { decided(host, kind, text, rules) };
    decided.unwrap_or_else(|| Decision::Deny("txfs: the command cannot be passed on".into()))
}

/// `None` if the command that would be allowed cannot be written.
fn decided(host: Host, kind: &str, text: &str, rules: &Rules) -> Option<Decision> {
    if let Some(policy) = own(rules, text) {
        let reason = "txfs: it runs in the transaction".to_owned();
        // What is refused unless it is witnessed needs no other leave, nor does what the rules allow.
        return Some(if policy == Policy::Deny || policy == rules.policy {
            match (host, kind) {
                // There is nothing to allow yet.
                (Host::Codex, "PreToolUse") => Decision::Nothing,
                _ => Decision::Allow(reason, None),
            }
        } else {
            match (rules.policy, host) {
                (Policy::Ask, Host::Codex) => Decision::Nothing,
                (Policy::Ask, Host::ClaudeCode | Host::Gemini) => Decision::Ask(reason, None),
                (Policy::Deny | Policy::Run | Policy::Confine, _) => {
                    Decision::Deny("txfs: the rules of the hook do not allow this policy".into())
                }
            }
        });
    }
    let why = match classify(text.as_bytes(), rules.tier) {
        // The host keeps the directory that a command leaves it in; ours would not move it.
        Verdict::Witnessed(witness) if witness.cd.is_none() => {
            let command = command(rules, Policy::Deny, text)?;
            let tier = witness.tier.name();
            return Some(Decision::Allow(
                format!("txfs: witnessed ({tier}), performed in the transaction"),
                Some(command),
            ));
        }
        Verdict::Witnessed(_) => "the directory of the host's shell would not change".to_owned(),
        Verdict::Emission(emission) => {
            format!("{} ({})", emission.reason.why(), emission.reason.code())
        }
    };
    let reads = if reads::reads_only(text.as_bytes()) { "; it seems to read only" } else { "" };
    let reason = format!("txfs: not witnessed: {why}{reads}");
    Some(match rules.policy {
        Policy::Deny => Decision::Deny(reason),
        Policy::Ask => Decision::Ask(
            format!("{reason}; if allowed, it runs in the transaction"),
            Some(command(rules, Policy::Run, text)?),
        ),
        Policy::Run | Policy::Confine => Decision::Allow(
            format!("{reason}; it runs in the transaction"),
            Some(command(rules, rules.policy, text)?),
        ),
    })
}

/// The decision in the host's words. What the host has no word for becomes the nearest safe one.
fn express(
    host: Host,
    kind: &str,
    input: &Map<String, Value>,
    decision: Decision,
    rewrites: bool,
) -> Option<Value> {
    match host {
        Host::ClaudeCode => claude_code(kind, input, decision),
        Host::Codex => codex(kind, input, decision, rewrites),
        Host::Gemini => gemini(kind, input, decision),
    }
}

fn claude_code(kind: &str, input: &Map<String, Value>, decision: Decision) -> Option<Value> {
    let (word, reason, command) = match decision {
        Decision::Nothing => return None,
        Decision::Allow(reason, command) => ("allow", reason, command),
        Decision::Ask(reason, command) => ("ask", reason, command),
        Decision::Deny(reason) => ("deny", reason, None),
    };
    let mut output = json!({
        "hookEventName": kind,
        "permissionDecision": word,
        "permissionDecisionReason": reason,
    });
    if let Some(command) = command {
        output["updatedInput"] = with_command(input, command);
    }
    Some(json!({ "hookSpecificOutput": output }))
}

/// The input with another command: hosts put it in the place of the whole input.
fn with_command(input: &Map<String, Value>, command: String) -> Value {
    let mut input = input.clone();
    input.insert("command".into(), command.into());
    input.into()
}

/// Not every release can replace a command, and one that cannot runs the old one: unless it is said
/// that this one can, the reason of a denial names the command that may run. Either is asked about
/// at its `PermissionRequest`.
fn codex(
    kind: &str,
    input: &Map<String, Value>,
    decision: Decision,
    rewrites: bool,
) -> Option<Value> {
    let reason = match decision {
        Decision::Allow(_, Some(command)) | Decision::Ask(_, Some(command))
            if rewrites && kind == "PreToolUse" =>
        {
            let output = json!({
                "hookEventName": kind,
                // The word for a replacement; whether it may run is decided afterwards.
                "permissionDecision": "allow",
                "updatedInput": with_command(input, command),
            });
            return Some(json!({ "hookSpecificOutput": output }));
        }
        Decision::Nothing | Decision::Ask(_, None) => return None,
        Decision::Allow(_, None) if kind == "PermissionRequest" => {
            let output = json!({ "hookEventName": kind, "decision": { "behavior": "allow" } });
            return Some(json!({ "hookSpecificOutput": output }));
        }
        Decision::Allow(_, None) => return None,
        Decision::Allow(reason, Some(command)) | Decision::Ask(reason, Some(command)) => {
            format!("{reason}. Run this instead: {command}")
        }
        Decision::Deny(reason) => reason,
    };
    let output = if kind == "PermissionRequest" {
        json!({ "hookEventName": kind, "decision": { "behavior": "deny", "message": reason } })
    } else {
        json!({
            "hookEventName": kind,
            "permissionDecision": "deny",
            "permissionDecisionReason": reason,
        })
    };
    Some(json!({ "hookSpecificOutput": output }))
}

/// What is allowed here its own rules may still ask about. Older releases have no word for a
/// question: to them it is no decision, and they go by their rules.
fn gemini(kind: &str, input: &Map<String, Value>, decision: Decision) -> Option<Value> {
    let (word, reason, command) = match decision {
        Decision::Nothing => return None,
        Decision::Allow(reason, command) => ("allow", reason, command),
        Decision::Ask(reason, command) => ("ask", reason, command),
        Decision::Deny(reason) => ("deny", reason, None),
    };
    let mut answer = json!({ "decision": word, "reason": reason });
    if word == "ask" {
        // What the user reads.
        answer["systemMessage"] = answer["reason"].clone();
    }
    if let Some(command) = command {
        let input = with_command(input, command);
        answer["hookSpecificOutput"] = json!({ "hookEventName": kind, "tool_input": input });
    }
    Some(answer)
}

/// The program's path in a shell's word.
#[must_use]
pub fn word(program: &OsStr) -> Vec<u8> {
    run::quoted(&[OsStr::from_bytes(program.as_bytes()).to_owned()])
}
