//! Asks the other processes that serve the same for their figures.

use std::collections::HashSet;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use admin::{OVERVIEW_VERSION, OverviewStatus, Replica};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::cluster::FoundReplicas;

/// Processes that are asked. More do not fit on a page.
const REPLICAS_MAX: usize = 64;
/// The time for each answer. They are asked at the same time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// The largest answer, in bytes. One has less than 2 KiB.
const ANSWER_BYTES_MAX: u64 = 64 * 1024;

/// Where all processes that serve the same tell their figures.
pub(crate) enum Replicas {
    /// At all addresses of a name.
    Name(Name),
    /// Where the cluster says that they are.
    Found(watch::Receiver<FoundReplicas>),
}

impl Replicas {
    /// Asks all of them.
    pub(super) async fn ask(&self) -> Vec<Replica> {
        match self {
            Self::Name(name) => name.ask().await,
            Self::Found(found) => {
                let found = found.borrow().clone();
                match found {
                    Ok(addresses) => ask(addresses).await,
                    Err(why) => vec![Replica { address: String::new(), pod: String::new(), overview: Err(why) }],
                }
            }
        }
    }
}

/// A host name of all replicas, and a port.
pub(crate) struct Name {
    name: String,
    /// The permit of the one look-up in progress.
    looking: Arc<Semaphore>,
}

impl Name {
    pub(crate) fn new(name: String) -> Self {
        Self { name, looking: Arc::new(Semaphore::new(1)) }
    }

    /// Asks all addresses of the name for their figures.
    pub(super) async fn ask(&self) -> Vec<Replica> {
        match self.look_up(|name| Ok(name.to_socket_addrs()?.collect())).await {
            Ok(addresses) => ask(addresses.into_iter().map(|address| (address, String::new())).collect()).await,
            Err(why) => vec![Replica { address: self.name.clone(), pod: String::new(), overview: Err(why) }],
        }
    }

    /// The name service blocks a thread, for half a minute if it does not answer, and nothing ends that thread. So there is one at a time, whatever
    /// those who ask again and again do.
    async fn look_up(
        &self,
        how: impl FnOnce(&str) -> io::Result<Vec<SocketAddr>> + Send + 'static,
    ) -> Result<Vec<SocketAddr>, String> {
        let no_answer = || "cannot be resolved: no answer".to_owned();
        let permit = timeout(ANSWER_TIMEOUT, self.looking.clone().acquire_owned()).await;
        let permit = permit.map_err(|_| no_answer())?.map_err(|error| error.to_string())?;
        let (told, answer) = oneshot::channel();
        let name = self.name.clone();
        let work = move || {
            let found = how(&name);
            drop(permit);
            // The page may no longer wait.
            let _ = told.send(found);
        };
        let thread = std::thread::Builder::new().name("look-up".to_owned());
        thread.spawn(work).map_err(|error| format!("cannot be resolved: {error}"))?;
        match timeout(ANSWER_TIMEOUT, answer).await {
            Ok(Ok(found)) => found.map_err(|error| format!("cannot be resolved: {error}")),
            Ok(Err(_)) | Err(_) => Err(no_answer()),
        }
    }
}

/// Asks these addresses for their figures.
async fn ask(mut addresses: Vec<(SocketAddr, String)>) -> Vec<Replica> {
    addresses.sort_unstable();
    addresses.dedup();
    let more = addresses.len().saturating_sub(REPLICAS_MAX);
    addresses.truncate(REPLICAS_MAX);
    let mut asked = JoinSet::new();
    for (address, pod) in addresses {
        asked.spawn(async move {
            let overview = match timeout(ANSWER_TIMEOUT, overview(address)).await {
                Ok(Ok(overview)) => Ok(overview),
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err("no answer; does a NetworkPolicy forbid it?".to_owned()),
            };
            Replica { address: address.to_string(), pod, overview }
        });
    }
    let mut replicas = asked.join_all().await;
    replicas.sort_by(|one, other| one.address.cmp(&other.address));
    keep_distinct(&mut replicas);
    if more > 0 {
        let why = format!("not asked: these are {REPLICAS_MAX} already");
        replicas.push(Replica { address: format!("and {more} more"), pod: String::new(), overview: Err(why) });
    }
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
    if overview.version == OVERVIEW_VERSION && overview.is_plausible() { Ok(overview) } else { Err(foreign()) }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn a_process_counts_once() {
        let replica = |address: &str, host: &str, started_ms| Replica {
            address: address.into(),
            pod: String::new(),
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
        let fails =
            |address: &str| Replica { address: address.into(), pod: String::new(), overview: Err("refused".into()) };
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
        let name = Name::new(listener.local_addr().unwrap().to_string());
        let served = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            assert!(stream.read(&mut [0; 1024]).await.unwrap() > 0);
            stream.write_all(b"HTTP/1.0 404 Not Found\r\n\r\n").await.unwrap();
        });
        let [replica] = name.ask().await.try_into().unwrap();
        served.await.unwrap();
        assert_eq!(replica.overview.unwrap_err(), "what answers there is no Steelyard of this version");
        // Its listener is gone.
        let [replica] = name.ask().await.try_into().unwrap();
        assert!(replica.overview.unwrap_err().contains("refused"));
        let [replica] = Name::new("nowhere.invalid:1".to_owned()).ask().await.try_into().unwrap();
        assert!(replica.overview.unwrap_err().starts_with("cannot be resolved: "));
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_service_that_does_not_answer_holds_one_thread() {
        let name = Name::new("edge.test:9902".to_owned());
        let (release, released) = std::sync::mpsc::channel::<()>();
        let begun = name.look_up(move |_| {
            // Until the test ends.
            let _ = released.recv();
            Ok(Vec::new())
        });
        assert_eq!(begun.await.unwrap_err(), "cannot be resolved: no answer");
        // Nobody else asks meanwhile.
        for _ in 0..3 {
            let next = name.look_up(|_| panic!("a second thread"));
            assert_eq!(next.await.unwrap_err(), "cannot be resolved: no answer");
        }
        drop(release);
        // The answer that nobody waited for makes room. From here on, a thread answers in real time.
        tokio::time::resume();
        drop(name.looking.acquire().await.unwrap());
        let address = SocketAddr::from(([192, 0, 2, 1], 9902));
        assert_eq!(name.look_up(move |_| Ok(vec![address])).await.unwrap(), [address]);
    }

    #[tokio::test]
    async fn what_the_cluster_has_found_is_asked_without_its_credentials() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (told, found) = watch::channel(Err("a/b: the cluster has not answered yet".to_owned()));
        let replicas = Replicas::Found(found);
        let [replica] = replicas.ask().await.try_into().unwrap();
        assert_eq!(replica.overview.unwrap_err(), "a/b: the cluster has not answered yet");
        let heard = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut heard = vec![0; 1024];
            let length = stream.read(&mut heard).await.unwrap();
            stream.write_all(b"HTTP/1.0 404 Not Found\r\n\r\n").await.unwrap();
            String::from_utf8(heard[..length].to_vec()).unwrap()
        });
        told.send(Ok(vec![(address, "pod-1".to_owned())])).unwrap();
        let [replica] = replicas.ask().await.try_into().unwrap();
        assert_eq!((replica.address, replica.pod), (address.to_string(), "pod-1".to_owned()));
        assert_eq!(heard.await.unwrap(), format!("GET /overview HTTP/1.0\r\nHost: {address}\r\n\r\n"));
        // Nothing listens there. More than fit on a page are not asked.
        let many =
            (0..REPLICAS_MAX + 5).map(|n| (SocketAddr::from(([127, 9, 9, n as u8], 9)), String::new())).collect();
        told.send(Ok(many)).unwrap();
        let all = replicas.ask().await;
        assert_eq!((all.len(), all[REPLICAS_MAX].address.as_str()), (REPLICAS_MAX + 1, "and 5 more"));
    }
}
