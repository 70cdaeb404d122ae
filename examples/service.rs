//! A service that is told what happens, says what holds it up, and ends cleanly.
//!
//! `service BOOTSTRAP TOPIC GROUP` handles records in lanes by key. Each line that is typed prints
//! how it stands; `pause` and `resume` do what they say. Ctrl-C takes no more records, lets what
//! runs end, commits and leaves the group: within ten seconds, whatever handlers and brokers do.

use laneway::{Event, Kafka, LaneKey, Record, Running, Scope, Topics};
use std::process::ExitCode;
use std::time::Duration;
use tokio::sync::mpsc;

/// The longest that the end may take.
const CLOSE_MAX: Duration = Duration::from_secs(10);
/// A record that runs for so long is told of.
const STALL: Duration = Duration::from_secs(30);

async fn handle(record: Record) -> Result<(), String> {
    tokio::time::sleep(Duration::from_millis(20)).await;
    match record.value() {
        Some(value) if !value.is_empty() => Ok(()),
        _ => Err("there is nothing in it".to_owned()),
    }
}

/// What holds each partition back.
async fn show(running: &Running) -> Result<(), laneway::Error> {
    let now = running.snapshot().await?;
    println!(
        "{} settled, {} running, {} wait; lag {}",
        now.settled,
        now.out,
        now.queued,
        running.lag().await?
    );
    for p in &now.partitions {
        let paused = if p.paused { ", paused" } else { "" };
        print!("  {} stands at {}{paused}", p.partition, p.watermark);
        match &p.holdup {
            Some(h) => println!(
                ": record {} for {:?}, attempt {}, {:?}",
                h.offset, h.holds_for, h.attempts, h.what
            ),
            None => println!(),
        }
    }
    Ok(())
}

async fn serve(bootstrap: &str, topic: &str, group: &str) -> Result<(), laneway::Error> {
    let running = Kafka::new([bootstrap])
        .subscribe(Topics::named([topic]).group(group))
        .workers_by_key(16)
        .lane_key(LaneKey::RecordKey)
        .stall_after(STALL)
        .start(handle)?;
    let mut events = running.events();
    // A thread of its own: reading a terminal cannot be cancelled, and must not keep the end waiting.
    let (typed, mut lines) = mpsc::channel(16);
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if typed.blocking_send(line).is_err() {
                return;
            }
        }
    });
    let mut reads = true;
    loop {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => break,
            line = lines.recv(), if reads => match line.as_deref() {
                Some("pause") => running.pause(Scope::All).await?,
                Some("resume") => running.resume(Scope::All).await?,
                Some(_) => show(&running).await?,
                None => reads = false,
            },
            event = events.next() => match event {
                Some(Event::Notice { .. }) => {}
                Some(event) => println!("{event:?}"),
                // It has ended by itself.
                None => return running.join().await,
            },
        }
    }
    println!("ending");
    running.close(CLOSE_MAX).await
}

#[tokio::main]
async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [bootstrap, topic, group] = &args[..] else {
        eprintln!("usage: service BOOTSTRAP TOPIC GROUP");
        return ExitCode::FAILURE;
    };
    match serve(bootstrap, topic, group).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
