//! klamm-server
