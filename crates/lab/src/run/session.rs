//! Sets up the links, origins and contenders of a run, from its first cell to its last.
//!
//! All contenders are started before the first cell, each in a namespace of its own, and stopped (SIGSTOP) until their turns. So a round takes
//! no longer than its loads, no contender starts cold, and none takes CPU time from another.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;

use super::origins::{Service, services};
use super::{Plan, certificate, note_gap, progress, ready};
use crate::cgroup::{Accounts, Group};
use crate::contender::{EndpointVars, Pod, Recipe, ServiceVars, Vars, render};
use crate::leftovers::tag;
use crate::placement::Placement;
use crate::process::{self, Process, Spec};
use crate::record::{Failure, Gap, Instance, Protocol, Run, Setting};
use crate::topology::{ENDPOINTS_MAX, INSTANCES_MAX, LoadPath, Topology, settings};

/// The distance between the ports of two contenders of a chain.
pub(super) const PORT_STEP: u16 = 100;

/// How often a contender that has died is started again.
const RESTARTS_MAX: u32 = 3;

/// A running contender.
#[derive(Debug)]
pub(super) struct Live {
    pub id: String,
    pub load_path: LoadPath,
    pub group: Group,
    pub processes: Vec<Process>,
    /// Its addresses, by service.
    pub addresses: Vec<(String, SocketAddr)>,
    /// Resident memory before the first load.
    pub rss_idle: u64,
    restarts: u32,
}

/// Everything that is running.
#[derive(Debug)]
pub(super) struct Session<'a> {
    /// The first field, so that it is dropped first: it ends all processes before their links are removed.
    pub(super) accounts: Accounts,
    pub plan: &'a Plan,
    /// `None` on loopback.
    pub topology: Option<Topology>,
    pub services: Vec<Service>,
    /// The certificate and key of services over TLS, if there are any.
    certificate: Option<PathBuf>,
    pub lives: Vec<Live>,
    pub client: Group,
    pub origin: Group,
    pub(super) origins: Vec<Process>,
    /// The CPUs of load and origins, whichever contender is measured.
    pub placement: Placement,
    /// See [`Environment::idle_busy_by_cpu`](crate::record::Environment::idle_busy_by_cpu); empty before it was measured.
    pub idle_busy_by_cpu: Vec<f64>,
}

impl<'a> Session<'a> {
    /// Sets everything up. A contender that does not start is a gap, and the rest continues.
    ///
    /// # Errors
    /// If links or origins cannot be set up, because then nothing can be measured.
    pub(super) async fn set_up(run: &mut Run, plan: &'a Plan) -> Result<Self, Failure> {
        let tag = tag(&run.scenario.name.chars().filter(char::is_ascii_alphanumeric).take(12).collect::<String>());
        let host = |error: std::io::Error| Failure { why: error.to_string(), log: Vec::new() };
        let scenario = &run.scenario;
        if scenario.instances.len() > INSTANCES_MAX || scenario.endpoints > ENDPOINTS_MAX {
            return Err(Failure {
                why: format!("more than {INSTANCES_MAX} instances or {ENDPOINTS_MAX} origins"),
                log: Vec::new(),
            });
        }
        let topology = match scenario.loopback {
            true => None,
            false => Some(Topology::new(&tag, scenario.endpoints, scenario.mtu, scenario.steering).map_err(host)?),
        };
        let mut accounts = Accounts::new(&tag);
        if let Some(cpus) = plan.quota {
            accounts.limit(cpus).map_err(host)?;
        }
        let (client, origin) = (accounts.group("client").map_err(host)?, accounts.group("origin").map_err(host)?);
        let workers = scenario.instances.iter().map(|instance| instance.workers).filter(|&workers| {
            // Contenders that would leave no CPU to the others share all of them, and count as contended.
            (workers as usize) < plan.cpus.len()
        });
        let placement = Placement::new(&plan.cpus, workers.max().unwrap_or(1));
        let services = services(&scenario.cases);
        let is_secure = services.iter().any(|service| service.protocol == Protocol::Https);
        let certificate =
            is_secure.then(|| certificate::make(&plan.directory.join("raw"))).transpose().map_err(host)?;
        run.environment.cgroups = accounts.kind();
        run.environment.placement = placement.text();
        let mut session = Self {
            plan,
            topology,
            services,
            certificate,
            lives: Vec::new(),
            client,
            origin,
            origins: Vec::new(),
            placement,
            idle_busy_by_cpu: Vec::new(),
            accounts,
        };
        session.start_origins(run.scenario.loopback).await?;
        for index in 0..run.scenario.instances.len() {
            session.add(run, index).await;
        }
        session.forget_missing(run);
        if run.scenario.steering && session.topology.as_ref().is_some_and(|topology| !topology.is_steered()) {
            run.scenario.steering = false;
            run.notes.push(
                "This kernel has no rps_cpus: packets are received on the CPU that sent them, for every contender alike.".to_owned(),
            );
        }
        if let Some(topology) = &session.topology {
            run.environment.sysctls = settings(&topology.client()).map_err(host)?;
            run.environment.offloads = offloads(run.scenario.mtu);
        }
        Ok(session)
    }

    pub(super) fn raw(&self) -> PathBuf {
        self.plan.directory.join("raw")
    }

    /// Sets up one contender, or notes why that failed.
    async fn add(&mut self, run: &mut Run, index: usize) {
        let Some(instance) = run.scenario.instances.get(index).cloned() else { return };
        match self.start(&instance, index as u8).await {
            Ok((live, commands, configuration)) => {
                if let Some(instance) = run.scenario.instances.get_mut(index) {
                    instance.address =
                        live.addresses.first().map(|(_, address)| address.to_string()).unwrap_or_default();
                    (instance.commands, instance.configuration) = (commands, configuration);
                }
                self.lives.push(live);
            }
            Err(Failure { why, log }) => {
                let said = if log.is_empty() { String::new() } else { format!("; it said: {}", log.join(" | ")) };
                progress::say(&format!("  without {}: {why}{said}", instance.id));
                note_gap(run, &instance.id, format!("{why}{said}"));
            }
        }
    }

    async fn start(&mut self, instance: &Instance, index: u8) -> Result<(Live, Vec<String>, String), Failure> {
        let host = |error: std::io::Error| Failure { why: error.to_string(), log: Vec::new() };
        let recipe = self.recipe(instance)?.clone();
        let placement = if (instance.workers as usize) < self.plan.cpus.len() {
            let own = Placement::new(&self.plan.cpus, instance.workers);
            Placement { balancer: own.balancer, ..self.placement.clone() }
        } else {
            Placement::new(&self.plan.cpus, instance.workers)
        };
        let pods = !recipe.pods.is_empty();
        let load_path = LoadPath { index, layer: recipe.layer, binds: recipe.binds, pods, placement };
        if let Some(topology) = &mut self.topology {
            topology.add_load_path(&load_path).map_err(host)?;
        }
        if pods {
            let services = self.services_of(&recipe);
            self.start_origins_of_pods(&load_path, &services).await?;
        }
        let group = self.accounts.group(&format!("lb{index}")).map_err(host)?;
        let mut live = Live {
            id: instance.id.clone(),
            load_path,
            group,
            processes: Vec::new(),
            addresses: Vec::new(),
            rss_idle: 0,
            restarts: 0,
        };
        let (commands, configuration) = self.start_processes(instance, &recipe, &mut live).await?;
        live.rss_idle = live.group.resident();
        Ok((live, commands, configuration))
    }

    fn recipe(&self, instance: &Instance) -> Result<&Recipe, Failure> {
        let recipe = self.plan.recipes.iter().find(|recipe| recipe.name == instance.contender);
        recipe.ok_or_else(|| Failure { why: format!("no contender {}", instance.contender), log: Vec::new() })
    }

    /// Starts a contender's processes, the last of the chain first, and waits until the whole chain serves.
    async fn start_processes(
        &self,
        instance: &Instance,
        recipe: &Recipe,
        live: &mut Live,
    ) -> Result<(Vec<String>, String), Failure> {
        let services = self.services_of(recipe);
        if !recipe.pods.is_empty() {
            return self.start_in_pods(instance, recipe, live, &services).await;
        }
        let mut behind = self.endpoints_of(&services, &live.load_path)?;
        let (mut commands, mut configuration) = (Vec::new(), String::new());
        if recipe.is_bare() {
            live.addresses = services
                .iter()
                .map(|service| (service.name.clone(), self.bare_address(service, &live.load_path)))
                .collect();
            return Ok((commands, configuration));
        }
        for hop in (0..instance.hops.max(1)).rev() {
            let addresses = self.addresses(&services, &live.load_path, hop)?;
            let vars = services.iter().zip(addresses.iter().zip(&behind));
            let place = Place {
                name: format!("{}-hop{hop}", file_name(instance)),
                namespace: self.topology.as_ref().map(|topology| topology.balancer(&live.load_path)),
                pod: "",
                services: vars
                    .map(|(service, (address, endpoints))| vars_of(service, *address, endpoints.clone()))
                    .collect(),
            };
            let (more, text) = self.start_at(instance, recipe, live, place).await?;
            commands.extend(more);
            configuration +=
                &if instance.hops > 1 { format!("# {} of {}\n{text}", hop + 1, instance.hops) } else { text };
            behind = addresses
                .iter()
                .map(|address| {
                    vec![EndpointVars { name: "next".into(), address: address.ip().to_string(), port: address.port() }]
                })
                .collect();
            live.addresses = services.iter().map(|service| service.name.clone()).zip(addresses).collect();
        }
        let client = self.topology.as_ref().map(Topology::client);
        let sources = self.sources(&live.load_path);
        let first = (sources.as_slice(), recipe.first_requests, recipe.startup);
        for (service, (_, address)) in services.iter().zip(live.addresses.clone()) {
            if ready::needs_load(service) {
                self.wait_with_load(live, service, address, recipe.startup).await?;
            } else {
                ready::wait(client.clone(), address, service, (&mut live.processes, recipe.startup)).await?;
            }
            ready::first_requests(client.as_deref(), address, service, first).await;
        }
        Ok((commands, configuration))
    }

    fn services_of(&self, recipe: &Recipe) -> Vec<Service> {
        self.services.iter().filter(|service| recipe.speaks.contains(&service.protocol)).cloned().collect()
    }

    /// Starts a contender in the pods that its file names, those of the server first, and waits until the client's pod is served through it.
    async fn start_in_pods(
        &self,
        instance: &Instance,
        recipe: &Recipe,
        live: &mut Live,
        services: &[Service],
    ) -> Result<(Vec<String>, String), Failure> {
        let load_path = live.load_path.clone();
        live.addresses =
            services.iter().map(|service| (service.name.clone(), self.bare_address(service, &load_path))).collect();
        let (mut commands, mut configuration) = (Vec::new(), String::new());
        for pod in [Pod::Server, Pod::Client].into_iter().filter(|pod| recipe.pods.contains(pod)) {
            for place in self.places_in(pod, instance, &load_path, services)? {
                let name = place.name.clone();
                let (more, text) = self.start_at(instance, recipe, live, place).await?;
                commands.extend(more);
                if !text.trim().is_empty() {
                    configuration += &format!("# {name}\n{text}");
                }
            }
        }
        for (service, (_, address)) in services.iter().zip(live.addresses.clone()) {
            self.wait_with_load(live, service, address, recipe.startup).await?;
        }
        Ok((commands, configuration))
    }

    /// Waits until a contender serves a short load of the service's kind.
    async fn wait_with_load(
        &self,
        live: &mut Live,
        service: &Service,
        address: SocketAddr,
        patience: Duration,
    ) -> Result<(), Failure> {
        let command = ready::command(&self.plan.itself, service, address);
        let namespace = self.topology.as_ref().map(|topology| topology.client_of(&live.load_path));
        let spec = Spec {
            name: "ready",
            command: &command,
            namespace: namespace.as_deref(),
            cpus: &live.load_path.placement.client,
            group: &self.client,
            directory: &self.raw(),
            captures: false,
        };
        ready::wait_with_load(&spec, (address, service), (&mut live.processes, patience)).await
    }

    /// Where a contender runs in pods of one kind: once beside the client, or beside each origin.
    fn places_in(
        &self,
        pod: Pod,
        instance: &Instance,
        load_path: &LoadPath,
        services: &[Service],
    ) -> Result<Vec<Place>, Failure> {
        let Some(topology) = &self.topology else { return Ok(Vec::new()) };
        let name = |suffix: &str| format!("{}-{suffix}", file_name(instance));
        if pod == Pod::Client {
            let endpoints = self.endpoints_of(services, load_path)?;
            let vars = services.iter().zip(endpoints);
            let of_service = |(service, endpoints): (&Service, _)| {
                vars_of(service, self.bare_address(service, load_path), endpoints)
            };
            let (namespace, services) = (Some(topology.client_of(load_path)), vars.map(of_service).collect());
            return Ok(vec![Place { name: name("client"), namespace, pod: pod.name(), services }]);
        }
        let count = services.iter().map(|service| service.origin.count).max().unwrap_or_default();
        let at = |endpoint: u32| {
            let application = |service: &Service| {
                let address = SocketAddr::from((load_path.endpoint(endpoint), service.port));
                let own = EndpointVars { name: "app".into(), address: "127.0.0.1".into(), port: service.port };
                vars_of(service, address, vec![own])
            };
            let here = services.iter().filter(|service| service.origin.count > endpoint);
            Place {
                name: name(&format!("server{endpoint}")),
                namespace: Some(topology.origin_of(load_path, endpoint)),
                pod: pod.name(),
                services: here.map(application).collect(),
            }
        };
        Ok((0..count).map(at).collect())
    }

    /// One process of a contender: its configuration, its setup commands, and the process.
    async fn start_at(
        &self,
        instance: &Instance,
        recipe: &Recipe,
        live: &mut Live,
        Place { name, namespace, pod, services }: Place,
    ) -> Result<(Vec<String>, String), Failure> {
        let directory = self.raw().join(&name);
        let shared = self.raw().join(format!("{}-shared", file_name(instance)));
        let failure = |what: &str, why: String| Failure { why: format!("{what}: {why}"), log: Vec::new() };
        for directory in std::iter::once(&directory).chain(Some(&shared).filter(|_| !pod.is_empty())) {
            fs::create_dir_all(directory)
                .map_err(|error| failure(&format!("cannot make {}", directory.display()), error.to_string()))?;
        }
        let file = directory.join(format!("config.{}", recipe.suffix));
        let program = self.plan.found.iter().find(|(known, _)| *known == recipe.name).map(|(_, found)| &found.program);
        let vars = Vars {
            program: program.map(|program| program.display().to_string()).unwrap_or_default(),
            file: file.display().to_string(),
            dir: directory.display().to_string(),
            workers: instance.workers,
            interfaces: self.topology.as_ref().map(Topology::interfaces).unwrap_or_default(),
            pod,
            shared: shared.display().to_string(),
            load_cgroup: self.client.of_sockets().map(|group| group.display().to_string()).unwrap_or_default(),
            certificate: self.certificate.as_ref().map(|file| file.display().to_string()).unwrap_or_default(),
            services,
        };
        let rendered = render(recipe, instance.variant, &vars).map_err(|why| failure(&recipe.name, why))?;
        fs::write(&file, &rendered.configuration)
            .map_err(|error| failure(&format!("cannot write {}", file.display()), error.to_string()))?;
        let mut commands = Vec::new();
        let spec = |command, name| Spec {
            name,
            command,
            namespace: namespace.as_deref(),
            cpus: &live.load_path.placement.balancer,
            group: &live.group,
            directory: &directory,
            captures: false,
        };
        for command in &rendered.setup {
            let spec = spec(command, "setup");
            commands.push(process::text(&spec));
            let mut process = Process::start(&spec)?;
            let status = process.wait().await.map_err(|error| failure("set up", error.to_string()))?;
            if !status.success() {
                return Err(process.failure(&format!("of {} failed", instance.id)));
            }
        }
        if !rendered.start.is_empty() {
            let spec = spec(&rendered.start, &name);
            commands.push(process::text(&spec));
            live.processes.push(Process::start(&spec)?);
        }
        Ok((commands, rendered.configuration))
    }

    /// The origins of each service, as the last contender of a chain sees them.
    fn endpoints_of(&self, services: &[Service], load_path: &LoadPath) -> Result<Vec<Vec<EndpointVars>>, Failure> {
        let of = |service: &Service| {
            let endpoint = |index: u32| {
                let address = if self.topology.is_some() { load_path.endpoint(index) } else { Ipv4Addr::LOCALHOST };
                EndpointVars { name: format!("ep{index}"), address: address.to_string(), port: service.port }
            };
            (0..service.origin.count).map(endpoint).collect()
        };
        Ok(services.iter().map(of).collect())
    }

    fn bare_address(&self, service: &Service, load_path: &LoadPath) -> SocketAddr {
        let address = if self.topology.is_some() { load_path.vip() } else { Ipv4Addr::LOCALHOST };
        SocketAddr::from((address, service.port))
    }

    /// The addresses of a contender in a chain, by service: the first at the VIP, the others on the loopback of its namespace.
    fn addresses(&self, services: &[Service], load_path: &LoadPath, hop: u32) -> Result<Vec<SocketAddr>, Failure> {
        let of = |service: &Service| {
            if self.topology.is_none() {
                let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
                return free.map_err(|error| Failure { why: format!("no free port: {error}"), log: Vec::new() });
            }
            let address = if hop == 0 { load_path.vip() } else { Ipv4Addr::LOCALHOST };
            Ok(SocketAddr::from((address, service.port + PORT_STEP * hop as u16)))
        };
        services.iter().map(of).collect()
    }

    /// Removes missing contenders from the scenario.
    fn forget_missing(&self, run: &mut Run) {
        let is_here = |id: &String| self.lives.iter().any(|live| live.id == *id);
        let scenario = &mut run.scenario;
        scenario.instances.retain(|instance| is_here(&instance.id));
        scenario.twins.retain(is_here);
        scenario.cases.iter_mut().for_each(|case| case.instances.retain(is_here));
        let emptied: Vec<_> =
            scenario.cases.iter().filter(|case| case.instances.is_empty()).map(|case| case.name.clone()).collect();
        scenario.cases.retain(|case| !case.instances.is_empty());
        if !is_here(&scenario.reference) {
            scenario.reference = scenario.instances.first().map(|instance| instance.id.clone()).unwrap_or_default();
        }
        let gaps =
            emptied.into_iter().map(|what| Gap { what, why: "no contender is left that can serve it".to_owned() });
        run.gaps.extend(gaps);
    }

    /// Makes sure that a contender can be measured: one that has died is started again, a few times.
    ///
    /// # Errors
    /// Why it died, for the cell that it died in, or that it cannot be restarted.
    pub(super) async fn revive(&mut self, run: &Run, id: &str) -> Result<(), Failure> {
        let Some(place) = self.lives.iter().position(|live| live.id == id) else {
            return Err(Failure { why: format!("{id} is not running"), log: Vec::new() });
        };
        let mut live = self.lives.swap_remove(place);
        let died = live.processes.iter_mut().find_map(Process::ended);
        let Some(death) = died else {
            self.lives.push(live);
            return Ok(());
        };
        for process in &mut live.processes {
            process.kill().await;
        }
        // What is left of it must not wait for a signal while the next one starts.
        live.group.freeze(false);
        if live.restarts < RESTARTS_MAX
            && let Some(instance) = run.instance(id).cloned()
        {
            live.restarts += 1;
            live.processes.clear();
            if let Ok(recipe) = self.recipe(&instance).cloned() {
                // If this fails, the next cell finds it dead again.
                let _ = self.start_processes(&instance, &recipe, &mut live).await;
            }
        }
        self.lives.push(live);
        Err(death)
    }

    /// Stops every contender but the one that is measured next: a contender that waits still has timers, and the CPU time of one with many
    /// of them would be in the figures of the others.
    pub(super) fn freeze_all_but(&self, id: Option<&str>) {
        for live in &self.lives {
            live.group.freeze(id != Some(live.id.as_str()));
        }
    }

    /// The source addresses of a load.
    pub(super) fn sources(&self, load_path: &LoadPath) -> Vec<IpAddr> {
        if self.topology.is_some() { load_path.clients().into_iter().map(IpAddr::V4).collect() } else { Vec::new() }
    }

    /// Ends everything in order.
    pub(super) async fn close(mut self, run: &mut Run) {
        for live in &mut self.lives {
            if let Some(failure) = live.processes.iter_mut().find_map(Process::ended) {
                run.notes.push(format!("{}: {}", live.id, failure.why));
            }
        }
        let processes = self.lives.iter_mut().flat_map(|live| &mut live.processes).chain(&mut self.origins);
        for process in processes {
            process.kill().await;
        }
    }
}

/// Where one process of a contender runs, and what it serves there.
struct Place {
    /// Of its process and its directory.
    name: String,
    namespace: Option<String>,
    /// See [`Vars::pod`].
    pod: &'static str,
    services: Vec<ServiceVars>,
}

/// An instance's id as a part of a file's name.
fn file_name(instance: &Instance) -> String {
    instance.id.replace([':', '*', '@'], "-")
}

fn vars_of(service: &Service, address: SocketAddr, endpoints: Vec<EndpointVars>) -> ServiceVars {
    ServiceVars {
        name: service.name.clone(),
        protocol: service.protocol.name(),
        address: address.ip().to_string(),
        port: address.port(),
        endpoints,
    }
}

fn offloads(mtu: u32) -> Vec<Setting> {
    let setting = |name: &str, value: String| Setting { name: name.to_owned(), value };
    vec![
        setting("links", "veth".to_owned()),
        setting("mtu", mtu.to_string()),
        setting(
            "segmentation, checksum",
            "as the kernel sets them for veth: TSO, GSO and checksum offload on, GRO off".to_owned(),
        ),
    ]
}
