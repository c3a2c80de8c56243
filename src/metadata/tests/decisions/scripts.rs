//! Runs the scripts.

use std::path::Path;

use klamm_testing::check_script;

use crate::stage::Stage;

macro_rules! scripts {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/decisions/scripts/", stringify!($name), ".txt");
            check_script::<Stage>(Path::new(file));
        }
    )*};
}

scripts! { elections eligible_leaders reassignments features directories }
