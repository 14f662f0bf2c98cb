//! The labelled texts of `tests/corpus/`: none that is labelled an emission is ever witnessed, and
//! what is witnessed has the labelled operands.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use std::collections::BTreeSet;

use txfs::classify::{Reason, Tier, Verdict, classify, protocol, render, rewrite};

struct Row {
    id: String,
    text: Vec<u8>,
    bare: bool,
    exact: bool,
    operands: Option<Vec<String>>,
}

fn rows(file: &str) -> Vec<Row> {
    let path = format!("{}/tests/corpus/{file}", env!("CARGO_MANIFEST_DIR"));
    let content = std::fs::read_to_string(&path).unwrap();
    let witnessed = |word: &str| match word {
        "witnessed" => true,
        "emission" => false,
        other => panic!("{path}: no verdict: {other}"),
    };
    let row = |line: &str| {
        let mut fields = line.split('\t');
        let mut next = || fields.next().unwrap_or_else(|| panic!("{path}: short: {line}"));
        let (id, hex, bare, exact) = (next(), next(), next(), next());
        let (_text, operands) = (next(), next());
        let digits: Vec<u8> = hex.bytes().collect();
        let byte =
            |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        Row {
            id: format!("{file} {id}"),
            text: digits.chunks(2).map(byte).collect(),
            bare: witnessed(bare),
            exact: witnessed(exact),
            operands: serde_json::from_str(operands).ok(),
        }
    };
    content.lines().filter(|l| !l.starts_with('#')).map(row).collect()
}

fn all() -> Vec<Row> {
    let mut all = rows("labelled.tsv");
    all.extend(rows("bypasses.tsv"));
    all.extend(rows("own.tsv"));
    all
}

#[test]
fn nothing_labelled_emission_is_witnessed() {
    let all = all();
    assert!(all.len() > 600);
    for row in &all {
        assert!(row.exact || !row.bare, "{}: bare is a part of exact", row.id);
        for (tier, may) in [(Tier::Bare, row.bare), (Tier::Exact, row.exact)] {
            if let Verdict::Witnessed(w) = classify(&row.text, tier) {
                assert!(may, "{}: witnessed in {}: {w:?}", row.id, tier.name());
            }
        }
    }
}

#[test]
fn everything_labelled_bare_is_witnessed_with_its_operands() {
    for row in all().iter().filter(|r| r.bare) {
        let Verdict::Witnessed(w) = classify(&row.text, Tier::Bare) else {
            panic!("{}: not witnessed", row.id);
        };
        assert_eq!((w.tier, w.cd, w.commands.len()), (Tier::Bare, None, 1));
        let mut operands = Vec::new();
        w.commands[0].each_operand(|o| operands.push(String::from_utf8(o.to_vec()).unwrap()));
        if let Some(expected) = &row.operands {
            assert_eq!(&operands, expected, "{}", row.id);
        }
    }
}

#[test]
fn what_tier_exact_leaves_out_is_known() {
    // Long options do not exist everywhere; cp -a keeps what a view may be unable to set;
    // here-documents are edited by interactive shells; other formats of printf differ.
    let expected: BTreeSet<&str> = [
        "cp -a d e",
        "cp --archive d e",
        "cp --recursive d e",
        "rm --force a",
        "rm --recursive d",
        "mkdir --parents a/b",
        "printf 'x\\n' > f",
        // What echo makes of its words depends on the shell and its settings.
        "echo hi > f",
        "echo 'a b' >> f",
        "echo a -n > f",
        "echo 'a b' c > 'x y'",
        "echo \"it's\" > f",
        "cd d && echo hi > f && rm g",
        "cat > f <<'EOF'\nline\nEOF",
    ]
    .into();
    let all = all();
    let left_out =
        |r: &&Row| r.exact && matches!(classify(&r.text, Tier::Exact), Verdict::Emission(_));
    let found: BTreeSet<&str> =
        all.iter().filter(left_out).map(|r| std::str::from_utf8(&r.text).unwrap()).collect();
    assert_eq!(found, expected);
}

#[test]
fn rewrites_and_renderings_are_witnessed() {
    for row in all() {
        if let Some(better) = rewrite(&row.text) {
            let Verdict::Witnessed(w) = classify(&better, Tier::Exact) else {
                panic!("{}: the rewrite is no witness", row.id);
            };
            assert_ne!(better, row.text, "{}", row.id);
            assert_eq!(rewrite(&render(&w)), None, "{}", row.id);
        }
        if let Verdict::Witnessed(w) = classify(&row.text, Tier::Exact) {
            let text = render(&w);
            let Verdict::Witnessed(again) = classify(&text, Tier::Exact) else {
                panic!("{}: {w:?} is rendered to no witness", row.id);
            };
            assert_eq!((w.cd, w.commands), (again.cd, again.commands), "{}", row.id);
        }
    }
}

#[test]
fn every_reason_occurs() {
    let mut reasons: BTreeSet<Reason> = Reason::ALL.iter().copied().collect();
    for row in all() {
        for tier in [Tier::Bare, Tier::Exact] {
            if let Verdict::Emission(e) = classify(&row.text, tier) {
                assert!(e.span.start <= e.span.end && e.span.end <= row.text.len(), "{}", row.id);
                reasons.remove(&e.reason);
            }
        }
    }
    assert!(reasons.is_empty(), "without a text in the corpus: {reasons:?}");
}

#[test]
fn the_protocol_says_the_same() {
    for row in all() {
        let hex: String = row.text.iter().map(|b| format!("{b:02x}")).collect();
        let line = serde_json::json!({ "text": "ignored", "text_hex": hex }).to_string();
        let mut output = Vec::new();
        assert!(protocol::serve(line.as_bytes(), &mut output, Tier::Exact).unwrap());
        let answer: serde_json::Value = serde_json::from_slice(&output).unwrap();
        match classify(&row.text, Tier::Exact) {
            Verdict::Witnessed(w) => {
                assert_eq!(answer["verdict"], "witnessed");
                assert_eq!(answer["tier"], w.tier.name());
                assert_eq!(answer["tool"].is_string(), w.commands.len() == 1);
            }
            Verdict::Emission(e) => {
                assert_eq!(answer["verdict"], "emission");
                assert_eq!(answer["reason"]["code"], e.reason.code());
                assert_eq!(answer["reason"]["span"][0], e.span.start);
            }
        }
    }
}
