//! Starts a real Kafka, and the tests that need one.
