//! Runs the embedded broker alone, for any Kafka client.
//!
//! `broker --port P [--nodes N] [--topic NAME:PARTITIONS]... [--records N] [--advertise HOST:PORT,...]`
//!
//! Node 1 listens on port P, node 2 on P + 1, and so on; port 0 takes free ones. Each topic begins
//! with N records, keys `0` to `99` in turn. It keeps
//! everything in memory, and Ctrl-C ends it.

use std::process::ExitCode;

use laneway::broker::{ClusterConfig, Listen, Server};

const USAGE: &str = "broker --port P [--nodes N] [--topic NAME:PARTITIONS]... [--records N] [--advertise HOST:PORT,...]";

#[derive(Debug, Default)]
struct Args {
    port: u16,
    nodes: u16,
    topics: Vec<(String, i32)>,
    records: u32,
    advertise: Vec<(String, u16)>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = match parse(std::env::args().skip(1)) {
        Ok(args) => args,
        Err(why) => {
            eprintln!("broker: {why}\nusage: {USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("broker: {why}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> Result<(), String> {
    let cfg = ClusterConfig {
        nodes: i32::from(args.nodes),
        ..ClusterConfig::default()
    };
    let each = 0..args.nodes;
    let ports = each.map(|n| if args.port == 0 { 0 } else { args.port + n });
    let listen = Listen {
        ports: ports.collect(),
        advertised: args.advertise,
        ..Listen::default()
    };
    let server = Server::start(cfg, listen)
        .await
        .map_err(|e| format!("cannot listen on {e}"))?;
    for (name, partitions) in &args.topics {
        let made = server.cluster().create_topic(name, *partitions);
        made.map_err(|e| format!("topic {name} with {partitions} partitions: {e}"))?;
        fill(&server, name, *partitions, args.records).map_err(|e| format!("topic {name}: {e}"))?;
    }
    println!("broker ready: {}", server.bootstrap().join(","));
    tokio::signal::ctrl_c()
        .await
        .map_err(|e| format!("cannot wait for Ctrl-C: {e}"))
}

/// A key always goes to the same partition.
fn fill(server: &Server, topic: &str, partitions: i32, records: u32) -> Result<(), String> {
    let mut cluster = server.cluster();
    let now = cluster.now();
    for n in 0..records {
        let (key, value) = ((n % 100).to_string(), n.to_string());
        let pair = (Some(key.as_bytes()), Some(value.as_bytes()));
        let partition = i32::try_from(n % 100).unwrap_or(0) % partitions;
        let appended = cluster.append_records(now, topic, partition, &[pair]);
        appended.map_err(|e| e.to_string())?;
    }
    Ok(())
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Args, String> {
    let mut port = None;
    let mut parsed = Args {
        nodes: 1,
        ..Args::default()
    };
    while let Some(flag) = args.next() {
        let mut value = || args.next().ok_or(format!("{flag} wants a value"));
        match flag.as_str() {
            "--port" => port = Some(number(&flag, &value()?)?),
            "--nodes" => parsed.nodes = number(&flag, &value()?)?,
            "--topic" => {
                let text = value()?;
                let (name, count) = text
                    .rsplit_once(':')
                    .ok_or(format!("--topic wants NAME:PARTITIONS, not {text}"))?;
                parsed.topics.push((name.to_owned(), number(&flag, count)?));
            }
            "--records" => parsed.records = number(&flag, &value()?)?,
            "--advertise" => {
                for one in value()?.split(',') {
                    let (host, port) = one
                        .rsplit_once(':')
                        .ok_or(format!("--advertise wants HOST:PORT, not {one}"))?;
                    parsed
                        .advertise
                        .push((host.to_owned(), number(&flag, port)?));
                }
            }
            other => return Err(format!("unknown argument {other}")),
        }
    }
    parsed.port = port.ok_or("--port is missing")?;
    if parsed.nodes == 0 || parsed.nodes > 100 {
        return Err("--nodes wants 1 to 100".to_owned());
    }
    if parsed.port.checked_add(parsed.nodes - 1).is_none() {
        return Err("the last node's port would be above 65535".to_owned());
    }
    let named = parsed.advertise.len();
    if named > 0 && named != usize::from(parsed.nodes) {
        return Err(format!(
            "--advertise names {named} of {} nodes",
            parsed.nodes
        ));
    }
    Ok(parsed)
}

fn number<T: std::str::FromStr>(flag: &str, text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| format!("{flag}: {text} is not a number it takes"))
}
