//! Output for people and programs: patches, listings, quoted names.

pub mod patch;
pub mod quote;

use std::io::{self, Write};

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
