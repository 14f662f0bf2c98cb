//! Output for people and programs: patches, listings, quoted names.

pub mod patch;
pub mod quote;

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::ops::Bound;

use crate::proto::{ChangeKind, ChangeLine};

/// The letter of a change, as git has it; metadata-only is lower-case `m`, which git does not have.
#[must_use]
pub fn letter(kind: ChangeKind) -> char {
    match kind {
        ChangeKind::Deleted => 'D',
        ChangeKind::Renamed => 'R',
        ChangeKind::TypeChanged => 'T',
        ChangeKind::Modified => 'M',
        ChangeKind::Metadata => 'm',
        ChangeKind::Added => 'A',
    }
}

/// `--name-status`: a letter, a tab, the path; renames have both paths. With `nul` unquoted and
/// NUL-terminated.
///
/// # Errors
/// Those of the output.
pub fn name_status(out: &mut dyn Write, lines: &[ChangeLine], nul: bool) -> io::Result<()> {
    for line in lines {
        let paths = line.from.iter().chain([&line.path]);
        if nul {
            write!(out, "{}\0", letter(line.change))?;
            for path in paths {
                out.write_all(&path.0)?;
                out.write_all(b"\0")?;
            }
        } else {
            write!(out, "{}", letter(line.change))?;
            for path in paths {
                write!(out, "\t{}", quote::c(&path.0))?;
            }
            writeln!(out)?;
        }
    }
    Ok(())
}

/// What of the changes a patch cannot say: special files, empty directories, owners, times, extended
/// attributes, modes but for the bit that makes a file executable.
#[must_use]
pub fn unsaid(lines: &[ChangeLine]) -> Vec<ChangeLine> {
    let is_said = |l: &&ChangeLine| l.kind == "file" || l.kind == "symlink";
    let old = lines.iter().filter(is_said).filter(|l| l.change != ChangeKind::Added);
    let old: BTreeSet<&[u8]> = old.map(|l| &*l.from.as_ref().unwrap_or(&l.path).0).collect();
    let new = lines.iter().filter(is_said).filter(|l| l.change != ChangeKind::Deleted);
    let new: BTreeSet<&[u8]> = new.map(|l| &*l.path.0).collect();
    lines.iter().filter(|l| !says(l, &old, &new)).cloned().collect()
}

fn says(line: &ChangeLine, old: &BTreeSet<&[u8]>, new: &BTreeSet<&[u8]>) -> bool {
    let is_executable = |mode: Option<u32>| mode.is_some_and(|m| m & 0o111 != 0);
    let executable_differs = is_executable(line.old_mode) != is_executable(line.new_mode);
    let meta_is_said = line.meta.iter().all(|word| match word.as_str() {
        "mode" => {
            executable_differs
                && line.old_mode.zip(line.new_mode).is_some_and(|(a, b)| (a ^ b) & !0o111 == 0)
        }
        // Whoever applies the patch changes the content at another time anyway.
        "mtime" => line.change != ChangeKind::Metadata,
        _ => false,
    });
    match (line.kind.as_str(), line.change) {
        ("file" | "symlink", _) => meta_is_said,
        ("dir", ChangeKind::Added) => has_below(new, &line.path.0),
        ("dir", ChangeKind::Deleted) => has_below(old, &line.path.0),
        // A moved directory is its files; one that took the place of a file is, too.
        ("dir", ChangeKind::Renamed | ChangeKind::TypeChanged) => meta_is_said,
        ("dir", ChangeKind::Modified | ChangeKind::Metadata) => false,
        _ => false,
    }
}

fn has_below(paths: &BTreeSet<&[u8]>, dir: &[u8]) -> bool {
    let prefix = [dir, b"/"].concat();
    paths
        .range::<[u8], _>((Bound::Included(&*prefix), Bound::Unbounded))
        .next()
        .is_some_and(|p| p.starts_with(&prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_patch_cannot_say() {
        let line = |change, path: &str, kind: &str, modes: (u32, u32), meta: &[&str]| ChangeLine {
            change,
            path: path.as_bytes().into(),
            from: None,
            kind: kind.into(),
            old_mode: Some(modes.0),
            new_mode: Some(modes.1),
            old_size: None,
            new_size: None,
            meta: meta.iter().map(|m| (*m).to_owned()).collect(),
        };
        let all = [
            line(ChangeKind::Added, "d", "dir", (0, 0o755), &[]),
            line(ChangeKind::Added, "d/f", "file", (0, 0o644), &[]),
            line(ChangeKind::Added, "empty", "dir", (0, 0o755), &[]),
            line(ChangeKind::Added, "fifo", "fifo", (0, 0o644), &[]),
            line(ChangeKind::Modified, "m", "file", (0o644, 0o644), &["mtime"]),
            line(ChangeKind::Metadata, "x", "file", (0o644, 0o755), &["mode"]),
            line(ChangeKind::Metadata, "private", "file", (0o644, 0o600), &["mode"]),
            line(ChangeKind::Metadata, "touched", "file", (0o644, 0o644), &["mtime"]),
            line(ChangeKind::Modified, "o", "file", (0o644, 0o644), &["owner"]),
        ];
        let names: Vec<_> =
            unsaid(&all).into_iter().map(|l| String::from_utf8(l.path.0).unwrap()).collect();
        assert_eq!(names, ["empty", "fifo", "private", "touched", "o"]);
    }
}
