//! The certificates in the webhook configuration, which the API server trusts (`caBundle`): each replica adds its own, and removes it when it
//! ends. So no replica knows the key of another, and there is no Secret.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, PostParams};
use kube::{Client, Error};
use serde_json::Value;
use tokio::time::Instant;

use super::WebhookOptions;
use super::certificate::{self, Certificate, Shown, VALID_DAYS};

/// The time between two looks at the configuration, which others may write, too; and until what failed is tried again.
const LOOK_EVERY: Duration = Duration::from_secs(30);
const AGAIN_AFTER: Duration = Duration::from_secs(2);

/// A look, or a write, that takes longer is given up.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Certificates in a configuration. A replica that was killed leaves its own behind; the oldest go first.
const CERTIFICATES_MAX: usize = 32;

/// How often a write is tried again because another replica was first.
const CONFLICTS_MAX: usize = 8;

/// Keeps the certificate of this process in the configuration, and replaces it before it expires.
pub(super) struct Keeper {
    api: Api<DynamicObject>,
    configuration: String,
    names: Vec<String>,
    shown: Arc<Shown>,
    renew_at: Instant,
    /// The API server knows it, and it is shown from the next look on.
    next: Option<Certificate>,
    /// One that was shown before the last look, and that is to be removed.
    last: Option<String>,
}

impl Keeper {
    pub(super) fn new(client: Client, options: &WebhookOptions, shown: Arc<Shown>) -> Self {
        let kind = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", "MutatingWebhookConfiguration");
        Self {
            api: Api::all_with(client, &ApiResource::from_gvk(&kind)),
            configuration: options.configuration.clone(),
            names: options.names.clone(),
            shown,
            renew_at: Instant::now() + renew_after(),
            next: None,
            last: None,
        }
    }

    /// Looks at the configuration again and again.
    pub(super) async fn keep(&mut self, is_ready: &AtomicBool) {
        let mut told = String::new();
        loop {
            let pause = match self.look().await {
                Ok(()) => {
                    if !is_ready.swap(true, Relaxed) {
                        tracing::info!(configuration = self.configuration, "the API server trusts the certificate");
                    }
                    told.clear();
                    LOOK_EVERY
                }
                Err(why) => {
                    // It is retried again and again, but reported once.
                    if told != why {
                        tracing::error!(why, "cannot put the certificate into the webhook configuration");
                        told = why;
                    }
                    AGAIN_AFTER
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// One look. A new certificate is in the configuration for the time between two looks before it is shown, because API servers learn of it
    /// a moment later, and the old one is removed a look after that.
    async fn look(&mut self) -> Result<(), String> {
        let mut unwanted: Vec<String> = self.last.take().into_iter().collect();
        if let Some(next) = self.next.take() {
            self.last = Some(self.shown.pem());
            self.shown.show(next);
            tracing::info!("the certificate was replaced");
        } else if Instant::now() >= self.renew_at {
            self.next = Some(certificate::make(&self.names)?);
            self.renew_at = Instant::now() + renew_after();
        }
        let mut wanted = vec![self.shown.pem()];
        wanted.extend(self.next.iter().map(|next| next.pem.clone()));
        let written = self.write(&wanted, &unwanted).await;
        if written.is_err() {
            // Nobody knows the next one yet.
            self.renew_at = if self.next.take().is_some() { Instant::now() } else { self.renew_at };
            self.last = self.last.take().or_else(|| unwanted.pop());
        }
        written
    }

    /// Removes the certificate, because this process ends.
    pub(super) async fn leave(&mut self) {
        let own = self.next.take().map(|next| next.pem).into_iter().chain(self.last.take()).chain([self.shown.pem()]);
        let own: Vec<String> = own.collect();
        if let Err(why) = self.write(&[], &own).await {
            tracing::warn!(why, "the certificate stays in the webhook configuration; it expires by itself");
        }
    }

    async fn write(&self, wanted: &[String], unwanted: &[String]) -> Result<(), String> {
        for _ in 0..CONFLICTS_MAX {
            let mut object = in_time(self.api.get(&self.configuration)).await?.map_err(|error| self.told(&error))?;
            if !change(&mut object.data, wanted, unwanted) {
                return Ok(());
            }
            match in_time(self.api.replace(&self.configuration, &PostParams::default(), &object)).await? {
                Ok(_) => return Ok(()),
                Err(Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(self.told(&error)),
            }
        }
        Err("other replicas write it all the time".to_owned())
    }

    fn told(&self, error: &Error) -> String {
        match error {
            Error::Api(status) if status.code == 404 => {
                format!("there is no MutatingWebhookConfiguration {}", self.configuration)
            }
            Error::Api(status) => status.message.clone(),
            other => other.to_string(),
        }
    }
}

fn renew_after() -> Duration {
    Duration::from_secs(VALID_DAYS.unsigned_abs() * 24 * 3600 * 2 / 3)
}

async fn in_time<T>(call: impl Future<Output = T>) -> Result<T, String> {
    tokio::time::timeout(CALL_TIMEOUT, call).await.map_err(|_| "the API server does not answer".to_owned())
}

/// Adds and removes certificates of all webhooks of a configuration. Returns whether that changes anything.
fn change(configuration: &mut Value, wanted: &[String], unwanted: &[String]) -> bool {
    let webhooks = configuration.get_mut("webhooks").and_then(Value::as_array_mut);
    let mut is_changed = false;
    for webhook in webhooks.into_iter().flatten() {
        let Some(client) = webhook.get_mut("clientConfig").and_then(Value::as_object_mut) else { continue };
        let old = client.get("caBundle").and_then(Value::as_str).unwrap_or_default();
        let old = STANDARD.decode(old).ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default();
        let new = changed(&old, wanted, unwanted);
        if new != old {
            client.insert("caBundle".to_owned(), STANDARD.encode(new).into());
            is_changed = true;
        }
    }
    is_changed
}

/// The text of the certificates with those that are wanted at its end, if they are not in it.
fn changed(old: &str, wanted: &[String], unwanted: &[String]) -> String {
    const END: &str = "-----END CERTIFICATE-----";
    let normal = |text: &str| text.trim().replace("\r\n", "\n");
    let unwanted: Vec<String> = unwanted.iter().map(|text| normal(text)).collect();
    let mut all: Vec<String> = old.split_inclusive(END).map(normal).filter(|text| text.ends_with(END)).collect();
    all.retain(|text| !unwanted.contains(text));
    for text in wanted.iter().map(|text| normal(text)) {
        if !all.contains(&text) {
            all.push(text);
        }
    }
    let first = all.len().saturating_sub(CERTIFICATES_MAX);
    all.iter().skip(first).map(|text| format!("{text}\n")).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pem(content: &str) -> String {
        format!("-----BEGIN CERTIFICATE-----\n{content}\n-----END CERTIFICATE-----\n")
    }

    #[test]
    fn certificates_of_several_replicas() {
        let check = |old: &[&str], wanted: &[&str], unwanted: &[&str], expect: &[&str]| {
            let texts = |names: &[&str]| names.iter().map(|name| pem(name)).collect::<Vec<_>>();
            let new = changed(&texts(old).concat(), &texts(wanted), &texts(unwanted));
            assert_eq!(new, texts(expect).concat());
        };
        check(&[], &["a"], &[], &["a"]);
        check(&["a"], &["a"], &[], &["a"]);
        check(&["a", "b"], &["c"], &["a"], &["b", "c"]);
        check(&["a", "b"], &[], &["b"], &["a"]);
        let many: Vec<String> = (0..40).map(|number| number.to_string()).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        check(&many, &["new"], &[], &[&many[9..], &["new"]].concat());
        assert_eq!(changed("no certificate", &[pem("a")], &[]), pem("a"));
        assert_eq!(changed(&pem("a").replace('\n', "\r\n"), &[pem("a")], &[]), pem("a"));
    }

    #[test]
    fn all_webhooks_of_a_configuration() {
        let mut object = json!({"webhooks": [{"clientConfig": {}}, {"clientConfig": {"caBundle": "nonsense!"}}, {}]});
        assert!(change(&mut object, &[pem("a")], &[]));
        for at in [0, 1] {
            assert_eq!(object["webhooks"][at]["clientConfig"]["caBundle"], STANDARD.encode(pem("a")));
        }
        assert!(!change(&mut object, &[pem("a")], &[]));
        assert!(!change(&mut json!({}), &[pem("a")], &[]));
    }
}
