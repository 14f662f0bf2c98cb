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
    for &b in name {
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
            _ => drop(write!(out, "\\{b:03o}")),
        }
    }
    out.push('"');
    out
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
}
