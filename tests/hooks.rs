//! The hooks by the hosts' own events, and our hook in their settings.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

const TXFS: &str = env!("CARGO_BIN_EXE_txfs");

fn txfs(dir: &Path, args: &[&str], input: &[u8]) -> Output {
    let mut command = Command::new(TXFS);
    command.args(args).current_dir(dir).env("HOME", dir.join("home"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

/// The answer to an event, or `null` for none.
fn ask(args: &[&str], event: &[u8]) -> Value {
    let output = txfs(Path::new("/"), &[&["hook"], args].concat(), event);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    match &output.stdout[..] {
        b"" => Value::Null,
        some => serde_json::from_slice(some).unwrap(),
    }
}

fn fixture(name: &str) -> Vec<u8> {
    let path = format!("{}/tests/fixtures/hooks/{name}.json", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(path).unwrap()
}

/// An event with another command.
fn with_command(name: &str, command: &str) -> Vec<u8> {
    let mut event: Value = serde_json::from_slice(&fixture(name)).unwrap();
    event["tool_input"]["command"] = command.into();
    event.to_string().into_bytes()
}

fn sh(policy: &str, text: &str) -> String {
    format!("{TXFS} sh --tier bare --policy {policy} -c {text}")
}

#[test]
fn claude_code_gets_another_command_with_the_rest_of_the_input() {
    let said = ask(&["claude-code"], &fixture("claude-code-move"));
    let output = &said["hookSpecificOutput"];
    assert_eq!(output["hookEventName"], "PreToolUse");
    assert_eq!(output["permissionDecision"], "allow");
    let input = json!({
        "command": sh("deny", "'mv a b'"), "description": "Do it", "timeout": 120_000, "run_in_background": false,
    });
    assert_eq!(output["updatedInput"], input);

    let said = ask(&["claude-code"], &fixture("claude-code-list"));
    let output = &said["hookSpecificOutput"];
    assert_eq!(output["permissionDecision"], "ask");
    assert!(output["permissionDecisionReason"].as_str().unwrap().contains("seems to read only"));
    assert_eq!(output["updatedInput"]["command"], sh("run", "'ls -la | head'"));

    let said = ask(&["claude-code", "--policy", "run"], &fixture("claude-code-quotes"));
    let output = &said["hookSpecificOutput"];
    assert_eq!(output["permissionDecision"], "allow");
    let quoted = r#"'echo '\''it'\'''\''s'\'' "$HOME"; rm -rf x'"#;
    assert_eq!(output["updatedInput"]["command"], sh("run", quoted));

    let said = ask(&["claude-code", "--policy", "deny"], &fixture("claude-code-list"));
    assert_eq!(said["hookSpecificOutput"]["permissionDecision"], "deny");
    assert_eq!(said["hookSpecificOutput"]["updatedInput"], Value::Null);
}

#[test]
fn other_tools_and_events_are_not_ours() {
    for name in ["claude-code-write", "claude-code-post"] {
        assert_eq!(ask(&["claude-code"], &fixture(name)), Value::Null, "{name}");
    }
}

#[test]
fn our_own_commands_are_not_wrapped_again() {
    let decision = |policy: &str, command: &str| {
        let event = with_command("claude-code-move", command);
        let said = ask(&["claude-code", "--policy", policy], &event);
        assert_eq!(said["hookSpecificOutput"]["updatedInput"], Value::Null, "{command}");
        said["hookSpecificOutput"]["permissionDecision"].as_str().unwrap().to_owned()
    };
    assert_eq!(decision("ask", &sh("deny", "'mv a b'")), "allow");
    assert_eq!(decision("ask", &sh("run", "'ls; ls'")), "ask");
    assert_eq!(decision("run", &sh("run", "'ls; ls'")), "allow");
    assert_eq!(decision("deny", &sh("run", "'ls; ls'")), "deny");
    assert_eq!(decision("confine", &sh("run", "'ls; ls'")), "deny");
    // What only looks like one is a text like others.
    for more in ["'mv a b'; ls", "'mv a b' '$(ls)'", "\"mv a b\"", "'mv a b''$(ls)'", "mv\nls"] {
        let command = sh("deny", more);
        let said = ask(&["claude-code"], &with_command("claude-code-move", &command));
        assert_eq!(said["hookSpecificOutput"]["permissionDecision"], "ask", "{command}");
        assert_ne!(said["hookSpecificOutput"]["updatedInput"], Value::Null, "{command}");
    }
}

#[test]
fn a_change_of_directory_is_left_to_the_user() {
    let event = with_command("claude-code-move", "cd d && mv a b");
    let said = ask(&["claude-code", "--tier", "exact"], &event);
    assert_eq!(said["hookSpecificOutput"]["permissionDecision"], "ask");
}

#[test]
fn codex_is_told_what_to_run_instead() {
    for (name, policy, text) in [("codex-move", "deny", "'mv a b'"), ("codex-list", "run", "ls")] {
        let said = ask(&["codex"], &fixture(name));
        let output = &said["hookSpecificOutput"];
        assert_eq!(output["permissionDecision"], "deny");
        let reason = output["permissionDecisionReason"].as_str().unwrap();
        assert!(reason.ends_with(&format!("Run this instead: {}", sh(policy, text))), "{reason}");
    }
    let own = sh("deny", "'mv a b'");
    assert_eq!(ask(&["codex"], &with_command("codex-move", &own)), Value::Null);
    let said = ask(&["codex"], &with_command("codex-permission", &own));
    let expected =
        json!({ "hookEventName": "PermissionRequest", "decision": { "behavior": "allow" } });
    assert_eq!(said["hookSpecificOutput"], expected);
    // The user is asked by the host.
    assert_eq!(ask(&["codex"], &with_command("codex-permission", &sh("run", "ls"))), Value::Null);
    let said = ask(&["codex"], &fixture("codex-permission"));
    assert_eq!(said["hookSpecificOutput"]["decision"]["behavior"], "deny");
}

#[test]
fn codex_replaces_the_command_where_it_is_said_that_it_can() {
    for (name, policy, text) in [("codex-move", "deny", "'mv a b'"), ("codex-list", "run", "ls")] {
        let event: Value = serde_json::from_slice(&fixture(name)).unwrap();
        let output = &ask(&["codex", "--rewrite"], &fixture(name))["hookSpecificOutput"];
        // Codex rejects other words beside a replacement, and a replacement without this one.
        assert_eq!(output["permissionDecision"], "allow");
        assert_eq!(output["permissionDecisionReason"], Value::Null);
        let mut input = event["tool_input"].clone();
        input["command"] = sh(policy, text).into();
        assert_eq!(output["updatedInput"], input);
    }
    let said = ask(&["codex", "--rewrite", "--policy", "deny"], &fixture("codex-list"));
    assert_eq!(said["hookSpecificOutput"]["permissionDecision"], "deny");
    let said = ask(&["codex", "--rewrite"], &fixture("codex-permission"));
    assert_eq!(said["hookSpecificOutput"]["decision"]["behavior"], "deny");
    let dir = tempfile::tempdir().unwrap();
    let said = txfs(dir.path(), &["hook", "install", "gemini", "--rewrite"], b"");
    assert_eq!(said.status.code(), Some(2));
}

/// A replacement takes the place of the whole input: of the directory to run in, too.
#[test]
fn gemini_gets_another_command_with_the_rest_of_the_input() {
    let mut event: Value = serde_json::from_slice(&fixture("gemini-move")).unwrap();
    event["tool_input"]["dir_path"] = "sub".into();
    let said = ask(&["gemini"], event.to_string().as_bytes());
    assert_eq!(said["decision"], "allow");
    let mut input = event["tool_input"].clone();
    input["command"] = sh("deny", "'mv a b'").into();
    assert_eq!(said["hookSpecificOutput"]["tool_input"], input);
    let said = ask(&["gemini"], &fixture("gemini-list"));
    assert_eq!(said["decision"], "ask", "its own rules may allow what runs unasked");
    assert!(said["systemMessage"].as_str().unwrap().contains("not witnessed"));
    assert_eq!(said["hookSpecificOutput"]["tool_input"]["command"], sh("run", "ls"));
    let said = ask(&["gemini", "--policy", "deny"], &fixture("gemini-list"));
    assert_eq!(said["decision"], "deny");
}

#[test]
fn what_does_not_decode_is_no_consent() {
    let no_command = br#"{"hook_event_name":"PreToolUse","tool_name":"Bash","tool_input":{}}"#;
    for event in
        [&b""[..], b"nonsense", b"[]", b"{}", b"\xff", no_command, b"{\"tool_name\":\"Bash\"}"]
    {
        let said = ask(&["claude-code"], event);
        assert_eq!(said["hookSpecificOutput"]["permissionDecision"], "ask");
        let said = ask(&["codex"], event);
        assert_eq!(said["hookSpecificOutput"]["permissionDecision"], "deny");
    }
    assert_eq!(ask(&["gemini"], b"nonsense")["decision"], "deny");
    let nul = with_command("claude-code-move", "mv a b\0");
    assert_eq!(ask(&["claude-code"], &nul)["hookSpecificOutput"]["permissionDecision"], "deny");
    for closed in [">&-", "> /dev/full", "> /dev/null"] {
        let line = format!("{TXFS} hook claude-code {closed}");
        let mut command = Command::new("sh");
        command.args(["-c", &line]).stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(&fixture("claude-code-move")).unwrap();
        let said = child.wait_with_output().unwrap();
        assert_eq!(said.status.code(), Some(2), "{closed}");
        assert!(!said.stderr.is_empty(), "two hosts take a silent failure for consent");
    }
    // A call that is wrong itself is what every host takes for a block.
    assert_eq!(
        txfs(Path::new("/"), &["hook", "claude-code", "--what"], b"").status.code(),
        Some(2)
    );
}

const SETTINGS: &str = r#"{
  "model": "x",
  "hooks": {
    "PreToolUse": [
      {
        "matcher": "Write",
        "hooks": [{"type": "command", "command": "lint"}]
      }
    ],
    "Stop": []
  },
  "a":   [1,2]
}
"#;

#[test]
fn install_adds_one_hook_and_uninstall_takes_it_back() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path();
    let file = dir.join(".claude/settings.json");
    std::fs::create_dir(dir.join(".claude")).unwrap();
    std::fs::write(&file, SETTINGS).unwrap();
    let run = |args: &[&str]| {
        let output = txfs(dir, &[&["hook"], args].concat(), b"");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let patch = run(&["install", "claude-code"]);
    assert!(patch.contains("\n+        \"matcher\": \"Bash\"\n"), "{patch}");
    let installed = std::fs::read_to_string(&file).unwrap();
    let value: Value = serde_json::from_str(&installed).unwrap();
    let groups = value["hooks"]["PreToolUse"].as_array().unwrap();
    assert_eq!((groups.len(), &groups[0]["matcher"]), (2, &json!("Write")));
    let command = format!("{TXFS} hook claude-code --tier bare --policy ask");
    let command = format!("{command} || {{ echo 'txfs: the hook failed' >&2; exit 2; }}");
    assert_eq!(groups[1]["hooks"][0]["command"], command);
    assert!(
        installed.contains("\"a\":   [1,2]") || installed.contains("\"a\": [1,2]"),
        "{installed}"
    );
    assert!(installed.find("\"model\"") < installed.find("\"hooks\""), "{installed}");
    assert_eq!(
        std::fs::read_to_string(dir.join(".claude/settings.json.txfs-backup")).unwrap(),
        SETTINGS
    );

    assert_eq!(run(&["install", "claude-code", "--project"]), "", "once is enough");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), installed);
    run(&["install", "claude-code", "--policy", "run"]);
    let value: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(value["hooks"]["PreToolUse"].as_array().unwrap().len(), 2, "it is replaced");
    run(&["uninstall", "claude-code"]);
    let value: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(value, serde_json::from_str::<Value>(SETTINGS).unwrap());
    assert_eq!(run(&["uninstall", "claude-code"]), "");
}

#[test]
fn each_host_has_its_own_settings() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path();
    for (host, file, events) in [
        ("claude-code", ".claude/settings.json", &["PreToolUse"][..]),
        ("codex", ".codex/hooks.json", &["PreToolUse", "PermissionRequest"]),
        ("gemini", ".gemini/settings.json", &["BeforeTool"]),
    ] {
        for (scope, file) in
            [("--project", dir.join(file)), ("--user", dir.join("home").join(file))]
        {
            let output = txfs(dir, &["hook", "install", host, scope], b"");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let value: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
            for event in events {
                assert_eq!(value["hooks"][event].as_array().unwrap().len(), 1, "{host}");
            }
            txfs(dir, &["hook", "uninstall", host, scope], b"");
            assert_eq!(std::fs::read_to_string(&file).unwrap(), "{}\n");
        }
    }
}

#[test]
fn settings_that_are_not_understood_stay_as_they_are() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join(".claude/settings.json");
    std::fs::create_dir(temp.path().join(".claude")).unwrap();
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(200), "]".repeat(200));
    for text in [
        "{ // comment\n}",
        "[]",
        "{\"hooks\":[]}",
        "{\"hooks\":{\"PreToolUse\":{}}}",
        "{\"a\":1e400}",
        "{\"hooks\":{},\"hooks\":{\"Stop\":[]}}",
        "{\"hooks\":{\"PreToolUse\":[],\"PreToolUse\":[]}}",
        &deep,
    ] {
        std::fs::write(&file, text).unwrap();
        let output = txfs(temp.path(), &["hook", "install", "claude-code"], b"");
        assert_eq!(output.status.code(), Some(12), "{text}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    }
}

#[test]
fn a_link_that_leads_nowhere_is_not_replaced() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join(".claude/settings.json");
    std::fs::create_dir(temp.path().join(".claude")).unwrap();
    std::os::unix::fs::symlink("../gone/settings.json", &file).unwrap();
    let output = txfs(temp.path(), &["hook", "install", "claude-code"], b"");
    assert_eq!(output.status.code(), Some(12));
    assert_eq!(std::fs::read_link(&file).unwrap(), Path::new("../gone/settings.json"));
}
