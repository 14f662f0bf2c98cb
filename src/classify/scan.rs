//! From bytes to words: only what every shell reads in the same way gets through.

use super::bytes::{Class, class};
use super::reason::{Emission, Reason, Span};
use super::{MAX_COMPONENT, MAX_OPERAND, Tier};

/// How a word was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Quote {
    /// Without quotes.
    Bare,
    /// Wholly in single quotes.
    Single,
    /// Wholly in double quotes.
    Double,
}

/// A word: what the shell hands to the tool is exactly these bytes of the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Word<'t> {
    pub(super) bytes: &'t [u8],
    pub(super) quote: Quote,
    pub(super) span: Span,
}

/// What a text consists of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Token<'t> {
    Word(Word<'t>),
    /// `&&`
    And(Span),
    /// `>` or `>>`
    Redirect {
        append: bool,
        span: Span,
    },
    End(Span),
}

/// Reads tokens from left to right.
#[derive(Clone, Debug)]
pub(super) struct Scanner<'t> {
    text: &'t [u8],
    at: usize,
    tier: Tier,
}

fn refuse(reason: Reason, start: usize, end: usize) -> Emission {
    Emission { reason, span: Span::new(start, end) }
}

impl<'t> Scanner<'t> {
    pub(super) fn new(text: &'t [u8], tier: Tier) -> Scanner<'t> {
        Scanner { text, at: 0, tier }
    }

    /// The next token.
    pub(super) fn next(&mut self) -> Result<Token<'t>, Emission> {
        while self.text.get(self.at) == Some(&b' ') {
            self.at += 1;
        }
        let Some(&first) = self.text.get(self.at) else {
            return Ok(Token::End(Span::new(self.at, self.at)));
        };
        match class(first) {
            Class::Operand => self.bare().map(Token::Word),
            Class::Single => self.quoted(Quote::Single).map(Token::Word),
            Class::Double => self.quoted(Quote::Double).map(Token::Word),
            Class::Operator => self.operator(),
            Class::Redirect => self.redirect(),
            other @ (Class::Blank
            | Class::Control
            | Class::Newline
            | Class::NonAscii
            | Class::Expansion
            | Class::Glob
            | Class::Brace
            | Class::Tilde
            | Class::History
            | Class::Hash
            | Class::Equals
            | Class::Backslash) => Err(refuse(Reason::of(other), self.at, self.at + 1)),
        }
    }

    fn bare(&mut self) -> Result<Word<'t>, Emission> {
        let start = self.at;
        let rest = &self.text[start..];
        let len = rest.iter().position(|&b| class(b) != Class::Operand).unwrap_or(rest.len());
        let end = start + len;
        if let Some(&next) = self.text.get(end)
            && next != b' '
        {
            return Err(refuse(Reason::of(class(next)), end, end + 1));
        }
        self.at = end;
        Ok(Word { bytes: &self.text[start..end], quote: Quote::Bare, span: Span::new(start, end) })
    }

    fn quoted(&mut self, quote: Quote) -> Result<Word<'t>, Emission> {
        let start = self.at;
        let mark = self.text[start];
        let body_at = start + 1;
        let Some(len) = self.text[body_at..].iter().position(|&b| b == mark) else {
            return Err(refuse(Reason::QuoteOpen, start, self.text.len()));
        };
        let (body, end) = (&self.text[body_at..body_at + len], body_at + len + 1);
        if self.tier == Tier::Bare {
            return Err(refuse(Reason::Quoted, start, end));
        }
        let double = quote == Quote::Double;
        for (i, &b) in body.iter().enumerate() {
            if let Some(reason) = inside(b, double) {
                return Err(refuse(reason, body_at + i, body_at + i + 1));
            }
        }
        if let Some(&next) = self.text.get(end)
            && next != b' '
        {
            return Err(refuse(behind(next), end, end + 1));
        }
        self.at = end;
        Ok(Word { bytes: body, quote, span: Span::new(start, end) })
    }

    fn operator(&mut self) -> Result<Token<'t>, Emission> {
        let start = self.at;
        let rest = &self.text[start..];
        let alone = rest.starts_with(b"&&") && rest.get(2).is_none_or(|&b| b == b' ');
        if self.tier == Tier::Bare || !alone {
            return Err(refuse(Reason::Operator, start, start + 1));
        }
        self.at = start + 2;
        Ok(Token::And(Span::new(start, start + 2)))
    }

    fn redirect(&mut self) -> Result<Token<'t>, Emission> {
        let start = self.at;
        let rest = &self.text[start..];
        let append = rest.starts_with(b">>");
        let len = 1 + usize::from(append);
        // What follows must be a blank or the target: `>|`, `>&`, `>(`, `>!` mean other things.
        let plain = rest.first() == Some(&b'>')
            && rest.get(len).is_some_and(|&b| {
                matches!(class(b), Class::Blank | Class::Operand | Class::Single | Class::Double)
            });
        if self.tier == Tier::Bare || !plain {
            return Err(refuse(Reason::Redirect, start, start + 1));
        }
        self.at = start + len;
        Ok(Token::Redirect { append, span: Span::new(start, start + len) })
    }
}

/// Why a byte cannot stand within quotes, if it cannot.
fn inside(byte: u8, double: bool) -> Option<Reason> {
    match class(byte) {
        Class::Control => Some(Reason::Control),
        Class::Newline => Some(Reason::Newline),
        Class::NonAscii => Some(Reason::NonAscii),
        Class::History => Some(Reason::History),
        Class::Expansion | Class::Backslash => double.then_some(Reason::QuoteExpansion),
        Class::Blank
        | Class::Operand
        | Class::Glob
        | Class::Brace
        | Class::Tilde
        | Class::Hash
        | Class::Equals
        | Class::Single
        | Class::Double
        | Class::Operator
        | Class::Redirect => None,
    }
}

/// Why a byte cannot follow a closing quote.
fn behind(byte: u8) -> Reason {
    match class(byte) {
        other @ (Class::Control
        | Class::Newline
        | Class::NonAscii
        | Class::Expansion
        | Class::Glob
        | Class::Brace
        | Class::History
        | Class::Operator
        | Class::Redirect) => Reason::of(other),
        Class::Blank
        | Class::Operand
        | Class::Tilde
        | Class::Hash
        | Class::Equals
        | Class::Backslash
        | Class::Single
        | Class::Double => Reason::QuoteJoined,
    }
}

/// Checks that a word names one file by a path whose last component is a name.
///
/// `dashes` says that the word stands behind `--`.
pub(super) fn operand<'t>(word: &Word<'t>, dashes: bool) -> Result<&'t [u8], Emission> {
    let bytes = word.bytes;
    let refuse = |reason| Err(Emission { reason, span: word.span });
    if bytes.is_empty() {
        return refuse(Reason::EmptyOperand);
    }
    // A lone dash is a file to rm and standard output to touch, behind `--` too.
    if bytes == b"-" || (bytes[0] == b'-' && !dashes) {
        return refuse(Reason::DashOperand);
    }
    if bytes.len() > MAX_OPERAND || bytes.split(|&b| b == b'/').any(|c| c.len() > MAX_COMPONENT) {
        return refuse(Reason::OperandTooLong);
    }
    match bytes.rsplit(|&b| b == b'/').next() {
        Some(b"." | b"..") => refuse(Reason::DotOperand),
        // Only slashes: the root.
        Some(b"") if bytes.iter().all(|&b| b == b'/') => refuse(Reason::DotOperand),
        Some(b"") | None => refuse(Reason::TrailingSlash),
        Some(_) => Ok(bytes),
    }
}
