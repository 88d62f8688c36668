//! A mutating admission webhook: HTTPS for the API server, with a certificate that this process makes itself and puts into the webhook
//! configuration.
//!
//! Its job is to be reachable for the API server and for nobody's harm: connections, bodies and times are bounded. What is done to a pod is
//! the job of a [`Review`], which is pure. It reads and writes one object, the webhook configuration, and keeps nothing.

mod bundle;
mod certificate;

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::start;
use bundle::Keeper;
use certificate::Shown;

/// Connections at once. An API server reuses a few.
const CONNECTIONS_MAX: usize = 256;

/// An AdmissionReview has an object of at most 3 MiB (what an API server takes), and for an update the old one, too.
const BODY_BYTES_MAX: usize = 8 << 20;

/// For the handshake, for the head of a request, and for the whole of one.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
const HEAD_TIMEOUT: Duration = Duration::from_secs(90);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

/// The pause after a failed accept: descriptors become free only with time.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long requests in progress may take when the process ends. An API server waits ten seconds by default.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// How to reach the cluster, and what to serve.
#[derive(Clone, Debug)]
pub struct WebhookOptions {
    /// A kubeconfig file; `None` means that of the environment, or the service account of the pod.
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig; `None` means its current one.
    pub context: Option<String>,
    /// The address to listen on.
    pub listen: SocketAddr,
    /// The name of the MutatingWebhookConfiguration that gets the certificate.
    pub configuration: String,
    /// The names and addresses by which the API server connects: `NAME.NAMESPACE.svc` for a Service.
    pub names: Vec<String>,
}

/// What a webhook does with a request: the path and the `request` of the AdmissionReview. The operations of a JSON Patch (RFC 6902), or why the
/// object is refused.
pub type Review = dyn Fn(&str, &Value) -> Result<Vec<Value>, String> + Send + Sync;

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// A sentence: no cluster is configured, or this host cannot listen there.
pub fn serve_webhook(options: &WebhookOptions, review: Arc<Review>) -> Result<(), String> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start the runtime: {error}"))?;
    runtime.block_on(async {
        let client = start::client(options.kubeconfig.as_ref(), options.context.as_deref()).await?;
        let shown = Arc::new(Shown::new(certificate::make(&options.names)?));
        let listener = TcpListener::bind(options.listen)
            .await
            .map_err(|error| format!("cannot listen on {}: {error}", options.listen))?;
        let told = told_to_end()?;
        let served =
            Arc::new(Served { review, is_ready: AtomicBool::new(false), is_ending: watch::Sender::new(false) });
        let mut keeper = Keeper::new(client, options, shown.clone());
        tracing::info!(address = %options.listen, configuration = options.configuration, "listening");
        tokio::select! {
            () = told => {}
            () = keeper.keep(&served.is_ready) => {}
            () = accept(&listener, TlsAcceptor::from(shown.config()?), &served) => {}
        }
        drop(listener);
        // Requests in progress run in tasks of their own; the Service sends no new ones by now.
        served.is_ready.store(false, Relaxed);
        keeper.leave().await;
        served.is_ending.send_replace(true);
        let all = CONNECTIONS.acquire_many(u32::try_from(CONNECTIONS_MAX).unwrap_or(u32::MAX));
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, all).await;
        Ok(())
    })
}

fn told_to_end() -> Result<impl Future<Output = ()>, String> {
    let listen = |kind| signal(kind).map_err(|error| format!("cannot listen for signals: {error}"));
    let (mut term, mut int) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
    })
}

/// What all connections share.
struct Served {
    review: Arc<Review>,
    /// The API server trusts the certificate.
    is_ready: AtomicBool,
    /// Whether connections end after the request in progress. The API server keeps idle ones for a minute and more.
    is_ending: watch::Sender<bool>,
}

/// A permit for each connection.
static CONNECTIONS: Semaphore = Semaphore::const_new(CONNECTIONS_MAX);

async fn accept(listener: &TcpListener, tls: TlsAcceptor, served: &Arc<Served>) {
    loop {
        // It is never closed.
        let Ok(permit) = CONNECTIONS.acquire().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let (tls, served) = (tls.clone(), served.clone());
                tokio::spawn(async move {
                    connection(stream, &tls, &served).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, tls: &TlsAcceptor, served: &Arc<Served>) {
    let stream = match tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, "a TLS handshake failed"),
        Err(_) => return tracing::debug!("a TLS handshake took too long"),
    };
    let service = service_fn(|request| {
        let served = served.clone();
        async move {
            let answer = tokio::time::timeout(REQUEST_TIMEOUT, answer(request, &served)).await;
            Ok::<_, Infallible>(answer.unwrap_or_else(|_| text(StatusCode::REQUEST_TIMEOUT, "too slow")))
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    let mut http = pin!(http.serve_connection(TokioIo::new(stream), service));
    let mut is_ending = served.is_ending.subscribe();
    let told = async move { drop(is_ending.wait_for(|is_ending| *is_ending).await) };
    let ended = tokio::select! {
        ended = http.as_mut() => ended,
        () = told => {
            http.as_mut().graceful_shutdown();
            http.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended");
    }
}

async fn answer(request: Request<Incoming>, served: &Served) -> Response<Full<Bytes>> {
    let path = request.uri().path().to_owned();
    match (request.method(), path.as_str()) {
        (&Method::GET, "/healthz") => text(StatusCode::OK, "ok"),
        (&Method::GET, "/readyz") if served.is_ready.load(Relaxed) => text(StatusCode::OK, "ok"),
        (&Method::GET, "/readyz") => {
            text(StatusCode::SERVICE_UNAVAILABLE, "the webhook configuration does not have the certificate yet")
        }
        (&Method::POST, _) => {
            let Ok(body) = Limited::new(request.into_body(), BODY_BYTES_MAX).collect().await else {
                return text(StatusCode::PAYLOAD_TOO_LARGE, "the body is incomplete or too large");
            };
            match reviewed(&path, &body.to_bytes(), &*served.review) {
                Some(review) => {
                    let mut response = Response::new(Full::new(Bytes::from(review.to_string())));
                    let json = hyper::header::HeaderValue::from_static("application/json");
                    response.headers_mut().insert(hyper::header::CONTENT_TYPE, json);
                    response
                }
                None => text(StatusCode::BAD_REQUEST, "not an AdmissionReview of admission.k8s.io/v1"),
            }
        }
        _ => text(StatusCode::NOT_FOUND, "not here"),
    }
}

fn text(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = status;
    response
}

/// The AdmissionReview that answers another one; `None` if it is none.
fn reviewed(path: &str, body: &[u8], review: &Review) -> Option<Value> {
    let asked: Value = serde_json::from_slice(body).ok()?;
    let (version, request) = (&asked["apiVersion"], &asked["request"]);
    if version != "admission.k8s.io/v1" || !request["uid"].is_string() {
        return None;
    }
    let mut response = json!({ "uid": request["uid"], "allowed": true });
    match review(path, request) {
        Ok(patch) if patch.is_empty() => {}
        Ok(patch) => {
            use base64::Engine as _;
            let patch = base64::engine::general_purpose::STANDARD.encode(Value::from(patch).to_string());
            response["patchType"] = "JSONPatch".into();
            response["patch"] = patch.into();
        }
        Err(why) => {
            response["allowed"] = false.into();
            response["status"] = json!({ "code": 422, "reason": "Invalid", "message": why });
        }
    }
    Some(json!({ "apiVersion": version, "kind": "AdmissionReview", "response": response }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_review_is_answered() {
        let review = |path: &str, request: &Value| match (path, request["name"].as_str()) {
            (_, Some("bad")) => Err("it is bad".to_owned()),
            ("/pod", _) => Ok(vec![json!({"op": "add", "path": "/a", "value": 1})]),
            _ => Ok(Vec::new()),
        };
        let asked = |name: &str| json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "u", "name": name}});
        let check = |path: &str, asked: &str, expect: Option<Value>| {
            let answer = reviewed(path, asked.as_bytes(), &review);
            assert_eq!(answer.map(|answer| answer["response"].clone()), expect, "{path} {asked}");
        };
        let patch = "W3sib3AiOiJhZGQiLCJwYXRoIjoiL2EiLCJ2YWx1ZSI6MX1d";
        check(
            "/pod",
            &asked("a").to_string(),
            Some(json!({"uid": "u", "allowed": true, "patchType": "JSONPatch", "patch": patch})),
        );
        check("/other", &asked("a").to_string(), Some(json!({"uid": "u", "allowed": true})));
        let status = json!({"code": 422, "reason": "Invalid", "message": "it is bad"});
        check("/pod", &asked("bad").to_string(), Some(json!({"uid": "u", "allowed": false, "status": status})));
        check("/pod", "{}", None);
        check("/pod", "nonsense", None);
        check("/pod", &asked("a").to_string().replace("/v1", "/v1beta1"), None);
        check("/pod", &"[".repeat(100_000), None);
    }
}
