//! klamm-records
