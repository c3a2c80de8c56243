//! The word that the node is to stop, as its tasks hear it.

use tokio::sync::watch;

/// Heard by each task; cheap to clone.
#[derive(Clone)]
pub(crate) struct Stop(watch::Receiver<bool>);

impl Stop {
    /// The one who speaks, and what the others hear.
    pub(crate) fn channel() -> (watch::Sender<bool>, Stop) {
        let (sender, receiver) = watch::channel(false);
        (sender, Stop(receiver))
    }

    /// Whether the node is to stop.
    pub(crate) fn is_requested(&self) -> bool {
        *self.0.borrow() || self.0.has_changed().is_err()
    }

    /// Returns when the node is to stop.
    pub(crate) async fn requested(&mut self) {
        // An error means that nobody is left to say it: the node is going down too.
        let _ = self.0.wait_for(|stop| *stop).await;
    }
}
