//! compat-tests
