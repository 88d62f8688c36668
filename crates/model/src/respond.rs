//! Responses that Steelyard makes itself.

use std::path::PathBuf;

/// The body of a response, and its type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The value of `Content-Type`.
    pub content_type: String,
    /// The body.
    pub body: PageBody,
}

impl Page {
    /// The largest body. A client that does not read takes this much memory until `stall_timeout` ends, over HTTP/2 for each of its streams:
    /// `streams_per_connection` of them, which is 3.2 MiB for 100 streams.
    pub const BYTES_MAX: usize = 32 * 1024;
}

/// Where a body comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PageBody {
    /// The text itself.
    Text(String),
    /// A file. It is read when a snapshot that names it comes into use, and when it changes.
    File(PathBuf),
}

/// One response for every request of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixedResponse {
    /// 200 to 599.
    pub status: u16,
    /// Names, in lower case, and values of more header fields.
    pub headers: Vec<(String, String)>,
    /// `None` means an empty body.
    pub page: Option<Page>,
}

/// Replaces the line of text that Steelyard answers when it cannot serve a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorPage {
    /// First and last of ranges of statuses, 400 to 599.
    pub statuses: Vec<(u16, u16)>,
    /// For clients that do not prefer JSON.
    pub page: Page,
    /// For clients that prefer JSON; `None` means a problem document (RFC 9457).
    pub json: Option<String>,
}

impl ErrorPage {
    /// Whether the page is for this status.
    pub fn is_for(&self, status: u16) -> bool {
        self.statuses.iter().any(|(first, last)| (*first..=*last).contains(&status))
    }
}
