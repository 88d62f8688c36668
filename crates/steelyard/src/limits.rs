//! What the operating system allows this process.

use model::Snapshot;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// How many files (sockets, above all) this process may have open.
pub(crate) struct OpenFiles {
    /// `None`: as many as it likes.
    max: Option<u64>,
    told: bool,
}

impl OpenFiles {
    /// Raises the limit as far as this process may: the usual 1,024 is for programs that use select(2).
    pub(crate) fn raise() -> Self {
        let limit = getrlimit(Resource::Nofile);
        let raised = Rlimit { current: limit.maximum, ..limit };
        let max = match setrlimit(Resource::Nofile, raised) {
            Ok(()) => limit.maximum,
            Err(error) => {
                tracing::info!(%error, "the limit of open files stays as it is");
                limit.current
            }
        };
        Self { max, told: false }
    }

    /// Says, once, that a snapshot allows more connections than the limit does.
    pub(crate) fn warn_if_short(&mut self, snapshot: &Snapshot) {
        let needed = needed(snapshot);
        if let Some(max) = self.max.filter(|max| needed > *max)
            && !self.told
        {
            self.told = true;
            tracing::info!(
                max,
                needed,
                "the listeners' limits.connections may need more open files than are allowed: raise LimitNOFILE, or lower them"
            );
        }
    }
}

/// A downstream connection and its upstream one, for all that the listeners allow. What else is open is little beside that.
fn needed(snapshot: &Snapshot) -> u64 {
    let connections = snapshot.listeners.iter().map(|listener| listener.connections_max as u64);
    connections.fold(0, u64::saturating_add).saturating_mul(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_for_each_connection() {
        let endpoint = config::parse_endpoint("127.0.0.1:9001").unwrap();
        let mut snapshot = config::proxy_snapshot(([127, 0, 0, 1], 8080).into(), &[endpoint], false);
        snapshot.listeners.push(snapshot.listeners[0].clone());
        let check = |snapshot: &mut Snapshot, connections: [usize; 2], max, expect| {
            for (listener, connections) in snapshot.listeners.iter_mut().zip(connections) {
                listener.connections_max = connections;
            }
            let mut files = OpenFiles { max, told: false };
            files.warn_if_short(snapshot);
            assert_eq!(files.told, expect, "{connections:?} of {max:?}");
        };
        check(&mut snapshot, [30, 20], Some(100), false);
        check(&mut snapshot, [30, 21], Some(100), true);
        check(&mut snapshot, [usize::MAX, 1], Some(u64::MAX - 1), true);
        check(&mut snapshot, [usize::MAX, 1], None, false);
    }

    #[test]
    fn the_limit_is_raised_to_what_is_allowed() {
        let files = OpenFiles::raise();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!((files.max, limit.current), (limit.maximum, limit.maximum));
    }
}
