//! Three brokers, members that come and go, and no peace: see [`laneway_testcontainers::chaos`].
//!
//! ```text
//! cargo run --release -p laneway-testcontainers --bin chaos -- --minutes 2 --seed 7
//! ```

use std::env;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    laneway_testcontainers::chaos::main(&args)
}
