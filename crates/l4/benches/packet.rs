//! What the programs cost a packet, without the kernel around them: `cargo xtask bench packet`, as root. Prints, and asserts nothing.
//!
//! BPF_PROG_TEST_RUN runs a program so many times on one packet, which the program changes. So there are two vips, each of which is the other's
//! endpoint, and a packet goes to and fro between them until its TTL is used up. What an empty program costs there is in each figure; `not ours` is the
//! nearest to that: read, one lookup that finds nothing, and a second one for the vip.
//!
//! Not here: what follows a redirect, which TEST_RUN leaves out. That is `cargo xtask bench l4`.
#![allow(dead_code, reason = "the tests' network and layouts, of which this needs a part")]

#[cfg(kernel_plane)]
#[path = "../tests/packets/layout.rs"]
mod layout;
#[cfg(kernel_plane)]
#[path = "../tests/packets/plane.rs"]
mod plane;

fn main() {
    #[cfg(kernel_plane)]
    known_flows::measure();
}

#[cfg(kernel_plane)]
mod known_flows {
    use libbpf_rs::ProgramInput;
    use testkit::packet::{ACK, Packet, SYN};

    use super::layout::{TCP, UDP};
    use super::plane::{CLIENT, Plane, Vip, with_plane};

    /// Runs on one packet: as many as its TTL allows.
    const RUNS: u32 = 250;
    const MEASUREMENTS: usize = 3000;

    /// Client, and two addresses that are each the other's endpoint, by interfaces with the short way to the other end of the link.
    const IPV4: [&str; 3] = ["10.10.10.1:40000", "32.32.32.1:5001", "32.32.32.2:2020"];
    const IPV6: [&str; 3] = ["[fd00:10::1]:40000", "[fd00:32::1]:5001", "[fd00:32::2]:2020"];

    pub fn measure() {
        with_plane("measure", |plane| {
            for (name, [client, one, other]) in [("IPv4", IPV4), ("IPv6", IPV6)] {
                for (proto, vips) in [(TCP, 0), (UDP, 2)] {
                    let vips = if name == "IPv4" { vips } else { vips + 4 };
                    plane.add(&Vip::new(vips, proto, one, &[other]));
                    plane.add(&Vip::new(vips + 1, proto, other, &[one]));
                }
                for to in [one, other] {
                    plane.send(CLIENT, &Packet::tcp(client, to).flags(SYN));
                    plane.send(CLIENT, &Packet::tcp(client, to).flags(ACK));
                    plane.send(CLIENT, &Packet::udp(client, to));
                    plane.send(CLIENT, &Packet::udp(client, to));
                }
                print(plane, &format!("{name} TCP, known flow"), &Packet::tcp(client, one).flags(ACK).ttl(255));
                print(plane, &format!("{name} UDP, known flow"), &Packet::udp(client, one).ttl(255));
                let elsewhere = one.replace(":5001", ":5002");
                print(plane, &format!("{name} TCP, not ours"), &Packet::tcp(client, &elsewhere).flags(ACK).ttl(255));
            }
        });
    }

    fn print(plane: &Plane, name: &str, packet: &Packet) {
        let frame = packet.build();
        let program = plane.program("lb_in");
        let cost = || {
            let mut context = plane.context(CLIENT, 0);
            let (context_in, data_in) = (Some(&mut context[..]), Some(&frame[..]));
            let input = ProgramInput { context_in, data_in, repeat: RUNS, ..ProgramInput::default() };
            program.test_run(input).unwrap().duration.as_nanos()
        };
        let mut all: Vec<u128> = (0..MEASUREMENTS).map(|_| cost()).collect();
        all.sort_unstable();
        let at = |quarter: usize| all[quarter * (MEASUREMENTS - 1) / 4];
        println!("{name:<22} {} ns a packet (quartiles {}-{})", at(2), at(1), at(3));
    }
}
