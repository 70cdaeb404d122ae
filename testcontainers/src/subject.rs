//! A member of a group for the tests that run several, or kill one: handles the records of the
//! agent's `numbered` in lanes by key and logs every handling.
//!
//! ```text
//! member BOOTSTRAP GROUP TOPIC LOG [name=value]...
//!     lanes=16            workers_by_key
//!     work-us=1500        a handling takes up to so long, by its offset
//!     commit-ms=1000      commit interval
//!     session-ms=45000    session time-out
//!     assignors=range,cooperative-sticky
//!     protocol=classic    or consumer (KIP-848)
//!     instance=NAME       a static member
//!     end=drain           or close: what has not started is dropped
//!     held=3,14           records of these keys fail, again and again, and are not logged
//! ```
//!
//! It says `assigned`, `revoked`, `lost` with a partition, and `stopped` with a reason, on standard
//! output. When its standard input ends it drains or closes, and says `closed`.

use std::collections::HashMap;
use std::error::Error;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::handlings::{Numbered, Writer};
use laneway::{AssignorKind, Event, GroupProtocol, Kafka, LaneKey, StartOffset, Topics};

/// Runs one, by the arguments of its command line, until its standard input ends.
///
/// # Errors
/// Arguments that say nothing, a log that exists, and what ended the subscription.
pub async fn run(args: &[String]) -> Result<(), Box<dyn Error>> {
    let [bootstrap, group, topic, log, settings @ ..] = args else {
        return Err("usage: member BOOTSTRAP GROUP TOPIC LOG [name=value]...".into());
    };
    let settings = Settings::of(settings)?;
    let writer = Arc::new(Writer::create(Path::new(log))?);
    let grants = Arc::clone(&writer);
    let closes = settings.0.get("end").is_some_and(|end| end == "close");
    let work_us = settings.number("work-us", 1500)?;
    let held = Arc::new(settings.held()?);
    let mut subscription = Kafka::new(bootstrap.split(','))
        .client_id("our-member")
        .subscribe(Topics::named([topic.as_str()]).group(group.as_str()))
        .start_at(StartOffset::Earliest)
        .workers_by_key(usize::try_from(settings.number("lanes", 16)?)?)
        .lane_key(LaneKey::RecordKey)
        .commit_interval(Duration::from_millis(settings.number("commit-ms", 1000)?))
        .session_timeout(Duration::from_millis(
            settings.number("session-ms", 45_000)?,
        ))
        .on_event(move |event| say(event, &grants));
    subscription = match settings.0.get("protocol").map(String::as_str) {
        Some("consumer") => subscription.group_protocol(GroupProtocol::Consumer),
        None | Some("classic") => subscription.assignors(settings.assignors()?),
        Some(other) => return Err(format!("no protocol {other}").into()),
    };
    if let Some(name) = settings.0.get("instance") {
        subscription = subscription.instance_id(name.as_str());
    }
    let running = subscription.start(move |record| {
        let (writer, held) = (Arc::clone(&writer), Arc::clone(&held));
        async move {
            let (partition, offset) = (record.partition(), record.offset());
            let numbered = record
                .value()
                .and_then(Numbered::of)
                .ok_or("not one of numbered's records")?;
            if held.contains(&numbered.key) {
                return Err("its key is held".to_owned());
            }
            let failed = |e: io::Error| e.to_string();
            writer.start(partition, offset, numbered).map_err(failed)?;
            // Spread over the range without a random source, so that a run can be repeated.
            let work = if work_us == 0 {
                0
            } else {
                offset.unsigned_abs().wrapping_mul(7919) % work_us
            };
            tokio::time::sleep(Duration::from_micros(work)).await;
            writer.end(partition, offset).map_err(failed)
        }
    })?;
    let (ended, end) = tokio::sync::oneshot::channel();
    thread::spawn(move || {
        // An input that cannot be read has ended too.
        let _ = io::stdin().read_to_end(&mut Vec::new());
        let _ = ended.send(());
    });
    let _ = end.await;
    if closes {
        running.close(CLOSE).await?;
    } else {
        running.drain().await?;
    }
    println!("closed");
    Ok(())
}

fn say(event: &Event, log: &Writer) {
    let line = match event {
        Event::Granted { partition, offset } => {
            // Without this line the judge finds records that were never granted.
            let _ = log.grant(partition.partition, *offset);
            format!("assigned {}", partition.partition)
        }
        Event::Revoked { partition, .. } => {
            let _ = log.leave(partition.partition, false);
            format!("revoked {}", partition.partition)
        }
        Event::Lost { partition } => {
            let _ = log.leave(partition.partition, true);
            format!("lost {}", partition.partition)
        }
        Event::Stopped { error } => format!("stopped {error}"),
        other => {
            eprintln!("{other:?}");
            return;
        }
    };
    // Nobody reads any more when the test is over.
    let _ = writeln!(io::stdout(), "{line}");
}

struct Settings(HashMap<String, String>);

impl Settings {
    fn of(args: &[String]) -> Result<Self, String> {
        let pair = |arg: &String| {
            let (name, value) = arg
                .split_once('=')
                .ok_or_else(|| format!("{arg:?} is not name=value"))?;
            if NAMES.contains(&name) {
                Ok((name.to_owned(), value.to_owned()))
            } else {
                Err(format!("no setting {name}"))
            }
        };
        args.iter().map(pair).collect::<Result<_, _>>().map(Self)
    }

    fn number(&self, name: &str, default: u64) -> Result<u64, String> {
        let value = self.0.get(name);
        value.map_or(Ok(default), |value| {
            value
                .parse()
                .map_err(|_| format!("{name}={value} is no number"))
        })
    }

    fn held(&self) -> Result<Vec<u32>, String> {
        let keys = self.0.get("held").map_or("", String::as_str);
        let keys = keys.split(',').filter(|key| !key.is_empty());
        keys.map(|key| key.parse().map_err(|_| format!("held={key} is no key")))
            .collect()
    }

    fn assignors(&self) -> Result<Vec<AssignorKind>, String> {
        let names = self
            .0
            .get("assignors")
            .map_or("range,cooperative-sticky", String::as_str);
        let kind = |name: &str| match name {
            "range" => Ok(AssignorKind::Range),
            "roundrobin" => Ok(AssignorKind::RoundRobin),
            "cooperative-sticky" => Ok(AssignorKind::CooperativeSticky),
            _ => Err(format!("no assignor {name}")),
        };
        names.split(',').map(kind).collect()
    }
}

const CLOSE: Duration = Duration::from_secs(20);
const NAMES: [&str; 9] = [
    "protocol",
    "instance",
    "end",
    "held",
    "lanes",
    "work-us",
    "commit-ms",
    "session-ms",
    "assignors",
];
