//! The `World` harness: engines, brokers, a network and a clock that are values.
