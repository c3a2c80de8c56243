//! klamm-partition
