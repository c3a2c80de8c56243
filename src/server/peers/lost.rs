//! Which addresses have ended a connection or refuse one: the first sign that a node's process has died.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Address;

/// Collects addresses until somebody looks at them. There are no more of them than nodes are known.
#[derive(Default)]
pub(crate) struct LostConnections {
    addresses: Mutex<BTreeSet<Address>>,
    told: Notify,
}

impl LostConnections {
    /// A connection to this address was ended by the other side, or refused.
    pub(super) fn tell(&self, address: &Address) {
        self.addresses.lock().insert(address.clone());
        self.told.notify_one();
    }

    /// Waits until there are some, and takes them.
    pub(crate) async fn take(&self) -> BTreeSet<Address> {
        loop {
            let addresses = std::mem::take(&mut *self.addresses.lock());
            if !addresses.is_empty() {
                return addresses;
            }
            self.told.notified().await;
        }
    }
}
