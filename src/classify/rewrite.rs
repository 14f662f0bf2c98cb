//! A witnessed text for an emission, where there is one that means the same.
//!
//! The reader here is lenient: it takes joined quotes, escaped bytes, tabs and flags behind
//! operands for what `sh -c` makes of them in its default state. That is good enough for an offer,
//! never for a verdict: the offered text is classified like any other.

use super::bytes::{Class, bare, class};
use super::{Tier, Verdict, classify};

/// A text that tier exact witnesses and that `sh -c` with its default options reads as it reads
/// `text`, if there is one.
#[must_use]
pub fn rewrite(text: &[u8]) -> Option<Vec<u8>> {
    if text.len() > super::MAX_TEXT {
        return None;
    }
    let mut out = Vec::with_capacity(text.len());
    let items = read(text)?;
    for command in items.split_inclusive(|i| matches!(i, Item::And)) {
        let (words, and) = match command.split_last() {
            Some((Item::And, words)) => (words, true),
            Some((Item::Word(_) | Item::Redirect { .. }, _)) | None => (command, false),
        };
        write_command(&mut out, words)?;
        if and {
            out.extend_from_slice(b" && ");
        }
    }
    let witnessed = matches!(classify(&out, Tier::Exact), Verdict::Witnessed(_));
    (witnessed && out != text).then_some(out)
}

enum Item {
    Word(Vec<u8>),
    And,
    Redirect { append: bool },
}

fn read(text: &[u8]) -> Option<Vec<Item>> {
    let blank = |b: &u8| *b == b' ' || *b == b'\t';
    // A line break or semicolon at the end ends a command that the end of the text ends as well.
    let mut end = text.len();
    while end > 0 && (blank(&text[end - 1]) || text[end - 1] == b'\n') {
        end -= 1;
    }
    let mut text = &text[..end];
    if let Some(without) = text.strip_suffix(b";")
        && !without.ends_with(b";")
        && !without.ends_with(b"\\")
    {
        text = without;
    }
    let mut items = Vec::new();
    let mut at = 0;
    while let Some(b) = text.get(at) {
        if blank(b) {
            at += 1;
        } else if text[at..].starts_with(b"&&") {
            items.push(Item::And);
            at += 2;
        } else if *b == b'>' {
            let append = text[at..].starts_with(b">>");
            items.push(Item::Redirect { append });
            at += 1 + usize::from(append);
            text.get(at).filter(|b| !matches!(b, b'&' | b'|' | b'>' | b'(' | b'!'))?;
        } else {
            let (word, len) = read_word(&text[at..])?;
            at += len;
            // `2>` redirects another descriptor.
            let digits = word.iter().all(u8::is_ascii_digit);
            if digits && text.get(at) == Some(&b'>') {
                return None;
            }
            items.push(Item::Word(word));
        }
    }
    Some(items)
}

/// The word at the beginning of `text`, with quotes and escapes taken away, and its length there.
fn read_word(text: &[u8]) -> Option<(Vec<u8>, usize)> {
    let (mut word, mut at) = (Vec::new(), 0);
    while let Some(&b) = text.get(at) {
        match class(b) {
            Class::Blank => break,
            Class::Control if b == b'\t' => break,
            Class::Operator if text[at..].starts_with(b"&&") => break,
            Class::Redirect if b == b'>' => break,
            Class::Operand => word.push(b),
            Class::Equals if !word.is_empty() => word.push(b),
            Class::Glob if b == b'^' && !word.is_empty() => word.push(b),
            Class::Hash if !word.is_empty() => word.push(b),
            Class::Tilde if !matches!(word.last(), None | Some(b'=' | b':')) => word.push(b),
            Class::Single | Class::Double => {
                let len = text[at + 1..].iter().position(|&x| x == b)?;
                let body = &text[at + 1..at + 1 + len];
                let dead = |x: &u8| b == b'\'' || !matches!(x, b'$' | b'`' | b'\\');
                if !body.iter().all(dead) || text.get(at + len + 2) == Some(&b) {
                    return None;
                }
                word.extend_from_slice(body);
                at += len + 1;
            }
            Class::Backslash => {
                at += 1;
                word.push(*text.get(at).filter(|b| (0x20..0x7f).contains(*b))?);
            }
            Class::Control
            | Class::Newline
            | Class::NonAscii
            | Class::Expansion
            | Class::Brace
            | Class::History
            | Class::Glob
            | Class::Hash
            | Class::Equals
            | Class::Tilde
            | Class::Operator
            | Class::Redirect => return None,
        }
        at += 1;
    }
    Some((word, at))
}

fn write_command(out: &mut Vec<u8>, items: &[Item]) -> Option<()> {
    let words = items.iter().filter_map(|i| match i {
        Item::Word(word) => Some(&word[..]),
        Item::And | Item::Redirect { .. } => None,
    });
    let redirected = items.iter().any(|i| matches!(i, Item::Redirect { .. }));
    let mut words: Vec<&[u8]> = words.collect();
    if words.first() == Some(&&b"command"[..]) {
        words.remove(0);
    }
    let (tool, rest) = words.split_first()?;
    if redirected {
        return write_as_is(out, items);
    }
    let (mut flags, mut operands, mut dashes) = (Vec::new(), Vec::new(), false);
    for word in rest {
        if dashes || word.len() < 2 || word[0] != b'-' {
            operands.push(*word);
        } else if *word == b"--" {
            dashes = true;
        } else {
            flags.push(short(tool, word)?);
        }
    }
    out.extend_from_slice(tool);
    for flag in flags {
        out.push(b' ');
        out.extend_from_slice(flag);
    }
    if dashes {
        out.extend_from_slice(b" --");
    }
    for word in operands {
        let word = if *tool == b"mkdir" { without_slashes(word) } else { word };
        write_word(out, word)?;
    }
    Some(())
}

fn write_as_is(out: &mut Vec<u8>, items: &[Item]) -> Option<()> {
    for (i, item) in items.iter().enumerate() {
        match item {
            Item::Word(word) if i == 0 => out.extend_from_slice(word),
            Item::Word(word) => write_word(out, word)?,
            Item::Redirect { append } => {
                out.extend_from_slice(if *append { b" >>" } else { b" >" });
            }
            Item::And => return None,
        }
    }
    Some(())
}

fn without_slashes(word: &[u8]) -> &[u8] {
    let end = word.iter().rposition(|&b| b != b'/').map_or(word.len(), |i| i + 1);
    &word[..end]
}

/// The flag as letters.
fn short<'w>(tool: &[u8], flag: &'w [u8]) -> Option<&'w [u8]> {
    if !flag.starts_with(b"--") {
        return Some(flag);
    }
    match (tool, flag) {
        (b"rm" | b"mv", b"--force") => Some(b"-f"),
        (b"rm" | b"cp", b"--recursive") => Some(b"-r"),
        (b"mkdir", b"--parents") => Some(b"-p"),
        (b"mv", b"--no-clobber") => Some(b"-n"),
        (b"ln", b"--symbolic") => Some(b"-s"),
        _ => None,
    }
}

fn write_word(out: &mut Vec<u8>, word: &[u8]) -> Option<()> {
    out.push(b' ');
    let mark = if bare(word) {
        out.extend_from_slice(word);
        return Some(());
    } else if !word.contains(&b'\'') {
        b'\''
    } else if !word.iter().any(|b| matches!(b, b'"' | b'$' | b'`' | b'\\')) {
        b'"'
    } else {
        return None;
    };
    out.push(mark);
    out.extend_from_slice(word);
    out.push(mark);
    Some(())
}
