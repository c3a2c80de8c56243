//! A node with a new directory finds its cluster, or forms one. The rules are in `quorum::introduction`.
//!
//! What happens is on the disk before anybody is told: first the files of the log, then the id of the cluster. A
//! node that dies in between begins anew, under the same directory id, and nobody has heard of what it had begun.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use klamm_model::{NodeId, Uuid};
use tokio::sync::{mpsc, oneshot, watch};

use super::orders::Order;
use super::settings::{Keep, Settings, StartError, Voter};
use crate::quorum::VoterNode;
use crate::quorum::introduction::{Introduction, JoinAnswer, Verdict, judge, judge_servers};
use crate::quorum::log::{begin_empty, form};
use crate::quorum::message::{self, Question};
use crate::quorum::network::Network;
use crate::quorum::replica_key::ReplicaKey;

/// How long it waits before it asks again.
const PAUSE: Duration = Duration::from_millis(200);

/// How long another node may take for its answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// How often it is said what is waited for.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// To which cluster this node belongs from now on.
pub(super) struct Settled {
    pub(super) cluster_id: String,
    /// Whether this node has formed it.
    pub(super) is_former: bool,
}

/// Finds or forms the cluster, and answers others that are looking for it meanwhile. What it waits for is told in the log
/// and by `lost`. `None` if the node is stopped first.
///
/// # Errors
/// When the settings of the nodes contradict each other, or the disk fails.
pub(super) async fn settle(
    settings: &Settings,
    run: u64,
    wanted: Option<&str>,
    keep: &Keep,
    (orders, stop): (&mut mpsc::Receiver<Order>, &mut oneshot::Receiver<()>),
    lost: &watch::Sender<Option<String>>,
) -> Result<Option<Settled>, StartError> {
    let own = settings.introduction(run, None);
    let network = Network::new(settings, run, None);
    let mut told = Told::default();
    loop {
        let asking = ask_all(settings, &network, &own, wanted);
        tokio::pin!(asking);
        let verdict = loop {
            tokio::select! {
                biased;
                _ = &mut *stop => return Ok(None),
                order = orders.recv() => match order {
                    Some(Order::Answer(message, sender)) => drop(sender.send(answer(&network, &own, message.0))),
                    // Whoever waits is told that there is no answer.
                    Some(_) => {}
                    None => return Ok(None),
                },
                verdict = &mut asking => break verdict,
            }
        };
        let storage = |source| StartError::Storage { dir: settings.dir.clone(), source };
        match verdict {
            Verdict::Refuse(why) => return Err(StartError::Membership(why)),
            Verdict::Wait(why) => told.tell(settings.clock.monotonic(), why, lost),
            Verdict::Form(voters) => {
                let cluster_id = wanted.map_or_else(|| random_cluster_id(settings), str::to_owned);
                form_cluster(settings, &voters).and_then(|()| keep(&cluster_id)).map_err(storage)?;
                tracing::info!("formed cluster {cluster_id} of {} voters", voters.len());
                return Ok(Some(Settled { cluster_id, is_former: true }));
            }
            Verdict::Join(cluster_id) => {
                begin_empty(&*settings.disk, &settings.dir)
                    .and_then(|()| keep(&cluster_id))
                    .map_err(storage)?;
                tracing::info!("found cluster {cluster_id}");
                return Ok(Some(Settled { cluster_id, is_former: false }));
            }
        }
    }
}

/// What was said in the log of what is waited for.
#[derive(Default)]
struct Told {
    last: Option<(Duration, String)>,
}

impl Told {
    fn tell(&mut self, now: Duration, why: String, lost: &watch::Sender<Option<String>>) {
        let is_due = |(at, told): &(Duration, String)| *told != why || now.saturating_sub(*at) >= TELL_EVERY;
        if self.last.as_ref().is_none_or(is_due) {
            let text = format!("this node belongs to no cluster yet: {why}");
            tracing::info!("{text}");
            lost.send_replace(Some(text));
            self.last = Some((now, why));
        }
    }
}

/// Asks all that are configured who they are, after a pause, and judges.
async fn ask_all(
    settings: &Settings,
    network: &Network,
    own: &Introduction,
    wanted: Option<&str>,
) -> Verdict {
    tokio::time::sleep(PAUSE).await;
    if settings.voters.is_empty() {
        let servers = settings.bootstrap_servers.iter().map(|address| async move {
            let answer = introduce(network, own, NodeId(-1), address.clone()).await;
            (format!("{}:{}", address.0, address.1), answer)
        });
        let answers: BTreeMap<_, _> = join_all(servers).await.into_iter().collect();
        return judge_servers(own, &answers, wanted);
    }
    let voters = settings.voters.iter().map(|voter| async move {
        let answer = introduce(network, own, voter.id, voter.address()).await;
        // Not every network lets a node reach itself by the address that others use.
        let answer = if voter.id == own.key.id { answer.or_else(|_| Ok(own.clone())) } else { answer };
        (voter.id, answer)
    });
    let answers: BTreeMap<_, _> = join_all(voters).await.into_iter().collect();
    judge(own, &settings.voters, &answers, wanted)
}

/// Asks whoever listens at an address who it is, and whether its process has drawn the number in `own`. The error is for
/// a person.
pub(super) async fn introduce(
    network: &Network,
    own: &Introduction,
    node: NodeId,
    address: (String, u16),
) -> Result<Introduction, String> {
    let question = Question::Introduce(own.clone());
    let asked = network.ask::<Introduction>(node, None, address, &question);
    match tokio::time::timeout(ANSWER_TIMEOUT, asked).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer within {ANSWER_TIMEOUT:?}")),
    }
}

/// The answer of a node that belongs to no cluster yet.
fn answer(network: &Network, own: &Introduction, message: Bytes) -> io::Result<Bytes> {
    match message::decode_question(network.versions, message) {
        Ok((_, Question::Introduce(other))) => message::encode_answer(&own.told_to(&other)),
        // It may belong to one the next time it is asked.
        Ok((_, Question::Join(_))) => message::encode_answer(&JoinAnswer::NotLeader(None)),
        Ok(_) => Ok(message::refuse(&format!("node {} belongs to no cluster yet", own.key.id))),
        Err(answer) => Ok(answer),
    }
}

fn form_cluster(settings: &Settings, voters: &[(ReplicaKey, Voter)]) -> io::Result<()> {
    let node = |voter: &Voter| VoterNode { host: voter.host.clone(), port: voter.port };
    let members = voters.iter().map(|(key, voter)| (*key, node(voter))).collect();
    form(&*settings.disk, &settings.dir, members, None)
}

/// An id that, as a command-line argument, is not taken for an option.
fn random_cluster_id(settings: &Settings) -> String {
    loop {
        let id = Uuid::from_random(settings.random.next_16()).to_string();
        if !id.starts_with('-') {
            return id;
        }
    }
}
