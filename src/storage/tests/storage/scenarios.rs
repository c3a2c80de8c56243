//! What a broker does with its logs, as scenarios that are stopped and failed at every call to the disk.

use std::path::Path;

use klamm_model::{TopicPartition, Uuid};
use klamm_storage::LogConfig;

use crate::every_call::{Passed, Scenario, crash_at_every_call, fail_at_every_call};
use crate::support::{LOGS, MORE, TOPIC_ID, partition, small};

fn config() -> LogConfig {
    LogConfig { retention_ms: Some(1000), file_delete_delay_ms: 0, segment_bytes: 900, ..small() }
}

fn other() -> TopicPartition {
    TopicPartition::new("other", 3)
}

/// Batches with and without producers, over several segments, with flushes in between.
pub(crate) fn producing() -> Scenario {
    let mut scenario = Scenario::new("producing", config())
        .step("create", |world| world.create(&partition(), TOPIC_ID))
        .step("create", |world| world.create(&other(), Uuid([5; 16])));
    for round in 0..4 {
        for producer in 1..4 {
            scenario = scenario
                .step("append", |world| world.append(&partition()))
                .step("append", move |world| world.append_from(&partition(), producer));
        }
        scenario = match round {
            0 => scenario.step("flush", |world| world.flush(&partition())),
            1 => scenario.step("append", |world| world.append_from(&other(), 1)),
            2 => scenario
                .step("flush", |world| world.flush(&other()))
                .step("append", |world| world.append_tombstones(&other())),
            _ => scenario,
        };
        scenario = scenario
            .step("sync what was rolled", |world| {
                world.flush_due();
                Ok(())
            })
            .step("checkpoint", |world| world.checkpoint());
    }
    scenario
}

/// A log gets shorter at its beginning, by time and by DeleteRecords. The producers of what went are remembered.
pub(crate) fn removing() -> Scenario {
    let mut scenario =
        Scenario::new("removing", config()).step("create", |world| world.create(&partition(), TOPIC_ID));
    for producer in 1..10 {
        scenario = scenario
            .step("append", move |world| world.append_from(&partition(), producer))
            .step("append", |world| world.append(&partition()));
    }
    scenario
        .step("flush", |world| world.flush(&partition()))
        .step("checkpoint", |world| world.checkpoint())
        .step("retention", |world| {
            let start = world.log(&partition()).segment_offsets()[1];
            world.retain_from(&partition(), start)
        })
        .step("remove", |world| {
            world.maintain();
            Ok(())
        })
        .step("append", |world| world.append(&partition()))
        .step("delete records", |world| {
            let before = world.log(&partition()).segment_offsets()[2] + 1;
            world.delete_records(&partition(), before)
        })
        .step("retention", |world| {
            let start = world.log(&partition()).log_start_offset();
            world.retain_from(&partition(), start)
        })
        .step("checkpoint", |world| world.checkpoint())
        .step("append", |world| world.append_from(&partition(), 2))
        .step("flush", |world| world.flush(&partition()))
}

/// A topic is deleted and made again with the same name.
pub(crate) fn recreating() -> Scenario {
    let mut scenario =
        Scenario::new("recreating", config()).step("create", |world| world.create(&partition(), TOPIC_ID));
    for _ in 0..4 {
        scenario = scenario.step("append", |world| world.append_from(&partition(), 1));
    }
    scenario
        .step("delete records", |world| world.delete_records(&partition(), 4))
        .step("flush", |world| world.flush(&partition()))
        .step("checkpoint", |world| world.checkpoint())
        .step("delete", |world| world.delete(&partition()))
        .step("remove", |world| {
            world.maintain();
            Ok(())
        })
        .step("create again", |world| world.create(&partition(), Uuid([9; 16])))
        .step("append", |world| world.append_from(&partition(), 1))
        .step("flush", |world| world.flush(&partition()))
        .step("append", |world| world.append_from(&partition(), 2))
        .step("checkpoint", |world| world.checkpoint())
}

/// The partitions of a topic are made at once, and deleted and made again at once.
pub(crate) fn recreating_many() -> Scenario {
    fn many() -> Vec<TopicPartition> {
        (0..3).map(|index| TopicPartition::new("t", index)).collect()
    }
    let mut scenario = Scenario::new("recreating many", config())
        .step("create", |world| world.create_all(&many(), TOPIC_ID));
    for tp in many() {
        scenario = scenario.step("append", move |world| world.append_from(&tp, 1));
    }
    scenario = scenario
        .step("flush", |world| many().iter().try_for_each(|tp| world.flush(tp)))
        .step("checkpoint", |world| world.checkpoint())
        .step("delete", |world| world.delete_all(&many()))
        .step("create again", |world| world.create_all(&many(), Uuid([9; 16])));
    for tp in many() {
        scenario = scenario.step("append", move |world| world.append_from(&tp, 2));
    }
    scenario
        .step("remove", |world| {
            world.maintain();
            Ok(())
        })
        .step("flush", |world| world.flush(&partition()))
        .step("checkpoint", |world| world.checkpoint())
}

/// Leaders follow one another, and each makes the log drop what the one before had not replicated.
pub(crate) fn truncating() -> Scenario {
    let mut scenario =
        Scenario::new("truncating", config()).step("create", |world| world.create(&partition(), TOPIC_ID));
    for epoch in 0..4 {
        scenario = scenario.step("lead", move |world| world.assign_epoch(&partition(), epoch));
        for producer in 1..5 {
            scenario = scenario.step("append", move |world| world.append_from(&partition(), producer));
        }
        scenario = scenario
            .step("flush", |world| world.flush(&partition()))
            .step("checkpoint", |world| world.checkpoint())
            .step("append", |world| world.append(&partition()))
            .step("truncate", move |world| {
                let end = world.log(&partition()).log_end_offset();
                world.truncate(&partition(), if epoch == 2 { end - 18 } else { end - 6 })
            })
            .step("append", |world| world.append_from(&partition(), 7));
    }
    scenario.step("flush", |world| world.flush(&partition()))
}

/// Transactions that commit, abort, or stay open, over several segments.
pub(crate) fn transactions() -> Scenario {
    let mut scenario =
        Scenario::new("transactions", config()).step("create", |world| world.create(&partition(), TOPIC_ID));
    for round in 0..3 {
        scenario = scenario
            .step("append", |world| world.append_in_transaction(&partition(), 1))
            .step("append", |world| world.append_in_transaction(&partition(), 2))
            .step("append", |world| world.append(&partition()))
            .step("commit", |world| world.end_transaction(&partition(), 1, true))
            .step("append", |world| world.append_in_transaction(&partition(), 3))
            .step("abort", |world| world.end_transaction(&partition(), 2, false));
        scenario = match round {
            1 => scenario.step("flush", |world| world.flush(&partition())),
            _ => scenario.step("roll", |world| world.roll(&partition())),
        };
    }
    scenario
        .step("sync what was rolled", |world| {
            world.flush_due();
            Ok(())
        })
        .step("checkpoint", |world| world.checkpoint())
        .step("abort", |world| world.end_transaction(&partition(), 3, false))
        .step("flush", |world| world.flush(&partition()))
}

/// A stop in order, and a start behind it, twice.
pub(crate) fn stopping() -> Scenario {
    let mut scenario =
        Scenario::new("stopping", config()).step("create", |world| world.create(&partition(), TOPIC_ID));
    for round in 0..2 {
        for producer in 1..4 {
            scenario =
                scenario.step("append", move |world| world.append_from(&partition(), producer + round));
        }
        scenario = scenario
            .step("close", |world| world.close())
            .step("open", |world| if world.is_open() { Ok(()) } else { world.open() });
    }
    scenario.step("append", |world| world.append(&partition()))
}

/// Batches over several segments, each on the disk when it is acknowledged; nothing else asks for a sync.
pub(crate) fn group_commit() -> Scenario {
    let mut scenario = Scenario::new("group commit", config())
        .with_group_commit()
        .step("create", |world| world.create(&partition(), TOPIC_ID))
        .step("create", |world| world.create(&other(), Uuid([5; 16])));
    for round in 0..3 {
        for producer in 1..4 {
            scenario = scenario.step("append", move |world| world.append_from(&partition(), producer));
        }
        scenario = scenario
            .step("append", |world| world.append_in_transaction(&other(), 1))
            .step("end", move |world| world.end_transaction(&other(), 1, round != 1))
            .step("lead", move |world| world.assign_epoch(&partition(), round));
    }
    scenario.step("checkpoint", |world| world.checkpoint()).step("append", |world| world.append(&partition()))
}

/// A partition moves into another directory while it is written, and back.
pub(crate) fn moving() -> Scenario {
    let mut scenario = Scenario::new("moving", config())
        .with_setting(|settings| settings.log_dirs = vec![LOGS.into(), MORE.into()])
        .step("create", |world| world.create(&partition(), TOPIC_ID));
    for directory in [MORE, LOGS] {
        for producer in 1..4 {
            scenario = scenario
                .step("append", move |world| world.append_from(&partition(), producer))
                .step("append", |world| world.append(&partition()));
        }
        scenario = scenario
            .step("flush", |world| world.flush(&partition()))
            .step("checkpoint", |world| world.checkpoint())
            .step("begin to move", move |world| world.begin_move(&partition(), Path::new(directory)))
            .step("append", |world| world.append_from(&partition(), 1))
            .step("move", move |world| world.finish_move(&partition(), Path::new(directory)));
    }
    scenario.step("append", |world| world.append_from(&partition(), 2)).step("remove", |world| {
        world.maintain();
        Ok(())
    })
}

/// All but the one that moves, which has a test of its own.
const IN_ONE_DIRECTORY: [fn() -> Scenario; 8] =
    [producing, removing, recreating, recreating_many, truncating, transactions, stopping, group_commit];

/// Enough places, or the scenario has lost its point.
fn check_size(passed: &Passed) {
    assert!(passed.calls > 40 && passed.checks > passed.calls, "{passed:?}");
}

fn crashes(scenario: Scenario) {
    check_size(&crash_at_every_call(&scenario).unwrap_or_else(|caught| panic!("{caught}")));
}

#[test]
fn nothing_told_is_lost_at_any_crash_while_it_is_produced() {
    crashes(producing());
}

#[test]
fn nothing_told_is_lost_at_any_crash_while_a_log_gets_shorter() {
    crashes(removing());
}

#[test]
fn nothing_told_is_lost_at_any_crash_while_a_topic_is_made_again() {
    crashes(recreating());
}

#[test]
fn nothing_told_is_lost_at_any_crash_while_many_partitions_are_made_again() {
    crashes(recreating_many());
}

#[test]
fn nothing_told_is_lost_at_any_crash_between_leaders() {
    crashes(truncating());
}

#[test]
fn nothing_told_is_lost_at_any_crash_between_transactions() {
    crashes(transactions());
}

#[test]
fn nothing_told_is_lost_at_any_crash_while_a_store_stops() {
    crashes(stopping());
}

#[test]
fn nothing_told_is_lost_at_any_crash_under_group_commit() {
    crashes(group_commit());
}

#[test]
fn nothing_told_is_lost_at_any_crash_while_a_partition_moves() {
    crashes(moving());
}

#[test]
fn nothing_told_is_lost_on_a_disk_that_is_full_or_fails() {
    for scenario in IN_ONE_DIRECTORY {
        check_size(&fail_at_every_call(&scenario()).unwrap_or_else(|caught| panic!("{caught}")));
    }
}

#[test]
fn nothing_told_is_lost_on_disks_that_are_full_or_fail_while_a_partition_moves() {
    check_size(&fail_at_every_call(&moving()).unwrap_or_else(|caught| panic!("{caught}")));
}
