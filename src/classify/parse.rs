//! From words to commands.

use super::Tier;
use super::reason::{Emission, Reason, Span};
use super::scan::{Quote, Scanner, Token, Word, operand};
use super::witness::{Clobber, Command, Content, Witness};

type Parsed<T> = Result<T, Emission>;

fn refuse<T>(reason: Reason, span: Span) -> Parsed<T> {
    Err(Emission { reason, span })
}

/// Reads a whole text. The tier says what is known; what was used says which tier the text needs.
pub(super) fn parse(text: &[u8], tier: Tier) -> Parsed<Witness<'_>> {
    let mut parser = Parser { scanner: Scanner::new(text, tier), tier, needs: Tier::Bare };
    let mut cd = None;
    let mut commands = Vec::new();
    let mut word = match parser.command_word()? {
        Token::Word(word) => word,
        Token::And(span) => return refuse(Reason::Incomplete, span),
        Token::Redirect { span, .. } => return refuse(Reason::Redirect, span),
        Token::End(span) => return refuse(Reason::Empty, Span::new(0, span.end)),
    };
    if tier == Tier::Exact && word.bytes == b"cd" && word.quote == Quote::Bare {
        cd = Some(parser.cd(&word)?);
        word = parser.after_and()?;
    }
    loop {
        let (command, end) = parser.command(&word)?;
        commands.push(command);
        match end {
            Stop::End => return Ok(Witness { tier: parser.needs, cd, commands }),
            Stop::And => word = parser.after_and()?,
        }
    }
}

/// What ended a command.
#[derive(Clone, Copy)]
enum Stop {
    And,
    End,
}

struct Parser<'t> {
    scanner: Scanner<'t>,
    tier: Tier,
    needs: Tier,
}

/// The words of a command without its name.
struct Line<'t> {
    /// A bit for each letter of those allowed.
    flags: u32,
    operands: Vec<&'t [u8]>,
    first: Span,
    stop: Stop,
    end: usize,
}

impl Line<'_> {
    fn has(&self, flag: usize) -> bool {
        self.flags & (1 << flag) != 0
    }
}

impl<'t> Parser<'t> {
    fn command_word(&mut self) -> Parsed<Token<'t>> {
        self.scanner.next().map_err(|e| {
            let assigns = e.reason == Reason::Equals;
            Emission { reason: if assigns { Reason::Assignment } else { e.reason }, ..e }
        })
    }

    /// The command name behind `&&`.
    fn after_and(&mut self) -> Parsed<Word<'t>> {
        self.needs = Tier::Exact;
        match self.command_word()? {
            Token::Word(word) => Ok(word),
            Token::And(span) | Token::End(span) => refuse(Reason::Incomplete, span),
            Token::Redirect { span, .. } => refuse(Reason::Redirect, span),
        }
    }

    /// `cd DIR &&`, the word `cd` being read already.
    fn cd(&mut self, name: &Word<'t>) -> Parsed<&'t [u8]> {
        let dir = match self.scanner.next()? {
            Token::Word(word) => word,
            Token::And(_) | Token::End(_) => return refuse(Reason::OperandCount, name.span),
            Token::Redirect { span, .. } => return refuse(Reason::Redirect, span),
        };
        let path = operand(&dir, false)?;
        if path[0] == b'+' || path.split(|&b| b == b'/').any(|c| c == b"..") {
            return refuse(Reason::CdTarget, dir.span);
        }
        match self.scanner.next()? {
            Token::And(_) => Ok(path),
            Token::End(_) => refuse(Reason::CdPlace, name.span),
            Token::Word(word) => refuse(Reason::OperandCount, word.span),
            Token::Redirect { span, .. } => refuse(Reason::Redirect, span),
        }
    }

    fn command(&mut self, name: &Word<'t>) -> Parsed<(Command<'t>, Stop)> {
        if name.quote != Quote::Bare {
            return refuse(Reason::QuotedCommand, name.span);
        }
        match name.bytes {
            b"mv" => self.mv(name),
            b"cp" => self.cp(name),
            b"rm" => {
                let line = self.line("frR")?;
                let (force, recursive) = (line.has(0), line.has(1) || line.has(2));
                let (paths, stop) = many(name, line)?;
                Ok((Command::Rm { force, recursive, paths }, stop))
            }
            b"mkdir" => {
                let line = self.line("p")?;
                let parents = line.has(0);
                let (paths, stop) = many(name, line)?;
                Ok((Command::Mkdir { parents, paths }, stop))
            }
            b"touch" => {
                let line = self.line("")?;
                let (paths, stop) = many(name, line)?;
                Ok((Command::Touch { paths }, stop))
            }
            _ if self.tier == Tier::Bare => unknown(name),
            _ => {
                self.needs = Tier::Exact;
                self.exact_command(name)
            }
        }
    }

    fn exact_command(&mut self, name: &Word<'t>) -> Parsed<(Command<'t>, Stop)> {
        match name.bytes {
            b"rmdir" => {
                let line = self.line("")?;
                let (paths, stop) = many(name, line)?;
                Ok((Command::Rmdir { paths }, stop))
            }
            b"chmod" => self.chmod(name),
            b"ln" => {
                let line = self.line("s")?;
                if !line.has(0) {
                    return refuse(Reason::UnknownCommand, name.span);
                }
                let (target, link, stop) = two(name, &line)?;
                Ok((Command::Symlink { target, link }, stop))
            }
            b"printf" => self.printf(name),
            b"true" => self.write(name, Content::Empty("true")),
            b":" => self.write(name, Content::Empty(":")),
            b"cd" => refuse(Reason::CdPlace, name.span),
            _ => unknown(name),
        }
    }

    fn mv(&mut self, name: &Word<'t>) -> Parsed<(Command<'t>, Stop)> {
        let line = self.line("fn")?;
        let clobber = match (line.has(0), line.has(1)) {
            (false, false) => Clobber::Default,
            (true, false) => Clobber::Force,
            (false, true) => Clobber::Never,
            // Which of the two counts is the tool's business.
            (true, true) => return refuse(Reason::Option, name.span),
        };
        let (from, to, stop) = two(name, &line)?;
        Ok((Command::Mv { clobber, from, to }, stop))
    }

    fn cp(&mut self, name: &Word<'t>) -> Parsed<(Command<'t>, Stop)> {
        let line = self.line("prR")?;
        let (preserve, recursive) = (line.has(0), line.has(1) || line.has(2));
        let (from, to, stop) = two(name, &line)?;
        Ok((Command::Cp { preserve, recursive, from, to }, stop))
    }

    fn chmod(&mut self, name: &Word<'t>) -> Parsed<(Command<'t>, Stop)> {
        let line = self.line("")?;
        let (first, stop, end) = (line.first, line.stop, line.end);
        let mut operands = line.operands.into_iter();
        let Some(digits) = operands.next() else {
            return refuse(Reason::OperandCount, Span::new(name.span.start, end));
        };
        let octal = digits.iter().all(|b| (b'0'..=b'7').contains(b));
        let plain = digits.len() == 3 || (digits.len() == 4 && digits[0] <= b'1');
        if !octal || !plain {
            return refuse(Reason::Mode, first);
        }
        let paths: Vec<_> = operands.collect();
        if paths.is_empty() {
            return refuse(Reason::OperandCount, Span::new(name.span.start, end));
        }
        Ok((Command::Chmod { digits, paths }, stop))
    }

    /// `printf '%s\n' WORD... > FILE`: the only format that all shells print in the same way.
    fn printf(&mut self, name: &Word<'t>) -> Parsed<(Command<'t>, Stop)> {
        match self.scanner.next()? {
            Token::Word(w) if w.quote == Quote::Single && w.bytes == b"%s\\n" => {}
            Token::Word(w) => return refuse(Reason::Content, w.span),
            Token::And(_) | Token::End(_) => return unknown(name),
            Token::Redirect { span, .. } => return refuse(Reason::Content, span),
        }
        let (words, append, span) = self.words(name)?;
        if words.is_empty() {
            return refuse(Reason::Content, span);
        }
        let words = words.into_iter().map(|w| w.bytes).collect();
        self.target(append, Content::Lines(words))
    }

    /// `true > FILE`
    fn write(&mut self, name: &Word<'t>, content: Content<'t>) -> Parsed<(Command<'t>, Stop)> {
        let (words, append, _) = self.words(name)?;
        match words.first() {
            Some(word) => refuse(Reason::Content, word.span),
            None => self.target(append, content),
        }
    }

    /// Words up to a redirection. Without one the command has no effect on files.
    fn words(&mut self, name: &Word<'t>) -> Parsed<(Vec<Word<'t>>, bool, Span)> {
        let mut words = Vec::new();
        loop {
            match self.scanner.next()? {
                Token::Word(word) => words.push(word),
                Token::Redirect { append, span } => return Ok((words, append, span)),
                Token::And(_) | Token::End(_) => return unknown(name),
            }
        }
    }

    /// The target of a redirection, and nothing behind it.
    fn target(&mut self, append: bool, content: Content<'t>) -> Parsed<(Command<'t>, Stop)> {
        let word = match self.scanner.next()? {
            Token::Word(word) => word,
            Token::And(span) | Token::End(span) => return refuse(Reason::Incomplete, span),
            Token::Redirect { span, .. } => return refuse(Reason::Redirect, span),
        };
        let to = operand(&word, false)?;
        let mut components = to.split(|&b| b == b'/').filter(|c| !c.is_empty());
        if to[0] == b'/' && matches!(components.next(), Some(b"dev" | b"proc")) {
            return refuse(Reason::RedirectTarget, word.span);
        }
        let command = Command::Write { append, content, to };
        match self.scanner.next()? {
            Token::And(_) => Ok((command, Stop::And)),
            Token::End(_) => Ok((command, Stop::End)),
            Token::Word(word) => refuse(Reason::Redirect, word.span),
            Token::Redirect { span, .. } => refuse(Reason::Redirect, span),
        }
    }

    /// Flags from `letters`, then operands, up to the end of the command.
    fn line(&mut self, letters: &'static str) -> Parsed<Line<'t>> {
        let (mut flags, mut dashes, mut options) = (0, false, true);
        let (mut operands, mut first) = (Vec::new(), Span::new(0, 0));
        loop {
            let (stop, end) = match self.scanner.next()? {
                Token::Word(word) => {
                    let dash = word.bytes.len() > 1 && word.bytes[0] == b'-';
                    if options && dash && word.quote == Quote::Bare {
                        if self.tier == Tier::Bare {
                            return refuse(Reason::Option, word.span);
                        }
                        self.needs = Tier::Exact;
                        if word.bytes == b"--" {
                            (options, dashes) = (false, true);
                        } else {
                            flags |= letter_bits(&word, letters)?;
                        }
                        continue;
                    }
                    options = false;
                    if word.quote != Quote::Bare {
                        self.needs = Tier::Exact;
                    }
                    if operands.is_empty() {
                        first = word.span;
                    }
                    operands.push(operand(&word, dashes)?);
                    continue;
                }
                Token::Redirect { span, .. } => return refuse(Reason::Redirect, span),
                Token::And(span) => (Stop::And, span.start),
                Token::End(span) => (Stop::End, span.end),
            };
            return Ok(Line { flags, operands, first, stop, end });
        }
    }
}

fn letter_bits(word: &Word<'_>, letters: &str) -> Parsed<u32> {
    let mut flags = 0;
    for &b in &word.bytes[1..] {
        match letters.bytes().position(|l| l == b) {
            Some(bit) => flags |= 1 << bit,
            None => return refuse(Reason::Option, word.span),
        }
    }
    Ok(flags)
}

fn many<'t>(name: &Word<'t>, line: Line<'t>) -> Parsed<(Vec<&'t [u8]>, Stop)> {
    if line.operands.is_empty() {
        return refuse(Reason::OperandCount, Span::new(name.span.start, line.end));
    }
    Ok((line.operands, line.stop))
}

fn two<'t>(name: &Word<'t>, line: &Line<'t>) -> Parsed<(&'t [u8], &'t [u8], Stop)> {
    match line.operands[..] {
        [from, to] => Ok((from, to, line.stop)),
        _ => refuse(Reason::OperandCount, Span::new(name.span.start, line.end)),
    }
}

fn unknown<T>(name: &Word<'_>) -> Parsed<T> {
    let path = name.bytes.contains(&b'/');
    refuse(if path { Reason::PathCommand } else { Reason::UnknownCommand }, name.span)
}
