//! klamm-metadata
