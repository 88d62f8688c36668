//! The page adds up the figures of all processes that serve the same. A name with several addresses stands for the Service of a cluster's pods.
#![forbid(unsafe_code)]

mod support;

use std::process::Command;

use support::{Scratch, Steelyard, get, local, port, skip, steelyard};
use testkit::prometheus::sum;
use testkit::strict::ResponseTo;
use testkit::{PATIENCE, Program, client, until};

/// The name of all replicas. Nothing listens at the last of its addresses.
const HOSTS: &str = "127.0.0.1 edge.test\n127.0.0.2 edge.test\n127.0.0.3 edge.test\n";

struct Replica {
    steelyard: Steelyard,
    web: u16,
}

impl Replica {
    /// A process whose metrics are at this address. It has name services of its own.
    fn start(metrics: &str, port_of_metrics: u16, hosts: &str) -> Self {
        let web = port();
        let config = format!(
            "admin: {{admin}}
metrics: '{metrics}:{port_of_metrics}'
listeners:
  web:
    bind: 127.0.0.1:{web}
    protocol: http
    routes:
      - {{path: /broken, respond: {{status: 503}}}}
      - {{path: /fine, respond: {{status: 200}}}}
clusters: {{none: {{endpoints: ['127.0.0.1:9']}}}}
"
        );
        let steelyard = Steelyard::serve_by(&config, |arguments| {
            let mut command = Command::new("unshare");
            command.args(["-m", "--propagation", "private", "sh", "-c"]);
            command.args(["mount --bind \"$0\" /etc/hosts && exec \"$@\"", hosts]).arg(steelyard().get_program());
            command.args(arguments).args(["--workers", "1", "--replicas", &format!("edge.test:{port_of_metrics}")]);
            Program::spawn("steelyard", &mut command).unwrap()
        });
        Self { steelyard, web }
    }

    fn ask(&self, path: &str, count: usize, status: u16) {
        for _ in 0..count {
            let mut conn = client::connect("web", local(self.web), None).unwrap();
            conn.send(format!("GET {path} HTTP/1.1\r\nHost: a.test\r\n\r\n").as_bytes()).unwrap();
            assert_eq!(conn.response(ResponseTo::Other).unwrap().status, status, "{path}");
        }
    }

    fn fetch(&self, path: &str) -> String {
        let response = get(self.steelyard.admin, path).unwrap();
        assert_eq!(response.status, 200, "{path}");
        String::from_utf8(response.body).unwrap()
    }

    /// Requests and failures, as Prometheus sees them.
    fn counted(&self) -> [f64; 2] {
        let metrics = self.fetch("/metrics");
        let failed = [("class", "5xx")];
        [
            sum(&metrics, "steelyard_listener_requests_total", &[]),
            sum(&metrics, "steelyard_route_responses_total", &failed),
        ]
    }

    /// The rows of all replicas on the page.
    fn rows(&self) -> Vec<Vec<String>> {
        let page = self.fetch("/?replicas=1");
        let section = page.split("<section id=\"replicas\"").nth(1).unwrap().split("</section>").next().unwrap();
        let text = |cell: &str| {
            let words = cell.split('<').filter_map(|part| part.split_once('>')).map(|(_, text)| text);
            words.collect::<String>().trim().to_owned()
        };
        let cells = |row: &str| row.split("<td").skip(1).map(|cell| text(&format!("<td{cell}"))).collect();
        section.split("<tbody>").nth(1).unwrap().split("<tr>").skip(1).map(cells).collect()
    }
}

#[test]
fn the_page_adds_up_all_replicas() {
    if !rustix::process::geteuid().is_root() {
        return skip("the_page_adds_up_all_replicas", "not root");
    }
    let scratch = Scratch::new();
    let hosts = scratch.write("hosts", HOSTS);
    let metrics = port();
    let one = Replica::start("127.0.0.1", metrics, &hosts);
    let other = Replica::start("127.0.0.2", metrics, &hosts);
    one.ask("/fine", 5, 200);
    one.ask("/broken", 2, 503);
    other.ask("/fine", 30, 200);
    other.ask("/broken", 1, 503);
    let replicas = [&one, &other];
    let expected = [[7.0, 2.0], [31.0, 1.0], [38.0, 3.0]];
    for of in replicas {
        // Each process looks at its counters once a second.
        let shown = |row: &Vec<String>| [row[2].parse::<f64>().unwrap(), row[3].parse::<f64>().unwrap()];
        let rows = until(PATIENCE, || {
            let rows = of.rows();
            let [first, second, _, all] = rows.as_slice() else { panic!("{rows:?}") };
            ([first, second, all].map(shown) == expected).then_some(rows)
        });
        let rows = rows.unwrap_or_else(|| panic!("{:?}", of.rows()));
        let [first, second, third, all] = rows.as_slice() else { panic!("{rows:?}") };
        assert!(first[0].contains(&format!("127.0.0.1:{metrics}")), "{first:?}");
        assert!(second[0].contains(&format!("127.0.0.2:{metrics}")), "{second:?}");
        let own = rows.iter().filter(|row| row[0].contains("(this one)")).count();
        assert_eq!(own, 1, "{rows:?}");
        assert!(third[0].contains("127.0.0.3") && third[1].contains("refused"), "{third:?}");
        assert_eq!(all[0], "All 2 that answered");
    }
    assert_eq!(replicas.map(Replica::counted).as_slice(), &expected[..2]);
}
