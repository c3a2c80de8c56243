//! What must hold after each step. Each check begins its message with its name.

use std::collections::BTreeMap;

use klamm_model::{IsolationLevel, LeaderEpoch, Offset};
use klamm_partition::{LookUp, Partition, ReadOptions, Reader};

use crate::world::{IN_SYNC_MIN, Waiting, World, records_of};

const CONSUMER: Reader = Reader::Consumer(IsolationLevel::ReadUncommitted);

type Records = BTreeMap<Offset, (LeaderEpoch, u64)>;

pub(crate) fn check(world: &mut World) -> Result<(), String> {
    if let Some(violation) = &world.violation {
        return Err(violation.clone());
    }
    let logs: Vec<Option<Records>> =
        world.nodes.iter().map(|node| node.process.as_ref().map(|one| log_of(&one.partition))).collect();
    acknowledge(world, &logs)?;
    note_reads(world)?;
    the_leader_has_all(world, &logs)?;
    logs_match(&logs)?;
    the_end_stays(world)
}

fn log_of(partition: &Partition) -> Records {
    let log = partition.log();
    let slice = log.read(log.log_start_offset(), 1 << 20, log.log_end_offset(), true).unwrap();
    slice.map(|slice| records_of(slice.to_bytes().unwrap())).unwrap_or_default()
}

/// Producers hear of what was committed. A record may be on a node that is down, so only those that run are asked
/// to have fewer than they should.
fn acknowledge(world: &mut World, logs: &[Option<Records>]) -> Result<(), String> {
    let mut acknowledged = Vec::new();
    let (nodes, tally) = (&world.nodes, &mut world.tally);
    world.waiting.retain(|waiting: &Waiting| {
        let process = nodes[waiting.node].process.as_ref();
        let process = process.filter(|process| process.broker_epoch == waiting.broker_epoch);
        let partition = process.map(|process| &process.partition);
        match partition.map(|partition| partition.is_committed(waiting.offset + 1, waiting.leader_epoch)) {
            Some(Ok(false)) => return true,
            Some(Ok(true)) => acknowledged.push((waiting.offset, waiting.value)),
            Some(Err(_)) | None => tally.unknown += 1,
        }
        false
    });
    for (offset, value) in acknowledged {
        world.tally.acknowledged += 1;
        let lack = logs.iter().flatten().filter(|log| log.get(&offset).is_none_or(|(_, it)| *it != value));
        let have = logs.len() - lack.count();
        if have < IN_SYNC_MIN {
            return Err(format!(
                "what is acknowledged is on min.insync.replicas: offset {offset} is on {have}"
            ));
        }
        see(world, offset, value)?;
    }
    Ok(())
}

fn see(world: &mut World, offset: Offset, value: u64) -> Result<(), String> {
    let known = *world.seen.entry(offset).or_insert(value);
    if known == value {
        return Ok(());
    }
    Err(format!("one offset holds one value: {offset} was {known} and is {value}"))
}

/// Consumers read from all that believe that they lead.
fn note_reads(world: &mut World) -> Result<(), String> {
    let mut read = Vec::new();
    for process in world.nodes.iter().filter_map(|node| node.process.as_ref()) {
        let options = ReadOptions {
            reader: CONSUMER,
            bytes_max: 1 << 20,
            at_least_one: true,
            current_leader_epoch: None,
            last_fetched_epoch: None,
        };
        if let Ok(found) = process.partition.read(0, &options) {
            let bytes = found.slice.map(|slice| slice.to_bytes().unwrap()).unwrap_or_default();
            read.extend(records_of(bytes).into_iter().map(|(offset, (_, value))| (offset, value)));
        }
    }
    read.into_iter().try_for_each(|(offset, value)| see(world, offset, value))
}

/// The leader that the controller has elected, once it knows.
fn leader(world: &World) -> Option<usize> {
    let id = world.committed.leader?;
    let node = world.nodes.iter().position(|node| node.id == id)?;
    let partition = &world.nodes[node].process.as_ref()?.partition;
    let knows = partition.is_leader() && partition.leader_epoch() == world.committed.leader_epoch;
    knows.then_some(node)
}

fn the_leader_has_all(world: &World, logs: &[Option<Records>]) -> Result<(), String> {
    let Some(log) = leader(world).and_then(|node| logs[node].as_ref()) else { return Ok(()) };
    for (offset, value) in &world.seen {
        if log.get(offset).is_none_or(|(_, found)| found != value) {
            return Err(format!(
                "the leader has all that was acknowledged or read: {value} is not at {offset} on {:?}, epoch {}",
                world.committed.leader, world.committed.leader_epoch
            ));
        }
    }
    Ok(())
}

fn logs_match(logs: &[Option<Records>]) -> Result<(), String> {
    let logs: Vec<&Records> = logs.iter().flatten().collect();
    for (place, one) in logs.iter().enumerate() {
        for other in &logs[place + 1..] {
            let shared = one
                .iter()
                .rev()
                .filter(|(_, (epoch, _))| *epoch != LeaderEpoch::NONE)
                .find(|(offset, (epoch, _))| other.get(offset).is_some_and(|(it, _)| it == epoch));
            let Some((end, _)) = shared else { continue };
            if let Some(parted) = one.range(..=end).find(|(offset, record)| other.get(offset) != Some(record))
            {
                let (offset, (epoch, _)) = parted;
                return Err(format!(
                    "logs that share an epoch are the same below: they share one at {end} and part at {offset}, epoch \
                     {epoch}"
                ));
            }
        }
    }
    Ok(())
}

/// The end that a client is told never goes back (KIP-207).
fn the_end_stays(world: &mut World) -> Result<(), String> {
    let Some(process) = leader(world).and_then(|node| world.nodes[node].process.as_ref()) else {
        return Ok(());
    };
    let Ok(found) = process.partition.look_up(LookUp::Latest, CONSUMER, None) else { return Ok(()) };
    if found.offset < world.end_told {
        return Err(format!("the end stays: {} was told, now it is {}", world.end_told, found.offset));
    }
    world.end_told = found.offset;
    Ok(())
}
