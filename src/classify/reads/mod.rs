//! Which texts only read: advice for hosts, beside the verdict and never part of it.
//!
//! A host that runs such a text with the view read-only and without a network loses nothing if the
//! advice is wrong. It is no proof: programs are found by the shell's own lookup, and a repository's
//! configuration may make `git diff` run another program.

mod git;
mod tools;

use super::bytes::{Class, class};

/// The longest text that is looked at, in bytes.
const MAX: usize = 16 << 10;

/// A word as the shell hands it to the command. A pattern stands for itself here: it begins with a
/// literal byte, so that what it expands to is never a flag.
struct Word {
    bytes: Vec<u8>,
    /// Nothing of it was quoted, nothing is a pattern.
    plain: bool,
    /// It may become any number of words.
    pattern: bool,
}

/// Whether every command of the text is known to read only, with these flags and redirections.
#[must_use]
pub fn reads_only(text: &[u8]) -> bool {
    // Most other texts begin with a command that is not known, and cost no more than this.
    if text.len() > MAX || !begins_well(text) {
        return false;
    }
    scan(text).is_some_and(|commands| {
        !commands.is_empty() && commands.iter().all(|command| known(command))
    })
}

fn begins_well(text: &[u8]) -> bool {
    let start = text.iter().position(|&b| b != b' ').unwrap_or(text.len());
    let rest = &text[start..];
    let end = rest.iter().position(|&b| class(b) != Class::Operand).unwrap_or(rest.len());
    rest.starts_with(b"[ ") || name_known(&rest[..end])
}

fn name_known(name: &[u8]) -> bool {
    matches!(name, b"cd" | b"git") || tools::known(name)
}

fn known(command: &[Word]) -> bool {
    let Some((name, words)) = command.split_first() else { return false };
    if !name.plain {
        return false;
    }
    match &name.bytes[..] {
        b"cd" => words.len() == 1,
        b"git" => git::reads_only(words),
        name => tools::reads_only(name, words),
    }
}

/// The commands of a list of pipelines, or `None` if something in it is not understood.
fn scan(text: &[u8]) -> Option<Vec<Vec<Word>>> {
    let mut scan = Scan { text, at: 0 };
    let (mut commands, mut command) = (Vec::new(), Vec::new());
    // Behind `|`, `&&` and `||` a command must come.
    let mut wanted = false;
    loop {
        scan.blanks();
        let rest = &text[scan.at..];
        let separator = match rest {
            [] => 0,
            [b'&', b'&', ..] | [b'|', b'|', ..] => 2,
            [b'|', b'&', ..] | [b';', b';', ..] => return None,
            [b'|' | b';' | b'\n', ..] => 1,
            [b'&' | b'<' | b'>', ..] => {
                scan.redirection()?;
                continue;
            }
            [b'1' | b'2', b'>', ..] => {
                scan.at += 1;
                scan.redirection()?;
                continue;
            }
            _ => {
                command.push(scan.word()?);
                continue;
            }
        };
        let line_break = rest.first().is_none_or(|&b| b == b'\n' || b == b';');
        if !command.is_empty() {
            commands.push(std::mem::take(&mut command));
        } else if !line_break || wanted {
            return None;
        }
        wanted = !line_break;
        if separator == 0 {
            return Some(commands);
        }
        scan.at += separator;
    }
}

struct Scan<'t> {
    text: &'t [u8],
    at: usize,
}

impl Scan<'_> {
    fn blanks(&mut self) {
        while matches!(self.text.get(self.at), Some(b' ' | b'\t')) {
            self.at += 1;
        }
    }

    /// To `/dev/null`, to another descriptor, or from a file.
    fn redirection(&mut self) -> Option<()> {
        let rest = &self.text[self.at..];
        if rest.starts_with(b">&1") || rest.starts_with(b">&2") {
            self.at += 3;
            return self.ends().then_some(());
        }
        let both = usize::from(rest.starts_with(b"&>"));
        let input = rest.starts_with(b"<");
        self.at += 1 + both;
        self.blanks();
        let word = self.word()?;
        // bash opens a connection for these.
        let network = [&b"/dev/tcp"[..], b"/dev/udp"].iter().any(|at| word.bytes.starts_with(at));
        ((input && !network) || (word.plain && word.bytes == b"/dev/null")).then_some(())
    }

    fn ends(&self) -> bool {
        matches!(self.text.get(self.at), None | Some(b' ' | b'\n' | b';' | b'|'))
    }

    fn word(&mut self) -> Option<Word> {
        let mut word = Word { bytes: Vec::new(), plain: true, pattern: false };
        let start = self.at;
        while let Some(&b) = self.text.get(self.at) {
            match class(b) {
                Class::Blank | Class::Newline | Class::Operator | Class::Redirect => break,
                Class::Control if b == b'\t' => break,
                Class::Operand => word.bytes.push(b),
                // The name of a command must not look like an assignment; it is not known then.
                Class::Equals if !word.bytes.is_empty() => word.bytes.push(b),
                Class::Glob => self.pattern(b, &mut word)?,
                // `~/`: what a home directory's path begins with is no dash.
                Class::Tilde if self.at == start => {
                    self.text.get(self.at + 1).filter(|&&b| b == b'/')?;
                    word.bytes.push(b);
                    word.plain = false;
                }
                // `HEAD~1`
                Class::Tilde if !matches!(word.bytes.last(), None | Some(b'=' | b':')) => {
                    word.bytes.push(b);
                }
                Class::History if self.at == start => {
                    self.text.get(self.at + 1).filter(|&&b| b == b' ')?;
                    word.bytes.push(b);
                }
                Class::Single | Class::Double => self.quoted(b, &mut word)?,
                Class::Backslash => {
                    self.at += 1;
                    let escaped = self.text.get(self.at).filter(|b| (0x20..0x7f).contains(*b))?;
                    word.bytes.push(*escaped);
                    word.plain = false;
                }
                Class::Control
                | Class::NonAscii
                | Class::Expansion
                | Class::Brace
                | Class::History
                | Class::Hash
                | Class::Equals
                | Class::Tilde => return None,
            }
            self.at += 1;
        }
        (self.at > start).then_some(word)
    }

    fn pattern(&self, b: u8, word: &mut Word) -> Option<()> {
        let alone = |b: &u8| matches!(b, b' ' | b'\n' | b';' | b'|');
        let test = word.bytes.is_empty() && self.text.get(self.at + 1).is_none_or(alone);
        // `[` and `]` of a test stand alone.
        let bracket = test && matches!(b, b'[' | b']');
        let literal = word.bytes.first().is_some_and(|&first| first != b'-');
        if !bracket && !literal {
            return None;
        }
        word.plain &= bracket;
        word.pattern |= !bracket;
        word.bytes.push(b);
        Some(())
    }

    fn quoted(&mut self, mark: u8, word: &mut Word) -> Option<()> {
        let len = self.text[self.at + 1..].iter().position(|&x| x == mark)?;
        let body = &self.text[self.at + 1..self.at + 1 + len];
        let double = mark == b'"';
        for (i, &b) in body.iter().enumerate() {
            match class(b) {
                Class::Control => return None,
                Class::Expansion | Class::History if double => return None,
                // It stays what it is before other bytes than these and the mark, which ends the
                // search for it.
                Class::Backslash
                    if double && matches!(body.get(i + 1), None | Some(b'\\' | b'\n')) =>
                {
                    return None;
                }
                Class::Blank
                | Class::Operand
                | Class::Newline
                | Class::NonAscii
                | Class::Expansion
                | Class::Glob
                | Class::Brace
                | Class::Tilde
                | Class::History
                | Class::Hash
                | Class::Equals
                | Class::Backslash
                | Class::Single
                | Class::Double
                | Class::Operator
                | Class::Redirect => {}
            }
        }
        word.bytes.extend_from_slice(body);
        word.plain = false;
        self.at += len + 1;
        // Two in a row are one quote under zsh's rcquotes.
        (self.text.get(self.at + 1) != Some(&mark)).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::reads_only;

    #[test]
    fn reading() {
        for text in [
            "ls",
            "ls -la src/*.rs",
            "cat a b | grep -n 'x y' | head -20",
            "cd src && grep -rn \"fn main\" . 2>/dev/null",
            "git status && git log --oneline -5",
            "git -C sub --no-pager diff HEAD~1 -- a",
            "find . -name '*.rs' -not -path './target/*' | sort | uniq -c",
            "sed -n '1,200p' src/main.rs",
            "sed -n 5,9p f; wc -l f",
            "find . \\( -name a -o -name b \\) -print 2>&1 | wc -l",
            "date +%s",
            "[ -f a ] && cat a",
            "wc -l < f",
            "sort -u f >/dev/null",
            "printf '%s\\n' a; [ -f b ] && test -n c",
            "printf '%-10s|%b\\t%%' PATH=1 b",
            "[ 3 -lt 10 ] && test -t 1 && [ ! -d a ]",
            "uniq -c -",
            "xxd -l4 a | xxd -p",
            "git diff --text; git log --stat --oneline; git cat-file --batch",
            "git diff a* -- b*",
        ] {
            assert!(reads_only(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn not_only_reading() {
        for text in [
            "",
            " ",
            "rm a",
            "ls; rm a",
            "ls\nrm a",
            "ls > f",
            "ls >> f",
            "ls 2> f",
            "ls > /dev/null2",
            "ls &",
            "ls & rm a",
            "ls | sh",
            "ls || rm a",
            "cat $(rm a)",
            "cat `rm a`",
            "cat \"$(rm a)\"",
            "cat <(rm a)",
            "cat *",
            "cat -*",
            "cat $x",
            "find . -delete",
            "find . -exec rm a +",
            "find . '-delete'",
            "find . \\-delete",
            "find . -fprint f",
            "sort -o f g",
            "sort -of g",
            "sort --output=f g",
            "sort --out f g",
            "sort --comp=sh f",
            "uniq a b",
            "xxd a b",
            "xxd -r a",
            "sed -i s/a/b/ f",
            "sed -n 'w f' g",
            "sed -n '1,2pw f' g",
            "sed 1e f",
            "rg --pre sh x",
            "rg --pre=sh x",
            "git push",
            "git diff --output=f",
            "git diff --outp f",
            "git -c core.pager=sh log",
            "git branch new",
            "git branch -D old",
            "git tag v1",
            "git grep -Osh x",
            "git stash",
            "git config user.name x",
            "date -s 1",
            "date 010100002026",
            "hostname evil",
            "tree -o f",
            "[ -v 'a[$(rm b)]' ]",
            "test 'a[`rm b`]' -gt 1",
            "printf %d 'a[$(rm b)]'",
            "printf -v 'a[0$x]' b",
            "cat < /dev/tcp/127.0.0.1/80",
            "cat </dev/udp/127.0.0.1/80",
            "A=1 ls",
            "ls 'a''b'",
            "\"ls\" a",
            "./ls",
            "ls\ta\x01",
            "cat a |",
            "&& ls",
            "ls && ",
            "ls >&f",
            "ls >&1f",
            "echo \"a\\\" > f; echo \\\"\"",
            "command rm a",
            "file -C -m x",
            "cd a b",
            "uniq - b",
            "uniq -c - b",
            "sort a | uniq - b",
            "uniq -- -a -b",
            "uniq a*",
            "uniq ./*",
            "xxd - b",
            "xxd -p - b",
            "xxd -- -a -b",
            "xxd a?",
            "git -C a* status",
            "date -d 1*",
            "printf -v PATH . && ls",
            "printf -vPATH .; ls",
            "printf '-v' PATH .; ls",
            "printf -\\v PATH .; ls",
            "printf -- -v",
            "printf %n PATH; ls",
            "printf '.%n' PATH; ls",
            "printf '\\045n' PATH; ls",
            "printf '\\x25n' PATH; ls",
            "printf %d PATH=1; ls",
            "printf '%s%d' a PATH=1; ls",
            "printf %5.2f PATH=1",
            "printf '%(%s)T'",
            "printf '%*s' PATH=1 a",
            "printf %s a*",
            "printf a*",
            "printf",
            "[ -v a* ]",
            "test -v a*",
            "[ a* -eq 1 ]",
            "[ PATH=1 -eq 1 ]; ls",
            "test 1 -lt 'PATH=1'; ls",
            "test 1 -eq PATH++",
            "test 1 -eq -x",
            "test -t PATH=3; ls",
            "[ -t PATH=1 -o x ]; ls",
            "git cat-file --t HEAD:a",
            "git cat-file --text HEAD:a",
            "git cat-file --tex HEAD:a",
            "git cat-file --fi HEAD:a",
            "git cat-file --textconv=x HEAD:a",
            "git log --ext-d",
            "git for-each-ref --format='%(signature:grade)'",
        ] {
            assert!(!reads_only(text.as_bytes()), "{text}");
        }
    }
}
