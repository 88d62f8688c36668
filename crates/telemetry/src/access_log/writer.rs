//! The thread that formats and writes.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::mpsc::{Receiver, TryRecvError};

use rustix::time::{ClockId, clock_gettime};

use super::entry::{LogAttributes, LogEntry};
use super::formatter::Formatter;
use super::syslog::SyslogSender;
use super::{LogExport, Message, Shared};

/// Lines are collected up to this number of bytes before they are written.
const WRITE_BYTES: usize = 64 * 1024;

/// A file that is no longer at its path is made again after this time, in seconds. Whatever moves it may want to make the new one itself.
const GONE_SECONDS: i64 = 3;

/// The target of the lines.
pub(super) struct Sink {
    pub(super) out: Box<dyn Write + Send>,
    /// The device and the number of the file that is open; `None` if it is no file.
    pub(super) inode: Option<(u64, u64)>,
}

/// Opens the target of the lines. Other users may not read it, because it shows which client requested what.
pub(super) fn open(path: Option<&Path>) -> io::Result<Sink> {
    let Some(path) = path else { return Ok(Sink::stream(Box::new(io::stdout()))) };
    let file = OpenOptions::new().append(true).create(true).mode(0o640).open(path)?;
    // Of the open file: another may be at its path by now.
    let inode = inode(file.metadata());
    Ok(Sink { out: Box::new(file), inode })
}

impl Sink {
    /// A target that has no path.
    pub(super) fn stream(out: Box<dyn Write + Send>) -> Self {
        Self { out, inode: None }
    }
}

/// Where records go.
pub(super) enum Output {
    Lines(Lines),
    Syslog(SyslogSender),
    Export(Box<dyn LogExport>, LogAttributes),
}

pub(super) struct Writer {
    output: Output,
    shared: Arc<Shared>,
}

impl Writer {
    pub(super) fn new(output: Output, shared: Arc<Shared>) -> Self {
        Self { output, shared }
    }

    /// Runs until all senders are gone and everything is written.
    pub(super) fn run(mut self, messages: &Receiver<Message>) {
        loop {
            let message = match messages.try_recv() {
                Ok(message) => message,
                Err(TryRecvError::Disconnected) => break,
                Err(TryRecvError::Empty) => {
                    // Nothing is waiting, so the collected lines need not wait for more.
                    self.flush();
                    let Ok(message) = messages.recv() else { break };
                    message
                }
            };
            self.take(message);
        }
        self.flush();
    }

    fn take(&mut self, message: Message) {
        if self.shared.reopen.swap(false, Acquire)
            && let Output::Lines(lines) = &mut self.output
        {
            lines.reopen();
        }
        let Message::Batch(mut batch, home) = message else { return };
        for entry in batch.entries() {
            match &mut self.output {
                Output::Lines(lines) => lines.push(&entry),
                Output::Syslog(sender) => sender.push(&entry),
                Output::Export(export, attributes) => {
                    self.shared.dropped.fetch_add(export.push(&entry, attributes), Relaxed);
                }
            }
        }
        if let Output::Lines(lines) = &mut self.output
            && lines.text.len() >= WRITE_BYTES
        {
            lines.write();
        }
        batch.clear();
        // The logger may be gone; then its batch is dropped.
        let _ = home.try_send(batch);
    }

    fn flush(&mut self) {
        match &mut self.output {
            Output::Lines(lines) => lines.write(),
            Output::Syslog(_) => {}
            Output::Export(export, _) => {
                self.shared.dropped.fetch_add(export.flush(), Relaxed);
            }
        }
    }
}

/// A file or standard output.
pub(super) struct Lines {
    /// `None` is standard output.
    path: Option<PathBuf>,
    formatter: Formatter,
    sink: Sink,
    shared: Arc<Shared>,
    /// Lines that wait to be written, and their number.
    text: Vec<u8>,
    count: u64,
    /// The last write failed within a line, so the next one must begin on a new line.
    line_is_open: bool,
    /// Since when the file is not at its path, in seconds of the monotonic clock.
    gone_since: Option<i64>,
}

impl Lines {
    pub(super) fn new(path: Option<PathBuf>, formatter: Formatter, sink: Sink, shared: Arc<Shared>) -> Self {
        Self { path, formatter, sink, shared, text: Vec::new(), count: 0, line_is_open: false, gone_since: None }
    }

    fn push(&mut self, entry: &LogEntry<'_>) {
        self.formatter.write(&mut self.text, entry);
        self.text.push(b'\n');
        self.count += 1;
    }

    fn write(&mut self) {
        if self.text.is_empty() {
            return;
        }
        self.look_for_file(clock_gettime(ClockId::Monotonic).tv_sec);
        if let Err(error) = self.write_lines() {
            // A line that was written in part counts as failed, like the rest, because it is not known how far the
            // write got.
            self.shared.failed.fetch_add(self.count, Relaxed);
            if !self.shared.is_failing.swap(true, Relaxed) {
                tracing::warn!("cannot write the access log: {error}; records are lost until it can be written again");
            }
        } else if self.shared.is_failing.swap(false, Relaxed) {
            tracing::info!("the access log is written again");
        }
        self.text.clear();
        self.count = 0;
    }

    /// Writes all lines, or fails; then the rest of the last line is not written any more.
    fn write_lines(&mut self) -> io::Result<()> {
        if self.line_is_open {
            self.sink.out.write_all(b"\n")?;
            self.line_is_open = false;
        }
        let mut rest = self.text.as_slice();
        while !rest.is_empty() {
            match self.sink.out.write(rest) {
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
        self.sink.out.flush()
    }

    /// Makes the file again if it was deleted or moved away and nobody said so: what is written to a deleted file is lost.
    fn look_for_file(&mut self, now: i64) {
        let Some(path) = self.path.as_deref() else { return };
        if self.sink.inode.is_none() || inode(fs::metadata(path)) == self.sink.inode {
            self.gone_since = None;
            return;
        }
        if now - *self.gone_since.get_or_insert(now) >= GONE_SECONDS {
            tracing::warn!("the access log {} was deleted or moved; opening it again", path.display());
            self.open_again();
            // The next attempt is as far away.
            self.gone_since = None;
        }
    }

    fn reopen(&mut self) {
        // Earlier records go to the old file.
        self.write();
        self.open_again();
    }

    fn open_again(&mut self) {
        match open(self.path.as_deref()) {
            Ok(sink) => {
                self.sink = sink;
                self.line_is_open = false;
                self.gone_since = None;
            }
            Err(error) => {
                let path = self.path.as_deref().unwrap_or(Path::new("-")).display();
                tracing::warn!("cannot reopen the access log {path}: {error}; lines still go to the old file");
            }
        }
    }
}

/// The device and the number of a regular file.
fn inode(data: io::Result<fs::Metadata>) -> Option<(u64, u64)> {
    let data = data.ok()?;
    data.is_file().then(|| (data.dev(), data.ino()))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Mutex;
    use std::sync::mpsc::{SyncSender, sync_channel};

    use super::super::Record;
    use super::super::batch::Batch;
    use super::super::format::Fixed;
    use super::*;

    fn message(listener: &str, home: &SyncSender<Batch>) -> Message {
        let mut batch = Batch::default();
        let record = Record {
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
        };
        batch.push(&record, &[], |_, _| false);
        Message::Batch(batch, home.clone())
    }

    fn writer(path: Option<PathBuf>, sink: Sink, shared: &Arc<Shared>) -> Writer {
        let lines = Lines::new(path, Formatter::Fixed(Fixed::Text), sink, shared.clone());
        Writer::new(Output::Lines(lines), shared.clone())
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
        let mut writer = writer(Some(path.clone()), open(Some(&path)).unwrap(), &shared);
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
        writer.flush();

        assert_eq!(listeners(&fs::read_to_string(&moved).unwrap()), ["one"]);
        assert_eq!(listeners(&fs::read_to_string(&path).unwrap()), ["two", "three"]);
        assert_eq!(emptied.try_iter().map(|batch| batch.len()).collect::<Vec<_>>(), [0, 0, 0]);
        assert_eq!(shared.failed.load(Relaxed), 0);
    }

    #[test]
    fn a_file_that_is_gone_is_made_again() {
        let folder = Folder::new("gone");
        let path = folder.0.join("access.log");
        let shared = Arc::new(Shared::default());
        let formatter = Formatter::Fixed(Fixed::Text);
        let mut lines = Lines::new(Some(path.clone()), formatter, open(Some(&path)).unwrap(), shared);
        fs::remove_file(&path).unwrap();
        lines.look_for_file(100);
        lines.look_for_file(101);
        assert!(!path.exists());
        // Nor can it be made while its directory is gone.
        fs::remove_dir(&folder.0).unwrap();
        lines.look_for_file(103);
        fs::create_dir(&folder.0).unwrap();
        lines.look_for_file(104);
        lines.look_for_file(107);
        assert!(path.exists());
        // It is back before it is missed.
        let moved = folder.0.join("access.log.1");
        fs::rename(&path, &moved).unwrap();
        lines.look_for_file(200);
        fs::rename(&moved, &path).unwrap();
        lines.look_for_file(202);
        fs::rename(&path, &moved).unwrap();
        lines.look_for_file(204);
        assert!(!path.exists());
    }

    #[test]
    fn a_file_that_took_the_place_of_the_open_one_is_another() {
        let folder = Folder::new("replaced");
        let path = folder.0.join("access.log");
        let sink = open(Some(&path)).unwrap();
        // Before anything else knows of the file.
        fs::rename(&path, folder.0.join("access.log.1")).unwrap();
        fs::write(&path, "").unwrap();
        let (home, _emptied) = sync_channel(8);
        let shared = Arc::new(Shared::default());
        let mut lines = Lines::new(Some(path.clone()), Formatter::Fixed(Fixed::Text), sink, shared.clone());
        lines.look_for_file(100);
        lines.look_for_file(103);
        let mut writer = Writer::new(Output::Lines(lines), shared);
        writer.take(message("one", &home));
        writer.flush();
        assert_eq!(listeners(&fs::read_to_string(&path).unwrap()), ["one"]);
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
        let mut writer = writer(None, Sink::stream(Box::new(disk.clone())), &shared);
        let (home, _emptied) = sync_channel(8);
        let mut log = |listener: &str, room| {
            disk.0.lock().unwrap().0 = room;
            writer.take(message(listener, &home));
            writer.flush();
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
