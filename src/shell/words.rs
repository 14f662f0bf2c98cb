//! The words that a shell is started with, as far as hosts use them: `-c TEXT`, `-lc TEXT`, `-l -c
//! TEXT NAME ARG...`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// What a shell was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked<'a> {
    /// To run a text, in no other way than `sh -c` would.
    Text(&'a OsStr),
    /// To run a text with options that change how it runs or what is said, or which word it is.
    Options,
    /// Something else: a script, standard input, a session.
    Other,
}

/// Letters that change nothing about a text that is proved to be file operations: a login shell,
/// an end after the first failure, a fault for unset variables.
const HARMLESS: &[u8] = b"lceu";

/// Long options of the same kind.
const HARMLESS_LONG: [&[u8]; 4] = [b"--login", b"--norc", b"--noprofile", b"--posix"];

/// Reads the words behind the shell's name.
#[must_use]
pub fn read(words: &[OsString]) -> Asked<'_> {
    let (mut text_follows, mut plain) = (false, true);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let bytes = word.as_bytes();
        match bytes {
            b"--" | b"-" => return text(words.next(), text_follows, plain),
            [b'-', b'-', ..] => plain &= HARMLESS_LONG.contains(&bytes),
            [b'-', letters @ ..] => {
                text_follows |= letters.contains(&b'c');
                plain &= letters.iter().all(|l| HARMLESS.contains(l));
                if letters.contains(&b'o') || letters.contains(&b'O') {
                    // Its value is a word of its own.
                    words.next();
                }
            }
            [b'+', ..] => plain = false,
            _ => return text(Some(word), text_follows, plain),
        }
    }
    Asked::Other
}

fn text(word: Option<&OsString>, follows: bool, plain: bool) -> Asked<'_> {
    match (word, follows, plain) {
        (Some(word), true, true) => Asked::Text(word),
        (Some(_), true, false) => Asked::Options,
        (None, ..) | (Some(_), false, _) => Asked::Other,
    }
}

/// The word for a shell that this program may be called by, through a link of that name.
#[must_use]
pub fn is_shell(program: &OsStr) -> bool {
    let name = program.as_bytes().rsplit(|&b| b == b'/').next().unwrap_or_default();
    // A login shell's name begins with a dash.
    let name = name.strip_prefix(b"-").unwrap_or(name);
    [&b"bash"[..], b"sh", b"zsh", b"dash"].contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    #[test]
    fn the_forms_that_hosts_use_are_read() {
        let text = OsStr::new("mv a b");
        for given in [
            &["-c", "mv a b"][..],
            &["-lc", "mv a b"],
            &["-cl", "mv a b"],
            &["-l", "-c", "mv a b"],
            &["-c", "-l", "mv a b"],
            &["-c", "--", "mv a b"],
            &["--login", "-c", "mv a b", "name", "arg"],
            &["-ec", "mv a b", "-x"],
        ] {
            assert_eq!(read(&words(given)), Asked::Text(text), "{given:?}");
        }
        for given in [
            &["-xc", "mv a b"][..],
            &["-n", "-c", "mv a b"],
            &["-o", "noexec", "-c", "mv a b"],
            &["-ic", "mv a b"],
            &["+e", "-c", "mv a b"],
            &["--rcfile", "-c", "mv a b"],
            &["-c", "+O", "extglob", "mv a b"],
            &["-c", "-oo", "errexit", "pipefail", "mv a b"],
        ] {
            assert_eq!(read(&words(given)), Asked::Options, "{given:?}");
        }
        for given in [&[][..], &["-c"], &["script"], &["-l"], &["-s", "mv a b"], &["--"]] {
            assert_eq!(read(&words(given)), Asked::Other, "{given:?}");
        }
    }

    #[test]
    fn a_link_with_a_shells_name_is_a_shell() {
        for (name, is) in [("/x/bash", true), ("-zsh", true), ("sh", true), ("txfs", false)] {
            assert_eq!(is_shell(OsStr::new(name)), is, "{name}");
        }
    }
}
