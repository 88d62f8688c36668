//! An HTTP/1.1 reverse proxy made with Pingora, which is a library: the least that its users write to balance requests over endpoints.
//!
//! `pingora-lab CONF ADDRESS=ENDPOINT,ENDPOINT...`: CONF is Pingora's own configuration. Each further argument is a service, with the address
//! to listen on and its endpoints.

use std::fs;
use std::process::exit;

use async_trait::async_trait;
use pingora::lb::LoadBalancer;
use pingora::lb::selection::RoundRobin;
use pingora::prelude::{Error, ErrorType, HttpPeer, ProxyHttp, Result, Server, Session, http_proxy_service};
use pingora::server::configuration::ServerConf;

/// How many endpoints are looked at to find one that is up.
const TRIES_MAX: usize = 16;

struct Balancer(LoadBalancer<RoundRobin>);

#[async_trait]
impl ProxyHttp for Balancer {
    type CTX = ();

    fn new_ctx(&self) -> Self::CTX {}

    async fn upstream_peer(&self, _: &mut Session, (): &mut Self::CTX) -> Result<Box<HttpPeer>> {
        let endpoint = self.0.select(b"", TRIES_MAX).ok_or_else(|| Error::new(ErrorType::ConnectNoRoute))?;
        Ok(Box::new(HttpPeer::new(endpoint, false, String::new())))
    }
}

fn serve(conf: &str, services: &[String]) -> Result<(), String> {
    let text = fs::read_to_string(conf).map_err(|error| format!("{conf}: {error}"))?;
    let configuration = ServerConf::from_yaml(&text).map_err(|error| format!("{conf}: {error}"))?;
    let mut server = Server::new_with_opt_and_conf(None, configuration);
    server.bootstrap();
    for word in services {
        let (address, endpoints) = word.split_once('=').ok_or_else(|| format!("{word:?} is not ADDRESS=ENDPOINT,..."))?;
        let balancer =
            LoadBalancer::try_from_iter(endpoints.split(',')).map_err(|error| format!("{endpoints}: {error}"))?;
        let mut service = http_proxy_service(&server.configuration, Balancer(balancer));
        service.add_tcp(address);
        server.add_service(service);
    }
    server.run_forever()
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match words.as_slice() {
        [word] if word == "--version" => {
            println!("Pingora {}", env!("CARGO_PKG_VERSION"));
            return;
        }
        [conf, services @ ..] if !services.is_empty() => serve(conf, services),
        _ => Err("usage: pingora-lab CONF ADDRESS=ENDPOINT,ENDPOINT...".to_owned()),
    };
    if let Err(why) = outcome {
        eprintln!("{why}");
        exit(1);
    }
}
