//! The interface of a build without the programs. Every call says that there is no kernel plane.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;

use model::{Endpoint, Transport, Vip};
use telemetry::Sample;

use crate::{Collected, Counters, EndpointVerdict, Flow, Options, Reachability, Refusal, Sockets, Trace, TraceQuery};

/// Does not exist in this build.
#[derive(Debug)]
pub enum Plane {}

/// Whether this build has a kernel plane. Opens nothing.
///
/// # Errors
/// Always, because this build has none.
pub fn built() -> Result<(), Refusal> {
    Err(Refusal::NotBuilt)
}

/// Whether an earlier process has left a plane in the kernel. This build cannot know.
pub fn pinned(_: &Options) -> bool {
    false
}

/// Would remove what an earlier process has left.
///
/// # Errors
/// Always.
pub fn detach(_: &Options) -> Result<bool, Refusal> {
    Err(Refusal::NotBuilt)
}

/// The addresses of this host among `addresses`. Nothing needs them without a kernel plane.
pub fn addresses_of_host(_: impl Iterator<Item = IpAddr>) -> BTreeSet<IpAddr> {
    BTreeSet::new()
}

/// Where packets to each of these addresses go. A socket that is connected to an address of this host has that address itself.
pub fn reachability(addresses: impl Iterator<Item = IpAddr>) -> BTreeMap<IpAddr, Reachability> {
    let reached = |address: IpAddr| {
        let from: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let own = UdpSocket::bind((from, 0)).and_then(|socket| {
            socket.connect((address, 9))?;
            socket.local_addr()
        });
        match own {
            Ok(own) if own.ip() == address => Reachability::Local,
            Ok(_) => Reachability::Remote,
            Err(_) => Reachability::Unreachable,
        }
    };
    addresses.map(|address| (address, reached(address))).collect()
}

/// Would say when the network changes.
#[derive(Debug)]
pub enum Changes {}

impl Changes {
    /// # Errors
    /// Always.
    pub fn listen() -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Nothing.
    pub fn drain(&self) -> (bool, bool) {
        match *self {}
    }
}

impl AsRawFd for Changes {
    fn as_raw_fd(&self) -> RawFd {
        match *self {}
    }
}

/// Would answer for addresses on links.
#[derive(Debug)]
pub enum Neighbours {}

impl Neighbours {
    /// # Errors
    /// Always.
    pub fn open() -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// # Errors
    /// None.
    pub fn sockets(&self) -> io::Result<[OwnedFd; 2]> {
        match *self {}
    }

    /// No.
    pub fn is_on_link(&self, _: IpAddr) -> bool {
        match *self {}
    }

    /// # Errors
    /// None.
    pub fn look(&mut self) -> io::Result<()> {
        match *self {}
    }

    /// Nothing.
    pub fn hold(&mut self, _: &BTreeSet<IpAddr>) {
        match *self {}
    }

    /// Nothing.
    pub fn answer(&mut self) -> BTreeMap<IpAddr, String> {
        match *self {}
    }

    /// Nothing.
    pub fn defend(&mut self, _: IpAddr) {
        match *self {}
    }
}

/// A route to an announced address. Nothing announces without a kernel plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AnnouncedRoute {
    /// The address.
    pub address: IpAddr,
    /// The routing table.
    pub table: u32,
    /// The metric.
    pub metric: u32,
}

impl AnnouncedRoute {
    /// None.
    ///
    /// # Errors
    /// None.
    pub fn all() -> io::Result<Vec<Self>> {
        Ok(Vec::new())
    }

    /// # Errors
    /// Always.
    pub fn add(self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// # Errors
    /// None.
    pub fn remove(self) -> io::Result<()> {
        Ok(())
    }
}

/// Nothing.
///
/// # Errors
/// None.
pub fn withdraw_all() -> io::Result<()> {
    Ok(())
}

/// No value of this type exists, so none of these can be called.
impl Plane {
    /// Reports that there is no kernel plane.
    ///
    /// # Errors
    /// Always.
    pub fn open(_: &Options) -> Result<Self, Refusal> {
        Err(Refusal::NotBuilt)
    }

    /// # Errors
    /// None.
    pub fn check(&self, _: &[Vip]) -> Result<(), Refusal> {
        match *self {}
    }

    /// Those that it names.
    pub fn interfaces_of(&self, _: &Vip) -> Vec<String> {
        match *self {}
    }

    /// None.
    pub fn why_unreachable(&self, _: &str, _: std::net::SocketAddr) -> Option<&str> {
        match *self {}
    }

    /// None.
    pub fn found_dead(&self, _: &Vip) -> BTreeSet<std::net::SocketAddr> {
        match *self {}
    }

    /// # Errors
    /// None.
    pub fn apply(&mut self, _: &[Vip], _: &dyn Fn(&str, &Endpoint) -> EndpointVerdict) -> Result<(), Refusal> {
        match *self {}
    }

    /// Nothing.
    pub fn balance_sockets(&mut self, _: Option<&Path>) {
        match *self {}
    }

    /// Nothing.
    pub fn sockets(&self) -> Option<Sockets> {
        match *self {}
    }

    /// # Errors
    /// None.
    pub fn collect(&mut self) -> Result<Option<Collected>, Refusal> {
        match *self {}
    }

    /// # Errors
    /// None.
    pub fn look_again(&mut self) -> Result<bool, Refusal> {
        match *self {}
    }

    /// # Errors
    /// None.
    pub fn flows(&self, _: Option<&str>, _: usize) -> Result<(Vec<Flow>, bool), Refusal> {
        match *self {}
    }

    /// # Errors
    /// None.
    pub fn counters(&self) -> Result<Counters, Refusal> {
        match *self {}
    }

    /// Nothing.
    pub fn samples(&self) -> Vec<Sample> {
        match *self {}
    }

    /// # Errors
    /// None.
    pub fn trace(&self, _: &TraceQuery) -> Result<Trace, Refusal> {
        match *self {}
    }

    /// # Errors
    /// None.
    pub fn trace_connect(&self, _: (IpAddr, u16, Transport)) -> Result<Trace, Refusal> {
        match *self {}
    }

    /// # Errors
    /// None.
    pub fn detach_all(self) -> Result<(), Refusal> {
        match self {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Exit;

    #[test]
    fn every_door_says_what_is_lacking() {
        let options = Options::default();
        for refusal in [built().unwrap_err(), Plane::open(&options).unwrap_err(), detach(&options).unwrap_err()] {
            assert_eq!(refusal.exit(), Exit::HostCannot);
            assert!(refusal.to_string().contains("where clang 14 or newer is installed"), "{refusal}");
        }
        assert!(!pinned(&options));
    }
}
