//! What a witnessed text does: commands with their operands, all borrowed from the text.

use super::Tier;

/// A text that is proved to be these commands, in this order, up to the first that fails.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Witness<'t> {
    /// The narrowest tier that accepts the text.
    pub tier: Tier,
    /// `cd DIR &&` in front: relative operands are relative to it.
    pub cd: Option<&'t [u8]>,
    /// At least one.
    pub commands: Vec<Command<'t>>,
}

/// What `mv` does with an existing target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clobber {
    /// Replaces it; asks if it is not writable and a terminal is there to ask.
    Default,
    /// `-f`: replaces it.
    Force,
    /// `-n`: leaves it.
    Never,
}

/// What goes into a file by `>` or `>>`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Content<'t> {
    /// `true` or `:`: nothing.
    Empty(&'static str),
    /// `printf '%s\n' A B`: each with a line break.
    Lines(Vec<&'t [u8]>),
}

/// One command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command<'t> {
    /// `mv FROM TO`
    Mv {
        /// `-f`, `-n`
        clobber: Clobber,
        /// What moves.
        from: &'t [u8],
        /// Where to, or the directory to move into.
        to: &'t [u8],
    },
    /// `cp FROM TO`
    Cp {
        /// `-p`
        preserve: bool,
        /// `-r`, `-R`
        recursive: bool,
        /// What is copied.
        from: &'t [u8],
        /// Where to, or the directory to copy into.
        to: &'t [u8],
    },
    /// `rm PATH...`
    Rm {
        /// `-f`
        force: bool,
        /// `-r`, `-R`
        recursive: bool,
        /// At least one.
        paths: Vec<&'t [u8]>,
    },
    /// `rmdir PATH...`
    Rmdir {
        /// At least one.
        paths: Vec<&'t [u8]>,
    },
    /// `mkdir PATH...`
    Mkdir {
        /// `-p`
        parents: bool,
        /// At least one.
        paths: Vec<&'t [u8]>,
    },
    /// `touch PATH...`
    Touch {
        /// At least one.
        paths: Vec<&'t [u8]>,
    },
    /// `chmod MODE PATH...`
    Chmod {
        /// As written: three or four octal digits.
        digits: &'t [u8],
        /// At least one.
        paths: Vec<&'t [u8]>,
    },
    /// `ln -s TARGET LINK`
    Symlink {
        /// The link's text.
        target: &'t [u8],
        /// The new name, or the directory to make it in.
        link: &'t [u8],
    },
    /// `printf '%s\n' WORD... > FILE` and its like.
    Write {
        /// `>>`
        append: bool,
        /// What is written.
        content: Content<'t>,
        /// Where.
        to: &'t [u8],
    },
}

/// The effects of the catalog.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// A new place.
    Move,
    /// A name less.
    Rm,
    /// A new directory.
    Mkdir,
    /// A new state of an entry.
    Write,
}

impl Op {
    /// The word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Op::Move => "move",
            Op::Rm => "rm",
            Op::Mkdir => "mkdir",
            Op::Write => "write",
        }
    }

    /// The word for what takes it back.
    #[must_use]
    pub fn inverse(self) -> &'static str {
        match self {
            Op::Move => "unmove",
            Op::Rm => "unrm",
            Op::Mkdir => "rmdir_if_empty",
            Op::Write => "restore",
        }
    }
}

/// One effect that a command has if nothing stands in its way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Effect<'t> {
    /// Which.
    pub op: Op,
    /// Where what is moved or copied comes from.
    pub from: Option<&'t [u8]>,
    /// The operand it changes.
    pub to: &'t [u8],
    /// Everything below it too.
    pub recursive: bool,
}

impl<'t> Command<'t> {
    /// The tool's name.
    #[must_use]
    pub fn tool(&self) -> &'static str {
        match self {
            Command::Mv { .. } => "mv",
            Command::Cp { .. } => "cp",
            Command::Rm { .. } => "rm",
            Command::Rmdir { .. } => "rmdir",
            Command::Mkdir { .. } => "mkdir",
            Command::Touch { .. } => "touch",
            Command::Chmod { .. } => "chmod",
            Command::Symlink { .. } => "ln",
            Command::Write { content, .. } => match content {
                Content::Empty(word) => word,
                Content::Lines(_) => "printf",
            },
        }
    }

    /// The flags, as one word.
    #[must_use]
    pub fn flags(&self) -> &'static str {
        match self {
            Command::Mv { clobber, .. } => match clobber {
                Clobber::Default => "",
                Clobber::Force => "-f",
                Clobber::Never => "-n",
            },
            Command::Cp { preserve, recursive, .. } => match (preserve, recursive) {
                (false, false) => "",
                (true, false) => "-p",
                (false, true) => "-r",
                (true, true) => "-pr",
            },
            Command::Rm { force, recursive, .. } => match (force, recursive) {
                (false, false) => "",
                (true, false) => "-f",
                (false, true) => "-r",
                (true, true) => "-rf",
            },
            Command::Mkdir { parents: true, .. } => "-p",
            Command::Symlink { .. } => "-s",
            Command::Mkdir { parents: false, .. }
            | Command::Rmdir { .. }
            | Command::Touch { .. }
            | Command::Chmod { .. }
            | Command::Write { .. } => "",
        }
    }

    /// Calls `f` with each operand in order, without flags, format and redirection.
    pub fn each_operand(&self, mut f: impl FnMut(&'t [u8])) {
        match self {
            Command::Mv { from, to, .. } | Command::Cp { from, to, .. } => {
                f(from);
                f(to);
            }
            Command::Symlink { target, link } => {
                f(target);
                f(link);
            }
            Command::Chmod { digits, paths } => {
                f(digits);
                paths.iter().for_each(|p| f(p));
            }
            Command::Rm { paths, .. }
            | Command::Rmdir { paths }
            | Command::Mkdir { paths, .. }
            | Command::Touch { paths } => paths.iter().for_each(|p| f(p)),
            Command::Write { content, .. } => match content {
                Content::Empty(_) => {}
                Content::Lines(words) => words.iter().for_each(|w| f(w)),
            },
        }
    }

    /// Calls `f` with each effect in order.
    pub fn each_effect(&self, mut f: impl FnMut(Effect<'t>)) {
        let one = |op, to, recursive| Effect { op, from: None, to, recursive };
        match self {
            Command::Mv { from, to, .. } => {
                f(Effect { op: Op::Move, from: Some(from), to, recursive: false });
            }
            Command::Cp { recursive, from, to, .. } => {
                f(Effect { op: Op::Write, from: Some(from), to, recursive: *recursive });
            }
            Command::Rm { recursive, paths, .. } => {
                paths.iter().for_each(|p| f(one(Op::Rm, p, *recursive)));
            }
            Command::Rmdir { paths } => paths.iter().for_each(|p| f(one(Op::Rm, p, false))),
            Command::Mkdir { paths, .. } => {
                paths.iter().for_each(|p| f(one(Op::Mkdir, p, false)));
            }
            Command::Touch { paths } | Command::Chmod { paths, .. } => {
                paths.iter().for_each(|p| f(one(Op::Write, p, false)));
            }
            Command::Symlink { link: to, .. } | Command::Write { to, .. } => {
                f(one(Op::Write, to, false));
            }
        }
    }
}

impl Content<'_> {
    /// The bytes that are written.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Content::Empty(_) => {}
            Content::Lines(words) => {
                for word in words {
                    out.extend_from_slice(word);
                    out.push(b'\n');
                }
            }
        }
        out
    }
}
