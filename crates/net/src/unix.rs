//! A listening Unix socket whose file belongs to the process that listens.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use socket2::{Domain, SockAddr, Socket, Type};

/// The user of this process and root may connect.
const MODE: u32 = 0o600;

/// Connections that the kernel completes before they are accepted.
const BACKLOG: i32 = 128;

/// Opens a non-blocking listening socket at `path` that only this user can reach. It replaces the file of a process that is gone.
///
/// # Errors
/// Another process listens there, the file is not a socket, or those of bind(2).
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    let address = SockAddr::unix(path)?;
    if let Ok(there) = fs::symlink_metadata(path) {
        if !there.file_type().is_socket() {
            return Err(io::Error::other("a file is there that is not a socket"));
        }
        if is_live(&address)? {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens there"));
        }
        fs::remove_file(path)?;
    }
    // Linux gives the file the mode of the descriptor, so it never has another mode.
    let file = File::from(OwnedFd::from(Socket::new(Domain::UNIX, Type::STREAM, None)?));
    file.set_permissions(Permissions::from_mode(MODE))?;
    let socket = Socket::from(OwnedFd::from(file));
    socket.bind(&address)?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(OwnedFd::from(socket).into())
}

/// Whether a process listens at `address`, where there is a socket.
fn is_live(address: &SockAddr) -> io::Result<bool> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // Otherwise this would wait for a process whose queue is full.
    socket.set_nonblocking(true)?;
    match socket.connect(address) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(false),
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        Ok(()) | Err(_) => Ok(true),
    }
}

/// The file of a socket, which is removed when this is dropped.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode: another process may have put its own socket there meanwhile.
    id: (u64, u64),
}

impl SocketFile {
    /// The file at `path` as it is now.
    ///
    /// # Errors
    /// Those of stat(2).
    pub fn at(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), id: id(path)? })
    }

    /// Leaves the file to another process.
    pub fn leave(self) {
        std::mem::forget(self);
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if id(&self.path).is_ok_and(|id| id == self.id) {
            // It does no harm if the file stays: the next process that listens there replaces it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn id(path: &Path) -> io::Result<(u64, u64)> {
    let there = fs::symlink_metadata(path)?;
    Ok((there.dev(), there.ino()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    /// A folder for this test alone, which is removed at its end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("steelyard-unix-{}-{name}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn only_this_user_may_connect() {
        let folder = Folder::new("mode");
        let path = folder.0.join("a.sock");
        let _listener = listen(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn what_is_left_is_replaced_and_what_lives_is_not() {
        let folder = Folder::new("stale");
        let path = folder.0.join("a.sock");
        let live = listen(&path).unwrap();
        assert_eq!(listen(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(live);
        let _live = listen(&path).unwrap();
        let other = folder.0.join("text");
        fs::write(&other, "kept").unwrap();
        assert_eq!(listen(&other).unwrap_err().to_string(), "a file is there that is not a socket");
        assert_eq!(fs::read(&other).unwrap(), b"kept");
    }

    #[test]
    fn the_file_goes_with_its_owner_and_not_with_another() {
        let folder = Folder::new("owner");
        let path = folder.0.join("a.sock");
        let _first = listen(&path).unwrap();
        SocketFile::at(&path).unwrap().leave();
        let file = SocketFile::at(&path).unwrap();
        // Rename it instead of removing it, because a new file may get the inode number of a removed one.
        fs::rename(&path, folder.0.join("b.sock")).unwrap();
        let _second = listen(&path).unwrap();
        drop(file);
        assert!(path.exists(), "the file belongs to the second socket");
        drop(SocketFile::at(&path).unwrap());
        assert!(!path.exists());
    }
}
