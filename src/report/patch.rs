//! Patches in git's format, for `git apply`: text, binary, modes, renames, symbolic links.
//! One file's two contents are in memory at a time.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::ZlibEncoder;
use imara_diff::{Algorithm, Diff, InternedInput};
use sha1::{Digest, Sha1};

use super::quote::{c, prefixed};

/// Bytes within which a NUL makes a file binary, as in git.
const BINARY_LOOK: usize = 8000;
/// Lines of context.
const CONTEXT: usize = 3;

/// One side of a changed file.
#[derive(Clone, Debug)]
pub struct Side {
    /// Its path.
    pub path: Vec<u8>,
    /// Git's mode: 0o100644, 0o100755 or 0o120000.
    pub mode: u32,
    /// Its bytes; the text of a link.
    pub content: Vec<u8>,
}

/// Writes the patch of one file; nothing if both sides are the same to git.
///
/// # Errors
/// Those of the output.
pub fn write(out: &mut dyn Write, old: Option<&Side>, new: Option<&Side>) -> io::Result<()> {
    match (old, new) {
        // A link that became a file is, to git, one thing gone and another come.
        (Some(o), Some(n)) if (o.mode & 0o170_000) != (n.mode & 0o170_000) => {
            one(out, Some(o), None)?;
            one(out, None, Some(n))
        }
        (Some(o), Some(n)) if o.path == n.path && o.mode == n.mode && o.content == n.content => {
            Ok(())
        }
        _ => one(out, old, new),
    }
}

fn one(out: &mut dyn Write, old: Option<&Side>, new: Option<&Side>) -> io::Result<()> {
    let Some(any) = old.or(new) else { return Ok(()) };
    let (from, to) = (old.unwrap_or(any), new.unwrap_or(any));
    writeln!(out, "diff --git {} {}", prefixed("a/", &from.path), prefixed("b/", &to.path))?;
    match (old, new) {
        (None, Some(n)) => writeln!(out, "new file mode {:06o}", n.mode)?,
        (Some(o), None) => writeln!(out, "deleted file mode {:06o}", o.mode)?,
        (Some(o), Some(n)) => {
            if o.mode != n.mode {
                writeln!(out, "old mode {:06o}\nnew mode {:06o}", o.mode, n.mode)?;
            }
            if o.path != n.path {
                let percent = similarity(&o.content, &n.content);
                writeln!(
                    out,
                    "similarity index {percent}%\nrename from {}\nrename to {}",
                    c(&o.path),
                    c(&n.path)
                )?;
            }
        }
        (None, None) => {}
    }
    let (a, b) = (old.map_or(&[][..], |s| &s.content), new.map_or(&[][..], |s| &s.content));
    if a == b {
        return Ok(());
    }
    let id = |side: Option<&Side>| side.map_or_else(|| "0".repeat(40), |s| blob_id(&s.content));
    write!(out, "index {}..{}", id(old), id(new))?;
    match (old, new) {
        (Some(o), Some(n)) if o.mode == n.mode => writeln!(out, " {:06o}", o.mode)?,
        _ => writeln!(out)?,
    }
    if is_binary(a) || is_binary(b) {
        writeln!(out, "GIT binary patch")?;
        literal(out, b)?;
        return literal(out, a);
    }
    let name = |prefix, side: Option<&Side>| match side {
        // A tab ends a name with a blank for the readers of other tools.
        Some(s) if s.path.contains(&b' ') => format!("{}\t", prefixed(prefix, &s.path)),
        Some(s) => prefixed(prefix, &s.path),
        None => "/dev/null".into(),
    };
    writeln!(out, "--- {}\n+++ {}", name("a/", old), name("b/", new))?;
    hunks(out, a, b)
}

fn is_binary(content: &[u8]) -> bool {
    content.iter().take(BINARY_LOOK).any(|&b| b == 0)
}

fn blob_id(content: &[u8]) -> String {
    let mut hash = Sha1::new();
    hash.update(format!("blob {}\0", content.len()));
    hash.update(content);
    hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

fn similarity(a: &[u8], b: &[u8]) -> usize {
    if a == b {
        return 100;
    }
    let input = InternedInput::new(a, b);
    let diff = Diff::compute(Algorithm::Histogram, &input);
    let lines = input.before.len().max(input.after.len()).max(1);
    let kept = input.before.len() - diff.count_removals() as usize;
    (kept * 100 / lines).min(99)
}

fn lines(content: &[u8]) -> Vec<&[u8]> {
    content.split_inclusive(|&b| b == b'\n').collect()
}

/// Unified hunks. Changes closer than two contexts share one.
fn hunks(out: &mut dyn Write, a: &[u8], b: &[u8]) -> io::Result<()> {
    let (before, after) = (lines(a), lines(b));
    let mut input: InternedInput<&[u8]> = InternedInput::default();
    input.update_before(before.iter().copied());
    input.update_after(after.iter().copied());
    let mut diff = Diff::compute(Algorithm::Histogram, &input);
    diff.postprocess_lines(&input);
    let changes: Vec<_> = diff.hunks().collect();
    let mut at = 0;
    while at < changes.len() {
        let mut end = at + 1;
        while end < changes.len()
            && changes[end].before.start as usize - changes[end - 1].before.end as usize
                <= 2 * CONTEXT
        {
            end += 1;
        }
        let group = &changes[at..end];
        let (first, last) = (&group[0], &group[group.len() - 1]);
        let lead = CONTEXT.min(first.before.start as usize);
        let tail = CONTEXT.min(before.len() - last.before.end as usize);
        let (from, to) = (first.before.start as usize - lead, last.before.end as usize + tail);
        let (new_from, new_to) =
            (first.after.start as usize - lead, last.after.end as usize + tail);
        writeln!(out, "@@ -{} +{} @@", range(from, to), range(new_from, new_to))?;
        let mut line = from;
        for change in group {
            for text in &before[line..change.before.start as usize] {
                put(out, b' ', text)?;
            }
            for text in &before[change.before.start as usize..change.before.end as usize] {
                put(out, b'-', text)?;
            }
            for text in &after[change.after.start as usize..change.after.end as usize] {
                put(out, b'+', text)?;
            }
            line = change.before.end as usize;
        }
        for text in &before[line..to] {
            put(out, b' ', text)?;
        }
        at = end;
    }
    Ok(())
}

/// A range of lines: an empty one is named by the line before it.
fn range(from: usize, to: usize) -> String {
    match to - from {
        0 => format!("{from},0"),
        1 => format!("{}", from + 1),
        n => format!("{},{n}", from + 1),
    }
}

fn put(out: &mut dyn Write, sign: u8, line: &[u8]) -> io::Result<()> {
    out.write_all(&[sign])?;
    out.write_all(line)?;
    if !line.ends_with(b"\n") {
        out.write_all(b"\n\\ No newline at end of file\n")?;
    }
    Ok(())
}

/// One side of a binary patch: deflated, in git's base 85, 52 bytes a line.
fn literal(out: &mut dyn Write, content: &[u8]) -> io::Result<()> {
    writeln!(out, "literal {}", content.len())?;
    let mut deflate = ZlibEncoder::new(Vec::new(), Compression::default());
    deflate.write_all(content)?;
    for line in deflate.finish()?.chunks(52) {
        let len = line.len() as u8;
        let letter = if len <= 26 { b'A' + len - 1 } else { b'a' + len - 27 };
        out.write_all(&[letter])?;
        for four in line.chunks(4) {
            out.write_all(&base85(four))?;
        }
        out.write_all(b"\n")?;
    }
    out.write_all(b"\n")
}

fn base85(four: &[u8]) -> [u8; 5] {
    const DIGITS: &[u8; 85] =
        b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";
    let mut word = [0u8; 4];
    word[..four.len()].copy_from_slice(four);
    let mut value = u32::from_be_bytes(word);
    let mut out = [0u8; 5];
    for digit in out.iter_mut().rev() {
        *digit = DIGITS[(value % 85) as usize];
        value /= 85;
    }
    out
}

/// `--stat`: added and removed lines of one file, or its sizes if it is binary.
///
/// # Errors
/// Those of the output.
pub fn stat(out: &mut dyn Write, old: Option<&Side>, new: Option<&Side>) -> io::Result<()> {
    let Some(any) = new.or(old) else { return Ok(()) };
    let (a, b) = (old.map_or(&[][..], |s| &s.content), new.map_or(&[][..], |s| &s.content));
    let name = match (old, new) {
        (Some(o), Some(n)) if o.path != n.path => format!("{} => {}", c(&o.path), c(&n.path)),
        _ => c(&any.path),
    };
    if is_binary(a) || is_binary(b) {
        return writeln!(out, " {name} | Bin {} -> {} bytes", a.len(), b.len());
    }
    let input = InternedInput::new(a, b);
    let diff = Diff::compute(Algorithm::Histogram, &input);
    writeln!(out, " {name} | +{} -{}", diff.count_additions(), diff.count_removals())
}
