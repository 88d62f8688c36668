//! What becomes of the tables of an earlier process whose layout is another one.

use super::*;
use crate::sync::entries;

/// Makes the tables look like those of an earlier version. Only the name of the directory says which one it is.
fn make_earlier(lab: &Lab, version: u32) {
    let root = lab.options.pin_dir.as_ref().unwrap();
    let name = |version: u32| root.join(format!("v{version}"));
    std::fs::rename(name(LB_LAYOUT_VERSION), name(version)).unwrap();
}

#[test]
fn connections_go_on_when_the_layout_changes() {
    let Some(lab) = Lab::new(2) else { return };
    let mut plane = lab.open();
    lab.apply(&mut plane, &[lab.vip(&[0, 1])]).unwrap();
    let mut streams = [lab.connect().0, lab.connect().0, lab.connect().0];
    let before = plane.held.clone();
    drop(plane);
    make_earlier(&lab, LB_FLOWS_SINCE);

    let mut plane = lab.open();
    assert_eq!(
        (&plane.held.vips, &plane.held.endpoints, &plane.held.vip_ids),
        (&before.vips, &before.endpoints, &before.vip_ids)
    );
    // The earlier programs still serve, and make connections that ours must get, too.
    let (mut late, number) = lab.connect();
    assert!(streams.iter_mut().all(echoes), "opened, but not told what to serve");
    lab.apply(&mut plane, &[lab.vip(&[0, 1])]).unwrap();
    // Ours are attached behind them, and do not get this one.
    let (mut last, _) = lab.connect();
    plane.balance_sockets(None);
    assert!(plane.pins.other_versions().is_empty());
    assert!(streams.iter_mut().chain([&mut late, &mut last]).all(echoes), "the flows of the earlier programs are ours");
    let active = |plane: &Plane| plane.counters().unwrap().vips["web"].total.flows_active;
    // Those that were there when ours were attached are counted.
    assert_eq!(active(&plane), 4);
    assert_eq!(plane.flows(Some("web"), 100).unwrap().0.len(), 5);

    // Their ends are seen and counted.
    drop((streams, late, last));
    until(PATIENCE, || (active(&plane) == 0).then_some(())).expect("closed connections are not active");
    lab.apply(&mut plane, &[lab.vip(&[1 - number])]).unwrap();
    assert_eq!(lab.connect().1, 1 - number);
}

#[test]
fn new_connections_are_ours_before_the_earlier_programs_end() {
    let Some(lab) = Lab::new(1) else { return };
    let mut plane = lab.open();
    lab.apply(&mut plane, &[lab.vip(&[0])]).unwrap();
    let (mut before, _) = lab.connect();
    drop(plane);
    make_earlier(&lab, LB_FLOWS_SINCE);
    let mut plane = lab.open();
    lab.apply(&mut plane, &[lab.vip(&[0])]).unwrap();
    plane.earlier.as_ref().unwrap().take_no_more().unwrap();
    // The earlier programs are attached in front of ours, and have the first connection alone.
    let (mut after, _) = lab.connect();
    assert!(echoes(&mut before) && echoes(&mut after));
    assert_eq!(plane.counters().unwrap().vips["web"].total.flows_made, 1);
    plane.balance_sockets(None);
    assert!(echoes(&mut before) && echoes(&mut after));
}

#[test]
fn a_client_that_uses_its_port_again_meanwhile() {
    let Some(lab) = Lab::new(2) else { return };
    let mut plane = lab.open();
    lab.apply(&mut plane, &[lab.vip(&[0])]).unwrap();
    let from = |port: u16| {
        let socket =
            lab.client.inside(|| socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)).unwrap();
        socket.bind(&SocketAddr::from(([0, 0, 0, 0], port)).into()).unwrap();
        socket.connect(&VIP.parse::<SocketAddr>().unwrap().into()).unwrap();
        let mut stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut number = [0];
        stream.read_exact(&mut number).unwrap();
        (stream, number[0])
    };
    let (first, number) = from(40_000);
    assert_eq!(number, 0);
    // The next connection goes to the other endpoint.
    lab.apply(&mut plane, &[lab.vip(&[1])]).unwrap();
    drop(plane);
    make_earlier(&lab, LB_FLOWS_SINCE);
    let mut plane = lab.open();
    lab.apply(&mut plane, &[lab.vip(&[1])]).unwrap();
    let born_s = host::now_s();
    until(PATIENCE, || (host::now_s() != born_s).then_some(())).unwrap();
    socket2::SockRef::from(&first).set_linger(Some(std::time::Duration::ZERO)).unwrap();
    drop(first);
    let (mut second, number) = from(40_000);
    assert_eq!(number, 1);
    plane.balance_sockets(None);
    assert!(echoes(&mut second), "its flow replaced that of the first");
}

#[test]
fn a_smaller_table_takes_what_it_can() {
    let Some(lab) = Lab::new(1) else { return };
    let mut plane = lab.open();
    lab.apply(&mut plane, &[lab.vip(&[0])]).unwrap();
    let streams = [lab.connect(), lab.connect(), lab.connect()];
    drop(plane);
    make_earlier(&lab, LB_FLOWS_SINCE);
    let options = Options { flows_max: 2, ..lab.options.clone() };
    let mut plane = lab.lb.inside(|| Plane::open(&options)).unwrap();
    lab.apply(&mut plane, &[lab.vip(&[0])]).unwrap();
    plane.balance_sockets(None);
    let kept = entries::<lb_flow_key, lb_flow>(&plane.maps.flows).count();
    assert_eq!(kept, 4, "three connections have six entries, and the table takes four");
    drop(streams);
}

#[test]
fn tables_of_an_unknown_layout_are_removed() {
    let Some(lab) = Lab::new(1) else { return };
    let mut plane = lab.open();
    lab.apply(&mut plane, &[lab.vip(&[0])]).unwrap();
    let (mut stream, _) = lab.connect();
    drop(plane);
    make_earlier(&lab, LB_FLOWS_SINCE - 1);
    let mut plane = lab.open();
    assert!(plane.held.vips.is_empty());
    lab.apply(&mut plane, &[lab.vip(&[0])]).unwrap();
    assert!(plane.pins.other_versions().is_empty());
    assert!(!echoes(&mut stream), "the new table does not have it");
    lab.connect();
}
