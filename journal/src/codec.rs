//! The binary form of everything that is stored. `FORMAT.md` specifies it.
//!
//! Integers are little-endian and of fixed width, byte strings and lists carry a 4-byte length,
//! options and booleans are one byte, enums one byte of tag. A value that does not decode exactly,
//! to its last byte, is an error.

use std::collections::BTreeMap;

use crate::effect::{Change, Effect, Inverse, NewNode, Over, Preimage, Slot, TimesBefore};
use crate::id::{Generation, ObjId, ProcId, Seq, SlotId, StepId, TxnId};
use crate::name::{Name, RelPath};
use crate::object::{Bind, Fingerprint, Ident, Kind, Meta, Overrides, Place, Timestamp};
use crate::plan::{GenerationHead, Holds, PlanHead, Seen, Step};
use crate::record::{EffectEntry, Entry, Record, TxnHead, TxnState};

/// Bytes that are not what they should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("at byte {at}: {what}")]
pub struct DecodeError {
    /// Offset in the payload.
    pub at: usize,
    /// What was expected.
    pub what: String,
}

/// A payload being read.
#[derive(Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Begins at the first byte.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, at: 0 }
    }

    fn fail<T>(&self, what: impl Into<String>) -> Result<T, DecodeError> {
        Err(DecodeError { at: self.at, what: what.into() })
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        match self.bytes.get(self.at..).and_then(|rest| rest.get(..len)) {
            Some(taken) => {
                self.at += len;
                Ok(taken)
            }
            None => self.fail(format!("{len} more bytes expected")),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let taken = self.take(N)?;
        let mut out = [0; N];
        out.copy_from_slice(taken);
        Ok(out)
    }

    /// A length that the bytes left can hold, one byte an element at the least.
    fn len(&mut self) -> Result<usize, DecodeError> {
        let len = u32::get(self)? as usize;
        if len > self.bytes.len() - self.at {
            return self.fail(format!("length {len} is beyond the end"));
        }
        Ok(len)
    }

    /// Fails unless everything was read.
    pub fn end(&self) -> Result<(), DecodeError> {
        if self.at == self.bytes.len() { Ok(()) } else { self.fail("end expected") }
    }

    /// Whether nothing is left.
    #[must_use]
    pub fn is_at_end(&self) -> bool {
        self.at == self.bytes.len()
    }
}

/// A stored type.
pub trait Wire: Sized {
    /// Appends the encoding.
    fn put(&self, out: &mut Vec<u8>);
    /// Reads one value.
    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError>;
}

/// Encodes one value.
pub fn encode(value: &impl Wire) -> Vec<u8> {
    let mut out = Vec::new();
    value.put(&mut out);
    out
}

/// Decodes one value that fills `bytes`.
pub fn decode<T: Wire>(bytes: &[u8]) -> Result<T, DecodeError> {
    let mut r = Reader::new(bytes);
    let value = T::get(&mut r)?;
    r.end()?;
    Ok(value)
}

macro_rules! wire_int {
    ($($t:ty),*) => {$(
        impl Wire for $t {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
                Ok(<$t>::from_le_bytes(r.array()?))
            }
        }
    )*};
}
wire_int!(u8, u32, u64, i64);

macro_rules! wire_id {
    ($($t:ident),*) => {$(
        impl Wire for $t {
            fn put(&self, out: &mut Vec<u8>) {
                self.0.put(out);
            }
            fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
                Ok($t(Wire::get(r)?))
            }
        }
    )*};
}
wire_id!(Generation, ObjId, ProcId, Seq, SlotId, StepId, TxnId);

macro_rules! wire_struct {
    ($t:ident { $($f:ident),* $(,)? }) => {
        impl Wire for $t {
            fn put(&self, out: &mut Vec<u8>) {
                $(self.$f.put(out);)*
            }
            fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
                $(let $f = Wire::get(r)?;)*
                Ok($t { $($f),* })
            }
        }
    };
}

macro_rules! wire_enum {
    ($t:ident { $($tag:literal => $v:ident $({ $($f:ident),* })? $(( $($g:ident),* ))?),* $(,)? }) => {
        impl Wire for $t {
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $($t::$v $({ $($f),* })? $(( $($g),* ))? => {
                        out.push($tag);
                        $($($f.put(out);)*)?
                        $($($g.put(out);)*)?
                    })*
                }
            }
            fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
                match u8::get(r)? {
                    $($tag => {
                        $($(let $f = Wire::get(r)?;)*)?
                        $($(let $g = Wire::get(r)?;)*)?
                        Ok($t::$v $({ $($f),* })? $(( $($g),* ))?)
                    })*
                    other => r.fail(format!("tag {other} is no {}", stringify!($t))),
                }
            }
        }
    };
}

impl Wire for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match u8::get(r)? {
            0 => Ok(false),
            1 => Ok(true),
            other => r.fail(format!("{other} is no boolean")),
        }
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        if bool::get(r)? { T::get(r).map(Some) } else { Ok(None) }
    }
}

impl<T: Wire> Wire for Box<T> {
    fn put(&self, out: &mut Vec<u8>) {
        T::put(self, out);
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        T::get(r).map(Box::new)
    }
}

fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    // Nothing that is stored comes near 4 GiB: names, xattrs and texts have limits of their own.
    (bytes.len() as u32).put(out);
    out.extend_from_slice(bytes);
}

fn get_bytes<'a>(r: &mut Reader<'a>) -> Result<&'a [u8], DecodeError> {
    let len = r.len()?;
    r.take(len)
}

/// Byte strings; lists of other types go through `put_list`.
impl Wire for Vec<u8> {
    fn put(&self, out: &mut Vec<u8>) {
        put_bytes(self, out);
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        get_bytes(r).map(<[u8]>::to_vec)
    }
}

fn put_list<T: Wire>(list: &[T], out: &mut Vec<u8>) {
    (list.len() as u32).put(out);
    for item in list {
        item.put(out);
    }
}

fn get_list<T: Wire>(r: &mut Reader<'_>) -> Result<Vec<T>, DecodeError> {
    let len = r.len()?;
    let mut list = Vec::with_capacity(len.min(1024));
    for _ in 0..len {
        list.push(T::get(r)?);
    }
    Ok(list)
}

macro_rules! wire_list {
    ($($t:ty),*) => {$(
        impl Wire for Vec<$t> {
            fn put(&self, out: &mut Vec<u8>) {
                put_list(self, out);
            }
            fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
                get_list(r)
            }
        }
    )*};
}
wire_list!(Bind, TimesBefore, Generation, Fingerprint);

impl Wire for BTreeMap<Vec<u8>, Vec<u8>> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        for (key, value) in self {
            key.put(out);
            value.put(out);
        }
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut map = BTreeMap::new();
        for _ in 0..r.len()? {
            let (key, value) = (Wire::get(r)?, Wire::get(r)?);
            if map.last_key_value().is_some_and(|(last, _)| last >= &key) {
                return r.fail("keys must rise");
            }
            map.insert(key, value);
        }
        Ok(map)
    }
}

impl Wire for String {
    fn put(&self, out: &mut Vec<u8>) {
        put_bytes(self.as_bytes(), out);
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let bytes = get_bytes(r)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => r.fail("UTF-8 expected"),
        }
    }
}

impl Wire for Name {
    fn put(&self, out: &mut Vec<u8>) {
        put_bytes(self.as_bytes(), out);
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let bytes = get_bytes(r)?;
        Name::new(bytes).or_else(|e| r.fail(e.to_string()))
    }
}

impl Wire for RelPath {
    fn put(&self, out: &mut Vec<u8>) {
        put_bytes(self.as_bytes(), out);
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let bytes = get_bytes(r)?;
        RelPath::new(bytes).or_else(|e| r.fail(e.to_string()))
    }
}

impl Wire for Timestamp {
    fn put(&self, out: &mut Vec<u8>) {
        self.secs.put(out);
        self.nanos.put(out);
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (secs, nanos) = (Wire::get(r)?, Wire::get(r)?);
        if nanos >= 1_000_000_000 {
            return r.fail(format!("{nanos} nanoseconds are over a second"));
        }
        Ok(Timestamp { secs, nanos })
    }
}

wire_enum!(Kind {
    1 => File, 2 => Dir, 3 => Symlink, 4 => Fifo, 5 => Socket, 6 => Char, 7 => Block,
});
wire_struct!(Ident { ino, btime, kind });
wire_struct!(Fingerprint { ident, handle, mode, uid, gid, nlink, size, rdev, mtime, ctime });
wire_struct!(Bind { obj, parent, name, print });
wire_struct!(Overrides { mode, uid, gid, atime, mtime, ctime });
wire_struct!(Meta { mode, uid, gid, atime, mtime, xattrs });
wire_struct!(Place { path, parent_ino });

wire_struct!(Slot { parent, name });
wire_enum!(Effect {
    1 => Move { obj, from, to, over },
    2 => Rm { obj, at },
    3 => Mkdir { obj, at, attrs, xattrs },
    4 => Write { obj, change },
});
wire_enum!(Over { 1 => Nothing, 2 => Replaced(obj), 3 => Exchanged(obj) });
wire_enum!(Change {
    1 => Create { at, node, attrs, xattrs },
    2 => Link { at },
    3 => Content { slot },
    4 => Attrs(set),
    5 => Xattr { name, value },
});
wire_enum!(NewNode {
    1 => File { slot },
    2 => Symlink { target },
    3 => Fifo,
    4 => Socket,
    5 => Char { rdev },
    6 => Block { rdev },
});
wire_enum!(Inverse {
    1 => Unmove { obj, from, to, over },
    2 => Unrm { obj, at },
    3 => RmdirIfEmpty { obj, at },
    4 => Restore { obj, to },
});
wire_enum!(Preimage {
    1 => Absent { at },
    2 => Content { slot },
    3 => Attrs(before),
    4 => Xattr { name, before },
});
wire_struct!(TimesBefore { obj, mtime, ctime });

/// The tag of [`Entry::Effect`], for a writer that has only the effect.
pub(crate) const EFFECT_TAG: u8 = 1;

wire_struct!(EffectEntry { effect, inverse, times, binds, proc });
wire_enum!(Entry {
    1 => Effect(effect),
    2 => Step { step, what },
    3 => Savepoint { name },
    4 => RolledBack { to },
    5 => Process { proc, pid, parent, exe, argv },
});
wire_struct!(Record { seq, time, entry });
wire_enum!(TxnState {
    1 => Open, 2 => Sealed, 3 => Committed(generation), 4 => Aborting, 5 => Aborted,
});
wire_struct!(TxnHead { id, name, owner, base, began, state });

wire_struct!(Seen { size, mtime });
wire_enum!(Holds { 1 => Anything, 2 => Same, 3 => Nothing });
wire_enum!(Step {
    1 => Evacuate { from, slot, ident, mtime, size, holds },
    2 => Place { slot, to, ident },
    3 => Exchange { slot, at, new, old, was },
    4 => Link { existing, to, ident },
    5 => Rewrite { at, ident, content, preimage, was },
    6 => SetMeta { at, ident, before, after },
    7 => Fetch { from, from_slot, slot, ident },
    8 => Barrier,
    9 => Unlink { from, existing, ident },
});
wire_struct!(PlanHead { txn, generation, undo_of, uid, time, message, steps });
wire_struct!(GenerationHead { plan, after, history_bytes, entries, pruned });

impl Wire for (Place, Fingerprint) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }
    fn get(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok((Wire::get(r)?, Wire::get(r)?))
    }
}
