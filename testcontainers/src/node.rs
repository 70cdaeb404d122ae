//! The nodes of a cluster of ours: their settings, storage, ports and processes.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Stdio;

use crate::jars::Jars;
use crate::kafka::{COPIES_MAX, READY_LIMIT, Settings, random};
use crate::process::{self, Process};

/// One node, which is a broker and a controller.
#[derive(Debug)]
pub(crate) struct Node {
    /// From 1.
    pub(crate) id: usize,
    pub(crate) port: u16,
    /// Beside the plain one: name and port.
    pub(crate) listeners: Vec<(&'static str, u16)>,
    /// Where those of [`Settings::apart`] are said to be: name and port.
    pub(crate) advertised: Vec<(&'static str, u16)>,
    /// None while it is down.
    pub(crate) process: Option<Process>,
}

/// Nodes 1 to `n` on fresh storage under `folder`; they run, but may not answer yet.
pub(crate) fn start_all(
    jars: &Jars,
    folder: &Path,
    settings: &Settings,
) -> Result<Vec<Node>, String> {
    let n = settings.nodes;
    let ports = free_ports((2 + settings.listeners.len() + settings.apart.len()) * n)?;
    let (ports, rest) = ports.split_at(n);
    let (controllers, rest) = rest.split_at(n);
    let (more, said) = rest.split_at(settings.listeners.len() * n);
    let advertised_of = |i: usize| -> Vec<(&'static str, u16)> {
        let names = settings.apart.iter().copied();
        names.zip(said.iter().skip(i).step_by(n).copied()).collect()
    };
    let listeners_of = |i: usize| -> Vec<(&'static str, u16)> {
        let names = settings.listeners.iter().map(|(name, _)| *name);
        names.zip(more.iter().skip(i).step_by(n).copied()).collect()
    };
    for (i, &port) in ports.iter().enumerate() {
        let id = i + 1;
        let mut text = properties(id, folder, ports, controllers, port);
        let more = (&listeners_of(i)[..], &advertised_of(i)[..]);
        text.push_str(&listeners(settings, more, port, controllers[i]));
        for (name, value) in &settings.properties {
            text.push_str(&format!("{name}={value}\n"));
        }
        write(&folder.join(format!("{id}.properties")), &text)?;
    }
    format_storage(jars, folder, settings)?;
    let mut nodes = Vec::new();
    for (i, &port) in ports.iter().enumerate() {
        let id = i + 1;
        nodes.push(Node {
            id,
            port,
            listeners: listeners_of(i),
            advertised: advertised_of(i),
            process: Some(spawn(jars, folder, id)?),
        });
    }
    Ok(nodes)
}

/// A ZooKeeper, and one node of a version that needs it; they run, but may not answer yet.
pub(crate) fn start_2_8(jars: &Jars, folder: &Path) -> Result<(Process, Node), String> {
    let ports = free_ports(2)?;
    let (port, keeper) = (ports[0], ports[1]);
    let data = folder.join("zookeeper");
    let data = data.display();
    let text = format!(
        "dataDir={data}\n\
         clientPort={keeper}\n\
         clientPortAddress=127.0.0.1\n\
         admin.enableServer=false\n"
    );
    let file = folder.join("zookeeper.properties");
    write(&file, &text)?;
    let log = folder.join("zookeeper.log");
    let open = || File::options().create(true).append(true).open(&log);
    let log_error = |e| format!("{}: {e}", log.display());
    let class = "org.apache.zookeeper.server.quorum.QuorumPeerMain";
    let mut command = jars.java("128m", &["-XX:TieredStopAtLevel=1"], class)?;
    command
        .arg(&file)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(open().map_err(log_error)?)
        .stderr(open().map_err(log_error)?);
    let keeper_runs = Process::spawn("zookeeper".to_owned(), &mut command)?;
    let logs = folder.join("data-1");
    let logs = logs.display();
    let text = format!(
        "broker.id=1\n\
         zookeeper.connect=127.0.0.1:{keeper}\n\
         listeners=PLAINTEXT://127.0.0.1:{port}\n\
         log.dirs={logs}\n\
         offsets.topic.replication.factor=1\n\
         offsets.topic.num.partitions=4\n\
         group.initial.rebalance.delay.ms=0\n\
         group.min.session.timeout.ms=1000\n\
         num.network.threads=2\n\
         num.io.threads=2\n\
         log.retention.ms=-1\n\
         auto.create.topics.enable=false\n"
    );
    write(&folder.join("1.properties"), &text)?;
    let process = Some(spawn(jars, folder, 1)?);
    let node = Node {
        id: 1,
        port,
        listeners: Vec::new(),
        advertised: Vec::new(),
        process,
    };
    Ok((keeper_runs, node))
}

/// One node on its storage.
pub(crate) fn spawn(jars: &Jars, folder: &Path, id: usize) -> Result<Process, String> {
    let log = folder.join(format!("{id}.log"));
    let open = || File::options().create(true).append(true).open(&log);
    let log_error = |e| format!("{}: {e}", log.display());
    let mut command = jars.java("512m", &["-Xms128m"], "kafka.Kafka")?;
    command
        .arg(folder.join(format!("{id}.properties")))
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(open().map_err(log_error)?)
        .stderr(open().map_err(log_error)?);
    Process::spawn(format!("node {id}"), &mut command)
}

/// All nodes at once: a JVM each, and they wait for nobody.
fn format_storage(jars: &Jars, folder: &Path, settings: &Settings) -> Result<(), String> {
    let mut running = Vec::new();
    for id in 1..=settings.nodes {
        let log = folder.join(format!("format-{id}.log"));
        let out = File::create(&log).map_err(|e| format!("{}: {e}", log.display()))?;
        let err = out
            .try_clone()
            .map_err(|e| format!("{}: {e}", log.display()))?;
        let mut command = jars.java(
            "128m",
            &["-XX:TieredStopAtLevel=1"],
            "kafka.tools.StorageTool",
        )?;
        command
            .args(["format", "-t", CLUSTER_ID, "-c"])
            .arg(folder.join(format!("{id}.properties")));
        for (user, password) in &settings.scram_users {
            for mechanism in ["SCRAM-SHA-256", "SCRAM-SHA-512"] {
                let user = format!("{mechanism}=[name={user},password={password}]");
                command.args(["--add-scram", &user]);
            }
        }
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        running.push((
            Process::spawn(format!("format of node {id}"), &mut command)?,
            log,
        ));
    }
    for (mut process, log) in running {
        if !process.wait(READY_LIMIT)?.success() {
            return Err(format!(
                "the storage could not be formatted:\n{}",
                process::tail(&log)
            ));
        }
    }
    Ok(())
}

/// Ports of nodes that are started again must stay below 32768: above it a node's own outgoing
/// connections may take the port while it is down.
pub(crate) fn free_ports(n: usize) -> Result<Vec<u16>, String> {
    let mut held = Vec::new();
    let mut ports = Vec::new();
    for _ in 0..PORT_ATTEMPTS {
        let port = PORT_MIN + (random() % u64::from(PORT_MAX - PORT_MIN)) as u16;
        // Held until all are found, so that none is found twice.
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            held.push(listener);
            ports.push(port);
            if ports.len() == n {
                return Ok(ports);
            }
        }
    }
    Err(format!(
        "no {n} free ports between {PORT_MIN} and {PORT_MAX}"
    ))
}

fn properties(id: usize, folder: &Path, ports: &[u16], controllers: &[u16], port: u16) -> String {
    let controller = controllers[id - 1];
    let voters: Vec<String> = controllers
        .iter()
        .enumerate()
        .map(|(i, port)| format!("{}@127.0.0.1:{port}", i + 1))
        .collect();
    let voters = voters.join(",");
    let copies = ports.len().min(COPIES_MAX);
    let in_sync = if ports.len() >= COPIES_MAX { 2 } else { 1 };
    let data = folder.join(format!("data-{id}"));
    let data = data.display();
    format!(
        "process.roles=broker,controller\n\
         node.id={id}\n\
         controller.quorum.voters={voters}\n\
         controller.listener.names=CONTROLLER\n\
         listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n\
         advertised.listeners=PLAINTEXT://127.0.0.1:{port}\n\
         listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\n\
         log.dirs={data}\n\
         default.replication.factor={copies}\n\
         min.insync.replicas={in_sync}\n\
         offsets.topic.replication.factor={copies}\n\
         offsets.topic.num.partitions=4\n\
         transaction.state.log.replication.factor={copies}\n\
         transaction.state.log.min.isr={in_sync}\n\
         transaction.state.log.num.partitions=4\n\
         group.initial.rebalance.delay.ms=0\n\
         group.min.session.timeout.ms=1000\n\
         num.network.threads=2\n\
         num.io.threads=2\n\
         log.cleaner.backoff.ms=500\n\
         log.retention.check.interval.ms=2000\n\
         auto.create.topics.enable=false\n"
    )
}

/// Listeners by name, each with its port.
type Ports = [(&'static str, u16)];

/// The lines that say where else a node listens; they win over those of [`properties`].
fn listeners(
    settings: &Settings,
    (more, said): (&Ports, &Ports),
    port: u16,
    controller: u16,
) -> String {
    if more.is_empty() {
        return String::new();
    }
    let mut listens = format!("PLAINTEXT://127.0.0.1:{port}");
    let mut advertised = listens.clone();
    let mut protocols = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT".to_owned();
    for ((name, port), (_, protocol)) in more.iter().zip(&settings.listeners) {
        listens.push_str(&format!(",{name}://127.0.0.1:{port}"));
        let said = said.iter().find(|(apart, _)| apart == name);
        let port = said.map_or(port, |(_, said)| said);
        advertised.push_str(&format!(",{name}://127.0.0.1:{port}"));
        protocols.push_str(&format!(",{name}:{protocol}"));
    }
    format!(
        "listeners={listens},CONTROLLER://127.0.0.1:{controller}\n\
         advertised.listeners={advertised}\n\
         listener.security.protocol.map={protocols}\n\
         inter.broker.listener.name=PLAINTEXT\n"
    )
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}

const CLUSTER_ID: &str = "MkU3OEVBNTcwNTJENDM2Qg";
const PORT_MIN: u16 = 15_000;
const PORT_MAX: u16 = 32_000;
const PORT_ATTEMPTS: usize = 1000;
