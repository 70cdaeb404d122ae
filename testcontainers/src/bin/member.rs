//! A member of a group, as [`laneway_testcontainers::subject`] describes it.

use std::env;
use std::error::Error;

use laneway_testcontainers::subject;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    subject::run(&args).await
}
