//! klamm-storage
