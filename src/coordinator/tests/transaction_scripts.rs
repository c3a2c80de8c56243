//! Scripts in, golden text out: the state machine of transactions, without clock, log or tasks.
//!
//! Each file in `transaction_scripts/` holds scripts. A script begins with `== ` and its story; then come commands,
//! and behind each, indented, what the machine did. `KLAMM_UPDATE=1` writes the files anew; read the difference
//! before you commit it. The commands are listed in `Stage::run`.
//!
//! After every command the records written so far are loaded into a second machine, which must know the same: what
//! a restart would find. Only the epoch before the last one is not written, as in Kafka.
#![allow(clippy::disallowed_methods, reason = "scripts are read and written with std")]

mod script;
mod transaction_stage;

use transaction_stage::Stage;

macro_rules! scripts {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/transaction_scripts/", stringify!($name), ".txt");
            klamm_testing::check_script::<Stage>(std::path::Path::new(file));
        }
    )*};
}

scripts! { elsewhere initializing adding ending ending_with_epochs timing_out loading failing describing }
