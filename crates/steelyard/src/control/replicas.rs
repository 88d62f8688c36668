//! Asks the other processes that serve the same for their figures.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use admin::{OVERVIEW_VERSION, OverviewStatus, Replica};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Processes that are asked. More do not fit on a page.
const REPLICAS_MAX: usize = 64;
/// The time for each answer. They are asked at the same time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// The largest answer, in bytes. One has less than 2 KiB.
const ANSWER_BYTES_MAX: u64 = 64 * 1024;

/// Asks all addresses of a name for their figures. `name` has a port.
pub(super) async fn ask(name: &str) -> Vec<Replica> {
    let failed = |why: String| vec![Replica { address: name.to_owned(), overview: Err(why) }];
    let found = match timeout(ANSWER_TIMEOUT, lookup_host(name)).await {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => return failed(format!("cannot be resolved: {error}")),
        Err(_) => return failed("cannot be resolved: no answer".to_owned()),
    };
    let mut addresses: Vec<SocketAddr> = found.collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses.truncate(REPLICAS_MAX);
    let mut asked = JoinSet::new();
    for address in addresses {
        asked.spawn(async move {
            let overview = match timeout(ANSWER_TIMEOUT, overview(address)).await {
                Ok(Ok(overview)) => Ok(overview),
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err("no answer; does a NetworkPolicy forbid it?".to_owned()),
            };
            Replica { address: address.to_string(), overview }
        });
    }
    let mut replicas = asked.join_all().await;
    replicas.sort_by(|one, other| one.address.cmp(&other.address));
    keep_distinct(&mut replicas);
    replicas
}

/// Leaves a process with several addresses, such as one of each family, at the first of them: its figures count once.
fn keep_distinct(replicas: &mut Vec<Replica>) {
    let mut seen = HashSet::new();
    replicas.retain(|replica| match &replica.overview {
        Ok(of) => seen.insert((of.host.clone(), of.pid, of.started_ms)),
        Err(_) => true,
    });
}

async fn overview(address: SocketAddr) -> io::Result<OverviewStatus> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(format!("GET /overview HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer).await?;
    let foreign = || io::Error::other("what answers there is no Steelyard of this version");
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(foreign)?;
    if head.split(' ').nth(1) != Some("200") {
        return Err(foreign());
    }
    let overview: OverviewStatus = serde_json::from_str(body).map_err(|_| foreign())?;
    if overview.version == OVERVIEW_VERSION { Ok(overview) } else { Err(foreign()) }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn a_process_counts_once() {
        let replica = |address: &str, host: &str, started_ms| Replica {
            address: address.into(),
            overview: Ok(OverviewStatus {
                version: OVERVIEW_VERSION,
                host: host.into(),
                pid: 1,
                uptime_seconds: 7,
                started_ms,
                generation: 1,
                verdict: admin::History::default().verdict(),
                point: admin::Point::default(),
                so_far: admin::SoFar::default(),
            }),
        };
        let fails = |address: &str| Replica { address: address.into(), overview: Err("refused".into()) };
        let mut replicas = vec![
            replica("10.0.0.1:9902", "a", 5),
            replica("10.0.0.2:9902", "b", 5),
            replica("10.0.0.3:9902", "b", 6),
            replica("[fd00::1]:9902", "a", 5),
            fails("[fd00::2]:9902"),
            fails("[fd00::3]:9902"),
        ];
        keep_distinct(&mut replicas);
        let left: Vec<&str> = replicas.iter().map(|replica| replica.address.as_str()).collect();
        assert_eq!(left, ["10.0.0.1:9902", "10.0.0.2:9902", "10.0.0.3:9902", "[fd00::2]:9902", "[fd00::3]:9902"]);
    }

    #[tokio::test]
    async fn each_replica_answers_or_says_why_not() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let served = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            assert!(stream.read(&mut [0; 1024]).await.unwrap() > 0);
            stream.write_all(b"HTTP/1.0 404 Not Found\r\n\r\n").await.unwrap();
        });
        let [replica] = ask(&address).await.try_into().unwrap();
        served.await.unwrap();
        assert_eq!(replica.overview.unwrap_err(), "what answers there is no Steelyard of this version");
        // Its listener is gone.
        let [replica] = ask(&address).await.try_into().unwrap();
        assert!(replica.overview.unwrap_err().contains("refused"));
        let [replica] = ask("nowhere.invalid:1").await.try_into().unwrap();
        assert!(replica.overview.unwrap_err().starts_with("cannot be resolved: "));
    }
}
