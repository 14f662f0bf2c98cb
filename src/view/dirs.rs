//! Reading directories.

use std::collections::BTreeMap;

use rustix::io::Errno;
use txfs_journal::{Kind, Name, ObjId};

use super::api::{DirEntry, Entry, Fh, OpResult};
use super::nodes::errno;
use super::state::{Found, STORE_NAME, State, View};

impl View {
    /// The merged listing of a directory, without `.` and `..`.
    pub(crate) fn listing(&self, st: &State, dir: ObjId) -> OpResult<Vec<DirEntry>> {
        let object = st.delta.objects.get(&dir);
        if self.kind(st, dir)? != Kind::Dir {
            return Err(Errno::NOTDIR);
        }
        let mut entries = Vec::new();
        if !object.is_some_and(super::delta::Object::is_new) {
            self.base_listing(st, dir, &mut entries)?;
        }
        for (name, cell) in st.delta.dirs.get(&dir).into_iter().flatten() {
            if let Some(obj) = cell.now {
                entries.push(DirEntry { obj, kind: self.kind(st, obj)?, name: name.clone() });
            }
        }
        Ok(entries)
    }

    fn base_listing(&self, st: &State, dir: ObjId, entries: &mut Vec<DirEntry>) -> OpResult<()> {
        let node = self.nodes.get(dir).ok_or(Errno::STALE)?;
        let touched = st.delta.dirs.get(&dir);
        // Oldest layer first: its word on a name stands.
        let mut layered = BTreeMap::new();
        for layer in &st.layers {
            for (name, what) in layer.names_of(node.ident.ino) {
                layered.entry(name).or_insert(what.map(|(ident, _)| ident));
            }
        }
        let fd = self.nodes.dir(dir)?;
        for (bytes, ino, kind) in
            crate::base::list(std::os::fd::AsFd::as_fd(&*fd)).map_err(|e| errno(&e))?
        {
            let name = Name::new(&bytes).map_err(|_| Errno::IO)?;
            if dir == ObjId::ROOT && bytes == STORE_NAME
                || touched.is_some_and(|t| t.contains_key(&name))
                || layered.contains_key(&name)
            {
                continue;
            }
            let obj = self.nodes.by_inode(node.dev, ino).unwrap_or(ObjId(ino));
            entries.push(DirEntry { obj, kind, name });
        }
        for (name, ident) in layered {
            if let Some(ident) = ident.filter(|_| !touched.is_some_and(|t| t.contains_key(name))) {
                let obj = self.nodes.by_inode(node.dev, ident.ino).unwrap_or(ObjId(ident.ino));
                entries.push(DirEntry { obj, kind: ident.kind, name: name.clone() });
            }
        }
        Ok(())
    }

    /// opendir(3). Also says whether the directory's modification time tells of every change of
    /// its entries: where an effect set that time, it no longer moves with the base's.
    pub fn opendir(&self, obj: ObjId) -> OpResult<(Fh, bool)> {
        let st = self.read_state();
        if self.kind(&st, obj)? != Kind::Dir {
            return Err(Errno::NOTDIR);
        }
        let told = st.delta.objects.get(&obj).is_none_or(|o| o.is_new() || o.over.mtime.is_none());
        Ok((self.handles.open_dir(obj), told))
    }

    /// The listing of an open directory from index `from`, taken at index 0.
    /// `each` gets the index of the entry after the one it gets, and says whether it is full.
    pub fn readdir(
        &self,
        fh: Fh,
        from: u64,
        each: &mut dyn FnMut(u64, &DirEntry) -> bool,
    ) -> OpResult<()> {
        let dir = self.handles.dir(fh)?;
        if dir.needs_listing(from) {
            let st = self.read_state();
            let mut listing = self.listing(&st, dir.obj)?;
            listing.iter_mut().for_each(|entry| entry.obj = st.kernel_id(entry.obj));
            drop(st);
            dir.refresh(listing);
        }
        for (at, entry) in dir.from(from).iter() {
            if each(*at, entry) {
                break;
            }
        }
        Ok(())
    }

    /// The attributes of an entry of a listing, if it is still there; counts one lookup.
    pub fn lookup_listed(&self, fh: Fh, entry: &DirEntry) -> OpResult<Entry> {
        let dir = self.handles.dir(fh)?.obj;
        let st = self.read_state();
        let found: Found = self.find(&st, dir, &entry.name)?;
        self.entry(&st, found)
    }

    /// closedir(3)
    pub fn releasedir(&self, fh: Fh) {
        self.handles.close_dir(fh);
    }
}
