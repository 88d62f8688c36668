//! The origins of a run, and the services that balancers offer for them.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use super::session::{PORT_STEP, Session};
use crate::process::{Process, Spec};
use crate::record::{Case, Failure, OriginKind, OriginSpec, Protocol};
use crate::topology::LoadPath;

/// The first port of origins and of balancers, which have different addresses.
const PORT_FIRST: u16 = 9000;

/// How long an origin may take to listen.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often to check.
const POLL: Duration = Duration::from_millis(20);

/// An origin of one kind, at every endpoint, and what balancers offer for it to clients of one protocol.
#[derive(Clone, Debug)]
pub(super) struct Service {
    /// `s0`, `s1` and so on.
    pub name: String,
    pub origin: OriginSpec,
    /// The protocol that a contender must support to serve it.
    pub protocol: Protocol,
    /// The port of origins and balancers; on loopback, of the only origin.
    pub port: u16,
}

impl Service {
    /// Whether a case's load is put on it.
    pub(super) fn is_of(&self, case: &Case) -> bool {
        self.origin == case.origin && self.protocol == case.load.kind.protocol()
    }
}

/// The services of some cases: one for each different origin, and each protocol of its clients.
pub(super) fn services(cases: &[Case]) -> Vec<Service> {
    let mut services: Vec<Service> = Vec::new();
    for case in cases {
        if !services.iter().any(|service| service.is_of(case)) {
            let index = services.len() as u16;
            services.push(Service {
                name: format!("s{index}"),
                origin: case.origin.clone(),
                protocol: case.load.kind.protocol(),
                port: PORT_FIRST + index % PORT_STEP,
            });
        }
    }
    services
}

impl Session<'_> {
    /// Starts every origin of every service, and waits until it listens.
    pub(super) async fn start_origins(&mut self, loopback: bool) -> Result<(), Failure> {
        for index in 0..self.services.len() {
            let Some(service) = self.services.get(index).cloned() else { continue };
            for endpoint in 0..service.origin.count {
                let namespace = self.topology.as_ref().map(|topology| topology.origin(endpoint));
                let name = format!("origin-{}-ep{endpoint}", service.name);
                let (process, address) = self.start_origin(&service, endpoint, namespace, &name).await?;
                if loopback && let Some(service) = self.services.get_mut(index) {
                    service.port = address.port();
                }
                self.origins.push(process);
            }
        }
        Ok(())
    }

    /// Starts the origins in the pods of a path, which are like those of all others.
    pub(super) async fn start_origins_of_pods(
        &mut self,
        load_path: &LoadPath,
        services: &[Service],
    ) -> Result<(), Failure> {
        for service in services {
            for endpoint in 0..service.origin.count {
                let namespace = self.topology.as_ref().map(|topology| topology.origin_of(load_path, endpoint));
                let name = format!("origin-{}-ep{endpoint}-{}", service.name, load_path.index);
                let (process, _) = self.start_origin(service, endpoint, namespace, &name).await?;
                self.origins.push(process);
            }
        }
        Ok(())
    }

    async fn start_origin(
        &self,
        service: &Service,
        endpoint: u32,
        namespace: Option<String>,
        name: &str,
    ) -> Result<(Process, SocketAddr), Failure> {
        let listen = match namespace {
            None => "127.0.0.1:0".to_owned(),
            Some(_) => format!("0.0.0.0:{}", service.port),
        };
        let command = self.origin_command(&service.origin, endpoint, &listen, self.placement.origin.len());
        let spec = Spec {
            name,
            command: &command,
            namespace: namespace.as_deref(),
            cpus: &self.placement.origin,
            group: &self.origin,
            directory: &self.raw(),
            captures: false,
        };
        let mut process = Process::start(&spec)?;
        let address = listening(&mut process).await?;
        Ok((process, address))
    }

    /// The command of an origin.
    pub(super) fn origin_command(
        &self,
        origin: &OriginSpec,
        endpoint: u32,
        listen: &str,
        threads: usize,
    ) -> Vec<String> {
        let kind = match origin.kind {
            OriginKind::Http => "http",
            OriginKind::Grpc => "grpc",
            OriginKind::Tcp => "tcp",
            OriginKind::Stream => "stream",
        };
        let mut words = vec![self.plan.itself.display().to_string(), "origin".to_owned(), kind.to_owned()];
        words.extend([format!("--listen={listen}"), format!("--threads={threads}")]);
        if matches!(origin.kind, OriginKind::Http | OriginKind::Grpc) {
            words.push(format!("--name=ep{endpoint}"));
        }
        words.extend(origin.arguments.iter().cloned());
        words
    }
}

/// Waits until an origin reports its address.
pub(super) async fn listening(process: &mut Process) -> Result<SocketAddr, Failure> {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let text = fs::read_to_string(process.log()).unwrap_or_default();
        // Up to the last line feed, because the rest may be half a line.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        if let Some(address) = whole.lines().find_map(|line| line.split_once("listening on ")?.1.trim().parse().ok()) {
            return Ok(address);
        }
        if let Some(failure) = process.ended() {
            return Err(failure);
        }
        if tokio::time::Instant::now() > deadline {
            return Err(process.failure("did not report its address"));
        }
        tokio::time::sleep(POLL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender;
    use crate::scenario;

    #[test]
    fn every_case_of_a_shipped_scenario_has_one_service_and_its_contenders_speak_its_protocol() {
        let recipes = contender::all(None).unwrap();
        for name in scenario::names() {
            let file = scenario::find(name, &recipes).unwrap();
            let cases: Vec<Case> = file.cases.iter().map(|case| case.case.clone()).collect();
            let services = services(&cases);
            for (case, in_file) in cases.iter().zip(&file.cases) {
                let of_case: Vec<&Service> = services.iter().filter(|service| service.is_of(case)).collect();
                let [service] = of_case.as_slice() else { panic!("{name}, {}: {of_case:?}", case.name) };
                let instances = in_file.contenders.as_ref().unwrap_or(&file.contenders);
                let recipe_of = |id: &scenario::InstanceId| recipes.iter().find(|recipe| recipe.name == id.contender);
                let speak =
                    instances.iter().filter_map(recipe_of).filter(|recipe| recipe.speaks.contains(&service.protocol));
                assert!(speak.count() >= 2, "{name}, {}", case.name);
            }
        }
    }

    #[test]
    fn clients_of_another_protocol_have_a_service_of_their_own() {
        let recipes = contender::all(None).unwrap();
        let of = |name| scenario::find(name, &recipes).unwrap().cases.remove(0).case;
        let over_h2 = of("h2-to-http");
        let mut over_http1 = of("proxies");
        over_http1.origin = over_h2.origin.clone();
        let services = services(&[over_h2.clone(), over_http1.clone(), over_h2.clone()]);
        let found: Vec<_> = services.iter().map(|service| (service.protocol, service.port)).collect();
        assert_eq!(found, [(Protocol::H2Http, PORT_FIRST), (Protocol::Http, PORT_FIRST + 1)]);
        assert!(services[0].is_of(&over_h2) && !services[0].is_of(&over_http1));
    }
}
