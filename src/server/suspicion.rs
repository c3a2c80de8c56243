//! Nodes that may have died. A process that ends closes its connections, and the others hear of it within a moment;
//! the time-out of a session is for those that are silent. A connection that ended proves nothing, though: a node is
//! taken for dead only when its machine refuses connections to the port on which the node took them before. Then the
//! controller fences it, and a voter whose leader it was stands for election.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use klamm_io::Network;
use klamm_model::NodeId;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::context::Context;
use crate::peers::{Address, LostConnections};
use crate::stop::Stop;

/// When a suspect is looked at, each time after the one before. A process that is killed closes its connections one
/// after the other, and the port on which it listens may be among the last.
const LOOKS: [Duration; 7] = [
    Duration::ZERO,
    Duration::from_millis(2),
    Duration::from_millis(8),
    Duration::from_millis(30),
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_millis(600),
];

/// How long after a further connection was lost it is looked again, if not sooner anyway; some close each connection that
/// they take.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// How often in a row its port must refuse before a node is taken for dead: a firewall or a proxy that is being changed
/// may refuse as well. A heartbeat that has come since shows that it lives.
const REFUSALS: u32 = 2;

/// How long a look may take. A machine that is gone answers nothing: that is left to the session's time-out.
const LOOK_TIMEOUT: Duration = Duration::from_millis(500);

/// How long a node that is taken for dead is let alone. Those who try to reach it tell of it again and again.
const PAUSE: Duration = Duration::from_millis(300);

/// After how long it is told again that the controller is dead, where nobody takes its place.
const TELL_EVERY: Duration = Duration::from_secs(30);

/// How long the controller may take to fence a node; who is told of it is told again by the session's time-out.
const FENCE_TIMEOUT: Duration = Duration::from_secs(5);

/// Looks at each node whose connection was lost, until the stop.
pub(crate) async fn watch(
    context: Arc<Context>,
    network: Arc<dyn Network>,
    lost: Arc<LostConnections>,
    mut stop: Stop,
) {
    let mut looks: JoinSet<(NodeId, Address, watch::Receiver<()>)> = JoinSet::new();
    let mut suspects: BTreeMap<NodeId, watch::Sender<()>> = BTreeMap::new();
    let told = Arc::new(Told::default());
    loop {
        let found = |address: Address| {
            let node = context.metadata.node_at(&address).filter(|node| *node != context.node_id);
            node.map(|node| (node, address))
        };
        let told_of: Vec<(NodeId, Address)> = tokio::select! {
            biased;
            () = stop.requested() => return,
            Some(looked) = looks.join_next() => {
                let Ok((node, address, again)) = looked else { continue };
                let was_told_again = again.has_changed().unwrap_or(false);
                suspects.remove(&node);
                was_told_again.then_some(address).and_then(found).into_iter().collect()
            }
            addresses = lost.take() => {
                let told_of: Vec<_> = addresses.into_iter().filter_map(found).collect();
                told_of.iter().for_each(|(node, _)| context.metadata.connection_lost(*node));
                told_of
            }
        };
        for (node, address) in told_of {
            if let Some(again) = suspects.get(&node) {
                again.send_replace(());
                continue;
            }
            let (tell_again, mut again) = watch::channel(());
            suspects.insert(node, tell_again);
            let (context, network, told) = (context.clone(), network.clone(), told.clone());
            looks.spawn(async move {
                look(&context, &*network, &told, node, &address, &mut again).await;
                (node, address, again)
            });
        }
    }
}

/// Of which controller it was told last that it is dead: its number, the epoch of its registration, when. Those who miss
/// it try to reach it several times a second, for as long as no other takes its place.
#[derive(Default)]
struct Told(Mutex<Option<(NodeId, Option<i64>, Duration)>>);

impl Told {
    /// Whether this is news.
    fn is_news(&self, node: NodeId, registration: Option<i64>, now: Duration) -> bool {
        let mut last = self.0.lock();
        let is_known = last.is_some_and(|(known, epoch, at)| {
            (known, epoch) == (node, registration) && now.saturating_sub(at) < TELL_EVERY
        });
        if !is_known {
            *last = Some((node, registration, now));
        }
        !is_known
    }
}

/// Looks whether a node is dead, and acts if it is. `again` tells that another connection to it was lost.
async fn look(
    context: &Context,
    network: &dyn Network,
    told: &Told,
    node: NodeId,
    address: &Address,
    again: &mut watch::Receiver<()>,
) {
    let seen = || async move {
        // The registration that is ended is the one of before the look: the node may be back by then.
        let registration = context.image().brokers.get(&node).map(|broker| broker.epoch);
        match context.metadata.has_session(node) {
            true => Seen::Alive,
            false if is_refused(network, address).await => Seen::Refused(Death { registration }),
            false => Seen::Unclear,
        }
    };
    let Some(death) = find_death(seen, again).await else {
        tracing::debug!("node {node} has ended a connection and lives");
        return;
    };
    let pause = tokio::time::sleep(PAUSE);
    bury(context, told, node, death).await;
    pause.await;
}

/// What one look has seen.
enum Seen {
    /// It has sent a heartbeat.
    Alive,
    /// Its port refuses connections.
    Refused(Death),
    /// It is not refused, which a process that is ending does not do at once.
    Unclear,
}

/// The end of the process that had registered as a broker under this epoch, if it was one.
#[derive(Debug, PartialEq)]
struct Death {
    registration: Option<i64>,
}

/// Looks several times. Each further connection that is lost meanwhile may be the one that a death has ended: from there on
/// it is looked as often as after the first.
async fn find_death<F: Future<Output = Seen>>(
    look: impl Fn() -> F,
    again: &mut watch::Receiver<()>,
) -> Option<Death> {
    let (mut pauses, mut refusals) = (LOOKS.iter(), 0);
    while let Some(pause) = pauses.next() {
        tokio::select! {
            biased;
            Ok(()) = again.changed(), if *pause > AGAIN_AFTER => {
                tokio::time::sleep(AGAIN_AFTER).await;
                pauses = LOOKS[1..].iter();
            }
            () = tokio::time::sleep(*pause) => {}
        }
        match look().await {
            Seen::Alive => return None,
            Seen::Refused(death) if refusals + 1 == REFUSALS => return Some(death),
            Seen::Refused(_) => refusals += 1,
            Seen::Unclear => refusals = 0,
        }
    }
    None
}

async fn is_refused(network: &dyn Network, (host, port): &Address) -> bool {
    let refused = async {
        let addresses = network.resolve(host, *port).await.ok()?;
        for address in &addresses {
            match network.connect(*address).await {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                _ => return None,
            }
        }
        (!addresses.is_empty()).then_some(())
    };
    matches!(tokio::time::timeout(LOOK_TIMEOUT, refused).await, Ok(Some(())))
}

async fn bury(context: &Context, told: &Told, node: NodeId, Death { registration }: Death) {
    let mut images = context.metadata.watch();
    if context.image().controller == Some(node) {
        if told.is_news(node, registration, context.clock.monotonic()) {
            tracing::warn!("node {node}, the controller, has died: its port refuses connections");
        }
        context.metadata.leader_died(node);
        // The one that takes its place has partitions to give to others as well. Where nobody does, it is tried again.
        let succeeded = images.wait_for(|image| image.controller.is_some_and(|other| other != node));
        let _ = tokio::time::timeout(PAUSE, succeeded).await;
    }
    let image = context.image();
    // It may be back, or have been heard of.
    let is_served = |epoch| image.brokers.get(&node).is_some_and(|it| !it.fenced && it.epoch == epoch);
    let epoch = registration.filter(|epoch| is_served(*epoch) && !context.metadata.has_session(node));
    if let (true, Some(epoch)) = (image.controller == Some(context.node_id), epoch) {
        tracing::warn!("broker {node} has died: its port refuses connections; it is fenced");
        let fenced = context.metadata.within(FENCE_TIMEOUT).fence_dead(node, epoch).await;
        if let Err(error) = fenced {
            tracing::warn!("broker {node} could not be fenced yet: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use super::*;

    /// A node that had closed one connection was killed a moment later: its death was seen as late as the session's end, since
    /// what was told during the looks was forgotten.
    #[tokio::test(start_paused = true)]
    async fn a_death_during_the_looks_is_seen_soon() {
        let (tell, mut again) = watch::channel(());
        let (is_gone, looks) = (AtomicBool::new(false), AtomicU32::new(0));
        let look = || async {
            looks.fetch_add(1, Ordering::Relaxed);
            if is_gone.load(Ordering::Relaxed) {
                Seen::Refused(Death { registration: Some(7) })
            } else {
                Seen::Unclear
            }
        };
        let dies = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            is_gone.store(true, Ordering::Relaxed);
            tell.send_replace(());
            tokio::time::Instant::now()
        };
        let begun = tokio::time::Instant::now();
        let (death, died) = tokio::join!(find_death(look, &mut again), dies);
        assert_eq!(death, Some(Death { registration: Some(7) }));
        assert_eq!((died - begun, begun.elapsed()), (Duration::from_millis(200), Duration::from_millis(252)));
        assert_eq!(looks.into_inner(), 5 + 2);
    }

    /// The connections to a node that is killed end one after the other. Each put the next look off.
    #[tokio::test(start_paused = true)]
    async fn several_connections_that_end_together_put_nothing_off() {
        let (tell, mut again) = watch::channel(());
        tell.send_replace(());
        let begun = tokio::time::Instant::now();
        let refused = || async { Seen::Refused(Death { registration: None }) };
        let (death, ()) = tokio::join!(find_death(refused, &mut again), async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            tell.send_replace(());
        });
        assert_eq!((death, begun.elapsed()), (Some(Death { registration: None }), Duration::from_millis(2)));
    }

    #[tokio::test(start_paused = true)]
    async fn one_refusal_is_no_death_and_a_heartbeat_ends_the_looks() {
        let ((_tell, mut again), looks) = (watch::channel(()), AtomicU32::new(0));
        let every_other = || async {
            match looks.fetch_add(1, Ordering::Relaxed) % 2 {
                0 => Seen::Refused(Death { registration: None }),
                _ => Seen::Unclear,
            }
        };
        assert_eq!(find_death(every_other, &mut again).await, None);
        assert_eq!(looks.swap(0, Ordering::Relaxed), LOOKS.len() as u32);
        let beats = || async {
            match looks.fetch_add(1, Ordering::Relaxed) {
                0 => Seen::Refused(Death { registration: None }),
                _ => Seen::Alive,
            }
        };
        assert_eq!(find_death(beats, &mut again).await, None);
        assert_eq!(looks.into_inner(), 2);
    }

    /// A quorum that lost its only voter filled the others' logs with three lines a second.
    #[test]
    fn a_dead_controller_is_told_of_once_until_it_was_back() {
        let (told, second) = (Told::default(), Duration::from_secs(1));
        let is_news =
            |node, registration, seconds| told.is_news(NodeId(node), registration, second * seconds);
        assert!(is_news(1, Some(7), 0));
        assert!(!is_news(1, Some(7), 1));
        assert!(is_news(1, Some(8), 2), "it was back");
        assert!(is_news(2, Some(3), 3));
        assert!(is_news(1, Some(8), 4), "it led again");
        assert!(!is_news(1, Some(8), 33));
        assert!(is_news(1, Some(8), 34), "a reminder");
    }
}
