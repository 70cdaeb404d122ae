//! `chaos`: three real brokers, a group of ours and one of Java's consumer beside it, and no peace.
//!
//! What it is: a run of some minutes in which an idempotent Java producer writes keyed, numbered
//! records all the while, and what a [`schedule`] says is done to members and brokers. Both groups
//! have as many members, suffer the same at the same time, and reach the brokers through the same
//! [`proxy`]; Java's do no work. At the end all faults stop, everything must drain, and what was
//! handled is judged ([`verdict`]); how long nothing moved after each fault stands in a table, ours
//! beside Java's ([`figures`]). A third group, one member of ours, reads a topic that is compacted.
//!
//! What it is not: a measurement of speed, or a place to find out why; that is virtual time's.
//!
//! The proxy is a process's own rather than a pipe within members: the nodes advertise it, so it
//! cuts and delays Java's consumer as it does ours, and members run as users run them.

pub mod figures;
pub mod proxy;
mod report;
pub mod schedule;
mod stage;
mod troupe;
pub mod verdict;

use std::process::ExitCode;
use std::time::Duration;

use schedule::Schedule;

/// The command line: `chaos --minutes M --seed S`, or, for the members, `chaos member ...`.
pub fn main(args: &[String]) -> ExitCode {
    let result = match args {
        [first, rest @ ..] if first == "member" => member(rest).map(|()| true),
        _ => asked(args).and_then(|(minutes, seed)| {
            let lasts = Duration::from_secs_f64(minutes * 60.0);
            stage::play(seed, lasts, &Schedule::new(seed, lasts))
        }),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

fn member(args: &[String]) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|e| e.to_string())?;
    runtime
        .block_on(crate::subject::run(args))
        .map_err(|e| e.to_string())
}

fn asked(args: &[String]) -> Result<(f64, u64), String> {
    let (mut minutes, mut seed) = (2.0, 1);
    for pair in args.chunks(2) {
        let bad = || format!("{}\nusage: chaos [--minutes M] [--seed S]", pair.join(" "));
        match pair {
            [name, value] if name == "--minutes" => {
                minutes = value.parse().map_err(|_| bad())?;
                if !(0.1..=MINUTES_MAX).contains(&minutes) {
                    return Err(bad());
                }
            }
            [name, value] if name == "--seed" => seed = value.parse().map_err(|_| bad())?,
            _ => return Err(bad()),
        }
    }
    Ok((minutes, seed))
}

/// Every handling is kept until the end, in files and then in memory.
const MINUTES_MAX: f64 = 600.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(text: &str) -> Result<(f64, u64), String> {
        let args: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        asked(&args)
    }

    #[test]
    fn the_command_line() {
        assert_eq!(ask(""), Ok((2.0, 1)));
        assert_eq!(ask("--seed 7 --minutes 0.5"), Ok((0.5, 7)));
        for bad in ["--seed", "--minutes 0", "--minutes 1e9", "--sed 7", "7"] {
            assert!(ask(bad).unwrap_err().contains("usage"), "{bad}");
        }
    }
}
