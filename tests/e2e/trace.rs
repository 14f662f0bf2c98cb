//! Which process caused which effect, in which step.

use serde_json::Value;

use crate::harness::Work;

fn words(process: &Value) -> Vec<String> {
    let argv = process["argv"].as_array().unwrap();
    argv.iter().map(|a| a.as_str().unwrap().to_owned()).collect()
}

fn records(said: &Value) -> &Vec<Value> {
    said["records"].as_array().unwrap()
}

#[test]
fn effects_name_their_process_and_its_parents_up_to_the_run() {
    let work = Work::new();
    work.sh("echo 1 > a");
    work.run("mkdir d; sh -c 'cp a d/b; true'; mv d/b c").ok();
    work.run("sort a > sorted; chmod 600 c; rm a").ok();
    assert!(!work.txfs(["--json", "log"]).ok().out.contains("argv"));
    let log = work.txfs(["--json", "log", "--processes"]).ok().json();
    let of = |effect: &str, path: &str| {
        let found = records(&log).iter().find(|r| r["effect"] == effect && r["path"] == path);
        found.unwrap_or_else(|| panic!("no {effect} {path}: {log}")).clone()
    };
    let made = of("write", "d/b");
    assert_eq!(words(&made["process"]), ["cp", "a", "d/b"]);
    assert_eq!((&made["step"], made["process"]["pid"].as_u64().is_some()), (&1.into(), true));
    let parents = made["process"]["parents"].as_array().unwrap();
    let parents: Vec<_> = parents.iter().map(words).collect();
    assert_eq!(parents[0], ["sh", "-c", "cp a d/b; true"]);
    assert_eq!(parents[1][..2], ["sh", "-ec"]);
    assert_eq!(parents[2][1..3], ["run", "--"]);
    assert_eq!(parents.len(), 3, "{parents:?}");
    assert!(of("mkdir", "d")["process"]["exe"].as_str().unwrap().contains("/bin/"));
    // A redirection is the shell's, before it becomes the program.
    assert_eq!(words(&of("write", "sorted")["process"])[..2], ["sh", "-ec"]);
    assert_eq!(words(&of("rm", "a")["process"]), ["rm", "a"]);
}

#[test]
fn trace_follows_a_file_over_names_and_steps() {
    let work = Work::new();
    work.sh("mkdir d; echo 1 > d/a; echo 2 > other");
    work.run("cp d/a new; rm other").ok();
    work.run("mv new d/moved; touch z").ok();
    work.run("mv d e; chmod 600 e/moved").ok();
    let trace = |path: &str| {
        let said = work.txfs(["--json", "trace", path]).ok().json();
        assert_eq!(said["kind"], "trace");
        let lines = records(&said).iter().map(|r| {
            let process =
                if r["process"].is_null() { String::new() } else { words(&r["process"]).join(" ") };
            format!("{}:{} {}", r["step"], r["effect"].as_str().unwrap(), process)
        });
        lines.collect::<Vec<_>>()
    };
    let moved = trace("e/moved");
    let effects: Vec<_> =
        moved.iter().filter(|l| !l.contains(":step")).map(String::as_str).collect();
    assert_eq!(effects.first(), Some(&"1:write cp d/a new"), "{moved:?}");
    assert!(effects.contains(&"2:move mv new d/moved"), "{moved:?}");
    assert_eq!(effects.last(), Some(&"3:write chmod 600 e/moved"), "{moved:?}");
    assert_eq!(moved.iter().filter(|l| l.contains(":step")).count(), 3, "{moved:?}");
    assert_eq!(trace("other").last().unwrap(), "1:rm rm other");
    assert!(trace("nothing").is_empty());
    work.txfs(["rollback", "--step", "3"]).ok();
    let said = work.txfs(["trace", "d/moved"]).ok().out;
    assert!(
        said.contains("(taken back)") && said.contains("by ") && said.contains("of "),
        "{said}"
    );
    // The numbers of processes go on after the daemon was killed.
    work.kill_daemon();
    work.run("touch d/moved").ok();
    assert_eq!(trace("d/moved").last().unwrap(), "4:write touch d/moved");
}
