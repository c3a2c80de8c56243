//! klamm-coordinator
