//! The sessions of brokers at a controller that has much to do.

#[allow(dead_code, reason = "each test uses a part of it")]
mod joining;
mod wires;

use std::time::Duration;

use klamm_model::{NodeId, Uuid};

use wires::{Machine, Wires, wait_for};

/// Ten brokers' heartbeats ask a controller more often than it looks for expired sessions. It has to look all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_controller_that_is_asked_all_the_time_fences_a_silent_broker() {
    let wires = Wires::default();
    let machine = Machine::new(1, &[1], &wires);
    let mut settings = machine.settings();
    settings.quorum.broker_session_timeout = Duration::from_secs(2);
    let node = machine.start_with(settings).unwrap();
    node.joined().await.unwrap();
    let (silent, busy) = (NodeId(11), NodeId(12));
    let mut epochs = Vec::new();
    for broker in [silent, busy] {
        let epoch = joining::register(&node, broker, 1, Uuid([broker.0 as u8; 16])).await.unwrap();
        joining::unfence(&node, broker, epoch).await.unwrap();
        epochs.push(epoch);
    }
    let asking = async {
        loop {
            joining::unfence(&node, busy, epochs[1]).await.unwrap();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let fenced = wait_for(&node, "the fencing of the silent one", |image| image.brokers[&silent].fenced);
    tokio::select! {
        biased;
        () = fenced => {}
        () = asking => {}
    }
    assert!(!node.image().brokers[&busy].fenced);
}
