//! Files that the kernel reads and writes by itself.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fuser::{BackingId, INodeNo};

struct Backing {
    id: Arc<BackingId>,
    handles: u32,
}

/// The registered files of a mount. The kernel takes one backing a node at a time (a second one is
/// `EIO`), so all handles of a node share it.
#[derive(Default)]
pub(super) struct Backings(Mutex<HashMap<INodeNo, Backing>>);

impl Backings {
    fn lock(&self) -> MutexGuard<'_, HashMap<INodeNo, Backing>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The backing of a node for one more handle; `register` is called at the first.
    ///
    /// # Errors
    /// Those of `register`; there is no handle more then.
    pub(super) fn hold(
        &self,
        ino: INodeNo,
        register: impl FnOnce() -> io::Result<BackingId>,
    ) -> io::Result<Arc<BackingId>> {
        let mut backings = self.lock();
        if let Some(backing) = backings.get_mut(&ino) {
            backing.handles += 1;
            return Ok(Arc::clone(&backing.id));
        }
        let id = Arc::new(register()?);
        backings.insert(ino, Backing { id: Arc::clone(&id), handles: 1 });
        Ok(id)
    }

    /// One handle less. To be called before the view forgets the handle: an open that comes in
    /// between finds the view still in passthrough and registers the same file anew.
    pub(super) fn release(&self, ino: INodeNo) {
        let mut backings = self.lock();
        let Some(backing) = backings.get_mut(&ino) else { return };
        backing.handles -= 1;
        if backing.handles == 0 {
            backings.remove(&ino);
        }
    }
}

/// Whether a failed registration says that none will ever succeed on this mount: no right to
/// (`EPERM`), a file system that is stacked already (`ELOOP`) or cannot be stacked on.
pub(super) fn is_final(e: &io::Error) -> bool {
    matches!(
        e.raw_os_error(),
        Some(libc::EPERM | libc::ELOOP | libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS)
    )
}
