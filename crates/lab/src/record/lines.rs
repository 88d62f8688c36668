//! JSON with a line for each field of a run and for each entry of its lists: a file that works with `diff`, `grep` and version control, at
//! the cost of a few bytes.

use std::io::{self, Write};

use serde_json::ser::Formatter;

/// The depth of a run's fields.
const FIELDS: u32 = 1;

/// The depth of the entries of lists in these fields.
const ENTRIES: u32 = 2;

/// Compact within a line.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// The number of open objects and lists.
    depth: u32,
}

impl Lines {
    fn open<W: ?Sized + Write>(&mut self, to: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        to.write_all(bracket)
    }

    fn close<W: ?Sized + Write>(&mut self, to: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth = self.depth.saturating_sub(1);
        if self.depth == 0 {
            to.write_all(b"\n")?;
        }
        to.write_all(bracket)
    }

    fn next<W: ?Sized + Write>(&self, to: &mut W, is_first: bool, level: u32) -> io::Result<()> {
        if !is_first {
            to.write_all(b",")?;
        }
        if self.depth == level { to.write_all(b"\n") } else { Ok(()) }
    }
}

impl Formatter for Lines {
    fn begin_object<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.open(to, b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.close(to, b"}")
    }

    fn begin_array<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.open(to, b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.close(to, b"]")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, to: &mut W, is_first: bool) -> io::Result<()> {
        self.next(to, is_first, FIELDS)
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, to: &mut W, is_first: bool) -> io::Result<()> {
        self.next(to, is_first, ENTRIES)
    }
}
