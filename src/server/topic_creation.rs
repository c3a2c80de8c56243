//! Topics that come into being by themselves: those that clients name (`auto.create.topics.enable`) and the
//! coordinators' own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use klamm_model::{ErrorCode, topic_name};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::context::{CONTROLLER_TIMEOUT, Context};
use crate::start;

/// Creates topics, and returns when this node serves its partitions of them. Tells the error of each that
/// could not be created; one that somebody else created meanwhile is no error.
pub(crate) async fn create(context: &Context, names: &[&str]) -> BTreeMap<String, ErrorCode> {
    let defaults = start::topic_defaults(&context.config());
    let request = klamm_metadata::controller::request_for_auto_creation(names.iter().copied(), &defaults);
    let response = context.controller.ask(request, CONTROLLER_TIMEOUT).await;
    let mut failed = BTreeMap::new();
    for topic in response.topics {
        let code = ErrorCode::from_code(topic.error_code).unwrap_or(ErrorCode::UnknownServerError);
        if !matches!(code, ErrorCode::None | ErrorCode::TopicAlreadyExists) {
            // Names are the clients', and so is how many there are.
            let why = topic.error_message.unwrap_or_default();
            let line = || format!("topic {} was not created by itself: {code}: {why}", topic.name);
            if let Some(line) = context.not_created_log.line(context.clock.monotonic(), line) {
                tracing::warn!("{line}");
            }
            failed.insert(topic.name, code);
        }
    }
    context.await_applied(0).await;
    failed
}

/// How long a request waits for the topic of a coordinator. What follows it on its connection waits too.
const COORDINATOR_WAIT: Duration = Duration::from_secs(1);

/// Creations of the coordinators' topics that are under way, by topic: since when, and how to hear of the end.
pub(crate) type CreationsUnderWay = Mutex<BTreeMap<&'static str, (Duration, watch::Receiver<()>)>>;

/// Creates the topic of a coordinator beside the request that needs it. Returns when this node serves it, but soon in
/// any case: while the disk is full a creation may take as long as that lasts. However many ask, there is one.
pub(crate) async fn create_for_coordinator(context: &Arc<Context>, topic: &'static str) {
    let now = context.clock.monotonic();
    let (began, mut ended) = {
        let mut under_way = context.creations_under_way.lock();
        under_way.retain(|_, (_, ended)| ended.has_changed().is_ok());
        let begin = || {
            let (end, ended) = watch::channel(());
            let context = context.clone();
            tokio::spawn(async move {
                create(&context, &[topic]).await;
                drop(end);
            });
            (now, ended)
        };
        under_way.entry(topic).or_insert_with(begin).clone()
    };
    let left = COORDINATOR_WAIT.saturating_sub(now.saturating_sub(began));
    let _ = tokio::time::timeout(left, ended.changed()).await;
}

/// The partition of `__consumer_offsets` that a group belongs to. The topic is created if need be.
pub(crate) async fn offsets_partition_of(context: &Arc<Context>, group: &str) -> Result<i32, ErrorCode> {
    if let Some(index) = context.offsets_partition_of(group) {
        return Ok(index);
    }
    create_for_coordinator(context, topic_name::GROUP_METADATA).await;
    context.offsets_partition_of(group).ok_or(ErrorCode::CoordinatorNotAvailable)
}
