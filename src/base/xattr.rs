//! Extended attributes of objects behind fds, which may be `O_PATH`.

use std::ffi::CString;
use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::XattrFlags;
use rustix::io::Errno;
use txfs_journal::Xattrs;

use super::proc_path;

fn c(name: &[u8]) -> io::Result<CString> {
    CString::new(name).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// Calls with growing buffers until the answer fits.
fn sized(call: impl Fn(&mut [u8]) -> rustix::io::Result<usize>) -> io::Result<Vec<u8>> {
    let mut buf = vec![0; 256];
    loop {
        match call(&mut buf) {
            Ok(len) => {
                buf.truncate(len);
                return Ok(buf);
            }
            Err(Errno::RANGE) if buf.len() < 1 << 20 => buf.resize(buf.len() * 8, 0),
            Err(e) => return Err(e.into()),
        }
    }
}

/// One attribute; `None` if there is none of that name.
///
/// # Errors
/// Those of getxattr(2); `EOPNOTSUPP` counts as none.
pub fn get(fd: BorrowedFd<'_>, name: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let (path, name) = (proc_path(fd), c(name)?);
    match sized(|buf| rustix::fs::getxattr(&path, name.as_c_str(), buf)) {
        Ok(value) => Ok(Some(value)),
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENODATA | libc::EOPNOTSUPP)) => Ok(None),
        Err(e) => Err(e),
    }
}

/// All names.
///
/// # Errors
/// Those of listxattr(2); `EOPNOTSUPP` counts as none.
pub fn list(fd: BorrowedFd<'_>) -> io::Result<Vec<Vec<u8>>> {
    let listed = match sized(|buf| rustix::fs::flistxattr(fd, buf)) {
        Err(e) if e.raw_os_error() == Some(libc::EBADF) => {
            let path = proc_path(fd);
            sized(|buf| rustix::fs::listxattr(&path, buf))
        }
        listed => listed,
    };
    let all = match listed {
        Ok(all) => all,
        Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    Ok(all.split(|&b| b == 0).filter(|n| !n.is_empty()).map(<[u8]>::to_vec).collect())
}

/// All attributes of a name in a directory, itself if it is a link, without opening it.
///
/// # Errors
/// Those of lgetxattr(2).
pub fn all_at(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<Xattrs> {
    if name.is_empty() {
        return all(dir);
    }
    let mut path = proc_path(dir).into_bytes();
    path.push(b'/');
    path.extend_from_slice(name);
    let path = c(&path)?;
    let names = match sized(|buf| rustix::fs::llistxattr(path.as_c_str(), buf)) {
        Ok(names) => names,
        Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(Xattrs::new()),
        Err(e) => return Err(e),
    };
    let mut out = Xattrs::new();
    for name in names.split(|&b| b == 0).filter(|n| !n.is_empty()) {
        let attribute = c(name)?;
        match sized(|buf| rustix::fs::lgetxattr(path.as_c_str(), attribute.as_c_str(), buf)) {
            Ok(value) => drop(out.insert(name.to_vec(), value)),
            Err(e) if e.raw_os_error() == Some(libc::ENODATA) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(out)
}

/// All attributes that can be read.
///
/// # Errors
/// Those of getxattr(2).
pub fn all(fd: BorrowedFd<'_>) -> io::Result<Xattrs> {
    let mut out = Xattrs::new();
    for name in list(fd)? {
        if let Some(value) = get(fd, &name)? {
            out.insert(name, value);
        }
    }
    Ok(out)
}

/// Sets one attribute of the object behind any fd.
///
/// # Errors
/// Those of setxattr(2).
pub fn set(fd: BorrowedFd<'_>, name: &[u8], value: &[u8]) -> io::Result<()> {
    Ok(rustix::fs::setxattr(proc_path(fd), c(name)?.as_c_str(), value, XattrFlags::empty())?)
}

/// Removes one attribute; its absence is no error.
///
/// # Errors
/// Those of removexattr(2).
pub fn remove(fd: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    match rustix::fs::removexattr(proc_path(fd), c(name)?.as_c_str()) {
        Ok(()) | Err(Errno::NODATA) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// Makes the attributes exactly these; answers whether they were. `security.selinux` is left to the
/// system.
///
/// # Errors
/// Those of setxattr(2).
pub fn make(fd: BorrowedFd<'_>, want: &Xattrs) -> io::Result<bool> {
    let have = all(fd)?;
    if have == *want {
        return Ok(true);
    }
    for name in have.keys() {
        if !want.contains_key(name) && name.as_slice() != b"security.selinux" {
            remove(fd, name)?;
        }
    }
    for (name, value) in want {
        if have.get(name) != Some(value) {
            set(fd, name, value)?;
        }
    }
    Ok(false)
}
