//! klamm-testing
