//! The thread that formats and writes.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::mpsc::{Receiver, TryRecvError};

use super::{Message, Shared, format};

/// Lines are collected up to this number of bytes before they are written.
const WRITE_BYTES: usize = 64 * 1024;

/// Opens the target of the lines. Other users may not read it, because it shows which client requested what.
pub(super) fn open(path: Option<&Path>) -> io::Result<Box<dyn Write + Send>> {
    match path {
        Some(path) => Ok(Box::new(OpenOptions::new().append(true).create(true).mode(0o640).open(path)?)),
        None => Ok(Box::new(io::stdout())),
    }
}

pub(super) struct Writer {
    config: model::AccessLog,
    sink: Box<dyn Write + Send>,
    shared: Arc<Shared>,
    /// Lines that wait to be written, and their number.
    lines: Vec<u8>,
    count: u64,
    /// The last write failed within a line, so the next one must begin on a new line.
    line_is_open: bool,
    /// Whether a warning about failed writes was logged.
    failure_told: bool,
}

impl Writer {
    pub(super) fn new(config: model::AccessLog, sink: Box<dyn Write + Send>, shared: Arc<Shared>) -> Self {
        Self { config, sink, shared, lines: Vec::new(), count: 0, line_is_open: false, failure_told: false }
    }

    /// Runs until all senders are gone and everything is written.
    pub(super) fn run(mut self, messages: &Receiver<Message>) {
        loop {
            let message = match messages.try_recv() {
                Ok(message) => message,
                Err(TryRecvError::Disconnected) => break,
                Err(TryRecvError::Empty) => {
                    // Nothing is waiting, so the collected lines need not wait for more.
                    self.write();
                    let Ok(message) = messages.recv() else { break };
                    message
                }
            };
            self.take(message);
        }
        self.write();
    }

    fn take(&mut self, message: Message) {
        if self.shared.reopen.swap(false, Acquire) {
            self.reopen();
        }
        let Message::Batch(mut batch, home) = message else { return };
        for record in batch.records() {
            format::line(&mut self.lines, self.config.format, &record);
            self.count += 1;
        }
        if self.lines.len() >= WRITE_BYTES {
            self.write();
        }
        batch.clear();
        // The logger may be gone; then its batch is dropped.
        let _ = home.try_send(batch);
    }

    fn write(&mut self) {
        if self.lines.is_empty() {
            return;
        }
        if let Err(error) = self.write_lines() {
            // A line that was written in part counts as failed, like the rest, because it is not known how far the
            // write got.
            self.shared.failed.fetch_add(self.count, Relaxed);
            if !self.failure_told {
                tracing::warn!("cannot write the access log: {error}; records are lost until it can be written again");
            }
            self.failure_told = true;
        } else {
            self.failure_told = false;
        }
        self.lines.clear();
        self.count = 0;
    }

    /// Writes all lines, or fails; then the rest of the last line is not written any more.
    fn write_lines(&mut self) -> io::Result<()> {
        if self.line_is_open {
            self.sink.write_all(b"\n")?;
            self.line_is_open = false;
        }
        let mut rest = self.lines.as_slice();
        while !rest.is_empty() {
            match self.sink.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    let (done, after) = rest.split_at_checked(written).unwrap_or((rest, &[]));
                    self.line_is_open = done.last() != Some(&b'\n');
                    rest = after;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.sink.flush()
    }

    fn reopen(&mut self) {
        // Earlier records go to the old file.
        self.write();
        match open(self.config.path.as_deref()) {
            Ok(sink) => {
                self.sink = sink;
                self.line_is_open = false;
            }
            Err(error) => {
                let path = self.config.path.as_deref().unwrap_or(Path::new("-")).display();
                tracing::warn!("cannot reopen the access log {path}: {error}; lines still go to the old file");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::SocketAddr;
    use std::path::PathBuf;
    use std::sync::Mutex;
    use std::sync::mpsc::{SyncSender, sync_channel};

    use model::AccessLogFormat;

    use super::super::Record;
    use super::super::batch::Batch;
    use super::*;

    fn message(listener: &str, home: &SyncSender<Batch>) -> Message {
        let mut batch = Batch::default();
        batch.push(&Record {
            unix_ms: 0,
            client: SocketAddr::from(([192, 0, 2, 7], 1)),
            listener,
            http: None,
            bytes_in: 0,
            bytes_out: 0,
            cluster: "",
            endpoint: None,
            total_us: 0,
            attempts: 0,
            reason: None,
        });
        Message::Batch(batch, home.clone())
    }

    fn listeners(text: &str) -> Vec<&str> {
        text.lines()
            .map(|line| line.split(" listener=").nth(1).and_then(|rest| rest.split(' ').next()).unwrap_or("?"))
            .collect()
    }

    #[test]
    fn rotation() {
        let folder = Folder::new("rotation");
        let (path, moved) = (folder.0.join("access.log"), folder.0.join("access.log.1"));
        let shared = Arc::new(Shared::default());
        let config = model::AccessLog { path: Some(path.clone()), format: AccessLogFormat::Text };
        let mut writer = Writer::new(config, open(Some(&path)).unwrap(), Arc::clone(&shared));
        let (home, emptied) = sync_channel(8);
        let reopen = |writer: &mut Writer| {
            shared.reopen.store(true, Relaxed);
            writer.take(Message::Wake);
        };

        writer.take(message("one", &home));
        fs::rename(&path, &moved).unwrap();
        reopen(&mut writer);
        writer.take(message("two", &home));
        // The directory is gone for a while: the old file is used further.
        fs::rename(&folder.0, folder.0.with_extension("away")).unwrap();
        reopen(&mut writer);
        fs::rename(folder.0.with_extension("away"), &folder.0).unwrap();
        writer.take(message("three", &home));
        writer.write();

        assert_eq!(listeners(&fs::read_to_string(&moved).unwrap()), ["one"]);
        assert_eq!(listeners(&fs::read_to_string(&path).unwrap()), ["two", "three"]);
        assert_eq!(emptied.try_iter().map(|batch| batch.len()).collect::<Vec<_>>(), [0, 0, 0]);
        assert_eq!(shared.failed.load(Relaxed), 0);
    }

    /// A disk with room for this many bytes.
    #[derive(Clone, Default)]
    struct Disk(Arc<Mutex<(usize, Vec<u8>)>>);

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut disk = self.0.lock().unwrap();
            let room = disk.0.min(bytes.len());
            if room == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            disk.0 -= room;
            disk.1.extend_from_slice(&bytes[..room]);
            Ok(room)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_costs_records_and_no_more() {
        let disk = Disk::default();
        let shared = Arc::new(Shared::default());
        let config = model::AccessLog { path: None, format: AccessLogFormat::Text };
        let mut writer = Writer::new(config, Box::new(disk.clone()), Arc::clone(&shared));
        let (home, _emptied) = sync_channel(8);
        let mut log = |listener: &str, room| {
            disk.0.lock().unwrap().0 = room;
            writer.take(message(listener, &home));
            writer.write();
        };
        log("one", 1_000);
        log("two", 70); // Cut within the line.
        log("three", 0);
        log("four", 1_000);
        let text = String::from_utf8(disk.0.lock().unwrap().1.clone()).unwrap();
        assert_eq!(listeners(&text), ["one", "two", "four"]);
        assert!(text.lines().last().unwrap().ends_with("reason=-"), "{text}");
        assert_eq!(shared.failed.load(Relaxed), 2);
    }

    /// A directory for this test, removed with this value.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("steelyard-access-log-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}
