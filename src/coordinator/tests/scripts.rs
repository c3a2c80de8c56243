//! Scripts in, golden text out: the state machine of groups, without clock, log or tasks.
//!
//! Each file in `scripts/` holds scripts. A script begins with `== ` and its story; then come commands, and
//! behind each, indented, what the machine did. `KLAMM_UPDATE=1` writes the files anew; read the
//! difference before you commit it. The commands are listed in `Stage::run`.
//!
//! After every command the records written so far are replayed into a second machine, which must know the
//! same offsets and the same stored generation: what a restart would find.
#![allow(clippy::disallowed_methods, reason = "scripts are read and written with std")]

mod script;
mod stage;

use stage::Stage;

macro_rules! scripts {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scripts/", stringify!($name), ".txt");
            klamm_testing::check_script::<Stage>(std::path::Path::new(file));
        }
    )*};
}

scripts! { dead empty simple preparing_rebalance completing_rebalance stable elsewhere joining rebalancing syncing static_members leaving committing expiring loading failing admin }
