//! Plants the mistakes of `faults.txt` in a copy of the repository, and prints their names:
//! `plant DIRECTORY`. See `.ci/planted`.

use laneway_protocol_tests::faults;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(root) = std::env::args().nth(1) else {
        eprintln!("usage: plant DIRECTORY, a copy of the repository");
        return ExitCode::from(2);
    };
    match faults::plant_all(Path::new(&root)) {
        Ok(()) => {
            faults::all().iter().for_each(|f| println!("{}", f.name));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("plant: {error}");
            ExitCode::FAILURE
        }
    }
}
