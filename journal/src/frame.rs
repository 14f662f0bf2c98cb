//! Keys, and the frame around every stored value. `FORMAT.md` specifies both.

use crate::error::JournalError;
use crate::id::{Seq, TxnId};

/// The version in every stored value.
pub const FORMAT: u8 = 1;
/// Version and checksum.
const FRAME_BYTES: usize = 5;

pub(crate) const META: u8 = b'm';
pub(crate) const HEAD: u8 = b't';
pub(crate) const RECORDS: u8 = b'r';
pub(crate) const PLAN: u8 = b'p';
pub(crate) const STEPS: u8 = b's';
pub(crate) const GENERATION: u8 = b'g';
pub(crate) const AFTER: u8 = b'a';

/// The key of a value of which there is one for `number`, or the prefix of a list's chunks.
pub(crate) fn key(kind: u8, number: u64) -> Vec<u8> {
    let mut key = vec![kind];
    key.extend_from_slice(&number.to_be_bytes());
    key
}

/// The key of one chunk of a list.
pub(crate) fn chunk_key(kind: u8, number: u64, chunk: u64) -> Vec<u8> {
    let mut key = key(kind, number);
    key.extend_from_slice(&chunk.to_be_bytes());
    key
}

pub(crate) fn record_key(txn: TxnId, first: Seq) -> Vec<u8> {
    chunk_key(RECORDS, txn.0, first.0)
}

pub(crate) fn meta_key(name: &str) -> Vec<u8> {
    let mut key = vec![META];
    key.extend_from_slice(name.as_bytes());
    key
}

/// The number after the kind.
///
/// # Errors
/// [`JournalError::Corrupt`] if the key is too short for one.
pub(crate) fn number(key: &[u8]) -> Result<u64, JournalError> {
    number_at(key, 1).ok_or_else(|| corrupt(key, "the key has no number"))
}

/// The chunk's number, after the number of its list.
///
/// # Errors
/// [`JournalError::Corrupt`] unless the key ends with one.
pub(crate) fn chunk_number(key: &[u8]) -> Result<u64, JournalError> {
    number_at(key, 9)
        .filter(|_| key.len() == 17)
        .ok_or_else(|| corrupt(key, "the key has no chunk number"))
}

fn number_at(key: &[u8], at: usize) -> Option<u64> {
    key.get(at..at + 8)?.try_into().ok().map(u64::from_be_bytes)
}

/// A stored value: version, CRC-32 of key and payload, payload.
pub(crate) fn frame(key: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(FRAME_BYTES + payload.len());
    out.push(FORMAT);
    out.extend_from_slice(&crc(key, payload).to_le_bytes());
    out.extend_from_slice(payload);
    out
}

fn crc(key: &[u8], payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(key);
    hasher.update(payload);
    hasher.finalize()
}

/// The payload of a stored value.
///
/// # Errors
/// [`JournalError::NewerFormat`] before anything else is looked at: a newer version may frame its
/// values differently. [`JournalError::Corrupt`] if the checksum differs.
pub(crate) fn unframe<'a>(key: &[u8], value: &'a [u8]) -> Result<&'a [u8], JournalError> {
    let (&version, rest) = value.split_first().ok_or_else(|| corrupt(key, "empty value"))?;
    if version > FORMAT {
        return Err(JournalError::NewerFormat {
            place: place(key),
            found: version.into(),
            known: FORMAT.into(),
        });
    }
    if version == 0 || rest.len() < FRAME_BYTES - 1 {
        return Err(corrupt(key, "no frame"));
    }
    let (sum, payload) = rest.split_at(FRAME_BYTES - 1);
    if sum != crc(key, payload).to_le_bytes() {
        return Err(corrupt(key, "the checksum differs"));
    }
    Ok(payload)
}

/// What is wrong with the value under a key.
pub(crate) fn corrupt(key: &[u8], what: impl Into<String>) -> JournalError {
    JournalError::Corrupt { place: place(key), what: what.into(), remedy: remedy(key) }
}

/// Damage of sled's own files, which no key names.
pub(crate) fn corrupt_database(what: impl Into<String>) -> JournalError {
    JournalError::Corrupt {
        place: "the sled database".into(),
        what: what.into(),
        remedy: remedy(&[]),
    }
}

/// A key as a person may read it.
fn place(key: &[u8]) -> String {
    let number = |at| number_at(key, at).map_or_else(|| "?".to_owned(), |n| n.to_string());
    match key.first() {
        Some(&META) => format!("setting {}", key[1..].escape_ascii()),
        Some(&HEAD) => format!("transaction {}", number(1)),
        Some(&RECORDS) => format!("transaction {}, records from {}", number(1), number(9)),
        Some(&PLAN) => format!("the plan of transaction {}", number(1)),
        Some(&STEPS) => format!("the steps of transaction {}", number(1)),
        Some(&GENERATION) => format!("generation {}", number(1)),
        Some(&AFTER) => format!("the fingerprints of generation {}", number(1)),
        _ => format!("key {}", key.escape_ascii()),
    }
}

/// What is left to do when the value under a key is lost.
fn remedy(key: &[u8]) -> &'static str {
    match key.first() {
        Some(&HEAD | &RECORDS) => {
            "the base and other transactions are untouched; copy what you need of this one from the \
             store's staged/<transaction>, then abort it"
        }
        Some(&PLAN | &STEPS) => {
            "a commit may be half done: what it displaced is in the store's history/<generation>, \
             what it had yet to place in staged/<transaction>; nothing is overwritten"
        }
        Some(&GENERATION | &AFTER) => {
            "the base is untouched; this generation cannot be undone, what it displaced is in the \
             store's history/<generation>"
        }
        _ => {
            "the base is untouched; copy what you need from the store's staged and history \
             directories, then remove the store"
        }
    }
}
