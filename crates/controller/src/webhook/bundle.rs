//! The certificates in the webhook configuration, which the API server trusts (`caBundle`): each replica adds its own, and removes it when it
//! ends. So no replica knows the key of another, and there is no Secret.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, PostParams};
use kube::{Client, Error};
use serde_json::{Map, Value};
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
    rotation: Rotation,
}

impl Keeper {
    pub(super) fn new(client: Client, options: &WebhookOptions, shown: Arc<Shown>) -> Self {
        let kind = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", "MutatingWebhookConfiguration");
        Self {
            api: Api::all_with(client, &ApiResource::from_gvk(&kind)),
            configuration: options.configuration.clone(),
            rotation: Rotation::new(&options.names, shown, Instant::now(), renew_after(VALID_DAYS)),
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

    async fn look(&mut self) -> Result<(), String> {
        let change = self.rotation.look(Instant::now())?;
        self.write(&change).await?;
        self.rotation.written();
        Ok(())
    }

    /// Removes the certificate, because this process ends.
    pub(super) async fn leave(&self) {
        if let Err(why) = self.write(&self.rotation.end()).await {
            tracing::warn!(why, "the certificate stays in the webhook configuration; it expires by itself");
        }
    }

    async fn write(&self, change: &Change) -> Result<(), String> {
        for _ in 0..CONFLICTS_MAX {
            let mut object = in_time(self.api.get(&self.configuration)).await?.map_err(|error| self.told(&error))?;
            if !change.apply(&mut object.data) {
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

async fn in_time<T>(call: impl Future<Output = T>) -> Result<T, String> {
    tokio::time::timeout(CALL_TIMEOUT, call).await.map_err(|_| "the API server does not answer".to_owned())
}

/// The certificates of this process, by time: which one is shown, and which ones the configuration must have.
struct Rotation {
    names: Vec<String>,
    shown: Arc<Shown>,
    /// How long one is shown before there is another.
    renew_after: Duration,
    renew_at: Instant,
    /// It is shown from the next look on, if the API server knows it by then.
    next: Option<Certificate>,
    is_next_known: bool,
    /// It was shown before, and is removed at the next look.
    last: Option<String>,
    /// They are to be removed.
    unwanted: Vec<String>,
}

impl Rotation {
    fn new(names: &[String], shown: Arc<Shown>, now: Instant, renew_after: Duration) -> Self {
        Self {
            names: names.to_owned(),
            shown,
            renew_after,
            renew_at: now + renew_after,
            next: None,
            is_next_known: false,
            last: None,
            unwanted: Vec::new(),
        }
    }

    /// One look. A new certificate is in the configuration for the time between two looks before it is shown, because API servers learn of it
    /// a moment later, and the old one is removed a look after that.
    fn look(&mut self, now: Instant) -> Result<Change, String> {
        self.unwanted.extend(self.last.take());
        if let Some(next) = self.next.take_if(|_| self.is_next_known) {
            self.last = Some(self.shown.pem());
            self.shown.show(next);
            tracing::info!("the certificate was replaced");
        } else if self.next.is_none() && now >= self.renew_at {
            self.next = Some(certificate::make(&self.names)?);
            self.renew_at = now + self.renew_after;
        }
        let mut wanted = vec![self.shown.pem()];
        wanted.extend(self.next.iter().map(|next| next.pem.clone()));
        Ok(Change { wanted, unwanted: self.unwanted.clone() })
    }

    /// The change of the last look is written.
    fn written(&mut self) {
        self.unwanted.clear();
        self.is_next_known = self.next.is_some();
    }

    /// This process ends: the configuration must have none of its certificates.
    fn end(&self) -> Change {
        let next = self.next.iter().map(|next| next.pem.clone());
        let own = next.chain(self.last.clone()).chain(self.unwanted.iter().cloned()).chain([self.shown.pem()]);
        Change { wanted: Vec::new(), unwanted: own.collect() }
    }
}

/// Two thirds of the time for which a certificate is valid.
fn renew_after(valid_days: i64) -> Duration {
    Duration::from_secs(valid_days.unsigned_abs() * 24 * 3600 * 2 / 3)
}

/// The certificates that a configuration must have, and those that it must not have.
struct Change {
    wanted: Vec<String>,
    unwanted: Vec<String>,
}

impl Change {
    /// Changes all webhooks of a configuration. Returns whether that changes anything.
    fn apply(&self, configuration: &mut Value) -> bool {
        let webhooks = configuration.get_mut("webhooks").and_then(Value::as_array_mut);
        let mut is_changed = false;
        for webhook in webhooks.into_iter().flatten() {
            let Some(client) = webhook.get_mut("clientConfig").and_then(Value::as_object_mut) else { continue };
            let old = bundle(client);
            let new = changed(&old, &self.wanted, &self.unwanted);
            if new != old {
                client.insert("caBundle".to_owned(), STANDARD.encode(new).into());
                is_changed = true;
            }
        }
        is_changed
    }
}

/// The certificates that the API server trusts for a webhook.
fn bundle(client: &Map<String, Value>) -> String {
    let text = client.get("caBundle").and_then(Value::as_str).unwrap_or_default();
    STANDARD.decode(text).ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default()
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
        let change = Change { wanted: vec![pem("a")], unwanted: Vec::new() };
        assert!(change.apply(&mut object));
        for at in [0, 1] {
            assert_eq!(object["webhooks"][at]["clientConfig"]["caBundle"], STANDARD.encode(pem("a")));
        }
        assert!(!change.apply(&mut object));
        assert!(!change.apply(&mut json!({})));
    }

    /// A replica, and the configuration that it has seen last. An API server may be as far behind as one look.
    struct Replica {
        rotation: Rotation,
        shown: Arc<Shown>,
        before: String,
    }

    impl Replica {
        fn new(now: Instant) -> Self {
            let names = ["webhook.steelyard.svc".to_owned()];
            let shown = Arc::new(Shown::new(certificate::make(&names).unwrap()));
            Self { rotation: Rotation::new(&names, shown.clone(), now, RENEW_AFTER), shown, before: String::new() }
        }

        /// Looks, and writes if the API server answers. Whatever is shown was trusted at the end of the last look.
        fn look(&mut self, now: Instant, object: &mut Value, answers: bool) {
            let change = self.rotation.look(now).unwrap();
            let shown = self.shown.pem();
            assert!(
                self.before.is_empty() || self.before.contains(&shown),
                "{shown} is shown too early:\n{}",
                self.before
            );
            if answers {
                change.apply(object);
                self.rotation.written();
                self.before = trusted(object);
                assert!(self.before.contains(&shown), "{shown} is not in\n{}", self.before);
            }
        }
    }

    /// 20 days of the 30.
    const RENEW_AFTER: Duration = Duration::from_secs(20 * 24 * 3600);

    fn trusted(object: &Value) -> String {
        bundle(object["webhooks"][0]["clientConfig"].as_object().unwrap())
    }

    fn count(object: &Value) -> usize {
        trusted(object).matches("BEGIN CERTIFICATE").count()
    }

    #[test]
    fn certificates_are_replaced_when_two_thirds_of_their_time_are_over() {
        assert_eq!(renew_after(VALID_DAYS), RENEW_AFTER);
        let (start, mut object) = (Instant::now(), json!({"webhooks": [{"clientConfig": {}}]}));
        let mut replicas = [Replica::new(start), Replica::new(start)];
        let mut look = |object: &mut Value, now: Instant, answers: bool| {
            replicas.iter_mut().for_each(|replica| replica.look(now, object, answers));
            replicas.iter().map(|replica| replica.shown.pem()).collect::<Vec<_>>()
        };
        let first = look(&mut object, start, true);
        assert_eq!(look(&mut object, start + RENEW_AFTER - LOOK_EVERY, true), first);
        assert_eq!(count(&object), 2);
        // The API server does not answer when it is time: nobody may see what it does not know.
        let now = start + RENEW_AFTER;
        for again in 0..3 {
            assert_eq!(look(&mut object, now + AGAIN_AFTER * again, false), first);
        }
        let now = now + AGAIN_AFTER * 3;
        assert_eq!(look(&mut object, now, true), first);
        assert_eq!(count(&object), 4);
        let second = look(&mut object, now + LOOK_EVERY, true);
        assert!(second.iter().all(|pem| !first.contains(pem)));
        // The old ones stay for another look, for handshakes that are under way.
        assert_eq!(count(&object), 4);
        assert_eq!(look(&mut object, now + LOOK_EVERY * 2, true), second);
        assert_eq!(count(&object), 2);
        // Something resets the configuration.
        object["webhooks"][0]["clientConfig"] = json!({});
        assert_eq!(look(&mut object, now + LOOK_EVERY * 3, true), second);
        assert_eq!(count(&object), 2);
        // And again, 20 days later.
        let now = now + RENEW_AFTER;
        assert_eq!(look(&mut object, now, true), second);
        assert!(look(&mut object, now + LOOK_EVERY, true).iter().all(|pem| !second.contains(pem)));
    }

    /// A process may end at any time between, in the middle of a write, too.
    #[test]
    fn a_replica_that_ends_leaves_no_certificate() {
        for steps in 0..8 {
            for is_cut_off in [false, true] {
                let (start, mut object) = (Instant::now(), json!({"webhooks": [{"clientConfig": {}}]}));
                let (mut stays, mut ends) = (Replica::new(start), Replica::new(start));
                stays.look(start, &mut object, true);
                ends.look(start, &mut object, true);
                for step in 0..steps {
                    let now = start + RENEW_AFTER + LOOK_EVERY * step;
                    ends.look(now, &mut object, step != 1);
                }
                if is_cut_off {
                    let change = ends.rotation.look(start + RENEW_AFTER + LOOK_EVERY * steps).unwrap();
                    change.apply(&mut object);
                }
                ends.rotation.end().apply(&mut object);
                assert_eq!(trusted(&object).trim(), stays.shown.pem().trim(), "after {steps} steps");
            }
        }
    }
}
