//! klamm-config
