//! Names are bytes. A [`Name`] is one component, a [`RelPath`] is any number of them below a root.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;

/// Why bytes are not a name or a relative path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadName {
    /// No bytes at all.
    #[error("empty name")]
    Empty,
    /// `.` or `..`.
    #[error("\".\" and \"..\" are not names")]
    Dots,
    /// A `/` inside a component, or a path that begins with one.
    #[error("slash where none may be")]
    Slash,
    /// A NUL byte, which no system call takes.
    #[error("NUL byte in name")]
    Nul,
    /// More than 255 bytes (`NAME_MAX`, limits.h(0P)).
    #[error("name longer than 255 bytes")]
    TooLong,
}

/// One component of a path: 1 to 255 bytes, no `/`, no NUL, not `.` or `..`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Box<[u8]>);

impl Name {
    /// Checks and copies one component.
    pub fn new(bytes: impl AsRef<[u8]>) -> Result<Name, BadName> {
        let bytes = bytes.as_ref();
        match bytes {
            [] => Err(BadName::Empty),
            b"." | b".." => Err(BadName::Dots),
            _ if bytes.len() > 255 => Err(BadName::TooLong),
            _ if bytes.contains(&b'/') => Err(BadName::Slash),
            _ if bytes.contains(&0) => Err(BadName::Nul),
            _ => Ok(Name(bytes.into())),
        }
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes as the standard library wants them.
    #[must_use]
    pub fn as_os_str(&self) -> &OsStr {
        OsStr::from_bytes(&self.0)
    }
}

impl std::borrow::Borrow<[u8]> for Name {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

/// A path below a root: components joined by `/`; the root itself is the empty path.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct RelPath(Vec<u8>);

impl RelPath {
    /// The root.
    #[must_use]
    pub fn root() -> RelPath {
        RelPath(Vec::new())
    }

    /// Checks every component of `bytes`.
    pub fn new(bytes: impl AsRef<[u8]>) -> Result<RelPath, BadName> {
        let bytes = bytes.as_ref();
        if bytes.is_empty() {
            return Ok(RelPath::root());
        }
        if bytes.starts_with(b"/") {
            return Err(BadName::Slash);
        }
        for component in bytes.split(|&b| b == b'/') {
            Name::new(component)?;
        }
        Ok(RelPath(bytes.to_vec()))
    }

    /// This path with one more component.
    #[must_use]
    pub fn join(&self, name: &Name) -> RelPath {
        let mut bytes = Vec::with_capacity(self.0.len() + 1 + name.0.len());
        bytes.extend_from_slice(&self.0);
        if !bytes.is_empty() {
            bytes.push(b'/');
        }
        bytes.extend_from_slice(&name.0);
        RelPath(bytes)
    }

    /// The parent and the last component; `None` for the root.
    #[must_use]
    pub fn split(&self) -> Option<(RelPath, Name)> {
        if self.0.is_empty() {
            return None;
        }
        let cut = self.0.iter().rposition(|&b| b == b'/');
        let (parent, name) = match cut {
            Some(at) => (&self.0[..at], &self.0[at + 1..]),
            None => (&self.0[..0], &self.0[..]),
        };
        Some((RelPath(parent.to_vec()), Name(name.into())))
    }

    /// The components, in order.
    pub fn components(&self) -> impl Iterator<Item = Name> + '_ {
        self.0.split(|&b| b == b'/').filter(|c| !c.is_empty()).map(|c| Name(c.into()))
    }

    /// How many components.
    #[must_use]
    pub fn depth(&self) -> usize {
        if self.0.is_empty() { 0 } else { 1 + self.0.iter().filter(|&&b| b == b'/').count() }
    }

    /// Whether this is `other` or lies below it.
    #[must_use]
    pub fn is_within(&self, other: &RelPath) -> bool {
        other.0.is_empty()
            || self.0 == other.0
            || (self.0.starts_with(&other.0) && self.0.get(other.0.len()) == Some(&b'/'))
    }

    /// The bytes, without a leading `/`.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes as the standard library wants them; `.` for the root, which system calls take.
    #[must_use]
    pub fn as_os_str(&self) -> &OsStr {
        OsStr::from_bytes(if self.0.is_empty() { b"." } else { &self.0 })
    }
}

/// Component by component, so that a directory sorts right before all that lies below it.
impl Ord for RelPath {
    fn cmp(&self, other: &RelPath) -> std::cmp::Ordering {
        self.0.split(|&b| b == b'/').cmp(other.0.split(|&b| b == b'/'))
    }
}

impl PartialOrd for RelPath {
    fn partial_cmp(&self, other: &RelPath) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Debug for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}
