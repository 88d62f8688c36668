//! `controller`: a Kubernetes cluster as the source, with the same main loop as for a file.
//!
//! Job: turn the command's arguments into settings, pass the cluster's snapshots to the loop, and pass the outcome
//! back. Not its job: what objects mean; that is the job of the crate `controller`.

use std::path::Path;

pub(crate) use controller::{FoundReplicas, Handle, NodeLeases, Update};
use controller::{IngressNginx, Options, Outcome, Refusal, Settings};
use model::{AccessLog, Announce, Announcing, Dns, Generation, LogTarget, Snapshot};

use crate::cli::ControllerArgs;
use crate::exit::{Exit, Refused};
use crate::handover;
use crate::run::{self, Running, Source};

/// Serves nothing but the control API until the cluster has been read.
fn nothing_yet(settings: &Settings) -> Snapshot {
    Snapshot {
        generation: Generation(1),
        admin: settings.admin.clone(),
        admin_access: Default::default(),
        metrics: settings.metrics,
        access_log: settings.access_log.clone(),
        tracing: settings.tracing.clone(),
        dns: settings.dns.clone(),
        drain_delay: settings.drain_delay,
        drain_timeout: controller::DRAIN_TIMEOUT,
        memory_max: None,
        listeners: Vec::new(),
        clusters: settings.clusters.clone(),
        vips: Vec::new(),
        flows_max: controller::FLOWS_MAX,
        socket_cgroup: settings.socket_cgroup.clone(),
        announcing: settings.announcing,
    }
}

/// `steelyard controller`.
pub(crate) fn controller(args: ControllerArgs) -> Exit {
    if let Err(exit) = run::log_to_stderr_or_say(&args.run.log) {
        return exit;
    }
    let telemetry = args.telemetry.clone();
    let (mut options, run) = options(args);
    if let Some(Err(why)) = telemetry.map(|file| read_telemetry(&file, &mut options.settings)) {
        eprintln!("steelyard: {why}");
        return Exit::BadConfig;
    }
    let begin = nothing_yet(&options.settings);
    match controller::start(options) {
        Ok(handle) => run::run(Source::Cluster(Box::new(begin)), Some(handle), &run),
        Err(why) => {
            eprintln!("steelyard: {why}");
            Exit::BadConfig
        }
    }
}

/// Takes what is logged and recorded, and where that goes, from a file.
fn read_telemetry(file: &Path, settings: &mut Settings) -> Result<(), String> {
    let name = file.display().to_string();
    let text = std::fs::read_to_string(file).map_err(|error| format!("--telemetry {name}: {error}"))?;
    let config::File { snapshot, .. } = config::read_telemetry(&name, &text).map_err(|errors| errors.to_string())?;
    settings.access_log = snapshot.access_log;
    settings.tracing = snapshot.tracing;
    settings.clusters = snapshot.clusters;
    settings.dns = snapshot.dns;
    Ok(())
}

fn options(args: ControllerArgs) -> (Options, crate::cli::RunArgs) {
    let settings = Settings {
        controller_name: args.controller_name,
        gateway_class: args.gateway_class,
        ingress_class: args.ingress_class,
        load_balancer_class: args.load_balancer_class,
        listen: args.listen_address,
        ingress_ports: (args.http_port, args.https_port),
        ingress_nginx: args.ingress_nginx.then(|| IngressNginx {
            config_map: args.ingress_nginx_configmap,
            compat: args.ingress_nginx_compat.into(),
            default_backend: args.ingress_nginx_default_backend,
            tcp_services: args.ingress_nginx_tcp_services,
            udp_services: args.ingress_nginx_udp_services,
            passes_tls: args.ingress_nginx_ssl_passthrough,
            prefix: args.ingress_nginx_annotations_prefix,
        }),
        ingress_status: args.ingress_status,
        default_certificate: args.default_certificate,
        publish: args.publish_address,
        publish_service: args.publish_service,
        gateway_pools: args.gateway_address_pool,
        service_pools: args.address_pool,
        interfaces: args.vip_interface,
        socket_cgroup: args.socket_cgroup,
        kube_proxy_replacement: args.kube_proxy_replacement,
        cluster_ip_packets: args.cluster_ip_packets,
        announce: args.announce.map_or(Announce::None, Announce::from),
        announcing: Announcing { after: args.announce_after, table: args.route_table, metric: args.route_metric },
        node: args.node_name,
        // The downward API gives an empty one to a pod without the label.
        zone: args.node_zone.filter(|zone| !zone.is_empty()),
        trusted_proxies: args.trusted_proxy,
        admin: Some(args.admin),
        metrics: args.metrics,
        drain_delay: args.drain_delay,
        access_log: args.access_log.map(|format| AccessLog::new(LogTarget::Stdout, format.into())),
        // Those of the file for telemetry, which may be wrong, are added later.
        tracing: None,
        clusters: Vec::new(),
        dns: Dns::default(),
    };
    let options = Options {
        settings,
        kubeconfig: args.kubeconfig,
        context: args.context,
        namespaces: args.namespace,
        lease_namespace: args.lease_namespace,
        lease_name: args.lease_name,
        identity: args.identity.unwrap_or_else(own_name),
        replicas: args.replicas_service,
    };
    (options, args.run)
}

/// A name that no other replica has: the host name, which is that of the pod, and the process ID.
fn own_name() -> String {
    format!("{}-{}", rustix::system::uname().nodename().to_string_lossy(), std::process::id())
}

/// Returns the next snapshot of the cluster, or waits forever if there is no cluster. `None` if the cluster is no
/// longer watched.
pub(crate) async fn next(cluster: &mut Option<Handle>) -> Option<Update> {
    match cluster {
        Some(handle) => handle.next().await,
        None => std::future::pending().await,
    }
}

impl Running {
    /// Puts the first snapshot to use. Without a predecessor, this is one that serves nothing and answers the control
    /// API. A predecessor already serves the cluster, so with one the first snapshot is that of the cluster.
    pub(crate) async fn begin_with_cluster(&mut self) -> Result<(), Refused> {
        self.control.wait_for_source(true);
        if !handover::has_predecessor() {
            return self.adopt(self.wanted.clone().into()).await;
        }
        let update = tokio::select! {
            update = next(&mut self.cluster) => update,
            () = self.ending.told() => None,
        };
        match update {
            Some(update) => self.follow_cluster(update).await,
            None => Err("cannot read the cluster; the old process continues".to_owned().into()),
        }
    }

    /// Puts a snapshot of the cluster to use and reports the outcome.
    pub(crate) async fn follow_cluster(&mut self, update: Update) -> Result<(), Refused> {
        let Update { snapshot, endpoints_only, keep_vips, kernel_refusal, wants_no_vip, .. } = update;
        let Update { service_faults, refused_objects: (refused, more_refused), outcome, .. } = update;
        let told = service_faults.into_iter().map(|fault| admin::ServiceFaultStatus {
            service: fault.service,
            reason: fault.reason,
            message: fault.message,
        });
        self.control.set_service_faults(told.collect());
        let told = refused.into_iter().map(|refused| admin::RefusedObjectStatus {
            object: refused.object,
            condition: refused.condition,
            reason: refused.reason,
            message: refused.message,
        });
        self.control.set_refused_objects(told.collect(), more_refused);
        self.keep_vips = keep_vips;
        let wanted = Snapshot { generation: self.control.next_generation(), ..snapshot };
        let adopted =
            if endpoints_only { self.exchange_endpoints(wanted).await } else { self.adopt(wanted.into()).await };
        // A change of something else is adopted after a refusal, which still holds.
        match &adopted {
            Ok(()) => self.control.set_kernel_refusal(kernel_refusal),
            Err(refused) if refused.by_kernel_plane => self.control.set_kernel_refusal(Some(refused.why.clone())),
            Err(_) => {}
        }
        let generation = self.wanted.generation.0;
        let answer = match &adopted {
            Ok(()) => {
                self.control.wait_for_source(false);
                if wants_no_vip {
                    self.control.kernel().remove_leftovers();
                }
                tracing::debug!(generation, endpoints_only, "the cluster's snapshot is in use");
                Outcome::Adopted
            }
            Err(refused) => Outcome::Refused(Refusal {
                binds: refused.places.clone(),
                kernel: refused.by_kernel_plane,
                vips: refused.vips.clone(),
                why: refused.why.clone(),
            }),
        };
        if !endpoints_only {
            self.control.note_reload(adopted.as_ref().err().map(|refused| refused.why.clone()));
        }
        // The receiver may be gone, which does not matter here.
        let _ = outcome.send(answer);
        if !endpoints_only {
            // Objects arrive as text and are parsed into trees. Both are several times as large as what is kept of
            // them.
            net::memory::give_back();
        }
        adopted
    }

    /// Changes only endpoints. Certificates, names and sockets stay those that are in use.
    async fn exchange_endpoints(&mut self, wanted: Snapshot) -> Result<(), Refused> {
        let (files, addresses, overlay) = (self.files.clone(), self.resolver.addresses(), self.overlay.clone());
        self.put_to_use(&wanted, &files, &addresses, &overlay).await?;
        self.wanted = wanted;
        Ok(())
    }
}
