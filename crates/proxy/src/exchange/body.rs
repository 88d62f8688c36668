//! The stage at which the body of a request is prepared for its endpoint, if its route says so: whether it is decompressed, and whether all of
//! it is collected before an endpoint is chosen ([`Action::HoldBody`]).

use model::RequestBody;

use super::hold::{HeldBody, Holding};
use super::*;
use crate::request_body::{self, Decompressing};

/// Where a request goes once its body is there.
pub(crate) struct Collecting {
    /// The route's index in the listener.
    pub(super) number: usize,
    cluster: Rc<Cluster>,
    /// The index of `cluster` among the clusters of the route.
    share: usize,
    /// When the wait for the body began, in microseconds.
    since_us: u64,
}

impl Exchange {
    /// Prepares the body of a request on its way to this cluster.
    pub(super) fn prepare_body(
        &mut self,
        env: &Env<'_>,
        (number, route): (usize, &Route),
        (cluster, share): (Rc<Cluster>, usize),
        rules: &RequestBody,
    ) {
        let decompressing = match self.decompressing(env, number, rules) {
            Ok(decompressing) => decompressing,
            Err(error) => return self.fail(env, error),
        };
        // What asks for another protocol has no body: its client waits for the answer.
        let Some(buffer) = rules.buffer.filter(|_| self.request.head.upgrade.is_none()) else {
            return self.send(env, (number, route), (cluster, share), decompressing);
        };
        if let Err(error) = self.collect(env, buffer.bytes_max, decompressing) {
            return self.fail(env, error);
        }
        let from = client_address::client_ip(&self.request.head, &self.request.bytes, &super::stages::client(env));
        let Some(room) = env.bodies.room(from) else { return self.fail(env, Error::internal(Reason::BuffersFull)) };
        let held = HeldBody::new(buffer.bytes_max, self.upload.received(), Some(room));
        self.hold(env, held, Holding::Endpoint(Collecting { number, cluster, share, since_us: env.now_us }));
    }

    /// Removes the encoding of a request without a body. There is nothing to decode, but its endpoint expects no encodings, and would decode what
    /// it takes for the body.
    ///
    /// # Errors
    /// [`Reason::EncodingUnsupported`].
    pub(super) fn strip_encoding(&mut self, rules: &RequestBody) -> Result<(), Error> {
        let Some(policy) = &rules.decompression else { return Ok(()) };
        let Request { head, bytes, .. } = &mut self.request;
        match request_body::encoding_of(policy, head, bytes) {
            Ok(Some(_)) => request_body::strip(head, bytes),
            Ok(None) => {}
            Err(_) => return Err(Error::downstream(Reason::EncodingUnsupported)),
        }
        Ok(())
    }

    /// What decompresses the body; `None` if it stays as it is.
    ///
    /// # Errors
    /// [`Reason::EncodingUnsupported`], [`Reason::BuffersFull`].
    fn decompressing(
        &mut self,
        env: &Env<'_>,
        number: usize,
        rules: &RequestBody,
    ) -> Result<Option<Decompressing>, Error> {
        let Some(policy) = &rules.decompression else { return Ok(None) };
        let client = super::stages::client(env);
        let Request { head, bytes, .. } = &mut self.request;
        let encoding = request_body::encoding_of(policy, head, bytes)
            .map_err(|_| Error::downstream(Reason::EncodingUnsupported))?;
        let Some(encoding) = encoding else { return Ok(None) };
        let from = client_address::client_ip(head, bytes, &client);
        let decompressing = env.bodies.decompress(env.listener, number, policy, encoding, from);
        let decompressing = decompressing.ok_or(Error::internal(Reason::BuffersFull))?;
        request_body::strip(head, bytes);
        Ok(Some(decompressing))
    }

    /// Begins to collect the body, of which a part may have been held back for a service.
    ///
    /// # Errors
    /// [`Reason::BodyTooLarge`], and those of a body that was held back and cannot be decompressed.
    fn collect(&mut self, env: &Env<'_>, bytes_max: usize, decompressing: Option<Decompressing>) -> Result<(), Error> {
        let route = self.record.route.and_then(|number| env.route(number));
        let (body, max) = (self.request.head.body, body_bytes_max(env, route));
        if let Body::Length(length) = body
            && (max.is_some_and(|max| length > max) || decompressing.is_none() && length > bytes_max as u64)
        {
            return Err(Error::downstream(Reason::BodyTooLarge));
        }
        let held = self.held.take();
        if held.as_ref().is_some_and(|held| decompressing.is_none() && held.data.len() > bytes_max) {
            return Err(Error::downstream(Reason::BodyTooLarge));
        }
        let to = Framing::H1(Body::None);
        if held.is_some() {
            self.upload.resume(to);
        } else {
            self.upload.start(Framing::of(self.is_h2(), body), to, max);
        }
        if let Some(decompressing) = decompressing {
            self.upload.decompress(decompressing);
        }
        match held {
            Some(held) => self.upload.put_held(&held.data).map_err(|error| TransferError::Body(error).of_request()),
            None => Ok(()),
        }
    }

    /// All of the body is there.
    pub(super) fn collected(&mut self, env: &Env<'_>, collecting: Collecting) {
        let Collecting { number, cluster, share, since_us } = collecting;
        self.deadline_ms = None;
        let Some(route) = env.route(number) else { return self.fail(env, Error::internal(Reason::Internal)) };
        self.record.handle_collected(env.now_us.saturating_sub(since_us));
        let bytes = self.held.as_ref().map_or(0, |held| held.data.len());
        env.bodies.count(env.listener, number, bytes);
        let head = &mut self.request.head;
        head.body = Body::Length(bytes as u64);
        // No trailers follow.
        head.fields.retain(|field| field.id != FieldId::Trailer);
        self.send(env, (number, route), (cluster, share), None);
    }

    /// What the client is told about encodings if its own is refused.
    pub(super) fn accepted_encodings(&self, env: &Env<'_>, reason: Reason) -> Option<String> {
        let number = self.record.route.filter(|_| reason == Reason::EncodingUnsupported)?;
        let policy = env.route(number)?.policy.request_body.as_ref()?.decompression.as_ref()?;
        Some(request_body::accepted(policy))
    }

    /// Frees a body that was collected, once no endpoint needs it again.
    pub(super) fn release_body(&mut self) {
        if self.room.is_some() && self.upload.release() {
            self.room = None;
        }
    }
}

/// The largest body of a request of this route: the listener and the route may each have a limit.
pub(super) fn body_bytes_max(env: &Env<'_>, route: Option<&Route>) -> Option<u64> {
    let own = route.and_then(|route| route.policy.body_bytes_max);
    own.into_iter().chain(env.http.limits.body_bytes_max).min()
}
