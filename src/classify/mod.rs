//! Which shell texts are provably plain file operations.
//!
//! [`classify`] is pure (no file, no environment, no clock), total (every byte string gets a
//! verdict) and two-valued. A false emission costs a question; a false witness would let something
//! unknown run unasked; so every doubt is an emission. What files exist, of what kind, and where a
//! path leads is not for the text to say: whoever performs the effects has to look. See
//! `docs/classifier.md`.

mod bytes;
pub mod cli;
mod parse;
pub mod protocol;
pub mod reads;
mod reason;
mod render;
mod rewrite;
mod scan;
pub mod stats;
mod witness;

#[cfg(test)]
mod tests;

pub use reason::{Emission, Reason, Span};
pub use render::{render, render_from};
pub use rewrite::rewrite;
pub use witness::{Clobber, Command, Content, Effect, Op, Witness};

/// The longest text that is looked at, in bytes.
pub const MAX_TEXT: usize = 4096;
/// The longest operand, in bytes: one less than PATH_MAX of the smallest system.
pub const MAX_OPERAND: usize = 1023;
/// The longest component of an operand, in bytes: NAME_MAX.
pub const MAX_COMPONENT: usize = 255;

/// How much of the shell's language is known.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, clap::ValueEnum)]
pub enum Tier {
    /// `mv A B`, `cp A B`, `rm A...`, `mkdir A...`, `touch A...`: no flags, no quotes.
    #[default]
    Bare,
    /// Further what is still the same in every shell: quoted operands, `--`, `mv -f` and `-n`, `cp -p`
    /// and `-r`, `rm -f` and `-r`, `mkdir -p`, `rmdir`, `chmod OCTAL`, `ln -s`, literal words into a file, `&&`,
    /// a leading `cd`.
    Exact,
}

impl Tier {
    /// The word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Tier::Bare => "bare",
            Tier::Exact => "exact",
        }
    }
}

/// What a text is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict<'t> {
    /// Exactly these effects.
    Witnessed(Witness<'t>),
    /// Anything.
    Emission(Emission),
}

/// Decides what `text` is, as far as `tier` knows.
#[must_use]
pub fn classify(text: &[u8], tier: Tier) -> Verdict<'_> {
    if text.len() > MAX_TEXT {
        let span = Span::new(MAX_TEXT, text.len());
        return Verdict::Emission(Emission { reason: Reason::TooLong, span });
    }
    match parse::parse(text, tier) {
        Ok(witness) => Verdict::Witnessed(witness),
        Err(emission) => Verdict::Emission(emission),
    }
}
