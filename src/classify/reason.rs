//! Why a text is an emission: a closed list.

use super::bytes::Class;

/// A range of bytes of the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The first byte.
    pub start: usize,
    /// The byte behind the last one.
    pub end: usize,
}

impl Span {
    /// From `start` up to, not including, `end`.
    #[must_use]
    pub fn new(start: usize, end: usize) -> Span {
        Span { start, end }
    }
}

/// The first thing in a text that keeps it from being witnessed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Emission {
    /// What it is.
    pub reason: Reason,
    /// Where it is.
    pub span: Span,
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident, $code:literal, $why:literal;)+) => {
        /// Why a text is an emission.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Reason {
            $($(#[$doc])* $name,)+
        }

        impl Reason {
            /// All of them, in order.
            pub const ALL: &'static [Reason] = &[$(Reason::$name),+];

            /// The stable word for scripts.
            #[must_use]
            pub fn code(self) -> &'static str {
                match self { $(Reason::$name => $code,)+ }
            }

            /// One sentence without a period.
            #[must_use]
            pub fn why(self) -> &'static str {
                match self { $(Reason::$name => $why,)+ }
            }
        }
    };
}

reasons! {
    /// Nothing but blanks.
    Empty, "empty", "there is no command in the text";
    /// More than [`super::MAX_TEXT`] bytes.
    TooLong, "too-long", "the text is longer than 4096 bytes";
    /// A control byte.
    Control, "control", "a control byte is literal to some shells, edited away or cut off by others, and hides text";
    /// A byte above 0x7f.
    NonAscii, "non-ascii", "bytes above 0x7f may be blanks, look like other letters, or not decode, as the locale says";
    /// A line break.
    Newline, "newline", "a line break ends a command";
    /// `;`, `&`, `|`, `(`, `)`, or `&&` in tier bare.
    Operator, "operator", "an operator makes more than one command, or another order, of the text";
    /// `<` or `>` where the tier does not know it.
    Redirect, "redirect", "a redirection reads or writes a further file";
    /// `$` or a backquote.
    Expansion, "expansion", "the value comes from the environment, or from running something";
    /// `*`, `?`, `[`, `]`, `^`.
    Glob, "glob", "a pattern stands for the names there are at run time, flags among them";
    /// `{`, `}`.
    Brace, "brace", "bash, zsh and ksh expand braces, dash and busybox do not";
    /// `~`.
    Tilde, "tilde", "a tilde may stand for a home directory";
    /// `!`.
    History, "history", "an interactive shell replaces an exclamation mark by an earlier command";
    /// `#`.
    Hash, "hash", "it begins a comment in some shells, is a word in interactive zsh, a pattern in others";
    /// `=` in an operand.
    Equals, "equals", "zsh expands a word with an equals sign, and a shell with -k takes it for an assignment";
    /// A backslash.
    Backslash, "backslash", "shells disagree about a backslash at the end, and it hides flags and operators";
    /// A quoted operand, in tier bare.
    Quoted, "quoted", "tier bare knows no quotes";
    /// A quote joined to something.
    QuoteJoined, "quote-joined", "a word of joined parts is read in two ways where rcquotes is set";
    /// A quote without an end.
    QuoteOpen, "quote-open", "the quote does not end";
    /// `$`, a backquote or a backslash in double quotes.
    QuoteExpansion, "quote-expansion", "expansions and escapes are alive in double quotes";
    /// The command's own name in quotes.
    QuotedCommand, "quoted-command", "a quoted command name is looked up in another way than a plain one";
    /// `A=1 cmd`.
    Assignment, "assignment", "an assignment changes which program runs, or how";
    /// A path for a command.
    PathCommand, "path-command", "a path names one program, which need not be the tool of that name";
    /// Not a tool that the tier knows.
    UnknownCommand, "unknown-command", "the tier knows no effect for this command";
    /// A flag that the tier does not know for the tool.
    Option, "option", "the tier knows no effect for this option";
    /// An operand that begins with a dash, or a flag behind operands.
    DashOperand, "dash-operand", "a word that begins with a dash may be a flag wherever it stands";
    /// `''`
    EmptyOperand, "empty-operand", "no file has the empty name";
    /// `.`, `..` or `/` as the last component.
    DotOperand, "dot-operand", "the last component must be a name, not a dot, two dots or the root";
    /// `a/`
    TrailingSlash, "trailing-slash", "tools disagree about a slash at the end";
    /// Too few or too many.
    OperandCount, "operand-count", "the tool wants another number of operands";
    /// A component over 255 bytes, or an operand over 1023.
    OperandTooLong, "operand-too-long", "a name over 255 bytes or a path over 1023 fails in other ways";
    /// Not three octal digits, or four with a first one of 0 or 1.
    Mode, "mode", "only octal modes without setuid and setgid are the same for every umask and tool";
    /// A directory for `cd` that the shells may look up elsewhere.
    CdTarget, "cd-target", "with two dots the shell goes where its own notion of the path says, with a sign to its stack";
    /// `cd` without a command, or not at the beginning.
    CdPlace, "cd-place", "cd is known only before the first && of a text";
    /// A redirection to something under `/dev` or `/proc`.
    RedirectTarget, "redirect-target", "shells treat names under /dev and /proc in redirections as they like";
    /// A format other than `'%s\n'`, or words where none belong.
    Content, "content", "only printf '%s\\n' WORD..., true and : are known before a redirection";
    /// `&&` without a command on one side.
    Incomplete, "incomplete", "something is missing before or after an operator";
}

impl Reason {
    /// Why an unquoted byte of this class has no place in a word.
    pub(super) fn of(class: Class) -> Reason {
        match class {
            // Neither is an offence; the scanner does not ask. An answer is needed, and this one is safe.
            Class::Blank | Class::Operand => Reason::UnknownCommand,
            Class::Control => Reason::Control,
            Class::Newline => Reason::Newline,
            Class::NonAscii => Reason::NonAscii,
            Class::Expansion => Reason::Expansion,
            Class::Glob => Reason::Glob,
            Class::Brace => Reason::Brace,
            Class::Tilde => Reason::Tilde,
            Class::History => Reason::History,
            Class::Hash => Reason::Hash,
            Class::Equals => Reason::Equals,
            Class::Backslash => Reason::Backslash,
            Class::Single | Class::Double => Reason::QuoteJoined,
            Class::Operator => Reason::Operator,
            Class::Redirect => Reason::Redirect,
        }
    }
}
