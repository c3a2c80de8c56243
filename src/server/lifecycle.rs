//! A broker's place in the cluster: it registers, shows that it lives, and takes its leave (KIP-631). The
//! controller may be this very process; the way is the same.

use std::sync::Arc;
use std::time::Duration;

use klamm_config::BrokerConfig;
use klamm_io::Threads;
use klamm_metadata::{Broker, Image, feature_ranges};
use klamm_model::{ErrorCode, NodeId, Uuid};
use klamm_protocol::messages::broker_registration::{Feature, Listener};
use klamm_protocol::messages::{BrokerHeartbeatRequest, BrokerHeartbeatResponse, BrokerRegistrationRequest};
use klamm_storage::LogStore;
use tokio::sync::oneshot;

use crate::context::Context;
use crate::controller_channel::ControllerChannel;
use crate::listener::Bound;
use crate::stop::Stop;

/// How long one request may look for a controller before it is told that there is none.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);

/// How long it waits before it asks again after a refusal.
const PAUSE: Duration = Duration::from_millis(250);

/// How long one heartbeat of a controlled shutdown may look for a controller.
const LEAVE_ASK_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a controlled shutdown goes on when no controller answers. There is none any more where the other nodes stop
/// too.
const LEAVE_UNHEARD_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a controlled shutdown waits until others lead what this broker leads
/// (`controlled.shutdown.max.retries` and `….retry.backoff.ms` came to about as much).
const LEAVE_TIMEOUT: Duration = Duration::from_secs(15);

/// Why a broker is not taken into the cluster, for good.
#[derive(Debug, thiserror::Error)]
pub enum RegistrationError {
    /// Another process with this id is alive.
    #[error(
        "another broker with node.id={node} is alive in the cluster: give each broker an id of its own, or end the \
         other process"
    )]
    Duplicate {
        /// The id.
        node: i32,
    },
    /// The controller belongs to another cluster.
    #[error("the controller belongs to another cluster than this broker, whose cluster.id is {cluster_id}")]
    OtherCluster {
        /// This broker's cluster.
        cluster_id: String,
    },
    /// It was taken in, and lost its place before it could serve.
    #[error("{0}")]
    Replaced(String),
    /// The controller gave another reason.
    #[error("the controller refused: {0}")]
    Refused(ErrorCode),
}

/// What this broker says of itself.
pub(crate) fn registration(
    config: &BrokerConfig,
    incarnation_id: Uuid,
    store: &LogStore,
    bound: &[Bound],
) -> BrokerRegistrationRequest {
    let mut listeners: Vec<Listener> = Vec::new();
    for endpoint in bound.iter().map(Bound::endpoint).filter(|endpoint| !endpoint.is_controller) {
        // Two addresses of one listener are one endpoint.
        if listeners.iter().all(|known| known.name != endpoint.name) {
            let unadvertised = || ("localhost".to_owned(), endpoint.port);
            let (host, port) = endpoint.advertised.clone().unwrap_or_else(unadvertised);
            let security_protocol = endpoint.security_protocol;
            listeners.push(Listener { name: endpoint.name.clone(), host, port, security_protocol });
        }
    }
    let features = feature_ranges().iter().map(|(name, lowest, highest)| Feature {
        name: (*name).to_owned(),
        min_supported_version: *lowest,
        max_supported_version: *highest,
    });
    BrokerRegistrationRequest {
        broker_id: config.node_id.0,
        cluster_id: store.cluster_id().to_owned(),
        incarnation_id,
        listeners,
        features: features.collect(),
        rack: config.rack.clone(),
        log_dirs: store.directory_ids().into_iter().map(|(_, id)| id).collect(),
        previous_broker_epoch: store.previous_broker_epoch().unwrap_or(-1),
        ..Default::default()
    }
}

/// Registers with the controller, however long it takes to find one, and returns when this node's image has the
/// registration. What an earlier process with this id led, it leads no more.
pub(crate) async fn register(
    context: &Context,
    registration: BrokerRegistrationRequest,
) -> Result<i64, RegistrationError> {
    // The session of a process that was killed has to end first.
    let patience = Duration::from_millis(2 * session_ms(context));
    let begun = context.clock.monotonic();
    loop {
        let answer = context.controller.ask(registration.clone(), ASK_TIMEOUT).await;
        match ErrorCode::from_code(answer.error_code).unwrap_or(ErrorCode::UnknownServerError) {
            ErrorCode::None => {
                await_image(context, answer.broker_epoch, |_| true).await?;
                return Ok(answer.broker_epoch);
            }
            ErrorCode::NotController => {
                tell_of_no_controller(context);
            }
            ErrorCode::DuplicateBrokerRegistration => {
                if context.clock.monotonic().saturating_sub(begun) > patience {
                    return Err(RegistrationError::Duplicate { node: registration.broker_id });
                }
                tracing::info!("an earlier session of this broker has not ended yet; registering again");
            }
            ErrorCode::InconsistentClusterId => {
                return Err(RegistrationError::OtherCluster { cluster_id: registration.cluster_id });
            }
            code => return Err(RegistrationError::Refused(code)),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Says that a broker finds no controller that could take it in, and whom it waits for, unless the quorum has told more.
fn tell_of_no_controller(context: &Context) {
    if context.metadata.lost_majority().is_some() {
        return;
    }
    let known = context.metadata.voter_addresses();
    let mut awaited: Vec<String> =
        known.iter().map(|(node, (host, port))| format!("node {node} at {host}:{port}")).collect();
    if awaited.is_empty() {
        let config = &context.static_config;
        let named = config.quorum_voters.iter();
        awaited.extend(named.map(|voter| format!("node {} at {}:{}", voter.id, voter.host, voter.port)));
        let servers = config.quorum_bootstrap_servers.iter();
        awaited.extend(servers.map(|(host, port)| format!("the controller at {host}:{port}")));
    }
    tracing::warn!(
        "no controller takes this broker in yet; it waits for a majority of the voters: {}",
        awaited.join(", ")
    );
}

/// Returns when this node's image has the registration of `epoch` in a state that is wanted.
async fn await_image(
    context: &Context,
    epoch: i64,
    is_wanted: impl Fn(&Broker) -> bool,
) -> Result<(), RegistrationError> {
    let mut images = context.metadata.watch();
    let own = |image: &Arc<Image>| {
        let broker = image.brokers.get(&context.node_id);
        broker.is_some_and(|broker| broker.epoch > epoch || (broker.epoch == epoch && is_wanted(broker)))
    };
    match images.wait_for(own).await {
        Ok(image) => match registration_lost(&image, context.node_id, epoch) {
            Some(why) => Err(RegistrationError::Replaced(why)),
            None => Ok(()),
        },
        // The quorum has ended on this node, which others tell.
        Err(_) => Ok(()),
    }
}

/// Why the process with this registration has no place in the cluster any more, if an image says so. It has to be one
/// that is not older than the registration.
pub(crate) fn registration_lost(image: &Image, node: NodeId, epoch: i64) -> Option<String> {
    match image.brokers.get(&node) {
        Some(broker) if broker.epoch > epoch => Some(lost(ErrorCode::StaleBrokerEpoch, node)),
        Some(_) => None,
        None => Some(lost(ErrorCode::BrokerIdNotRegistered, node)),
    }
}

/// What the controller's answer means to the process of a broker that was registered.
fn lost(code: ErrorCode, node: NodeId) -> String {
    match code {
        ErrorCode::BrokerIdNotRegistered => format!(
            "broker {node} was unregistered while it ran: start it again if it is to belong to the cluster"
        ),
        _ => format!(
            "another process has registered as broker {node} and takes its place, so that this one leads nothing any \
             more: give each broker a node.id of its own, and start only one process for each"
        ),
    }
}

/// Asks to be unfenced, and returns when this node's image says so: from then on the broker leads and is in sync
/// again wherever it may.
pub(crate) async fn unfence(context: &Context) -> Result<(), RegistrationError> {
    loop {
        match heartbeat(context, &context.controller, false, ASK_TIMEOUT).await {
            Heartbeat::Taken(answer) if !answer.is_fenced => break,
            Heartbeat::Lost(why) => return Err(RegistrationError::Replaced(why)),
            Heartbeat::Taken(_) | Heartbeat::NotTaken => tokio::time::sleep(PAUSE).await,
        }
    }
    await_image(context, context.broker_epoch(), |broker| !broker.fenced).await
}

/// Shows the controller that this broker lives, until the stop, or until it hears that it lost its place. It does so on a thread of its own, where there is to be
/// one: whatever else the process is busy with, its session must not end.
pub(crate) async fn stay(context: Arc<Context>, stop: Stop) {
    let threads = context.threads;
    let controller = context.controller.beside();
    let beating = beat(context, controller, stop);
    match threads {
        Threads::Inline => beating.await,
        Threads::Own => on_own_thread(beating).await,
    }
}

async fn beat(context: Arc<Context>, controller: ControllerChannel, mut stop: Stop) {
    loop {
        let every = u64::try_from(context.config().broker_heartbeat_interval_ms).unwrap_or(0).max(1);
        tokio::select! {
            biased;
            () = stop.requested() => return,
            () = context.heartbeat_now.notified() => {}
            () = tokio::time::sleep(Duration::from_millis(every)) => {}
        }
        if let Heartbeat::Lost(why) = heartbeat(&context, &controller, false, ASK_TIMEOUT).await {
            context.registration_lost.send_replace(Some(why));
            return;
        }
    }
}

/// Does work on a thread with a runtime of its own, and returns when it has ended.
async fn on_own_thread(work: impl Future<Output = ()> + Send + 'static) {
    let (ended, end) = oneshot::channel::<()>();
    let run = move || {
        // It goes with the thread, and that is the word.
        let _ended = ended;
        match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime.block_on(work),
            Err(error) => {
                tracing::error!("no heartbeats are sent, for there is no runtime for them: {error}")
            }
        }
    };
    match std::thread::Builder::new().name("klamm-heartbeat".to_owned()).spawn(run) {
        Ok(_) => drop(end.await),
        Err(error) => tracing::error!("no heartbeats are sent, for there is no thread for them: {error}"),
    }
}

/// Gives away what this broker leads, so that clients hardly wait when it stops. It stops all the same if nobody
/// takes over.
pub(crate) async fn take_leave(context: &Context) {
    let has_others =
        context.image().brokers.values().any(|broker| broker.id != context.node_id && !broker.fenced);
    if !has_others {
        return;
    }
    if tokio::time::timeout(LEAVE_TIMEOUT, leave(context)).await.is_err() {
        tracing::warn!(
            "nobody took over what this broker leads within {LEAVE_TIMEOUT:?}; it stops all the same"
        );
    }
}

async fn leave(context: &Context) {
    context.lease.leave();
    let mut heard = context.clock.monotonic();
    loop {
        match heartbeat(context, &context.controller, true, LEAVE_ASK_TIMEOUT).await {
            Heartbeat::Taken(answer) if answer.should_shut_down => return,
            Heartbeat::Taken(_) => heard = context.clock.monotonic(),
            Heartbeat::Lost(_) => return,
            Heartbeat::NotTaken => {
                if context.clock.monotonic().saturating_sub(heard) >= LEAVE_UNHEARD_TIMEOUT {
                    tracing::warn!(
                        "no controller answers, so that nobody takes over what this broker leads; it stops all the same"
                    );
                    return;
                }
            }
        }
        tokio::time::sleep(PAUSE / 10).await;
    }
}

fn session_ms(context: &Context) -> u64 {
    u64::try_from(context.config().broker_session_timeout_ms).unwrap_or(0)
}

/// What came of a heartbeat.
enum Heartbeat {
    /// The controller's answer.
    Taken(BrokerHeartbeatResponse),
    /// No controller took it. It is sent again.
    NotTaken,
    /// This process has no place in the cluster any more, for this reason.
    Lost(String),
}

/// Sends one heartbeat to the controller, which is looked for no longer than `limit`.
async fn heartbeat(
    context: &Context,
    controller: &ControllerChannel,
    want_shut_down: bool,
    limit: Duration,
) -> Heartbeat {
    let request = BrokerHeartbeatRequest {
        broker_id: context.node_id.0,
        broker_epoch: context.broker_epoch(),
        current_metadata_offset: context.image().offset,
        want_fence: false,
        want_shut_down,
        offline_log_dirs: context.store.offline_directory_ids(),
        ..Default::default()
    };
    let (sent_ms, heard) = (context.clock.monotonic_ms(), context.metadata.hears());
    let answer = controller.ask(request, limit).await;
    match ErrorCode::from_code(answer.error_code).unwrap_or(ErrorCode::UnknownServerError) {
        ErrorCode::None => {
            if answer.is_fenced {
                context.lease.end();
            } else {
                context.lease.renew(sent_ms, heard, session_ms(context));
            }
            Heartbeat::Taken(answer)
        }
        code @ (ErrorCode::BrokerIdNotRegistered | ErrorCode::StaleBrokerEpoch) => {
            Heartbeat::Lost(lost(code, context.node_id))
        }
        // It is told already that there is no controller, and why.
        ErrorCode::NotController if context.metadata.lost_majority().is_some() => Heartbeat::NotTaken,
        code => {
            tracing::warn!("the controller did not take a heartbeat: {code}");
            Heartbeat::NotTaken
        }
    }
}
