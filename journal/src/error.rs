//! What can go wrong with the journal.

use std::io;

use crate::codec::DecodeError;
use crate::frame;
use crate::id::{Generation, Seq, TxnId};

/// A failure of the journal.
#[derive(Debug, Clone, thiserror::Error)]
pub enum JournalError {
    /// A stored value does not decode, or the stored values contradict each other.
    #[error("the journal is corrupt at {place}: {what}")]
    Corrupt {
        /// Which value, by its key.
        place: String,
        /// What is wrong.
        what: String,
        /// What is untouched and what is left to do, for a person.
        remedy: &'static str,
    },
    /// The store was written by a newer txfs.
    #[error("the journal has format {found} at {place}, this txfs knows formats up to {known}")]
    NewerFormat {
        /// Which value, by its key.
        place: String,
        /// The version found.
        found: u32,
        /// The newest version known.
        known: u32,
    },
    /// A record may not be appended where it would stand. One that was read there is
    /// [`JournalError::Corrupt`].
    #[error("transaction {txn}, record {seq}: {what}")]
    Order {
        /// Which transaction.
        txn: TxnId,
        /// Which record.
        seq: Seq,
        /// The rule that it breaks.
        what: String,
    },
    /// A transaction is not in the state that the call needs.
    #[error("transaction {txn} is {state}, which does not allow this")]
    WrongState {
        /// Which transaction.
        txn: TxnId,
        /// Its state.
        state: String,
    },
    /// No such transaction.
    #[error("no transaction {0}")]
    NoTxn(TxnId),
    /// No such generation.
    #[error("no generation {0}")]
    NoGeneration(Generation),
    /// An open transaction has this name already.
    #[error("transaction \"{0}\" is open already")]
    NameTaken(String),
    /// sled or the disk beneath it failed.
    #[error("the journal cannot be {doing}: {cause}")]
    Store {
        /// What was tried: "opened", "read", "written", "made durable".
        doing: &'static str,
        /// sled's or the system's words.
        cause: String,
        /// The system's error number, if there is one.
        errno: Option<i32>,
    },
    /// An earlier failure left the journal in doubt: nothing is acknowledged any more.
    #[error("the journal failed before and takes nothing more: {0}")]
    Failed(String),
}

impl JournalError {
    pub(crate) fn sled(doing: &'static str, cause: &sled::Error) -> JournalError {
        let errno = match cause {
            sled::Error::Io(e) => e.raw_os_error(),
            sled::Error::Corruption { .. } => {
                return frame::corrupt_database(cause.to_string());
            }
            sled::Error::CollectionNotFound(_)
            | sled::Error::Unsupported(_)
            | sled::Error::ReportableBug(_) => None,
        };
        JournalError::Store { doing, cause: cause.to_string(), errno }
    }

    pub(crate) fn io(doing: &'static str, cause: &io::Error) -> JournalError {
        JournalError::Store { doing, cause: cause.to_string(), errno: cause.raw_os_error() }
    }

    pub(crate) fn decode(key: &[u8], cause: &DecodeError) -> JournalError {
        frame::corrupt(key, cause.to_string())
    }

    /// The system's error number where a program in the view must be told one.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            JournalError::Store { errno, .. } => *errno,
            JournalError::Corrupt { .. }
            | JournalError::NewerFormat { .. }
            | JournalError::Order { .. }
            | JournalError::WrongState { .. }
            | JournalError::NoTxn(_)
            | JournalError::NoGeneration(_)
            | JournalError::NameTaken(_)
            | JournalError::Failed(_) => None,
        }
    }
}
