//! POSIX access control lists in the form of `system.posix_acl_*` (linux/posix_acl_xattr.h):
//! 4 bytes of version 2, then entries of tag, permissions (2 bytes each) and id (4 bytes).
//!
//! The kernel checks permissions; what a file system has to do besides is here.

use rustix::io::Errno;

/// The access list of an object.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// The list that new entries of a directory inherit.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
const UNDEFINED: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Ace {
    tag: u16,
    perm: u16,
    id: u32,
}

/// A valid list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acl(Vec<Ace>);

impl Acl {
    /// Reads a list; the empty one removes an access list and is `None`.
    ///
    /// # Errors
    /// `EINVAL` if it is not a valid list (acl(5)), `EOPNOTSUPP` for another version.
    pub fn parse(bytes: &[u8]) -> Result<Option<Acl>, Errno> {
        let (version, rest) = bytes.split_first_chunk::<4>().ok_or(Errno::INVAL)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(Errno::OPNOTSUPP);
        }
        let (entries, tail) = rest.as_chunks::<8>();
        if !tail.is_empty() {
            return Err(Errno::INVAL);
        }
        if entries.is_empty() {
            return Ok(None);
        }
        let acl = Acl(entries
            .iter()
            .map(|e| Ace {
                tag: u16::from_le_bytes([e[0], e[1]]),
                perm: u16::from_le_bytes([e[2], e[3]]),
                id: u32::from_le_bytes([e[4], e[5], e[6], e[7]]),
            })
            .collect());
        acl.check().map(|()| Some(acl))
    }

    fn check(&self) -> Result<(), Errno> {
        let count = |tag| self.0.iter().filter(|e| e.tag == tag).count();
        let named = count(USER) + count(GROUP);
        let known = self.0.iter().all(|e| {
            e.perm <= 7
                && match e.tag {
                    USER | GROUP => e.id != UNDEFINED,
                    USER_OBJ | GROUP_OBJ | MASK | OTHER => true,
                    _ => false,
                }
        });
        let ordered = self
            .0
            .windows(2)
            .all(|w| (w[0].tag, w[0].id) <= (w[1].tag, w[1].id) || w[0].tag < w[1].tag);
        let singles = [USER_OBJ, GROUP_OBJ, OTHER].iter().all(|&t| count(t) == 1);
        if known && ordered && singles && count(MASK) <= 1 && (named == 0 || count(MASK) == 1) {
            Ok(())
        } else {
            Err(Errno::INVAL)
        }
    }

    /// The stored form.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = VERSION.to_le_bytes().to_vec();
        for e in &self.0 {
            out.extend_from_slice(&e.tag.to_le_bytes());
            out.extend_from_slice(&e.perm.to_le_bytes());
            out.extend_from_slice(&e.id.to_le_bytes());
        }
        out
    }

    fn perm(&self, tag: u16) -> Option<u32> {
        self.0.iter().find(|e| e.tag == tag).map(|e| e.perm.into())
    }

    fn set(&mut self, tag: u16, perm: u32) {
        for e in self.0.iter_mut().filter(|e| e.tag == tag) {
            e.perm = (perm & 7) as u16;
        }
    }

    /// The permission bits that say the same, or as much of it as bits can: the group bits are
    /// the mask where there is one.
    #[must_use]
    pub fn mode(&self) -> u32 {
        let group = self.perm(MASK).or(self.perm(GROUP_OBJ)).unwrap_or(0);
        self.perm(USER_OBJ).unwrap_or(0) << 6 | group << 3 | self.perm(OTHER).unwrap_or(0)
    }

    /// Whether permission bits say all of it, so that no list need be stored.
    #[must_use]
    pub fn is_minimal(&self) -> bool {
        self.0.len() == 3
    }

    /// What chmod(2) makes of the list.
    pub fn chmod(&mut self, mode: u32) {
        self.set(USER_OBJ, mode >> 6);
        let group = if self.perm(MASK).is_some() { MASK } else { GROUP_OBJ };
        self.set(group, mode >> 3);
        self.set(OTHER, mode);
    }

    /// What a new entry gets from its directory's default list: its access list, narrowed to the
    /// mode that was asked for, and the permission bits that result (posix_acl_create in the kernel).
    #[must_use]
    pub fn inherit(&self, mode: u32) -> (Acl, u32) {
        let mut acl = self.clone();
        let narrow = |acl: &mut Acl, tag, bits: u32| {
            let perm = acl.perm(tag).unwrap_or(0) & bits & 7;
            acl.set(tag, perm);
        };
        narrow(&mut acl, USER_OBJ, mode >> 6);
        let group = if acl.perm(MASK).is_some() { MASK } else { GROUP_OBJ };
        narrow(&mut acl, group, mode >> 3);
        narrow(&mut acl, OTHER, mode);
        let mode = mode & 0o7000 | acl.mode();
        (acl, mode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        Acl(entries.iter().map(|&(tag, perm, id)| Ace { tag, perm, id }).collect()).to_bytes()
    }

    #[test]
    fn minimal_and_extended() {
        let minimal =
            bytes(&[(USER_OBJ, 6, UNDEFINED), (GROUP_OBJ, 4, UNDEFINED), (OTHER, 0, UNDEFINED)]);
        let acl = Acl::parse(&minimal).unwrap().unwrap();
        assert!(acl.is_minimal());
        assert_eq!(acl.mode(), 0o640);
        let full = bytes(&[
            (USER_OBJ, 7, UNDEFINED),
            (USER, 7, 1000),
            (GROUP_OBJ, 5, UNDEFINED),
            (MASK, 7, UNDEFINED),
            (OTHER, 1, UNDEFINED),
        ]);
        let mut acl = Acl::parse(&full).unwrap().unwrap();
        assert_eq!(acl.mode(), 0o771);
        acl.chmod(0o640);
        assert_eq!((acl.mode(), acl.perm(GROUP_OBJ)), (0o640, Some(5)));
        assert_eq!(Acl::parse(&acl.to_bytes()).unwrap().unwrap(), acl);
    }

    #[test]
    fn inheritance_narrows() {
        let full = bytes(&[
            (USER_OBJ, 7, UNDEFINED),
            (USER, 7, 1000),
            (GROUP_OBJ, 5, UNDEFINED),
            (MASK, 7, UNDEFINED),
            (OTHER, 5, UNDEFINED),
        ]);
        let (acl, mode) = Acl::parse(&full).unwrap().unwrap().inherit(0o666);
        assert_eq!(mode, 0o664);
        assert_eq!(acl.perm(MASK), Some(6));
    }

    #[test]
    fn invalid_lists() {
        for bad in [
            bytes(&[(USER_OBJ, 6, UNDEFINED), (OTHER, 0, UNDEFINED)]),
            bytes(&[
                (USER_OBJ, 6, UNDEFINED),
                (USER, 1, 5),
                (GROUP_OBJ, 4, UNDEFINED),
                (OTHER, 0, UNDEFINED),
            ]),
            bytes(&[(USER_OBJ, 9, UNDEFINED), (GROUP_OBJ, 4, UNDEFINED), (OTHER, 0, UNDEFINED)]),
        ] {
            assert_eq!(Acl::parse(&bad), Err(Errno::INVAL));
        }
        assert_eq!(Acl::parse(&2u32.to_le_bytes()), Ok(None));
        assert_eq!(Acl::parse(&[1, 2]), Err(Errno::INVAL));
    }
}
