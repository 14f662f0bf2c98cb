//! What the tools say: their messages, with their quotes.

use std::borrow::Cow;

use rustix::io::Errno;

/// The words for an error, without the number that Rust adds.
pub(super) fn words(errno: Errno) -> String {
    let text = std::io::Error::from(errno).to_string();
    match text.find(" (os error") {
        Some(at) => text[..at].to_owned(),
        None => text,
    }
}

/// A name as `quoteaf` of gnulib writes it: in single quotes, in double ones if it has a single
/// quote and nothing that double ones leave alive; what cannot be printed as `$'\n'`.
pub(super) fn name(name: &[u8], utf8: bool) -> Vec<u8> {
    let safe = |b: &u8| b.is_ascii_alphanumeric() || b" #%'+,-./:@_]~".contains(b);
    let (first, rest) = name.split_at(name.len().min(1));
    let plain = name.iter().all(safe) && !first.contains(&b'#') && !first.contains(&b'~');
    let plain = plain && !rest.iter().any(|b| b"#~".contains(b));
    if name.contains(&b'\'') && plain {
        return [b"\"", name, b"\""].concat();
    }
    let mut out = b"'".to_vec();
    let mut escaped = false;
    for part in parts(name, utf8) {
        match part {
            Part::Shown(text) => {
                for &b in text.iter() {
                    if escaped {
                        // The escapes end, and a new quote begins.
                        out.extend_from_slice(b"''");
                        escaped = false;
                    }
                    match b {
                        b'\'' => out.extend_from_slice(b"'\\''"),
                        b => out.push(b),
                    }
                }
            }
            Part::Escaped(b) => {
                if !escaped {
                    out.extend_from_slice(b"'$'");
                    escaped = true;
                }
                out.extend_from_slice(&escape(b));
            }
        }
    }
    out.push(b'\'');
    out
}

fn escape(b: u8) -> Cow<'static, [u8]> {
    let letter: &'static [u8] = match b {
        7 => b"\\a",
        8 => b"\\b",
        9 => b"\\t",
        10 => b"\\n",
        11 => b"\\v",
        12 => b"\\f",
        13 => b"\\r",
        _ => return Cow::Owned(format!("\\{b:03o}").into_bytes()),
    };
    Cow::Borrowed(letter)
}

enum Part<'n> {
    Shown(&'n [u8]),
    Escaped(u8),
}

/// What can be printed, and single bytes that cannot.
fn parts(name: &[u8], utf8: bool) -> Vec<Part<'_>> {
    let ascii = |bytes: &'_ [u8]| bytes.iter().all(|b| (b' '..=b'~').contains(b));
    let mut out = Vec::new();
    for chunk in name.utf8_chunks() {
        let text = chunk.valid();
        for (at, ch) in text.char_indices() {
            let bytes = &text.as_bytes()[at..at + ch.len_utf8()];
            if ascii(bytes) || (utf8 && !ch.is_ascii() && !ch.is_control()) {
                out.push(Part::Shown(bytes));
            } else {
                out.extend(bytes.iter().map(|&b| Part::Escaped(b)));
            }
        }
        out.extend(chunk.invalid().iter().map(|&b| Part::Escaped(b)));
    }
    out
}

/// A name as `quote` of gnulib writes it, which only `mkdir` uses.
pub(super) fn locale(name: &[u8], utf8: bool) -> Vec<u8> {
    let (open, close, escaped) =
        if utf8 { ("\u{2018}", "\u{2019}", &b"\\"[..]) } else { ("'", "'", &b"'\\"[..]) };
    let mut out = open.as_bytes().to_vec();
    for &b in name {
        if escaped.contains(&b) {
            out.push(b'\\');
        }
        out.push(b);
    }
    out.extend_from_slice(close.as_bytes());
    out
}
