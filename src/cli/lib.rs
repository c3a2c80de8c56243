//! klamm-cli
