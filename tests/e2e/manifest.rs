//! A directory as data: everything that a commit, an abort or an undo must keep or change exactly.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// One entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Item {
    pub kind: &'static str,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    /// 512-byte blocks, only told for sparse files.
    pub sparse: bool,
    pub mtime: (i64, i64),
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Content of a file, target of a link.
    pub data: Vec<u8>,
    /// The first path that names the same inode, if that is another one.
    pub link_of: Option<Vec<u8>>,
}

/// All entries by path below the root, `.txfs` left out.
pub type Manifest = BTreeMap<Vec<u8>, Item>;

/// Reads a whole directory. With `times` false all mtimes are 0.
pub fn read(root: &Path, times: bool) -> Manifest {
    let mut out = Manifest::new();
    let mut inodes = BTreeMap::new();
    visit(root, &mut Vec::new(), times, &mut inodes, &mut out);
    out
}

fn visit(
    path: &Path,
    rel: &mut Vec<u8>,
    times: bool,
    inodes: &mut BTreeMap<u64, Vec<u8>>,
    out: &mut Manifest,
) {
    let meta = fs::symlink_metadata(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let kind = meta.file_type();
    let (name, data) = if kind.is_dir() {
        ("dir", Vec::new())
    } else if kind.is_symlink() {
        ("symlink", fs::read_link(path).unwrap().as_os_str().as_bytes().to_vec())
    } else if kind.is_file() {
        ("file", fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
    } else if kind.is_fifo() {
        ("fifo", Vec::new())
    } else if kind.is_socket() {
        ("socket", Vec::new())
    } else {
        ("device", Vec::new())
    };
    let first = inodes.entry(meta.ino()).or_insert_with(|| rel.clone()).clone();
    out.insert(
        rel.clone(),
        Item {
            kind: name,
            mode: meta.mode() & 0o7777,
            uid: meta.uid(),
            gid: meta.gid(),
            size: if kind.is_dir() { 0 } else { meta.size() },
            sparse: kind.is_file() && meta.blocks() * 512 + 4096 < meta.size(),
            mtime: if times { (meta.mtime(), meta.mtime_nsec()) } else { (0, 0) },
            xattrs: xattrs(path),
            data,
            link_of: (first != *rel && !kind.is_dir()).then_some(first),
        },
    );
    if kind.is_dir() {
        let mut names: Vec<_> =
            fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        for child in names {
            if rel.is_empty() && child == ".txfs" {
                continue;
            }
            let cut = rel.len();
            if !rel.is_empty() {
                rel.push(b'/');
            }
            rel.extend_from_slice(child.as_bytes());
            visit(&path.join(&child), rel, times, inodes, out);
            rel.truncate(cut);
        }
    }
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0u8; 65536];
    let Ok(len) = rustix::fs::llistxattr(path, &mut names) else { return BTreeMap::new() };
    names[..len]
        .split(|&b| b == 0)
        .filter(|n| !n.is_empty())
        .map(|name| {
            let mut value = vec![0u8; 65536];
            let c = std::ffi::CString::new(name).unwrap();
            let len = rustix::fs::lgetxattr(path, c.as_c_str(), &mut value).unwrap();
            (name.to_vec(), value[..len].to_vec())
        })
        .collect()
}

/// Panics with what differs, path by path.
pub fn assert_same(what: &str, left: &Manifest, right: &Manifest) {
    let mut text = String::new();
    for path in left.keys().chain(right.keys().filter(|p| !left.contains_key(*p))) {
        let (l, r) = (left.get(path), right.get(path));
        if l != r {
            text.push_str(&format!("{}:\n  {}\n  {}\n", path.escape_ascii(), show(l), show(r)));
        }
    }
    assert!(text.is_empty(), "{what}:\n{text}");
}

fn show(item: Option<&Item>) -> String {
    match item {
        None => "not there".into(),
        Some(i) => {
            let head: Vec<u8> = i.data.iter().take(60).copied().collect();
            format!(
                "{} {:o} {}:{} size {} sparse {} mtime {:?} xattrs {} link of {:?} crc {:08x} {:?}",
                i.kind,
                i.mode,
                i.uid,
                i.gid,
                i.size,
                i.sparse,
                i.mtime,
                i.xattrs.len(),
                i.link_of.as_ref().map(|l| l.escape_ascii().to_string()),
                crc32fast::hash(&i.data),
                head.escape_ascii().to_string()
            )
        }
    }
}
