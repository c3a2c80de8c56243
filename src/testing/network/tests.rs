//! A simulated network that is kinder than a real one hides bugs, and one that is crueller finds bugs that are none:
//! each test holds what TCP promises its users, or does not, against it.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::BytesMut;
use klamm_io::{Listener, Network, Stream};

use super::*;

const PORT: u16 = 9092;

fn ip(number: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, number))
}

fn now<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

struct Stage {
    network: SimulatedNetwork,
    time: Duration,
    hosts: Vec<SimulatedHost>,
}

impl Stage {
    /// Hosts 1 and 2.
    fn new(seed: u64) -> Stage {
        let network = SimulatedNetwork::new(seed, Delays::default());
        let hosts = [1, 2].map(|number| network.host(ip(number))).to_vec();
        Stage { network, time: Duration::ZERO, hosts }
    }

    fn pass(&mut self, millis: u64) {
        for _ in 0..millis {
            self.time += Duration::from_millis(1);
            self.network.advance(self.time);
        }
    }

    fn listen(&self) -> Arc<dyn Listener> {
        self.hosts[1].listen(SocketAddr::new(ip(2), PORT)).unwrap()
    }

    /// A connection that host 1 has opened to host 2.
    fn connect(&mut self, listener: &Arc<dyn Listener>) -> (Arc<dyn Stream>, Arc<dyn Stream>) {
        let host = self.hosts[0].clone();
        let mut connecting = pin!(host.connect(SocketAddr::new(ip(2), PORT)));
        assert!(now(connecting.as_mut()).is_none(), "nothing is instantaneous");
        self.pass(200);
        let client = now(connecting).expect("it is open by now").unwrap();
        (client, now(listener.accept()).expect("it waits").unwrap())
    }
}

fn send(stream: &Arc<dyn Stream>, bytes: &[u8]) -> Option<io::Result<()>> {
    now(stream.write_all(bytes, false))
}

fn receive(stream: &Arc<dyn Stream>) -> Option<io::Result<Vec<u8>>> {
    let mut buffer = BytesMut::with_capacity(1 << 20);
    now(stream.read(&mut buffer)).map(|read| read.map(|_| buffer.to_vec()))
}

/// A frame whose parts changed places would be another frame: TCP never does that.
#[test]
fn nothing_is_reordered_within_a_connection_and_connections_overtake_each_other() {
    let mut stage = Stage::new(1);
    let listener = stage.listen();
    let pairs: Vec<_> = (0..20).map(|_| stage.connect(&listener)).collect();
    for (index, (client, _)) in pairs.iter().enumerate() {
        for part in 0..50 {
            send(client, &[index as u8, part]).unwrap().unwrap();
        }
    }
    let mut received = vec![Vec::new(); pairs.len()];
    let mut overtaken = false;
    for _ in 0..200 {
        stage.pass(1);
        for (index, (_, server)) in pairs.iter().enumerate() {
            received[index].extend(receive(server).map(Result::unwrap).unwrap_or_default());
        }
        overtaken |= received.windows(2).any(|pair| pair[0].len() < pair[1].len());
    }
    for (index, received) in received.iter().enumerate() {
        let expected: Vec<u8> = (0..50).flat_map(|part| [index as u8, part]).collect();
        assert_eq!(*received, expected);
    }
    assert!(overtaken, "all connections were as fast");
}

/// One way can be cut while the other works: the most confusing of failures.
#[test]
fn what_meets_a_cut_way_arrives_in_order_when_it_heals() {
    let mut stage = Stage::new(2);
    let listener = stage.listen();
    let (client, server) = stage.connect(&listener);
    stage.network.cut(ip(1), ip(2));
    for part in 0..10 {
        send(&client, &[part]).unwrap().unwrap();
        stage.pass(77);
    }
    assert!(receive(&server).is_none(), "it got through a way that is cut");
    send(&server, b"back").unwrap().unwrap();
    stage.pass(100);
    assert_eq!(receive(&client).unwrap().unwrap(), b"back", "the other way is open");
    stage.network.heal(ip(1), ip(2));
    for part in 10..20 {
        send(&client, &[part]).unwrap().unwrap();
        stage.pass(77);
    }
    stage.pass(1000);
    assert_eq!(receive(&server).unwrap().unwrap(), (0..20).collect::<Vec<u8>>());
}

/// A broken connection tells a peer at once that a process has died.
#[test]
fn a_process_that_dies_resets_its_connections_and_refuses_new_ones() {
    let mut stage = Stage::new(3);
    let listener = stage.listen();
    let (client, _server) = stage.connect(&listener);
    stage.network.kill(ip(2));
    assert!(receive(&client).is_none(), "even that takes its time");
    stage.pass(100);
    assert_eq!(receive(&client).unwrap().unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    let host = stage.hosts[0].clone();
    let mut connecting = pin!(host.connect(SocketAddr::new(ip(2), PORT)));
    assert!(now(connecting.as_mut()).is_none());
    stage.pass(200);
    let refused = now(connecting).expect("the kernel answers").err().unwrap();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
}

/// Nobody says that a host has lost its power. Only when it is back it says that it knows of no connection.
#[test]
fn a_host_without_power_is_silent_until_it_is_back() {
    let mut stage = Stage::new(4);
    let listener = stage.listen();
    let (client, _server) = stage.connect(&listener);
    stage.network.power_off(ip(2));
    send(&client, b"anybody there?").unwrap().unwrap();
    stage.pass(5000);
    assert!(receive(&client).is_none());
    let host = stage.hosts[0].clone();
    let mut connecting = pin!(host.connect(SocketAddr::new(ip(2), PORT)));
    assert!(now(connecting.as_mut()).is_none());
    stage.pass(22_000);
    let failure = now(connecting).expect("it was given up").err().unwrap();
    assert_eq!(failure.kind(), io::ErrorKind::TimedOut);
    stage.network.host(ip(2));
    stage.pass(1000);
    assert_eq!(receive(&client).unwrap().unwrap_err().kind(), io::ErrorKind::ConnectionReset);
}

/// Otherwise a peer that stands still would cost its sender all memory, and nobody would notice.
#[test]
fn who_writes_to_one_that_does_not_read_waits() {
    let mut stage = Stage::new(5);
    let listener = stage.listen();
    let (client, server) = stage.connect(&listener);
    let block = vec![7; 64 * 1024];
    let taken = (0..100).take_while(|_| send(&client, &block).is_some()).count();
    assert!(taken < 10, "{taken} blocks were taken");
    stage.pass(100);
    assert_eq!(receive(&server).unwrap().unwrap().len(), taken * block.len());
    assert!(send(&client, &block).is_some(), "there is room again");
}

/// An end that is closed after all was read says so after the last byte; one that throws data away resets.
#[test]
fn a_closed_end_is_told_behind_the_data() {
    let mut stage = Stage::new(6);
    let listener = stage.listen();
    let (client, server) = stage.connect(&listener);
    send(&client, b"last words").unwrap().unwrap();
    drop(client);
    stage.pass(100);
    assert_eq!(receive(&server).unwrap().unwrap(), b"last words");
    assert_eq!(receive(&server).unwrap().unwrap(), b"");

    let (client, server) = stage.connect(&listener);
    send(&client, b"unread").unwrap().unwrap();
    stage.pass(100);
    drop(server);
    stage.pass(100);
    assert_eq!(receive(&client).unwrap().unwrap_err().kind(), io::ErrorKind::ConnectionReset);
}

/// A run that cannot be repeated is of no use.
#[test]
fn one_seed_gives_one_order_of_arrivals() {
    let run = |seed| {
        let mut stage = Stage::new(seed);
        let listener = stage.listen();
        let (client, server) = stage.connect(&listener);
        let mut arrivals = Vec::new();
        for part in 0..100 {
            send(&client, &[part]).unwrap().unwrap();
            stage.pass(1);
            arrivals.push(receive(&server).map(Result::unwrap));
        }
        arrivals
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
