//! One request over HTTP/2, and its answer: the client's side of [`wire::h2`] on a connection that is used once.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use wire::h2::{Connection, Event, Handled, Limits, PseudoHeaders, ResetBy, Role};
use wire::message::{Field, ResponseHead};

use crate::probe::{Failure, broken};
use crate::transport::Stream;

/// Bytes of an answer's body; a health check has some ten.
pub(crate) const BODY_BYTES_MAX: usize = 16 * 1024;

/// Bytes read at once.
const READ_BYTES: usize = 4 * 1024;

/// What is asked.
pub(crate) struct Request<'r> {
    pub(crate) target: PseudoHeaders<'r>,
    /// Names in lower case.
    pub(crate) fields: &'r [(&'r [u8], &'r [u8])],
    /// At most 16 KiB, which every window takes at once.
    pub(crate) body: &'r [u8],
    /// Read the answer to its end, or no further than its head.
    pub(crate) wants_body: bool,
}

/// What was answered.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The fields of the head and, behind them, those of the trailers: name and value.
    pub(crate) fields: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// The last field of a name: trailers decide.
    pub(crate) fn field(&self, name: &[u8]) -> Option<&[u8]> {
        self.fields.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.as_slice())
    }
}

/// Asks, by prior knowledge.
pub(crate) async fn ask(stream: &mut (impl Stream + ?Sized), request: &Request<'_>) -> Result<Answer, Failure> {
    let limits = Limits { extended_connect: false, ..Limits::default() };
    let mut asking = ProbeExchange {
        connection: Connection::new(Role::Client, limits),
        answer: Answer::default(),
        wants_body: request.wants_body,
    };
    asking.send(request)?;
    let mut buffer = vec![0; READ_BYTES];
    loop {
        asking.flush(stream).await?;
        let read = stream.read(&mut buffer).await.map_err(broken)?;
        if read == 0 {
            return Err(Failure::Http2("closed before the end of the answer".to_owned()));
        }
        if asking.take(buffer.get(..read).unwrap_or_default())? {
            asking.connection.drain();
            // The answer is there: that the endpoint does not hear our goodbye is no failure.
            _ = asking.flush(stream).await;
            return Ok(asking.answer);
        }
    }
}

struct ProbeExchange {
    connection: Connection,
    answer: Answer,
    wants_body: bool,
}

impl ProbeExchange {
    fn send(&mut self, request: &Request<'_>) -> Result<(), Failure> {
        // A connection that nobody has answered on has room for one stream, and its windows for the body.
        let not_sent = |_| Failure::Http2("no room for a request".to_owned());
        let end = request.body.is_empty();
        let sent = self.connection.send_request(&request.target, end, |head| {
            for (name, value) in request.fields {
                head.field(name, value);
            }
        });
        let stream = sent.map_err(not_sent)?;
        if !end {
            self.connection.send_data(stream, request.body, true).map_err(not_sent)?;
        }
        Ok(())
    }

    async fn flush(&mut self, stream: &mut (impl Stream + ?Sized)) -> Result<(), Failure> {
        if self.connection.output().is_empty() {
            return Ok(());
        }
        let output = self.connection.output();
        let count = output.len();
        stream.write_all(output).await.map_err(broken)?;
        self.connection.consume_output(count);
        stream.flush().await.map_err(broken)
    }

    /// Whether the answer is there.
    fn take(&mut self, mut input: &[u8]) -> Result<bool, Failure> {
        loop {
            // A connection that lives for one probe needs no clock: nothing that it spends comes back with time.
            let handled = self.connection.handle_bytes(0, input);
            let Handled { consumed, event } =
                handled.map_err(|error| Failure::Http2(error.reason.name().to_owned()))?;
            input = input.get(consumed..).unwrap_or_default();
            match event {
                None => return Ok(false),
                Some(event) if self.handle(event)? => return Ok(true),
                Some(_) => {}
            }
        }
    }

    fn handle(&mut self, event: Event<'_>) -> Result<bool, Failure> {
        match event {
            Event::Response { end, .. } => {
                let (mut head, mut bytes) = (ResponseHead::default(), Vec::new());
                self.connection.take_response(&mut head, &mut bytes);
                if head.status < 200 {
                    return Ok(false);
                }
                self.answer.status = head.status;
                self.keep(&head.fields, &bytes);
                Ok(end || !self.wants_body)
            }
            Event::Data { bytes, end, .. } => {
                if self.answer.body.len() + bytes.len() > BODY_BYTES_MAX {
                    return Err(Failure::Http2(format!("the answer is longer than {BODY_BYTES_MAX} bytes")));
                }
                self.answer.body.extend_from_slice(bytes);
                Ok(end)
            }
            Event::Trailers { .. } => {
                let (mut fields, mut bytes) = (Vec::new(), Vec::new());
                self.connection.take_trailers(&mut fields, &mut bytes);
                self.keep(&fields, &bytes);
                Ok(true)
            }
            Event::Reset { by: ResetBy::GoAway, .. } => Err(Failure::Http2("the endpoint is going away".to_owned())),
            Event::Reset { by: ResetBy::Us(reason), .. } => Err(Failure::Http2(reason.name().to_owned())),
            Event::Reset { code, by: ResetBy::Peer, .. } => {
                Err(Failure::Http2(format!("the request was reset with code {}", code.0)))
            }
            _ => Ok(false),
        }
    }

    fn keep(&mut self, fields: &[Field], bytes: &[u8]) {
        let kept = fields.iter().map(|field| (field.name.get(bytes).to_vec(), field.value.get(bytes).to_vec()));
        self.answer.fields.extend(kept);
    }
}
