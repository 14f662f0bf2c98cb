//! git's commands that only read.
//!
//! `status`, `diff` and `describe` may refresh the index, which is a cache.

use super::Word;

pub(super) fn reads_only(words: &[Word]) -> bool {
    let mut words = words;
    loop {
        match words {
            [w, rest @ ..] if matches!(&w.bytes[..], b"--no-pager" | b"--no-optional-locks") => {
                words = rest;
            }
            [w, dir, rest @ ..]
                if w.bytes == b"-C" && !dir.pattern && !dir.bytes.starts_with(b"-") =>
            {
                words = rest;
            }
            [w, rest @ ..] => return w.plain && command(&w.bytes, rest),
            [] => return false,
        }
    }
}

fn command(name: &[u8], words: &[Word]) -> bool {
    match name {
        b"log" | b"show" | b"diff" | b"rev-parse" | b"rev-list" | b"ls-files" | b"ls-tree"
        | b"cat-file" | b"blame" | b"describe" | b"shortlog" | b"merge-base" | b"name-rev"
        | b"grep" | b"status" | b"count-objects" | b"for-each-ref" | b"show-ref" | b"diff-tree" => {
            // `--text` is a word of its own, but short for `--textconv` to cat-file.
            let text = |w: &Word| name == b"cat-file" && w.bytes == b"--text";
            words.iter().all(|w| harmless(&w.bytes) && !text(w))
        }
        b"branch" => words.iter().all(|w| {
            matches!(
                &w.bytes[..],
                b"-a"
                    | b"-r"
                    | b"-v"
                    | b"-vv"
                    | b"-av"
                    | b"-avv"
                    | b"--list"
                    | b"--all"
                    | b"--show-current"
                    | b"--remotes"
                    | b"--no-color"
            )
        }),
        b"tag" => {
            let list = |w: &Word| matches!(&w.bytes[..], b"-l" | b"--list");
            words.is_empty()
                || (words.iter().any(list)
                    && words.iter().all(|w| list(w) || !w.bytes.starts_with(b"-")))
        }
        b"remote" => match words {
            [] => true,
            [w] => matches!(&w.bytes[..], b"-v" | b"--verbose"),
            [w, name] => w.bytes == b"get-url" && !name.bytes.starts_with(b"-"),
            [_, _, _, ..] => false,
        },
        b"stash" => match words {
            [w, rest @ ..] => {
                matches!(&w.bytes[..], b"list" | b"show") && rest.iter().all(|w| harmless(&w.bytes))
            }
            [] => false,
        },
        b"config" => match words {
            [w] => matches!(&w.bytes[..], b"--list" | b"-l"),
            [w, key] => {
                matches!(&w.bytes[..], b"--get" | b"--get-all") && !key.bytes.starts_with(b"-")
            }
            [] | [_, _, _, ..] => false,
        },
        b"reflog" => match words {
            [] => true,
            [w, rest @ ..] => w.bytes == b"show" && rest.iter().all(|w| harmless(&w.bytes)),
        },
        b"worktree" => matches!(words, [w] if w.bytes == b"list"),
        _ => false,
    }
}

/// Neither writes a file nor runs a program. git takes abbreviations of long options.
fn harmless(word: &[u8]) -> bool {
    let long = [&b"--o"[..], b"--ext", b"--textc", b"--fil", b"--show-sig", b"--batch-c", b"--gpg"];
    let short = [&b"--ext-diff"[..], b"--textconv", b"--filters", b"--show-signature"];
    let cut = word.len() > 2 && word != b"--text" && short.iter().any(|l| l.starts_with(word));
    let oneline = word == b"--oneline" || word == b"--ours" || word == b"--others";
    // Both have gpg run.
    let formats = word.windows(2).any(|w| w == b"%G")
        || word.windows(b"%(signature".len()).any(|w| w == b"%(signature");
    // -O is git grep's pager, and may stand in a cluster behind other letters.
    let pager = word.first() == Some(&b'-') && word.get(1) != Some(&b'-') && word.contains(&b'O');
    !formats && !pager && !cut && (oneline || !long.iter().any(|l| word.starts_with(l)))
}
