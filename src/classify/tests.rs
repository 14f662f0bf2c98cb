use proptest::prelude::*;

use super::{MAX_TEXT, Reason, Tier, Verdict, classify, reads, render, rewrite};

const TIERS: [Tier; 2] = [Tier::Bare, Tier::Exact];

fn witnessed(text: &[u8], tier: Tier) -> bool {
    matches!(classify(text, tier), Verdict::Witnessed(_))
}

fn reason(text: &[u8], tier: Tier) -> Option<Reason> {
    match classify(text, tier) {
        Verdict::Witnessed(_) => None,
        Verdict::Emission(e) => Some(e.reason),
    }
}

/// Everything that is said of a text holds together.
fn check(text: &[u8]) {
    for tier in TIERS {
        match classify(text, tier) {
            Verdict::Emission(e) => {
                assert!(e.span.start <= e.span.end && e.span.end <= text.len(), "{text:?} {e:?}");
            }
            Verdict::Witnessed(w) => {
                let again = render(&w);
                let Verdict::Witnessed(second) = classify(&again, tier) else {
                    panic!("{text:?} is rendered as {again:?}, which {} refuses", tier.name());
                };
                assert_eq!((w.cd, &w.commands), (second.cd, &second.commands), "{text:?}");
                assert!(second.tier <= w.tier, "{text:?}");
            }
        }
    }
    // The wider tier knows what the narrower one knows.
    assert!(!witnessed(text, Tier::Bare) || witnessed(text, Tier::Exact), "{text:?}");
    assert!(!(reads::reads_only(text) && witnessed(text, Tier::Exact)), "{text:?}");
    if let Some(better) = rewrite(text) {
        assert!(witnessed(&better, Tier::Exact), "{text:?} {better:?}");
    }
}

/// Pieces that shells care for, so that random texts come near what is witnessed.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    let words: Vec<Vec<u8>> = [
        "mv",
        "cp",
        "rm",
        "mkdir",
        "touch",
        "rmdir",
        "chmod",
        "ln",
        "cd",
        "echo",
        "printf",
        "true",
        ":",
        "-f",
        "-p",
        "-rf",
        "-s",
        "-n",
        "--",
        "-",
        "a",
        "d/b",
        "..",
        ".",
        "/",
        "a/",
        "'a b'",
        "\"a b\"",
        "'%s\\n'",
        "''",
        "\"\"",
        "'",
        "\"",
        "&&",
        ">",
        ">>",
        "|",
        ";",
        "$x",
        "`",
        "*",
        "~",
        "!",
        "#",
        "=",
        "{",
        "\\",
        "\n",
        "\r",
        "\0",
        "644",
        "0755",
        "\u{e9}",
        " ",
        "  ",
        "\t",
        "2>",
        "/dev/null",
        "/proc/x",
        "A=1",
    ]
    .iter()
    .map(|w| w.as_bytes().to_vec())
    .collect();
    prop_oneof![8 => prop::sample::select(words), 1 => prop::collection::vec(any::<u8>(), 1..4)]
}

fn texts() -> impl Strategy<Value = Vec<u8>> {
    let glue = prop_oneof![9 => Just(b" ".to_vec()), 1 => Just(Vec::new())];
    prop::collection::vec((piece(), glue), 0..10).prop_map(|parts| {
        parts.into_iter().flat_map(|(word, glue)| [word, glue].concat()).collect()
    })
}

/// A file's name in tier bare.
fn name() -> impl Strategy<Value = String> {
    "[A-Za-z0-9_.+:@%,][A-Za-z0-9_./+:@%,-]{0,12}[A-Za-z0-9_]"
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn any_bytes_get_a_verdict(text in prop::collection::vec(any::<u8>(), 0..200)) {
        check(&text);
    }

    #[test]
    fn near_misses_get_a_verdict(text in texts()) {
        check(&text);
    }

    #[test]
    fn bare_calls_are_witnessed(a in name(), b in name(), tool in "rm|mkdir|touch|mv|cp") {
        let text = format!("{tool} {a} {b}");
        prop_assert!(witnessed(text.as_bytes(), Tier::Bare), "{}", text);
        let wider = format!("  {tool}   {a}  {b} ");
        prop_assert!(witnessed(wider.as_bytes(), Tier::Bare), "{}", wider);
        check(text.as_bytes());
    }

    #[test]
    fn only_known_bytes_keep_a_text_witnessed(a in name(), at in 0usize..40, byte: u8) {
        let mut text = format!("rm {a} {a}").into_bytes();
        let at = at % (text.len() + 1);
        text.insert(at, byte);
        let literal = byte.is_ascii_alphanumeric() || b" _./+:@%,-".contains(&byte);
        prop_assert!(literal || !witnessed(&text, Tier::Bare), "{:?}", text);
        check(&text);
    }

    #[test]
    fn an_operator_behind_a_text_refuses_it(text in texts(), tail in prop::sample::select(vec![
        ";", "&", "|", "||", "&&", "$(x)", "`x`", ">", "<", "<<E", "\nx", "(", ")", "#", "*", "\\",
    ])) {
        for tier in TIERS {
            let longer = [&text[..], tail.as_bytes()].concat();
            // Within an open quote the tail may be literal; then there is no end of the quote.
            prop_assert!(!witnessed(&longer, tier), "{:?}", longer);
        }
    }
}

#[test]
fn every_byte_in_every_place() {
    for tier in TIERS {
        for base in
            ["rm a b", "mv -f a b", "mkdir -p 'a b'", "cd d && rm a", "printf '%s\\n' x > f"]
        {
            for at in 0..=base.len() {
                for byte in 0..=u8::MAX {
                    let mut text = base.as_bytes().to_vec();
                    text.insert(at, byte);
                    check(&text);
                    let hostile = !(0x20..0x7f).contains(&byte);
                    assert!(!hostile || !witnessed(&text, tier), "{text:?}");
                }
            }
        }
    }
}

#[test]
fn large_and_hostile_texts_are_bounded() {
    let texts = [
        vec![b'a'; 64 << 20],
        b"rm a && ".repeat(1 << 20),
        b"(".repeat(1 << 20),
        b"'".repeat(MAX_TEXT),
        b"\"'".repeat(MAX_TEXT / 2),
        b"$(".repeat(MAX_TEXT / 2),
        b"a ".repeat(MAX_TEXT / 2),
        b"\\".repeat(MAX_TEXT),
        vec![0; MAX_TEXT],
        vec![0xff; MAX_TEXT],
        [b"rm ".to_vec(), b"a/".repeat(MAX_TEXT / 2 - 2), b"b".to_vec()].concat(),
        b"true > a && ".repeat(MAX_TEXT / 12),
    ];
    let began = std::time::Instant::now();
    for text in &texts {
        for tier in TIERS {
            assert!(!witnessed(text, tier));
        }
        assert!(!reads::reads_only(text));
        assert_eq!(rewrite(text), None);
    }
    // Quadratic work on any of them would take minutes.
    assert!(began.elapsed().as_secs() < 10);
    assert_eq!(reason(&texts[0], Tier::Bare), Some(Reason::TooLong));
    let longest = [b"rm ".to_vec(), b"a ".repeat(MAX_TEXT / 2 - 2)].concat();
    assert!(witnessed(&longest[..longest.len() - 1], Tier::Bare));
}

#[test]
fn spans_point_at_the_reason() {
    let at = |text: &str| match classify(text.as_bytes(), Tier::Exact) {
        Verdict::Emission(e) => (e.reason, text[e.span.start..e.span.end].to_owned()),
        Verdict::Witnessed(w) => panic!("{w:?}"),
    };
    assert_eq!(at("rm a; rm b"), (Reason::Operator, ";".into()));
    assert_eq!(at("rm 'a' $b"), (Reason::Expansion, "$".into()));
    assert_eq!(at("rm -v a"), (Reason::Option, "-v".into()));
    assert_eq!(at("mv a b c"), (Reason::OperandCount, "mv a b c".into()));
    assert_eq!(at("rm a -f"), (Reason::DashOperand, "-f".into()));
    assert_eq!(at("rm \"a$b\""), (Reason::QuoteExpansion, "$".into()));
    assert_eq!(at("make all"), (Reason::UnknownCommand, "make".into()));
    assert_eq!(at("rm a &&"), (Reason::Incomplete, "".into()));
}

#[test]
fn rewrites() {
    let of = |text: &str| rewrite(text.as_bytes()).map(|t| String::from_utf8(t).unwrap());
    assert_eq!(of("rm --force a"), Some("rm -f a".into()));
    assert_eq!(of("rm a\\ b"), Some("rm 'a b'".into()));
    assert_eq!(of("mkdir d/"), Some("mkdir d".into()));
    assert_eq!(of("rm a;"), Some("rm a".into()));
    assert_eq!(of("rm *"), None);
    assert_eq!(of("rm $a"), None);
    assert_eq!(of("make"), None);
}
