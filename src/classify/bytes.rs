//! What shells make of one byte of an unquoted word.
//!
//! The table is a measurement, not a reading of one manual: each byte was put at the start, in the
//! middle and at the end of an operand under dash, bash (also `--posix`, `-i`, `-k`, `extglob`), zsh
//! (also `-i`, `extendedglob`, `rcquotes`, `magicequalsubst`), busybox, mksh, yash and ksh93. Only
//! [`Class::Operand`] is read literally by all of them in all three places.

/// The kinds of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Class {
    /// The space, the only byte that separates words.
    Blank,
    /// Literal everywhere.
    Operand,
    /// NUL, tab, CR, escape and the like: literal to `sh -c`, but a line editor acts on them, and
    /// they hide text from whoever approves it.
    Control,
    /// Ends a command.
    Newline,
    /// 0x80 and above.
    NonAscii,
    /// `$` and the backquote.
    Expansion,
    /// `*`, `?`, `[`, `]` and what zsh and ksh add to them, `^`.
    Glob,
    /// `{` and `}`.
    Brace,
    /// `~`, which is expanded at a word's start and behind `=` and `:`.
    Tilde,
    /// `!`
    History,
    /// `#`
    Hash,
    /// `=`, which zsh expands and `-k` takes for an assignment.
    Equals,
    /// The backslash.
    Backslash,
    /// `'`
    Single,
    /// `"`
    Double,
    /// `;`, `&`, `|`, `(` and `)`.
    Operator,
    /// `<` and `>`.
    Redirect,
}

const fn class_of(byte: u8) -> Class {
    match byte {
        b' ' => Class::Blank,
        b'\n' => Class::Newline,
        0x00..=0x1f | 0x7f => Class::Control,
        0x80..=0xff => Class::NonAscii,
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' => Class::Operand,
        b'_' | b'.' | b'/' | b'+' | b':' | b'@' | b'%' | b',' | b'-' => Class::Operand,
        b'$' | b'`' => Class::Expansion,
        b'*' | b'?' | b'[' | b']' | b'^' => Class::Glob,
        b'{' | b'}' => Class::Brace,
        b'~' => Class::Tilde,
        b'!' => Class::History,
        b'#' => Class::Hash,
        b'=' => Class::Equals,
        b'\\' => Class::Backslash,
        b'\'' => Class::Single,
        b'"' => Class::Double,
        b';' | b'&' | b'|' | b'(' | b')' => Class::Operator,
        b'<' | b'>' => Class::Redirect,
    }
}

const fn table() -> [Class; 256] {
    let mut table = [Class::NonAscii; 256];
    let mut byte: u8 = 0;
    loop {
        table[byte as usize] = class_of(byte);
        if byte == u8::MAX {
            return table;
        }
        byte += 1;
    }
}

static TABLE: [Class; 256] = table();

/// The class of a byte.
#[inline]
pub(super) fn class(byte: u8) -> Class {
    TABLE[usize::from(byte)]
}

/// Whether all shells read the word literally without quotes.
pub(super) fn bare(word: &[u8]) -> bool {
    !word.is_empty() && word.iter().all(|&b| class(b) == Class::Operand)
}
