//! Tests of the quorum.
