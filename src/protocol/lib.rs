//! klamm-protocol
