//! What is shown on a real Kafka.
//!
//! Each file is one subject; the tests of all stand in one list here, since they run one after
//! another under a runner of our own.

// A program of its own; here its driver is given a real Kafka.
#[path = "../../../examples/blocking.rs"]
#[allow(dead_code)]
mod blocking;
mod bytes;
mod group;
mod kill;
mod lanes;
mod launcher;
mod letters;
mod maps;
mod rolling;
mod sasl;
mod sharing;
mod steering;
mod tls;

use std::process::ExitCode;
use std::time::Duration;

use laneway_testcontainers::{member, runner};
use runner::Test;

fn main() -> ExitCode {
    let mut tests = Vec::new();
    tests.extend(launcher::tests());
    tests.extend(bytes::tests());
    tests.extend(lanes::tests());
    tests.extend(letters::tests());
    tests.extend(steering::tests());
    tests.extend(group::tests());
    tests.extend(sasl::tests());
    tests.extend(rolling::tests());
    tests.extend(sharing::tests());
    tests.extend(tls::tests());
    tests.extend(kill::tests());
    tests.extend(maps::tests());
    runner::main(&tests)
}

/// A test of the function's own name, which the table of scenarios finds.
macro_rules! test {
    ($run:ident) => {
        laneway_testcontainers::runner::Test {
            name: stringify!($run),
            needs: laneway_testcontainers::kafka::any,
            limit: crate::TEST_LIMIT,
            alone: false,
            run: $run,
        }
    };
}
use test;

fn with_kcat(test: Test) -> Test {
    Test {
        needs: member::kcat_is_there,
        ..test
    }
}

/// A Kafka of three nodes takes most of it, on two busy cores.
const TEST_LIMIT: Duration = Duration::from_secs(300);
/// One step of a group: a join, a rebalance, some records.
const WAIT: Duration = Duration::from_secs(60);
