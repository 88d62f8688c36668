//! What an exchange records for the trace of its request (`trace`).

use model::Route;
use telemetry::Reason;
use wire::message::ResponseHead;

use super::stages::client;
use super::{Env, Exchange};
use crate::grpc;
use crate::trace::Trace;
use crate::trace::context::Parent;

impl Exchange {
    /// Finds out which trace the request belongs to, and whether it is recorded. `route` is that of the request; `None` if it has none.
    pub(super) fn begin_trace(&mut self, env: &Env<'_>, route: Option<&Route>) {
        let Some(rules) = &env.listener.tracing else { return };
        let of_route = route.and_then(|route| route.policy.tracing.as_ref());
        let client = client(env);
        let is_trusted = client.is_trusted;
        let Some(mut trace) = Trace::begin((rules, of_route), &mut self.request, is_trusted, &env.storage.ids) else {
            return;
        };
        trace.set_client(&self.request, &client);
        self.trace = Some(trace);
    }

    /// The try is over, and was not successful. `reason`: why; `None` if there was a response.
    pub(super) fn end_try(&mut self, env: &Env<'_>, reason: Option<Reason>) {
        if let Some(trace) = &mut self.trace {
            trace.end_try(env.now_us, reason);
        }
    }

    /// How the request's call has ended, as the client sees it; `None` if it is not a gRPC call.
    pub(crate) fn call_status(&self) -> Option<grpc::Status> {
        // A response that ended without a status counts as one with an unknown status.
        self.call.as_ref().map(|call| call.status.unwrap_or(grpc::Status::Unknown))
    }

    /// The id of its trace, if it is recorded.
    pub(crate) fn recorded_trace(&self) -> Option<[u8; 16]> {
        self.trace.as_ref().map(|trace| trace.ids().0)
    }

    /// The ids of its trace and of its SERVER span. Without a span, the trace is that of whoever sent the request.
    pub(crate) fn trace_ids(&self) -> (Option<[u8; 16]>, Option<[u8; 8]>) {
        match &self.trace {
            Some(trace) => {
                let (trace_id, span_id) = trace.ids();
                (Some(trace_id), Some(span_id))
            }
            None => {
                let parent = Parent::of(&self.request.head.fields, &self.request.bytes);
                (parent.map(|parent| parent.trace_id), None)
            }
        }
    }

    /// The head of the endpoint's response that the client got, and its bytes; `None` if there was none.
    pub(crate) fn endpoint_response(&self) -> Option<(&ResponseHead, &[u8])> {
        let response = self.response.as_deref().filter(|_| self.record.is_of_endpoint)?;
        Some((&response.head, &response.bytes))
    }

    /// What was recorded for its trace. Returned once.
    pub(crate) fn take_trace(&mut self) -> Option<Box<Trace>> {
        self.trace.take()
    }
}
