//! A conversation with `java/Agent.java`: Kafka's own clients as a second opinion.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::jars::Jars;
use crate::process::Process;

/// One JVM that answers commands, since starting one for each costs seconds.
#[derive(Debug)]
pub struct Agent {
    process: Process,
    commands: ChildStdin,
    lines: Receiver<String>,
}

impl Agent {
    /// Starts it; `log` takes what it complains about.
    pub fn start(jars: &Jars, bootstrap: &str, log: &Path) -> Result<Self, String> {
        let stderr = File::options()
            .create(true)
            .append(true)
            .open(log)
            .map_err(|e| format!("{}: {e}", log.display()))?;
        let mut command = jars.java("256m", &["-XX:TieredStopAtLevel=1"], "Agent")?;
        command
            .args(["serve", bootstrap])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr);
        let mut process = Process::spawn("the Java agent", &mut command)?;
        let commands = process.take_stdin().ok_or("the Java agent has no input")?;
        let stdout = process
            .take_stdout()
            .ok_or("the Java agent has no output")?;
        let (sender, lines) = mpsc::sync_channel(LINES_MAX);
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                // Ends with the JVM, or when nobody listens any more.
                let Ok(line) = line else { return };
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self {
            process,
            commands,
            lines,
        })
    }

    /// One command and the lines of its answer.
    pub fn ask(&mut self, command: &str, limit: Duration) -> Result<Vec<String>, String> {
        let end = Instant::now() + limit;
        writeln!(self.commands, "{command}").map_err(|e| format!("the Java agent is gone: {e}"))?;
        let mut answer = Vec::new();
        loop {
            match self
                .lines
                .recv_timeout(end.saturating_duration_since(Instant::now()))
            {
                Ok(line) => match line.strip_prefix("END ") {
                    Some("ok") => return Ok(answer),
                    Some(error) => return Err(format!("{command}: {error}")),
                    None => answer.push(line),
                },
                Err(RecvTimeoutError::Timeout) => {
                    // An answer that comes late would be taken for the next command's.
                    let _ = self.process.kill();
                    return Err(format!("{command}: no answer in {limit:?}"));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(format!("{command}: the Java agent ended"));
                }
            }
        }
    }

    /// Whether it still takes commands.
    pub fn lives(&mut self) -> bool {
        matches!(self.process.ended(), Ok(None))
    }
}

/// Lines read ahead of the test that wants them.
const LINES_MAX: usize = 10_000;
