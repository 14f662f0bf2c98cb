//! Which facts keep a witnessed command from being lowered: a closed list.

macro_rules! splits {
    ($($(#[$doc:meta])* $name:ident, $code:literal, $why:literal;)+) => {
        /// Why a command is handed back with nothing done.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Split {
            $($(#[$doc])* $name,)+
        }

        impl Split {
            /// The stable word for scripts.
            #[must_use]
            pub fn code(self) -> &'static str {
                match self { $(Split::$name => $code,)+ }
            }

            /// One sentence without a period.
            #[must_use]
            pub fn why(self) -> &'static str {
                match self { $(Split::$name => $why,)+ }
            }
        }
    };
}

splits! {
    /// Something to be changed is on another file system than the view.
    Outside, "outside", "it changes something outside the view";
    /// The tool would ask.
    Unwritable, "unwritable", "the tool would ask before it touches what is not writable";
    /// `rename` cannot do it.
    CrossDevice, "cross-device", "it moves between file systems, which is a copy and a removal";
    /// A FIFO, socket or device to copy.
    SpecialSource, "special-source", "what is copied is no regular file, directory or link";
    /// A FIFO, socket or device to write to.
    SpecialTarget, "special-target", "what is written to is no regular file";
    /// `cp -r` onto something that is there.
    Merge, "merge", "a recursive copy onto what is there already";
    /// Something below cannot be listed.
    Unreadable, "unreadable", "something below cannot be listed";
    /// More levels than are walked.
    TooDeep, "too-deep", "there are more levels of directories than are walked";
    /// An access control list that a copy with its mode would have to carry over.
    Acl, "acl", "an access control list would have to be copied or cleared";
    /// The `cd` in front fails.
    CdFails, "cd-fails", "the directory of cd cannot be entered";
    /// `CDPATH` is set.
    CdPath, "cd-path", "CDPATH may lead cd elsewhere";
    /// `touch -- -`
    Dash, "dash", "to touch a lone dash is standard output";
    /// The target of a redirection cannot be opened.
    Redirect, "redirect", "the target of the redirection cannot be opened";
    /// `mv` of a link onto one of several names of what it leads to, or of the link.
    ManyNames, "many-names", "a link is moved onto one of several names of one file";
    /// Somebody changed the names meanwhile.
    Raced, "raced", "the names changed while they were looked at";
}
