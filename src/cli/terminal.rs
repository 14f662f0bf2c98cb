//! What is only done on a terminal: questions, and patches that a person reads.
//!
//! A patch for a program is exact to the byte. One that a terminal gets has what the terminal would
//! act on escaped: a file must not be able to hide from its reviewer what it says.

use std::io::{self, BufRead, IsTerminal, Write};

use super::args::Global;
use crate::proto::{Code, Failure};
use crate::report::quote;

/// Bytes of a line that are kept until its end is seen.
const LONGEST: usize = 1 << 20;

/// Whether output there may have colours.
pub(super) fn has_colours(out: &impl IsTerminal) -> bool {
    let forbidden = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|t| t == "dumb");
    out.is_terminal() && !forbidden && !dumb
}

/// Whether there is somebody to ask.
pub(super) fn can_ask(global: &Global) -> bool {
    !global.yes && !global.json && io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks on the terminal.
///
/// # Errors
/// [`Code::Refused`] unless the answer is yes.
pub(super) fn ask(question: &str) -> Result<(), Failure> {
    let asked = write!(io::stderr(), "txfs: {question} [y/N] ").and_then(|()| io::stderr().flush());
    let mut answer = String::new();
    let read = asked.and_then(|()| io::stdin().lock().read_line(&mut answer));
    let yes = ["y", "yes"].contains(&answer.trim().to_lowercase().as_str());
    if read.is_ok() && yes {
        return Ok(());
    }
    Err(Failure::new(Code::Refused, "nothing was done").hint("-y answers yes"))
}

/// Passes a patch on to a terminal, line by line.
pub(super) struct Patch<W> {
    out: W,
    line: Vec<u8>,
    colours: bool,
    /// Between the first line about a file and its first hunk.
    in_head: bool,
}

impl<W: Write> Patch<W> {
    pub(super) fn new(out: W, colours: bool) -> Patch<W> {
        Patch { out, line: Vec::new(), colours, in_head: false }
    }

    fn put_line(&mut self) -> io::Result<()> {
        let ends = self.line.last() == Some(&b'\n');
        let text = &self.line[..self.line.len() - usize::from(ends)];
        if text.starts_with(b"diff --git ") {
            self.in_head = true;
        } else if text.starts_with(b"@@ ") || text == b"GIT binary patch" {
            self.in_head = false;
        }
        let on = match (self.colours, text.first()) {
            (true, _) if self.in_head => "\x1b[1m",
            (true, Some(b'@')) => "\x1b[36m",
            (true, Some(b'-')) => "\x1b[31m",
            (true, Some(b'+')) => "\x1b[32m",
            (true, _) | (false, _) => "",
        };
        let off = if on.is_empty() { "" } else { "\x1b[0m" };
        let shown: Vec<_> = text.split(|&b| b == b'\t').map(quote::terminal).collect();
        let end = if ends { "\n" } else { "" };
        write!(self.out, "{on}{}{off}{end}", shown.join("\t"))?;
        self.line.clear();
        Ok(())
    }
}

impl<W: Write> Write for Patch<W> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        for piece in buf.split_inclusive(|&b| b == b'\n') {
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.line.len() >= LONGEST {
                self.put_line()?;
            }
        }
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.line.is_empty() {
            self.put_line()?;
        }
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through(patch: &[u8], colours: bool) -> String {
        let mut out = Vec::new();
        let mut filter = Patch::new(&mut out, colours);
        // In pieces, as it comes over the socket.
        patch.chunks(5).for_each(|c| filter.write_all(c).unwrap());
        filter.flush().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_patch_cannot_act_on_the_terminal() {
        let patch = b"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-rm\t-rf\n+\x1b[2Kok\xff \xc3\xbc\r\n";
        assert_eq!(
            through(patch, false),
            "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-rm\t-rf\n+\\033[2Kok\\377 ü\\r\n"
        );
        assert!(through(patch, true).contains("\x1b[31m-rm\t-rf\x1b[0m\n\x1b[32m+\\033[2K"));
        assert_eq!(through(b"no end", false), "no end");
    }
}
