//! Names before they reach a terminal or a patch.

use std::fmt::Write;

/// Quotes a name as git does: as it is if it is plain ASCII without control characters, quotes and
/// backslashes, else in double quotes with C escapes and octal bytes.
#[must_use]
pub fn c(name: &[u8]) -> String {
    prefixed("", name)
}

/// The same with a prefix inside the quotes, for `a/` and `b/`.
#[must_use]
pub fn prefixed(prefix: &str, name: &[u8]) -> String {
    let plain = |b: &u8| (0x20..0x7f).contains(b) && *b != b'"' && *b != b'\\';
    if name.iter().all(plain) {
        return prefix.chars().chain(name.iter().map(|&b| char::from(b))).collect();
    }
    let mut out = format!("\"{prefix}");
    name.iter().for_each(|&b| escape(&mut out, b));
    out.push('"');
    out
}

/// Quotes a name for people: as it is if it is text that a terminal shows for what it is, in any
/// script, else as [`c`] with that text left readable.
#[must_use]
pub fn shown(name: &[u8]) -> String {
    let special = |ch: char| !is_shown(ch) || ch == '"' || ch == '\\';
    match std::str::from_utf8(name) {
        Ok(text) if !text.is_empty() && !text.contains(special) => text.to_owned(),
        _ => format!("\"{}\"", escaped(name, special)),
    }
}

/// Text of any length, a message or a command, with what a terminal would act on escaped.
#[must_use]
pub fn terminal(text: &[u8]) -> String {
    escaped(text, |ch| !is_shown(ch))
}

/// A character that is seen as itself: no control, nothing that reorders, hides or breaks lines.
#[must_use]
pub fn is_shown(ch: char) -> bool {
    let misleading = matches!(
        ch,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}'
    );
    !ch.is_control() && !misleading
}

fn escaped(bytes: &[u8], special: impl Fn(char) -> bool) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for ch in chunk.valid().chars() {
            if special(ch) {
                let mut buf = [0; 4];
                ch.encode_utf8(&mut buf).bytes().for_each(|b| escape(&mut out, b));
            } else {
                out.push(ch);
            }
        }
        chunk.invalid().iter().for_each(|&b| escape(&mut out, b));
    }
    out
}

fn escape(out: &mut String, b: u8) {
    match b {
        b'\n' => out.push_str("\\n"),
        b'\t' => out.push_str("\\t"),
        b'\r' => out.push_str("\\r"),
        0x07 => out.push_str("\\a"),
        0x08 => out.push_str("\\b"),
        0x0b => out.push_str("\\v"),
        0x0c => out.push_str("\\f"),
        b'"' | b'\\' => {
            out.push('\\');
            out.push(char::from(b));
        }
        0x20..0x7f => out.push(char::from(b)),
        // Writing to a string does not fail.
        _ => drop(write!(out, "\\{b:03o}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!(c(b"a b/c'd"), "a b/c'd");
        assert_eq!(c(b"a\nb"), r#""a\nb""#);
        assert_eq!(c(b"\xff\"\\"), r#""\377\"\\""#);
        assert_eq!(prefixed("a/", b"\x1b[31m"), r#""a/\033[31m""#);
    }

    #[test]
    fn names_for_people() {
        assert_eq!(shown("ü/日本 a'b".as_bytes()), "ü/日本 a'b");
        assert_eq!(shown("ü\n".as_bytes()), "\"ü\\n\"");
        assert_eq!(shown(b"a\xff"), "\"a\\377\"");
        assert_eq!(shown(b""), "\"\"");
        assert_eq!(shown("a\u{202e}b".as_bytes()), "\"a\\342\\200\\256b\"");
        assert_eq!(shown("\u{9b}31m".as_bytes()), "\"\\302\\23331m\"");
        assert_eq!(terminal(b"say \"hi\"\x1b[2J"), "say \"hi\"\\033[2J");
    }
}
