//! Processes that cannot outlive the test process.
//!
//! A guard (a few lines of `sh`) holds the reading end of a pipe whose writing end only this
//! process has. When this process ends, by return, panic or `kill -9`, the pipe ends and the guard
//! kills what is left and removes the scratch folder. Each process leads a process group of its
//! own, so that its children go with it and a Ctrl-C reaches the guard by way of the pipe alone.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt::Display;
use std::fs;
use std::io::{self, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// A process of ours; dropping it kills its group.
#[derive(Debug)]
pub struct Process {
    child: Child,
    name: String,
}

impl Process {
    /// Starts `command` in a process group of its own, under the guard.
    pub fn spawn(name: impl Display, command: &mut Command) -> Result<Self, String> {
        let name = name.to_string();
        // The guard is held over the spawn, so that no process exists that it does not know.
        let mut guard = guard()?;
        let child = command
            .process_group(0)
            .spawn()
            .map_err(|e| format!("{name}: {e}"))?;
        guard.pids.insert(child.id());
        guard.tell().map_err(|e| format!("the guard ended: {e}"))?;
        Ok(Self { child, name })
    }

    /// Sends a signal by its name without "SIG" (`STOP`, `CONT`, `TERM`, `KILL`).
    pub fn signal(&self, signal: &str) -> Result<(), String> {
        let sent = sh(
            "kill -s \"$1\" -- \"$2\"",
            [signal, &self.child.id().to_string()],
        )?;
        if sent.success() {
            Ok(())
        } else {
            Err(format!("cannot send {signal} to {}", self.name))
        }
    }

    /// Kills the whole group and waits for its leader to be gone.
    pub fn kill(&mut self) -> Result<ExitStatus, String> {
        kill_group(self.child.id())?;
        self.wait(KILL_LIMIT)
    }

    /// Waits for its end.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus, String> {
        let end = Instant::now() + limit;
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            if Instant::now() >= end {
                return Err(format!("{} still runs after {limit:?}", self.name));
            }
            thread::sleep(POLL);
        }
    }

    /// Its status, if it has ended.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>, String> {
        let status = self
            .child
            .try_wait()
            .map_err(|e| format!("{}: {e}", self.name))?;
        if status.is_some() {
            let mut guard = guard()?;
            if guard.pids.remove(&self.child.id()) {
                guard.tell().map_err(|e| format!("the guard ended: {e}"))?;
            }
        }
        Ok(status)
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The writing end of its standard input, once.
    pub fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// The reading end of its standard output, once.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// The reading end of its standard error, once.
    pub fn take_stderr(&mut self) -> Option<ChildStderr> {
        self.child.stderr.take()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !matches!(self.ended(), Ok(Some(_))) {
            // Nothing to do about an error here: the guard tries again when this process ends.
            let _ = self.kill();
        }
    }
}

/// Says whether a status means "killed by SIGKILL", which is what [`Process::kill`] leaves.
pub fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(SIGKILL)
}

/// The folder of this test process: data, logs, sockets. Removed by the guard at the end, unless
/// `LANEWAY_KEEP=1`.
pub fn scratch() -> Result<PathBuf, String> {
    Ok(guard()?.scratch.clone())
}

/// A new folder under [`scratch`].
pub fn scratch_folder(name: &str) -> Result<PathBuf, String> {
    let folder = scratch()?.join(name);
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    Ok(folder)
}

/// The last lines of a log, for a message about a process that failed.
pub fn tail(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

struct Guard {
    /// Ours alone, so its end is our end.
    pipe: ChildStdin,
    pids: BTreeSet<u32>,
    scratch: PathBuf,
}

impl Guard {
    fn start() -> Result<Self, String> {
        let scratch = std::env::temp_dir().join(format!("laneway-tests-{}", std::process::id()));
        fs::create_dir_all(&scratch).map_err(|e| format!("{}: {e}", scratch.display()))?;
        let keep = std::env::var_os("LANEWAY_KEEP").is_some_and(|keep| keep == "1");
        let mut shell = Command::new("sh")
            .args(["-c", GUARD, "laneway-guard"])
            .arg(&scratch)
            .arg(if keep { "keep" } else { "remove" })
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|e| format!("sh: {e}"))?;
        let pipe = shell.stdin.take().ok_or("sh: no pipe to the guard")?;
        Ok(Self {
            pipe,
            pids: BTreeSet::new(),
            scratch,
        })
    }

    /// The guard keeps the last whole line: all that runs now.
    fn tell(&mut self) -> io::Result<()> {
        let mut line = String::new();
        for pid in &self.pids {
            line.push_str(&format!("{pid} "));
        }
        line.push('\n');
        self.pipe.write_all(line.as_bytes())
    }
}

fn guard() -> Result<MutexGuard<'static, Guard>, String> {
    static GUARD: OnceLock<Result<Mutex<Guard>, String>> = OnceLock::new();
    match GUARD.get_or_init(|| Guard::start().map(Mutex::new)) {
        // The guard's state is whole after every statement, so a panic elsewhere spoils nothing.
        Ok(guard) => Ok(guard.lock().unwrap_or_else(PoisonError::into_inner)),
        Err(e) => Err(e.clone()),
    }
}

fn kill_group(leader: u32) -> Result<(), String> {
    // A frozen process dies of SIGKILL too. A failure means that the group is gone already.
    sh("kill -s KILL -- \"-$1\" 2>/dev/null", [leader.to_string()]).map(|_| ())
}

fn sh<A: AsRef<OsStr>>(
    script: &str,
    args: impl IntoIterator<Item = A>,
) -> Result<ExitStatus, String> {
    let mut command = Command::new("sh");
    command
        .args(["-c", script, "sh"])
        .args(args)
        .stdin(Stdio::null());
    command.status().map_err(|e| format!("sh: {e}"))
}

/// `kill` is the shell's own: a machine may have no such program.
const GUARD: &str = r#"
trap '' HUP INT TERM
pids=
while read -r line; do pids=$line; done
for p in $pids; do kill -s KILL -- "-$p"; done
[ "$2" = keep ] && exit
rm -rf -- "$1" || { sleep 1; rm -rf -- "$1"; }
"#;

const SIGKILL: i32 = 9;
const KILL_LIMIT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(10);
const TAIL_LINES: usize = 15;

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper() -> Process {
        Process::spawn(
            "sleeper",
            Command::new("sh").args(["-c", "sleep 600 & wait"]),
        )
        .unwrap()
    }

    fn group_lives(leader: u32) -> bool {
        sh("kill -s 0 -- \"-$1\" 2>/dev/null", [leader.to_string()])
            .unwrap()
            .success()
    }

    #[test]
    fn a_kill_takes_the_children_along() {
        let mut process = sleeper();
        assert!(group_lives(process.id()));
        assert!(was_killed(process.kill().unwrap()));
        let end = Instant::now() + KILL_LIMIT;
        while group_lives(process.id()) {
            assert!(Instant::now() < end, "the group outlives its leader");
            thread::sleep(POLL);
        }
    }

    #[test]
    fn a_frozen_process_dies_too() {
        let mut process = sleeper();
        process.signal("STOP").unwrap();
        assert_eq!(process.ended().unwrap(), None);
        assert!(was_killed(process.kill().unwrap()));
    }

    #[test]
    fn the_guard_kills_what_its_pipe_named_last() {
        // The guard's own script, with a pipe that this test ends.
        let mut victim = Command::new("sleep")
            .arg("600")
            .process_group(0)
            .spawn()
            .unwrap();
        let folder = scratch_folder("guarded").unwrap();
        let mut shell = Command::new("sh")
            .args(["-c", GUARD, "guard"])
            .arg(&folder)
            .arg("remove")
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut pipe = shell.stdin.take().unwrap();
        writeln!(pipe, "1 2 3").unwrap(); // a list of the past: must be forgotten
        writeln!(pipe, "{}", victim.id()).unwrap();
        drop(pipe);
        shell.wait().unwrap();
        assert!(was_killed(victim.wait().unwrap()));
        assert!(!folder.exists());
    }
}
