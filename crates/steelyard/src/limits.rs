//! The limit that the operating system sets on open files.

use model::Snapshot;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// How many files, mostly sockets, this process may have open.
pub(crate) struct OpenFiles {
    /// `None` if there is no limit.
    max: Option<u64>,
    told: bool,
}

impl OpenFiles {
    /// Raises the limit as far as this process may. The usual limit of 1,024 exists for programs that use select(2).
    pub(crate) fn raise() -> Self {
        let limit = getrlimit(Resource::Nofile);
        let raised = Rlimit { current: limit.maximum, ..limit };
        let max = match setrlimit(Resource::Nofile, raised) {
            Ok(()) => limit.maximum,
            Err(error) => {
                tracing::info!(%error, "cannot raise the limit on open files");
                limit.current
            }
        };
        Self { max, told: false }
    }

    /// Logs, once, that a snapshot allows more connections than the limit.
    pub(crate) fn warn_if_short(&mut self, snapshot: &Snapshot) {
        let needed = needed(snapshot);
        if let Some(max) = self.max.filter(|max| needed > *max)
            && !self.told
        {
            self.told = true;
            tracing::info!(
                max,
                needed,
                "the listeners' limits.connections may need more open files than the limit allows: raise LimitNOFILE, \
                 or lower limits.connections"
            );
        }
    }
}

/// Two files for each connection that the listeners allow: the downstream and the upstream one. Other files are few by
/// comparison.
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
