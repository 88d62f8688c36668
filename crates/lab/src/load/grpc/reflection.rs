//! Asks a server to describe its methods (server reflection, `grpc.reflection.v1` and `v1alpha`).
//!
//! Each question is a call of its own on one connection. The protocol would allow all in one call, but then an answer could not be told from
//! the end of the call.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::net::IpAddr;

use bytes::Bytes;
use h2::client::SendRequest;
use prost::Message;
use prost_reflect::prost_types::FileDescriptorProto;
use prost_reflect::{DescriptorPool, MethodDescriptor};

use super::schema::{self, invalid};
use super::{request, status_name};
use crate::load::reach::Reached;
use crate::load::socket::Socket;
use crate::load::target::Url;
use crate::strest::{self, Deframer};

/// The packages of the service, which have the same messages.
const VERSIONS: [&str; 2] = ["grpc.reflection.v1", "grpc.reflection.v1alpha"];

/// The most files that a server may need to describe a method.
const FILES_MAX: usize = 4_096;

/// The most bytes of these files. A message without anything in it has two bytes, and takes some 250 once it is read.
const FILES_BYTES_MAX: usize = 2 << 20;

/// The most services whose methods are listed.
const SERVICES_MAX: usize = 32;

/// The statuses that mean something here.
const NOT_FOUND: i32 = 5;
const UNIMPLEMENTED: i32 = 12;

#[derive(Clone, PartialEq, Message)]
struct Question {
    #[prost(oneof = "Ask", tags = "3, 4, 7")]
    ask: Option<Ask>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Ask {
    #[prost(string, tag = "3")]
    File(String),
    #[prost(string, tag = "4")]
    Symbol(String),
    #[prost(string, tag = "7")]
    Services(String),
}

#[derive(Clone, PartialEq, Message)]
struct Response {
    #[prost(oneof = "Answer", tags = "4, 6, 7")]
    answer: Option<Answer>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Answer {
    #[prost(message, tag = "4")]
    Files(Files),
    #[prost(message, tag = "6")]
    Services(Services),
    #[prost(message, tag = "7")]
    Refused(Refused),
}

#[derive(Clone, PartialEq, Message)]
struct Files {
    #[prost(bytes = "vec", repeated, tag = "1")]
    protos: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct Services {
    #[prost(message, repeated, tag = "1")]
    services: Vec<Service>,
}

#[derive(Clone, PartialEq, Message)]
struct Service {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct Refused {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
}

/// Asks the server for the method in the URL.
///
/// # Errors
/// The server does not describe its methods, or has no such method. The message says which it has.
pub(super) async fn method(
    url: &Url,
    reached: &Reached,
    source: Option<IpAddr>,
    metadata: &[(String, String)],
) -> io::Result<MethodDescriptor> {
    let mut asked = Asked::connect(url, reached, source, metadata).await?;
    let (mut files, mut served) = (BTreeMap::new(), Vec::new());
    match schema::names(url) {
        Some((service, _)) => {
            let is_known = asked.add(Ask::Symbol(service.to_owned()), &mut files).await?;
            if !is_known {
                let services = asked.services().await?;
                return Err(schema::unknown_service(service, &url.authority, &services));
            }
        }
        None => {
            served = asked.services().await?;
            for service in served.iter().take(SERVICES_MAX) {
                asked.add(Ask::Symbol(service.clone()), &mut files).await?;
            }
        }
    }
    asked.add_imports(&mut files).await?;
    let mut pool = DescriptorPool::new();
    pool.add_file_descriptor_protos(files.into_values())
        .map_err(|error| invalid(format!("{} describes its methods wrongly: {error}", url.authority)))?;
    match schema::names(url) {
        Some(_) => schema::method(&pool, url, &url.authority),
        // A file may describe services that this server does not have.
        None => Err(schema::unnamed(&pool, url, &url.authority, |name| served.iter().any(|served| served == name))),
    }
}

/// A connection for questions.
struct Asked<'a> {
    sender: SendRequest<Bytes>,
    place: &'a str,
    scheme: &'static str,
    metadata: &'a [(String, String)],
    /// The package that the server has, once an answer has told.
    version: Option<&'static str>,
    /// Bytes of all files so far.
    bytes: usize,
}

impl<'a> Asked<'a> {
    async fn connect(
        url: &'a Url,
        reached: &Reached,
        source: Option<IpAddr>,
        metadata: &'a [(String, String)],
    ) -> io::Result<Self> {
        let socket = Socket::connect(reached.address, source, reached.tls.as_ref()).await?;
        let place = url.authority.as_str();
        let (sender, connection) = h2::client::handshake(socket).await.map_err(|error| no_grpc(place, &error))?;
        // The calls notice when the connection ends.
        tokio::spawn(async move { connection.await.is_ok() });
        let scheme = if reached.tls.is_some() { "https" } else { "http" };
        Ok(Self { sender, place, scheme, metadata, version: None, bytes: 0 })
    }

    /// Adds the files of the answer. Returns false if the server does not know what it was asked for.
    async fn add(&mut self, ask: Ask, files: &mut BTreeMap<String, FileDescriptorProto>) -> io::Result<bool> {
        let found = match self.ask(ask).await? {
            Answer::Files(found) => found,
            Answer::Refused(Refused { code: NOT_FOUND, .. }) => return Ok(false),
            Answer::Refused(Refused { code, message }) => return Err(self.refused(code, &message)),
            Answer::Services(_) => return Err(self.broken("it answers another question")),
        };
        self.bytes += found.protos.iter().map(Vec::len).sum::<usize>();
        if self.bytes > FILES_BYTES_MAX {
            return Err(self.broken(&format!("its files have more than {} MiB", FILES_BYTES_MAX >> 20)));
        }
        for bytes in found.protos {
            let file = FileDescriptorProto::decode(bytes.as_slice())
                .map_err(|error| self.broken(&format!("a description cannot be read: {error}")))?;
            files.insert(file.name().to_owned(), file);
        }
        match files.len() > FILES_MAX {
            true => Err(self.broken(&format!("it needs more than {FILES_MAX} files"))),
            false => Ok(true),
        }
    }

    /// Asks for files that others import, until none is missing.
    async fn add_imports(&mut self, files: &mut BTreeMap<String, FileDescriptorProto>) -> io::Result<()> {
        loop {
            let imports = files.values().flat_map(|file| &file.dependency);
            let Some(missing) = imports.filter(|name| !files.contains_key(*name)).min().cloned() else {
                return Ok(());
            };
            let is_known = self.add(Ask::File(missing.clone()), files).await?;
            if !is_known || !files.contains_key(&missing) {
                return Err(self.broken(&format!("it does not know {missing}, which its files import")));
            }
        }
    }

    /// The services of the server, without that of reflection.
    async fn services(&mut self) -> io::Result<Vec<String>> {
        match self.ask(Ask::Services(String::new())).await? {
            Answer::Services(found) => {
                let names = found.services.into_iter().map(|service| service.name);
                Ok(names.filter(|name| !name.starts_with("grpc.reflection.")).collect())
            }
            Answer::Refused(Refused { code, message }) => Err(self.refused(code, &message)),
            Answer::Files(_) => Err(self.broken("it answers another question")),
        }
    }

    /// Asks in the version of the server, which the first question finds out.
    async fn ask(&mut self, ask: Ask) -> io::Result<Answer> {
        let question = strest::framed(&Question { ask: Some(ask) });
        let versions = self.version.map_or(VERSIONS.to_vec(), |version| vec![version]);
        for version in versions {
            let (answer, status, message) = self.call(version, question.clone()).await?;
            match (answer, status) {
                (Some(answer), _) => {
                    self.version = Some(version);
                    return Ok(answer);
                }
                (None, UNIMPLEMENTED) => {}
                (None, status) => return Err(self.refused(status, &message)),
            }
        }
        let place = self.place;
        Err(invalid(format!(
            "{place} does not describe its methods (server reflection): use --proto FILE or --protoset FILE"
        )))
    }

    /// One call: the first message of its response, and its status.
    async fn call(&mut self, version: &str, question: Bytes) -> io::Result<(Option<Answer>, i32, String)> {
        let path = format!("/{version}.ServerReflection/ServerReflectionInfo");
        let request = request(self.scheme, self.place, &path, self.metadata)?;
        let place = self.place;
        let failed = |error: h2::Error| no_grpc(place, &error);
        poll_fn(|context| self.sender.poll_ready(context)).await.map_err(failed)?;
        let (response, mut sending) = self.sender.send_request(request, false).map_err(failed)?;
        sending.send_data(question, true).map_err(failed)?;
        let (head, mut body) = response.await.map_err(failed)?.into_parts();
        let mut deframer = Deframer::default();
        let mut answer = None;
        while let Some(piece) = body.data().await {
            let piece = piece.map_err(failed)?;
            body.flow_control().release_capacity(piece.len()).map_err(failed)?;
            deframer.push(&piece);
            if let Some(response) = deframer.next::<Response>().map_err(|why| self.broken(&format!("{why:?}")))? {
                answer = response.answer;
                break;
            }
        }
        if answer.is_some() {
            return Ok((answer, 0, String::new()));
        }
        let trailers = body.trailers().await.map_err(failed)?;
        let headers = trailers.as_ref().unwrap_or(&head.headers);
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        match text("grpc-status").and_then(|status| status.parse().ok()) {
            Some(status) => Ok((None, status, text("grpc-message").unwrap_or_default().to_owned())),
            // Gateways answer so for a path that they do not serve.
            None if head.status == http::StatusCode::NOT_FOUND => Ok((None, UNIMPLEMENTED, String::new())),
            None => {
                Err(invalid(format!("{place} answers a call with HTTP status {}: is it a gRPC server?", head.status)))
            }
        }
    }

    fn refused(&self, code: i32, message: &str) -> io::Error {
        let name = u16::try_from(code).ok().and_then(status_name).unwrap_or("an unknown status");
        let message = if message.is_empty() { String::new() } else { format!(": {message}") };
        invalid(format!("{} refuses to describe its methods: {name} ({code}){message}", self.place))
    }

    fn broken(&self, why: &str) -> io::Error {
        invalid(format!("{} describes its methods wrongly: {why}; use --proto FILE", self.place))
    }
}

fn no_grpc(place: &str, error: &h2::Error) -> io::Error {
    invalid(format!("{place} does not answer as a gRPC server does: {error}"))
}
