//! Tells the long connections of an endpoint that its health check begins to fail.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

/// The long connections of one worker to one endpoint, if they are closed when it becomes unhealthy. It is the same in all snapshots.
#[derive(Clone, Default)]
pub(crate) struct Closing(Rc<State>);

#[derive(Default)]
struct State {
    begins: std::sync::Arc<Notify>,
    /// Its probes failed when they were last looked at.
    was_unhealthy: Cell<bool>,
}

impl Closing {
    /// Records whether the probes fail. Only the beginning of that closes connections: those that are made while they fail had no better choice.
    /// Returns whether it did.
    pub(crate) fn note(&self, is_unhealthy: bool) -> bool {
        let was_unhealthy = self.0.was_unhealthy.replace(is_unhealthy);
        let begins = is_unhealthy && !was_unhealthy;
        if begins {
            self.0.begins.notify_waiters();
        }
        begins
    }
}

/// The wait of one connection for the end of its endpoint's health.
#[derive(Default)]
pub(crate) struct Unhealthy(Option<Pin<Box<OwnedNotified>>>);

impl Unhealthy {
    /// `closing`: that of the endpoint, if there is one.
    pub(crate) fn of(closing: Option<&Closing>) -> Self {
        // The wait begins here, not with the first poll.
        let wait = |closing: &Closing| {
            let mut wait = Box::pin(closing.0.begins.clone().notified_owned());
            wait.as_mut().enable();
            wait
        };
        Self(closing.map(wait))
    }

    /// Ready when the probes begin to fail.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().map_or(Poll::Pending, |wait| wait.as_mut().poll(cx))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test]
    async fn only_the_beginning_closes_connections() {
        let closing = Closing::default();
        let mut first = Unhealthy::of(Some(&closing));
        assert!(!closing.note(false) && closing.note(true) && !closing.note(true));
        let mut second = Unhealthy::of(Some(&closing));
        poll_fn(|cx| first.poll(cx)).await;
        let is_closed =
            |unhealthy: &mut Unhealthy| unhealthy.poll(&mut Context::from_waker(std::task::Waker::noop())).is_ready();
        assert!(!is_closed(&mut second) && !is_closed(&mut Unhealthy::of(None)));
        assert!(!closing.note(false) && closing.note(true));
        assert!(is_closed(&mut second));
    }
}
