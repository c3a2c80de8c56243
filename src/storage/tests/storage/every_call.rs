//! A scenario, stopped or failed at every single call that it makes to the disk.
//!
//! [`crash_at_every_call`] stops the machine at each call that changes the disk, kills the process there, or cuts
//! the power and leaves none, all, or parts of what was not synced, also in the middle of the recovery that
//! follows. [`fail_at_every_call`] lets each call fail once, or from then on until somebody mends the disk, and
//! then wants the same step to succeed. What must hold afterwards stands in `invariants`.

use klamm_storage::{LogConfig, StorageError, StoreSettings};
use klamm_testing::{Failure, Fault, OperationKind, SimulatedDisk, Unsynced};

use crate::invariants::{Survives, Violation, check_open, check_reopened};
use crate::support::{ENDINGS, found_after};
use crate::world::World;

/// One thing that a user or a broker does. When it fails it is done again, so it must be one that can be.
type Step = Box<dyn Fn(&mut World) -> Result<(), StorageError>>;

/// What happens to a store, from its opening on.
pub(crate) struct Scenario {
    name: &'static str,
    config: LogConfig,
    settings: Box<dyn Fn(&SimulatedDisk) -> StoreSettings>,
    group_commit: bool,
    steps: Vec<(&'static str, Step)>,
}

impl Scenario {
    /// A scenario that begins with the opening of an empty store. All its logs have these settings.
    pub(crate) fn new(name: &'static str, config: LogConfig) -> Scenario {
        let settings = Box::new(crate::support::settings);
        let scenario = Scenario { name, config, settings, group_commit: false, steps: Vec::new() };
        scenario.step("open", |world| if world.is_open() { Ok(()) } else { world.open() })
    }

    /// Each append is acknowledged when it is on the disk, and not before.
    pub(crate) fn with_group_commit(mut self) -> Scenario {
        self.group_commit = true;
        self
    }

    /// With another setting of the store: several directories, or a planted mistake.
    pub(crate) fn with_setting(mut self, set: impl Fn(&mut StoreSettings) + 'static) -> Scenario {
        let before = self.settings;
        self.settings = Box::new(move |disk| {
            let mut settings = before(disk);
            set(&mut settings);
            settings
        });
        self
    }

    /// One more step.
    pub(crate) fn step(
        mut self,
        name: &'static str,
        step: impl Fn(&mut World) -> Result<(), StorageError> + 'static,
    ) -> Scenario {
        self.steps.push((name, Box::new(step)));
        self
    }

    fn world(&self, disk: &SimulatedDisk) -> World {
        let mut world = World::new(disk.clone(), self.config.clone(), (self.settings)(disk));
        world.group_commit = self.group_commit;
        world
    }

    /// Does all steps until one fails, and returns its name.
    fn run(&self, world: &mut World) -> Option<(&'static str, StorageError)> {
        self.steps.iter().find_map(|(name, step)| step(world).err().map(|error| (*name, error)))
    }

    /// The calls of a run in which nothing happens, in their order.
    fn calls(&self) -> Vec<OperationKind> {
        let disk = SimulatedDisk::new(1);
        let mut world = self.world(&disk);
        if let Some((step, error)) = self.run(&mut world) {
            panic!("{}, {step}: {error}, and the disk is sound", self.name);
        }
        disk.operations().iter().map(|operation| operation.kind).collect()
    }
}

/// A violation, and where it was provoked.
#[derive(Debug)]
pub(crate) struct Caught {
    pub(crate) violation: Violation,
    /// The scenario, the call, the fault.
    pub(crate) place: String,
}

/// What a run over all calls has done.
#[derive(Debug)]
pub(crate) struct Passed {
    /// Calls at which something happened.
    pub(crate) calls: usize,
    /// Stores that were opened and checked.
    pub(crate) checks: usize,
}

/// Stops the machine at every call that changes the disk.
pub(crate) fn crash_at_every_call(scenario: &Scenario) -> Result<Passed, Caught> {
    let calls = scenario.calls().into_iter().filter(|kind| kind.is_change()).count();
    let mut checks = 0;
    for call in 0..calls as u64 {
        let disk = SimulatedDisk::new(call);
        disk.crash_after(call);
        let mut world = scenario.world(&disk);
        let step = scenario.run(&mut world).map_or("the end", |(name, _)| name);
        for (index, ending) in ENDINGS.into_iter().enumerate() {
            // What chance decides is walked in turns: all of it at every call would take long, and says the same.
            if index > 1 && !(call as usize + index).is_multiple_of(4) {
                continue;
            }
            let also_interrupted = (call as usize + index).is_multiple_of(4);
            for interrupts_recovery in [false, true].into_iter().take(1 + usize::from(also_interrupted)) {
                let left = found_after(ending, &disk);
                let left = if interrupts_recovery { interrupted(scenario, left, ending, call) } else { left };
                let mut found = scenario.world(&left);
                found.model = world.model.clone();
                let survives = if ending.is_none() { Survives::Acknowledged } else { Survives::Flushed };
                checks += 1;
                check_reopened(&mut found, survives).map_err(|violation| Caught {
                    violation,
                    place: format!(
                        "{}, {step}: {} at change {call}{}",
                        scenario.name,
                        ending.map_or("kill".to_owned(), |unsynced| format!(
                            "power cut, unsynced {unsynced:?}"
                        )),
                        if interrupts_recovery { ", and again in the recovery" } else { "" },
                    ),
                })?;
            }
        }
    }
    Ok(Passed { calls, checks })
}

/// The same end once more, somewhere in the start that follows the first one.
fn interrupted(
    scenario: &Scenario,
    disk: SimulatedDisk,
    ending: Option<Unsynced>,
    call: u64,
) -> SimulatedDisk {
    disk.crash_after(call % 17);
    let mut world = scenario.world(&disk);
    // It fails as soon as the machine is down; if the start has fewer calls, the end comes behind it.
    let _ = world.open();
    found_after(ending, &disk)
}

/// Lets every call fail with EIO, and with ENOSPC those that can. The process lives, the error says where, nothing
/// that was acknowledged is lost, and when the disk is sound again the same step succeeds.
pub(crate) fn fail_at_every_call(scenario: &Scenario) -> Result<Passed, Caught> {
    let calls = scenario.calls();
    let mut checks = 0;
    for (index, kind) in calls.iter().enumerate() {
        for (failure, lasts, half) in [
            (Failure::Device, false, false),
            (Failure::Device, true, true),
            (Failure::NoSpace, false, true),
            (Failure::NoSpace, true, false),
        ] {
            let takes_space =
                !matches!(kind, OperationKind::SyncDir | OperationKind::Remove) && kind.is_change();
            if failure == Failure::NoSpace && !takes_space {
                continue;
            }
            let mut fault = Fault::new(failure).from_call(index as u64 + 1);
            fault = if lasts { fault } else { fault.times(1) };
            fault = if half { fault.after_half_a_write() } else { fault };
            checks += 1;
            fail_once(scenario, fault, index as u64).map_err(|(step, violation)| Caught {
                violation,
                place: format!(
                    "{}, {step}: {failure:?} at call {index} ({kind:?}), lasting: {lasts}",
                    scenario.name
                ),
            })?;
        }
    }
    Ok(Passed { calls: calls.len(), checks })
}

fn fail_once(scenario: &Scenario, fault: Fault, seed: u64) -> Result<(), (&'static str, Violation)> {
    let disk = SimulatedDisk::new(seed);
    disk.inject(fault);
    let mut world = scenario.world(&disk);
    for (name, step) in &scenario.steps {
        let Err(error) = step(&mut world) else { continue };
        check_error(&world, &error).map_err(|violation| (*name, violation))?;
        world.disk.clear_faults();
        put_in_order(&mut world).map_err(|violation| (*name, violation))?;
        step(&mut world).map_err(|error| {
            (*name, Violation { check: "a sound disk is used again", found: error.to_string() })
        })?;
    }
    disk.clear_faults();
    let check = |violation| ("the end", violation);
    put_in_order(&mut world).map_err(check)?;
    let left = world.disk.crash_leaving(Unsynced::Lost);
    let mut found = scenario.world(&left);
    found.model = world.model.clone();
    check_reopened(&mut found, Survives::Flushed).map_err(check)
}

/// A person reads it at night: the file or folder, and what was done with it.
fn check_error(world: &World, error: &StorageError) -> Result<(), Violation> {
    let text = error.to_string();
    let is_within = world.settings.log_dirs.iter().any(|directory| error.path.starts_with(directory));
    let names_file = is_within && text.contains(&*error.path.to_string_lossy());
    if names_file && !error.context.is_empty() {
        return Ok(());
    }
    Err(Violation { check: "the error names the file and the action", found: text })
}

/// What is still in service must be whole. What went offline is what a restart brings back.
fn put_in_order(world: &mut World) -> Result<(), Violation> {
    let is_offline = world.is_open()
        && (world.store().logs().iter().any(|log| log.failure().is_some())
            || world.store().directory_statuses().iter().any(|directory| directory.failure.is_some()));
    if !is_offline && !world.is_stopping && world.is_open() {
        return check_open(world, Survives::Acknowledged);
    }
    if !world.is_open() && world.model.partitions.is_empty() {
        return Ok(());
    }
    if world.is_open() {
        // What a broker does every few seconds.
        world.flush_due();
    }
    world.kill();
    match world.open() {
        Ok(()) => check_open(world, Survives::Acknowledged),
        Err(error) => Err(Violation { check: "every log opens", found: error.to_string() }),
    }
}

impl std::fmt::Display for Caught {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}\n  in {}", self.violation, self.place)
    }
}
