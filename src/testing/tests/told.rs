//! What is told to the log is heard by the test that listens.

use klamm_testing::told;

/// Other threads come to the same places without listening.
#[test]
fn what_is_told_is_heard_whoever_comes_first() {
    fn tell() {
        tracing::info!("here I am");
    }
    let lines = told(|| {
        std::thread::scope(|scope| scope.spawn(tell).join().unwrap());
        tell();
    });
    assert_eq!(lines, ["INFO here I am"]);
}
