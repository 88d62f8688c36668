//! Services of type LoadBalancer: each gets an address of a pool, which the kernel plane serves.
//!
//! | the Service has | the vip is |
//! |---|---|
//! | `externalTrafficPolicy: Cluster` | `full_nat`: endpoints on any node; they see an address of this host |
//! | `externalTrafficPolicy: Local` | `nat`: only endpoints of this node; they see the client |
//! | `sessionAffinity: ClientIP` | with `affinity` |
//! | `loadBalancerSourceRanges` | with `allow` |

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use model::VipMode;

use super::address::{self, Allotted, Claim};
use super::cluster::Share;
use super::reference::{Why, word};
use super::stream::{self, Choice, KERNEL_PLANE, Source, Vips};
use super::{Circumstances, Desired, Notice, Statuses};
use crate::index::{Index, Kind, LoadBalancer, Name, ServiceEntry};
use crate::settings::{Pool, Settings};

/// The capacity of the kernel plane.
pub(crate) const VIPS_MAX: usize = 8192;

/// Networks in the `loadBalancerSourceRanges` of one Service.
pub(crate) const SOURCES_OF_SERVICE_MAX: usize = 256;

/// The networks of all Services together, counted once for each vip. This is less than the capacity of the kernel plane.
pub(crate) const SOURCES_MAX: usize = 61_440;

/// Why there is no kernel plane; `None` if there is one.
pub(crate) fn no_kernel_plane(settings: &Settings) -> Option<&'static str> {
    let has_none =
        settings.interfaces.is_empty() && settings.service_pools.is_empty() && !settings.kube_proxy_replacement;
    has_none.then_some("neither --vip-interface nor --address-pool was given")
}

/// Serves every Service that we manage.
pub(crate) fn translate(
    index: &Index,
    settings: &Settings,
    (circumstances, given): (&Circumstances, &mut Allotted),
    vips: &mut Vips,
    statuses: &mut Statuses,
    notices: &mut Vec<Notice>,
) {
    if settings.service_pools.is_empty() {
        // Another of our controllers may have the pools and the same class, so its Services are not ours.
        return;
    }
    let is_ours = |load_balancer: &LoadBalancer| load_balancer.class.as_deref() == Some(&*settings.load_balancer_class);
    let mut ours: Vec<(&Name, &ServiceEntry, &LoadBalancer)> = index
        .services
        .iter()
        .filter_map(|(name, entry)| Some((name, entry, entry.load_balancer.as_deref()?)))
        .filter(|(_, _, load_balancer)| is_ours(load_balancer))
        .collect();
    ours.sort_by_key(|(name, entry, _)| (entry.meta.created, *name));
    let pools = &settings.service_pools;
    let claims: Vec<Result<Claim<'_>, Why>> =
        ours.iter().map(|(name, _, load_balancer)| claim(pools, name, load_balancer, given)).collect();
    let good: Vec<Claim<'_>> = claims.iter().filter_map(|claim| claim.as_ref().ok()).map(Claim::clone).collect();
    let allotted = address::allot(&good, circumstances.allots);
    let owners = ours.iter().zip(&claims).filter(|(_, claim)| claim.is_ok()).map(|((name, ..), _)| *name);
    given.set(Kind::Service, owners.zip(&allotted));
    let mut allotted = allotted.into_iter();
    for ((name, entry, load_balancer), claim) in ours.into_iter().zip(claims) {
        let addresses = claim.and_then(|_| allotted.next().unwrap_or(Ok(Vec::new())));
        let outcome = addresses.and_then(|addresses| {
            possible(load_balancer, settings)?;
            Ok((serve(index, settings, (name, entry, load_balancer), &addresses, vips), addresses))
        });
        let (fault, told) = match outcome {
            Ok((Ok(()), addresses)) => match &circumstances.kernel {
                None => (None, addresses),
                Some(why) => (Some(Why::new(KERNEL_PLANE, why.clone())), published(&addresses, load_balancer)),
            },
            Ok((Err(why), addresses)) if why.reason == KERNEL_PLANE => {
                (Some(why), published(&addresses, load_balancer))
            }
            Ok((Err(why), _)) | Err(why) => (Some(why), Vec::new()),
        };
        if let Some(why) = fault {
            notices.push(Notice::warning((Kind::Service, name.clone()), &entry.meta, why));
        }
        statuses.insert((Kind::Service, name.clone()), Desired::Service(told));
    }
}

/// The addresses that its status already has. A fault of this host's kernel plane removes none of them: other nodes serve them, and this
/// node serves what it had before. It allots no new ones either.
fn published(addresses: &[IpAddr], load_balancer: &LoadBalancer) -> Vec<IpAddr> {
    addresses.iter().copied().filter(|address| load_balancer.present.contains(address)).collect()
}

fn claim<'p>(pools: &'p [Pool], name: &Name, load_balancer: &LoadBalancer, given: &Allotted) -> Result<Claim<'p>, Why> {
    let asked = load_balancer.asked.iter().map(|text| {
        let wrong = |_| Why::new("UnsupportedAddress", format!("{text} is not an address"));
        text.parse::<IpAddr>().map_err(wrong)
    });
    Ok(Claim {
        pools,
        asked: asked.collect::<Result<_, _>>()?,
        present: given.present((Kind::Service, name), load_balancer.present.clone(), pools),
        families: load_balancer.families,
    })
}

fn possible(load_balancer: &LoadBalancer, settings: &Settings) -> Result<(), Why> {
    if load_balancer.sources.len() > SOURCES_OF_SERVICE_MAX {
        let message = format!("loadBalancerSourceRanges has more than {SOURCES_OF_SERVICE_MAX} networks");
        return Err(Why::new("InvalidSourceRange", message));
    }
    if let Some(bad) = load_balancer.bad_sources.first() {
        return Err(Why::new("InvalidSourceRange", format!("loadBalancerSourceRanges: {bad} is not a network")));
    }
    if load_balancer.unspoken {
        return Err(Why::new("UnsupportedProtocol", "one of its ports uses a protocol other than TCP and UDP"));
    }
    if load_balancer.local && settings.node.is_none() {
        return Err(Why::new("UnknownNode", "externalTrafficPolicy Local needs --node-name"));
    }
    Ok(())
}

fn serve(
    index: &Index,
    settings: &Settings,
    (name, entry, load_balancer): (&Name, &ServiceEntry, &LoadBalancer),
    addresses: &[IpAddr],
    vips: &mut Vips,
) -> Result<(), Why> {
    let begun = vips.list.len();
    let more = addresses.len() * entry.ports.len();
    if begun + more > VIPS_MAX {
        return Err(Why::new("TooManyVips", format!("the kernel plane has room for {VIPS_MAX} vips")));
    }
    if vips.sources() + more * load_balancer.sources.len() > SOURCES_MAX {
        let message =
            format!("the kernel plane has room for {SOURCES_MAX} networks in the source ranges of all Services");
        return Err(Why::new("TooManySources", message));
    }
    let mut outcome = Ok(());
    for port in &entry.ports {
        let (mode, from) = match (load_balancer.local, &settings.node) {
            (true, Some(node)) => (VipMode::Nat, Choice::Here(node.clone())),
            _ => (VipMode::FullNat { sources: Vec::new() }, Choice::All),
        };
        let of = |address: &IpAddr| {
            let place = SocketAddr::new(*address, port.port);
            let label = format!("{}.{}@{place}/{}", name.name, name.namespace, word(port.transport).to_lowercase());
            let mut vip = stream::vip(label, place, port.transport, mode.clone(), &settings.interfaces);
            vip.affinity = load_balancer.affinity;
            // externalTrafficPolicy is about clients outside: kube-proxy gives those of the cluster all endpoints.
            vip.at_sockets = !load_balancer.local;
            vip.is_of_node = load_balancer.local;
            vip.announce = settings.announce;
            let is_same = |network: &&IpNet| network.addr().is_ipv4() == address.is_ipv4();
            vip.allow = load_balancer.sources.iter().filter(is_same).copied().collect();
            if vip.allow.is_empty() && !load_balancer.sources.is_empty() {
                // All sources are of the other family, so no client of this family is allowed.
                vip.deny = everybody(*address);
            }
            vip
        };
        let (service, port, transport) = (name.clone(), port.port, port.transport);
        let shares = vec![Share { service, port, transport, weight: 1, h2: false, proxy: None }];
        let made = addresses.iter().map(of).collect();
        outcome = outcome.and(vips.add(index, made, &Source { shares, from: from.clone() }));
    }
    if outcome.is_err() && published(addresses, load_balancer).is_empty() {
        // All or nothing, and before anything is reported.
        vips.truncate(begun);
    }
    outcome
}

pub(crate) fn everybody(address: IpAddr) -> Vec<IpNet> {
    let none: IpAddr = match address {
        IpAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    IpNet::new(none, 0).into_iter().collect()
}
