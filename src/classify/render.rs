//! A witness as text again.

use super::bytes::bare;
use super::witness::{Command, Content, Witness};

/// A text that is witnessed and means the same: one blank between words, quotes only where needed.
#[must_use]
pub fn render(witness: &Witness<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    if let Some(dir) = witness.cd {
        out.extend_from_slice(b"cd");
        word(&mut out, dir);
        out.extend_from_slice(b" && ");
    }
    out.extend_from_slice(&render_from(witness, 0));
    out
}

/// The same for the commands from number `first` on, as they are written in the directory that the
/// `cd` in front leads to.
#[must_use]
pub fn render_from(witness: &Witness<'_>, first: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for (i, command) in witness.commands.iter().skip(first).enumerate() {
        if i > 0 {
            out.extend_from_slice(b" && ");
        }
        command_words(&mut out, command);
    }
    out
}

fn command_words(out: &mut Vec<u8>, command: &Command<'_>) {
    out.extend_from_slice(command.tool().as_bytes());
    let flags = command.flags();
    if !flags.is_empty() {
        out.push(b' ');
        out.extend_from_slice(flags.as_bytes());
    }
    match command {
        Command::Write { append, content, to } => {
            if let Content::Lines(_) = content {
                out.extend_from_slice(b" '%s\\n'");
            }
            command.each_operand(|w| word(out, w));
            out.extend_from_slice(if *append { b" >>" } else { b" >" });
            word(out, to);
        }
        Command::Mv { .. }
        | Command::Cp { .. }
        | Command::Rm { .. }
        | Command::Rmdir { .. }
        | Command::Mkdir { .. }
        | Command::Touch { .. }
        | Command::Chmod { .. }
        | Command::Symlink { .. } => {
            let mut dash = false;
            command.each_operand(|w| dash |= w.starts_with(b"-"));
            if dash {
                out.extend_from_slice(b" --");
            }
            command.each_operand(|w| word(out, w));
        }
    }
}

/// A blank and the word. A witnessed word never holds what neither kind of quotes protects.
fn word(out: &mut Vec<u8>, word: &[u8]) {
    out.push(b' ');
    if bare(word) {
        out.extend_from_slice(word);
        return;
    }
    let mark = if word.contains(&b'\'') { b'"' } else { b'\'' };
    out.push(mark);
    out.extend_from_slice(word);
    out.push(mark);
}
