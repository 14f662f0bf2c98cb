//! `txfs sh`: what is witnessed is performed in the view without a shell, the rest is decided.

use crate::harness::{Said, Work};

/// The steps of the transaction, by their words.
fn steps(work: &Work) -> Vec<String> {
    let said = work.txfs(["--json", "log"]).ok().json();
    let lines = said["records"].as_array().unwrap();
    let steps = lines.iter().filter(|line| line["effect"] == "step");
    steps.map(|line| line["path"].as_str().unwrap_or_default().to_owned()).collect()
}

fn in_view(work: &Work, script: &str) -> String {
    work.run(script).ok().out
}

#[test]
fn a_witnessed_text_is_performed_in_the_view_and_not_in_the_base() {
    let work = Work::new();
    work.sh("echo a > a; mkdir d; echo k > keep");
    let before = work.manifest();
    work.txfs(["begin"]).ok();
    // No program can be found, so none is.
    let said = Said::of(
        work.command(work.bin())
            .args(["sh", "-c", "mv a d"])
            .env("PATH", "/nowhere")
            .output()
            .unwrap(),
    )
    .ok();
    assert_eq!((&said.out[..], &said.err[..]), ("", ""), "a tool that succeeds says nothing");
    crate::manifest::assert_same("base", &before, &work.manifest());
    assert_eq!(in_view(&work, "cat d/a; ls"), "a\nd\nkeep\n");
    assert_eq!(steps(&work)[0], "sh lowers (bare): mv a d");
    work.txfs(["commit"]).ok();
    assert!(work.path("d/a").exists() && !work.path("a").exists());
}

#[test]
fn it_fails_as_the_tools_fail() {
    let work = Work::new();
    work.sh("echo a > a; mkdir d; echo b > b");
    work.txfs(["begin"]).ok();
    let said = work.txfs(["sh", "-c", "rm a no d b"]).code(1);
    let expected = "rm: cannot remove 'no': No such file or directory\nrm: cannot remove 'd': Is a directory\n";
    assert_eq!(said.err, expected);
    assert_eq!(in_view(&work, "ls"), "d\n");
    work.txfs(["sh", "--tier", "exact", "-c", "mkdir -p x/y && rmdir d && touch x/y/z"]).ok();
    assert_eq!(
        in_view(&work, "find . -name .txfs -prune -o -print | sort | tr '\\n' ' '"),
        ". ./x ./x/y ./x/y/z "
    );
}

#[test]
fn what_is_not_witnessed_is_refused_without_a_terminal() {
    let work = Work::new();
    work.sh("echo a > a");
    let said = work.txfs(["sh", "-c", "mv a b; touch c"]).code(3);
    assert!(said.err.contains("not run (operator)"), "{}", said.err);
    let said = work.txfs(["sh", "--json", "-c", "ls"]).code(3).json();
    assert_eq!((&said["code"], &said["reason"]), (&"refused".into(), &"unknown-command".into()));
    // Tier exact is not the default.
    work.txfs(["sh", "-c", "rm -f a"]).code(3);
    work.txfs(["sh"]).code(3);
    work.txfs(["sh", "script", "-c", "mv a b"]).code(3);
    work.txfs(["sh", "-xc", "mv a b"]).code(3);
    // Which word the text is depends on the option before it.
    work.txfs(["sh", "-c", "+O", "extglob", "rm a"]).code(3);
    assert_eq!(in_view(&work, "ls"), "a\n");
    assert_eq!(
        steps(&work)[..7],
        [
            "sh refused (operator): mv a b; touch c",
            "sh refused (unknown-command): ls",
            "sh refused (option): rm -f a",
            "sh refused (no-text): ",
            "sh refused (no-text): script -c 'mv a b'",
            "sh refused (shell-options): -xc 'mv a b'",
            "sh refused (shell-options): -c +O extglob 'rm a'",
        ]
    );
}

#[test]
fn the_policy_run_runs_the_real_shell_in_the_view() {
    let work = Work::new();
    work.sh("echo a > a");
    let run = |args: &[&str]| work.txfs([&["sh", "--policy", "run"], args].concat());
    run(&["-c", "echo $((1 + 1)) > n; exit 7"]).code(7);
    run(&["-c", "kill -TERM $$"]).code(128 + 15);
    run(&["-c", "/no/such/program"]).code(127);
    assert_eq!(run(&["-c", "echo $0 $2", "name", "x", "y"]).ok().out, "name y\n");
    for words in [&["-lc", "echo $TXFS_TXN"][..], &["-l", "-c", "echo $TXFS_TXN"]] {
        assert!(run(words).ok().out.ends_with("main\n"));
    }
    assert!(!work.path("n").exists());
    assert_eq!(in_view(&work, "cat n"), "2\n");
    let first = &steps(&work)[0];
    assert_eq!(first, "sh run (policy run) (unknown-command): echo $((1 + 1)) > n; exit 7");
    let mut command = work.command(work.bin());
    command.args(["sh", "-c", "ls | cat"]).env("TXFS_SH_POLICY", "run");
    assert_eq!(Said::of(command.output().unwrap()).ok().out, "a\nn\n");
    let mut command = work.command(work.bin());
    command.args(["sh", "-c", "ls | cat"]).env("TXFS_SH_POLICY", "what");
    Said::of(command.output().unwrap()).code(125);
}

#[test]
fn a_text_can_be_confined_only_where_that_is_possible() {
    let work = Work::new();
    let said = work.txfs(["sh", "--policy", "confine", "-c", "ls"]).code(8);
    assert!(said.err.contains("cannot confine"), "{}", said.err);
    work.txfs(["sh", "--policy", "confine", "-c", "touch a"]).ok();
}

#[test]
fn what_leads_out_of_the_view_is_handed_back_undone() {
    let work = Work::new();
    let out = work.beside("out");
    std::fs::create_dir(&out).unwrap();
    work.sh("ln -s ../out away; echo a > a");
    let text = format!("touch {}/x", out.display());
    for text in [&text[..], "cp a away", "mv a away/b", "touch away/x", "touch a ../out/x"] {
        let said = work.txfs(["sh", "-c", text]).code(3);
        assert!(said.err.contains("not run (outside)"), "{text}: {}", said.err);
    }
    assert_eq!(std::fs::read_dir(&out).unwrap().count(), 0);
    let said = work.txfs(["sh", "--tier", "exact", "-c", "touch new && cp a away && touch never"]);
    said.code(3);
    assert_eq!(in_view(&work, "ls"), "a\naway\nnew\n", "what came before it stays done");
    let steps = steps(&work);
    assert!(
        steps.contains(&"sh refused (outside): cp a away && touch never".to_owned()),
        "{steps:?}"
    );
}

#[test]
fn the_rest_of_a_chain_runs_where_the_chain_is() {
    let work = Work::new();
    work.sh("mkdir -p d/from d/to/from; echo x > d/from/x");
    let text = "cd d && mv ../d ../e && mkdir ../d && cp -r from to";
    let run = ["sh", "--tier", "exact", "--policy", "run", "-c", text];
    work.txfs(run).ok();
    assert_eq!(in_view(&work, "cat e/to/from/x; ls d"), "x\n");
    assert!(steps(&work).contains(&"sh run (policy run) (merge): cp -r from to".to_owned()));
}

#[test]
fn what_is_handed_back_whole_runs_as_it_was_given() {
    let work = Work::new();
    work.sh("mkdir -p from to/from");
    let text = "cp  -R -p from to";
    work.txfs(["sh", "--tier", "exact", "--policy", "run", "-ec", text, "name"]).ok();
    assert!(steps(&work).contains(&format!("sh run (policy run) (merge): {text}")));
}

/// A program in the view puts links in the way all the while: nothing that they lead to changes.
#[test]
fn names_that_change_meanwhile_lead_nowhere_else() {
    let work = Work::new();
    let out = work.beside("out");
    std::fs::create_dir(&out).unwrap();
    work.sh("chmod 500 ../out; mkdir from; chmod 500 from; echo a > a");
    let script = format!(
        r#"
        set +e; umask 777
        (while :; do ln -sfn {out} n; mv -T n new; rm -rf new; done) 2>/dev/null &
        swap=$!
        for i in $(seq 20); do
            {bin} sh --tier exact --policy deny -c 'mkdir -p new/x'
            {bin} sh --tier exact --policy deny -c 'cp -r from new'
            {bin} sh --tier exact --policy deny -c 'touch new/y'
            {bin} sh --tier exact --policy deny -c 'chmod 777 new'
            {bin} sh --tier exact --policy deny -c "printf '%s
' z > new/z"
            {bin} sh --tier exact --policy deny -c 'rm -rf new'
        done 2>/dev/null; true
        kill $swap; true
        "#,
        out = out.display(),
        bin = work.bin().display(),
    );
    work.run(&script).ok();
    assert_eq!(std::fs::read_dir(&out).unwrap().count(), 0);
    let mode = std::os::unix::fs::PermissionsExt::mode(&out.metadata().unwrap().permissions());
    assert_eq!(mode & 0o7777, 0o500, "its mode is as it was");
}

/// The short form of the oracle; the long one is `scripts/shell-oracle` by hand.
#[test]
fn real_shells_read_and_do_the_same() {
    let root = env!("CARGO_MANIFEST_DIR");
    for args in [&["--texts", "300", "--seed", "11"][..], &["--lowered", "--texts", "300"]] {
        let mut oracle = std::process::Command::new(format!("{root}/scripts/shell-oracle"));
        let work = Work::new();
        let output = oracle.args(args).env("TXFS", work.bin()).output().unwrap();
        let said = Said::of(output);
        assert_eq!(said.code, 0, "{}{}", said.out, said.err);
        assert!(said.out.contains("300 texts"), "{}", said.out);
    }
}

#[test]
fn it_works_inside_a_run_and_in_a_mounted_view() {
    let work = Work::new();
    work.sh("mkdir sub; echo a > sub/a");
    let bin = work.bin();
    let bin = bin.to_str().unwrap();
    work.run(&format!("cd sub; {bin} sh -c 'mv a b'; cat b; echo x > c; {bin} sh -c 'rm c'")).ok();
    let view = work.beside("view");
    std::fs::create_dir(&view).unwrap();
    work.txfs(["mount", view.to_str().unwrap()]).ok();
    let sub = view.join("sub");
    Said::of(work.command_in(sub.to_str().unwrap()).args(["sh", "-c", "mv b c"]).output().unwrap())
        .ok();
    let mut command = work.command_in(sub.to_str().unwrap());
    command.args(["sh", "--policy", "run", "-c", "pwd; cat c"]);
    let said = Said::of(command.output().unwrap()).ok();
    assert_eq!(said.out, format!("{}\na\n", sub.display()));
    assert_eq!(std::fs::read_dir(&sub).unwrap().count(), 1);
    work.txfs(["umount"]).ok();
    assert!(work.path("sub/a").exists());
}

#[test]
fn run_gives_the_command_a_shell_that_lowers() {
    let work = Work::new();
    work.sh("echo a > a; echo c > c");
    let script = r#"
        test "${SHELL##*/}" = bash
        "$SHELL" -c 'mv a b'
        "$BASH" -lc 'rm c'
        "$SHELL" -c 'ls | cat' && exit 9
        test $? = 3
        ls
    "#;
    let said = work.txfs(["run", "--lower-shell", "--", "sh", "-ec", script]).ok();
    assert_eq!(said.out, "b\n");
    let said = work.txfs(["run", "--", "sh", "-c", "echo \"$SHELL\""]).ok();
    assert!(!said.out.contains("txfs"), "only on request: {}", said.out);
}

#[test]
fn an_ordinary_user_gets_no_more_than_the_tools_would() {
    let work = Work::of_user();
    work.sh("echo a > a; echo r > r; chmod 444 r; mkdir shut; echo x > shut/x; chmod 555 shut");
    work.txfs(["begin"]).ok();
    let said = work.txfs(["sh", "-c", "cp a r"]).code(1);
    assert_eq!(said.err, "cp: cannot create regular file 'r': Permission denied\n");
    let said = work.txfs(["sh", "-c", "rm shut/x"]).code(1);
    assert_eq!(said.err, "rm: cannot remove 'shut/x': Permission denied\n");
    let said = work.txfs(["sh", "-c", "touch shut/y a"]).code(1);
    assert_eq!(said.err, "touch: cannot touch 'shut/y': Permission denied\n");
    // On a terminal the tools would ask; without one nobody is asked.
    let asked = |text: &str| {
        let line = format!("{} sh --policy deny -c '{text}'", work.bin().display());
        Said::of(work.command("script").args(["-qec", &line, "/dev/null"]).output().unwrap())
    };
    for text in ["mv a r", "rm a r"] {
        let said = asked(text).code(3);
        assert!(said.out.contains("not run (unwritable)"), "{text}: {}", said.out);
    }
    asked("touch a").ok();
    work.txfs(["sh", "-c", "mv a r"]).ok();
    assert_eq!(in_view(&work, "cat r; ls -d a 2>/dev/null || true"), "a\n");
    work.txfs(["sh", "--policy", "run", "-c", "rm -f r; ls"]).ok();
    work.sh("chmod 755 shut");
}

#[test]
fn what_a_hook_allows_runs_in_the_transaction() {
    use std::io::Write;
    let work = Work::new();
    work.sh("echo a > a; mkdir d");
    work.txfs(["begin"]).ok();
    for (text, policy) in [("mv a d", "ask"), ("ls d | tee list; cd d", "run")] {
        let event = serde_json::json!({
            "hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": { "command": text },
        });
        let mut hook = work.command(work.bin());
        hook.args(["hook", "claude-code", "--policy", policy]);
        hook.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut hook = hook.spawn().unwrap();
        hook.stdin.take().unwrap().write_all(event.to_string().as_bytes()).unwrap();
        let said = Said::of(hook.wait_with_output().unwrap()).ok().json();
        let output = &said["hookSpecificOutput"];
        assert_eq!(output["permissionDecision"], "allow");
        work.sh(output["updatedInput"]["command"].as_str().unwrap());
    }
    assert!(work.path("a").exists() && !work.path("list").exists());
    assert_eq!(in_view(&work, "cat list; ls"), "a\nd\nlist\n");
}
