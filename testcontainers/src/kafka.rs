//! A Kafka to test against: one that runs already, or one started here from its jars.

use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use std::{env, hash};

use laneway::settle::Map;

use crate::agent::Agent;
use crate::jars::Jars;
use crate::judge::Committed;
use crate::member::unhex;
use crate::node::{self, Node};
use crate::process::{self, Process};
use crate::runner::Missing;

/// A running Kafka. Dropping it kills the nodes that it started.
#[derive(Debug)]
pub struct Kafka {
    jars: Jars,
    bootstrap: String,
    folder: PathBuf,
    /// Empty when the cluster is not ours.
    nodes: Mutex<Vec<Node>>,
    /// Commands about one topic or group go to the same one, which knows what it wrote there.
    agents: [Mutex<Option<Agent>>; AGENTS],
    /// ZooKeeper, where the node needs one.
    _keeper: Option<Process>,
}

/// What a test may ask of [`Kafka::start_with`].
#[derive(Clone, Debug)]
pub struct Settings {
    /// Brokers, each a controller too: 1 or 3.
    pub nodes: usize,
    /// Broker properties that win over ours.
    pub properties: Vec<(&'static str, String)>,
    /// Listeners beside the plain one: name and protocol, e.g. `("SASL", "SASL_PLAINTEXT")`.
    pub listeners: Vec<(&'static str, &'static str)>,
    /// Of these, those that are said to be at a port of their own, where something else must
    /// listen and lead to them: see [`Kafka::ways`].
    pub apart: Vec<&'static str>,
    /// Users that exist from the start, with their passwords, for both kinds of SCRAM.
    pub scram_users: Vec<(&'static str, &'static str)>,
}

impl Settings {
    /// Nothing but the plain listener of so many nodes.
    pub fn new(nodes: usize) -> Self {
        Self {
            nodes,
            properties: Vec::new(),
            listeners: Vec::new(),
            apart: Vec::new(),
            scram_users: Vec::new(),
        }
    }

    /// One more listener, for SASL by PLAIN, SCRAM and OAUTHBEARER (unsecured tokens); each of
    /// these users has its password in all of them. `protocol` is `SASL_PLAINTEXT` or `SASL_SSL`.
    #[must_use]
    pub fn sasl(
        mut self,
        name: &'static str,
        protocol: &'static str,
        users: &[(&'static str, &'static str)],
    ) -> Self {
        let module = "org.apache.kafka.common.security";
        let mut jaas = |mechanism: &str, value: String| {
            let name = format!("listener.name.{}.{mechanism}", name.to_ascii_lowercase());
            self.properties.push((name.leak(), value));
        };
        let known: Vec<String> = users
            .iter()
            .map(|(u, p)| format!("user_{u}=\"{p}\""))
            .collect();
        let plain = format!(
            "{module}.plain.PlainLoginModule required {};",
            known.join(" ")
        );
        jaas("plain.sasl.jaas.config", plain);
        for mechanism in ["scram-sha-256", "scram-sha-512"] {
            let scram = format!("{module}.scram.ScramLoginModule required;");
            jaas(&format!("{mechanism}.sasl.jaas.config"), scram);
        }
        let bearer = format!(
            "{module}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub=\"broker\";"
        );
        jaas("oauthbearer.sasl.jaas.config", bearer);
        let handler = format!(
            "{module}.oauthbearer.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
        );
        jaas("oauthbearer.sasl.server.callback.handler.class", handler);
        let all = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER".to_owned();
        self.properties.push(("sasl.enabled.mechanisms", all));
        self.listeners.push((name, protocol));
        self.scram_users = users.to_vec();
        self
    }
}

impl Kafka {
    /// The one that all tests of this process share, which none of them may harm: from
    /// `LANEWAY_KAFKA`, else one node started at the first call.
    pub fn shared() -> &'static Self {
        match shared() {
            Ok(kafka) => kafka,
            Err(e) => panic!("no shared Kafka: {e}"),
        }
    }

    /// One of its own for a test that kills or freezes nodes.
    pub fn start(nodes: usize) -> Result<Self, String> {
        Self::start_with(&Settings::new(nodes))
    }

    /// The same with properties of the test's own.
    pub fn start_with(settings: &Settings) -> Result<Self, String> {
        let jars = jars()?;
        for attempt in 1.. {
            match Self::try_start(&jars, settings) {
                // Another program took a port between the search and the start.
                Err(e) if e.contains("Address already in use") && attempt < START_ATTEMPTS => {}
                result => return result,
            }
        }
        unreachable!("the loop above only ends by return")
    }

    /// One node of 2.8.2, which still stores message sets of formats 0 and 1 where a topic's
    /// `message.format.version` says so, and its ZooKeeper. Tools and agent are the usual version's.
    pub fn start_2_8() -> Result<Self, String> {
        let jars = jars()?;
        let folder = process::scratch_folder("kafka-2.8")?;
        let (keeper, node) = node::start_2_8(&jars.beside("2.8.2")?, &folder)?;
        let kafka = Self {
            jars,
            bootstrap: format!("127.0.0.1:{}", node.port),
            folder,
            nodes: Mutex::new(vec![node]),
            agents: Default::default(),
            _keeper: Some(keeper),
        };
        kafka.wait_until_ready()?;
        Ok(kafka)
    }

    /// `host:port,...`
    pub fn bootstrap(&self) -> &str {
        &self.bootstrap
    }

    /// The addresses one by one.
    pub fn addresses(&self) -> Vec<String> {
        self.bootstrap.split(',').map(str::to_owned).collect()
    }

    /// The addresses of a listener that [`Settings::listeners`] names.
    pub fn addresses_of(&self, listener: &str) -> Vec<String> {
        let nodes = self.lock_nodes();
        let ports = nodes.iter().flat_map(|node| &node.listeners);
        let ours = ports.filter(|(name, _)| *name == listener);
        ours.map(|(_, port)| format!("127.0.0.1:{port}")).collect()
    }

    /// Of a listener that [`Settings::apart`] names: for each node its id, the port that clients are
    /// told, and the port that it listens at.
    pub fn ways(&self, listener: &str) -> Vec<(usize, u16, u16)> {
        let of = |ports: &[(&'static str, u16)]| {
            let found = ports.iter().find(|(name, _)| *name == listener);
            found.map(|(_, port)| *port)
        };
        let nodes = self.lock_nodes();
        let ways = nodes
            .iter()
            .filter_map(|node| Some((node.id, of(&node.advertised)?, of(&node.listeners)?)));
        ways.collect()
    }

    /// Where the nodes keep their logs and data; node n's data is in `data-n`.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The jars of this version, for a JVM of the test's own.
    pub fn jars(&self) -> &Jars {
        &self.jars
    }

    /// `kill -9` of node `id` (from 1), as a machine's power fails.
    pub fn kill(&self, id: usize) -> Result<(), String> {
        self.with_node(id, |node| match node.process.take() {
            Some(mut process) => process.kill().map(|_| ()),
            None => Err(format!("node {id} is down already")),
        })
    }

    /// Ends node `id` in order: it hands its leaderships over first.
    pub fn stop(&self, id: usize) -> Result<(), String> {
        self.with_node(id, |node| match node.process.take() {
            Some(mut process) => {
                process.signal("TERM")?;
                process.wait(STOP_LIMIT).map(|_| ())
            }
            None => Err(format!("node {id} is down already")),
        })
    }

    /// Starts a killed node again on its data, and waits until it answers.
    pub fn up(&self, id: usize) -> Result<(), String> {
        self.with_node(id, |node| {
            if node.process.is_some() {
                return Err(format!("node {id} runs already"));
            }
            node.process = Some(node::spawn(&self.jars, &self.folder, id)?);
            Ok(())
        })?;
        self.wait_until_ready()
    }

    /// Stops node `id` in its tracks; its sockets stay open.
    pub fn freeze(&self, id: usize) -> Result<(), String> {
        self.signal(id, "STOP")
    }

    /// Lets a frozen node go on.
    pub fn thaw(&self, id: usize) -> Result<(), String> {
        self.signal(id, "CONT")
    }

    /// Runs one of Kafka's own tools to its end, e.g. `tool("topics", &["--list"])`.
    /// `--bootstrap-server` is added where it is left out.
    pub fn tool(&self, name: &str, args: &[&str]) -> Result<Output, String> {
        let class = tool_class(name).ok_or_else(|| format!("no tool {name}"))?;
        let mut command = self
            .jars
            .java("256m", &["-XX:TieredStopAtLevel=1"], class)?;
        command.args(args);
        if !args.contains(&"--bootstrap-server") {
            command.args(["--bootstrap-server", &self.bootstrap]);
        }
        command
            .stdin(Stdio::null())
            .output()
            .map_err(|e| format!("{name}: {e}"))
    }

    /// One command to the Java agent (see `java/Agent.java`), and the lines of its answer.
    pub fn ask(&self, command: &str) -> Result<Vec<String>, String> {
        self.ask_within(command, ASK_LIMIT)
    }

    /// A topic of this test's own, its name starting with `hint`; returns the name.
    pub fn topic(&self, hint: &str, partitions: u32) -> Result<String, String> {
        self.topic_with(hint, partitions, &[])
    }

    /// The same with topic properties.
    pub fn topic_with(
        &self,
        hint: &str,
        partitions: u32,
        properties: &[&str],
    ) -> Result<String, String> {
        let name = unique(hint);
        let copies = self.addresses().len().min(COPIES_MAX);
        let mut command = format!("create {name} {partitions} {copies}");
        for property in properties {
            command = format!("{command} {property}");
        }
        self.ask(&command)?;
        // Created means known to the controller. A producer that is told "not the leader" for its
        // first batches may try the later ones for ever (out of order sequence number; seen with
        // 4.3.1), so each leader must have answered for its partition first.
        let end = Instant::now() + READY_LIMIT;
        loop {
            let ends = self.ends(&name);
            if matches!(&ends, Ok(ends) if ends.len() == partitions as usize) {
                return Ok(name);
            }
            if Instant::now() >= end {
                return Err(format!(
                    "topic {name} has no leaders after {READY_LIMIT:?}: {ends:?}"
                ));
            }
            thread::sleep(POLL);
        }
    }

    /// What the group has committed for a topic: (partition, offset), in order.
    pub fn committed(&self, group: &str, topic: &str) -> Result<Vec<(i32, i64)>, String> {
        let all = self.committed_texts(group, topic)?;
        Ok(all.into_iter().map(|(p, offset, _)| (p, offset)).collect())
    }

    /// As [`committed`](Self::committed), with what stands beside each offset. What is no offset map
    /// is an error.
    pub fn committed_maps(&self, group: &str, topic: &str) -> Result<Committed, String> {
        let mut all = Committed::new();
        for (partition, offset, metadata) in self.committed_texts(group, topic)? {
            let map = Map::read(offset, &metadata).map_err(|e| format!("{metadata:?}: {e}"))?;
            all.insert(partition, map);
        }
        Ok(all)
    }

    /// What the group has committed for a topic: (partition, offset, metadata), in order.
    pub fn committed_texts(
        &self,
        group: &str,
        topic: &str,
    ) -> Result<Vec<(i32, i64, String)>, String> {
        let mut all = Vec::new();
        for line in self.ask(&format!("committed {group}"))? {
            let fields: Vec<&str> = line.split(' ').collect();
            if let [name, partition, offset, _epoch, metadata] = fields[..]
                && name == topic
            {
                let bad = || format!("committed answered {line:?}");
                let text = unhex(metadata).and_then(|bytes| String::from_utf8(bytes).ok());
                all.push((
                    partition.parse().map_err(|_| bad())?,
                    offset.parse().map_err(|_| bad())?,
                    text.ok_or_else(bad)?,
                ));
            }
        }
        all.sort_unstable();
        Ok(all)
    }

    /// The sum of a group's committed offsets in a topic: how many records lie below them.
    pub fn committed_records(&self, group: &str, topic: &str) -> Result<usize, String> {
        let sum: i64 = self
            .committed(group, topic)?
            .iter()
            .map(|&(_, offset)| offset)
            .sum();
        usize::try_from(sum).map_err(|_| format!("{sum} records committed"))
    }

    /// The ends of a topic's partitions: (partition, first offset, offset after the last).
    pub fn ends(&self, topic: &str) -> Result<Vec<(i32, i64, i64)>, String> {
        let mut all = Vec::new();
        for line in self.ask(&format!("ends {topic}"))? {
            let numbers: Result<Vec<i64>, _> = line.split(' ').map(str::parse).collect();
            match numbers.as_deref() {
                Ok(&[partition, low, high]) => all.push((partition as i32, low, high)),
                _ => return Err(format!("ends answered {line:?}")),
            }
        }
        Ok(all)
    }

    fn try_start(jars: &Jars, settings: &Settings) -> Result<Self, String> {
        static CLUSTERS: AtomicU32 = AtomicU32::new(0);
        let number = CLUSTERS.fetch_add(1, Ordering::Relaxed);
        let folder = process::scratch_folder(&format!("kafka-{number}"))?;
        let nodes = node::start_all(jars, &folder, settings)?;
        let addresses: Vec<String> = nodes
            .iter()
            .map(|node| format!("127.0.0.1:{}", node.port))
            .collect();
        let kafka = Self {
            jars: jars.clone(),
            bootstrap: addresses.join(","),
            folder,
            nodes: Mutex::new(nodes),
            agents: Default::default(),
            _keeper: None,
        };
        kafka.wait_until_ready()?;
        Ok(kafka)
    }

    fn external(bootstrap: String) -> Result<Self, String> {
        let kafka = Self {
            jars: jars()?,
            bootstrap,
            folder: process::scratch_folder("kafka-external")?,
            nodes: Mutex::new(Vec::new()),
            agents: Default::default(),
            _keeper: None,
        };
        kafka.ask("nodes")?;
        Ok(kafka)
    }

    /// Every node that should run opens its port, and the cluster counts them all.
    fn wait_until_ready(&self) -> Result<(), String> {
        let end = Instant::now() + READY_LIMIT;
        let mut running = 0;
        for node in self.lock_nodes().iter_mut() {
            let Some(process) = &mut node.process else {
                continue;
            };
            running += 1;
            while TcpStream::connect((Ipv4Addr::LOCALHOST, node.port)).is_err() {
                let log = self.folder.join(format!("{}.log", node.id));
                if process.ended()?.is_some() {
                    return Err(format!("node {} ended:\n{}", node.id, process::tail(&log)));
                }
                if Instant::now() >= end {
                    return Err(format!(
                        "node {} is silent:\n{}",
                        node.id,
                        process::tail(&log)
                    ));
                }
                thread::sleep(POLL);
            }
        }
        loop {
            let counted = self.ask("nodes");
            if matches!(&counted, Ok(lines) if lines.first().is_some_and(|n| *n == running.to_string()))
            {
                return Ok(());
            }
            if Instant::now() >= end {
                return Err(format!("the cluster of {running} answers {counted:?}"));
            }
            thread::sleep(POLL);
        }
    }

    fn ask_within(&self, command: &str, limit: Duration) -> Result<Vec<String>, String> {
        let about = command.split(' ').nth(1).unwrap_or_default();
        let sum = about.bytes().fold(0, |sum, byte| sum + usize::from(byte));
        let slot = &self.agents[sum % AGENTS];
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        let log = self.folder.join("agent.log");
        if !slot.as_mut().is_some_and(Agent::lives) {
            *slot = None;
        }
        let agent = match &mut *slot {
            Some(agent) => agent,
            empty => empty.insert(Agent::start(&self.jars, &self.bootstrap, &log)?),
        };
        agent
            .ask(command, limit)
            .map_err(|e| format!("{e}\n{}", process::tail(&log)))
    }

    fn signal(&self, id: usize, signal: &str) -> Result<(), String> {
        self.with_node(id, |node| match &node.process {
            Some(process) => process.signal(signal),
            None => Err(format!("node {id} is down")),
        })
    }

    fn with_node<T>(
        &self,
        id: usize,
        f: impl FnOnce(&mut Node) -> Result<T, String>,
    ) -> Result<T, String> {
        match self.lock_nodes().iter_mut().find(|node| node.id == id) {
            Some(node) => f(node),
            None => Err(format!("node {id} is not ours")),
        }
    }

    fn lock_nodes(&self) -> MutexGuard<'_, Vec<Node>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a test on the shared Kafka needs: any Kafka, and its tools.
pub fn any() -> Result<(), Missing> {
    jars().map(|_| ()).map_err(Missing::Kafka)
}

/// What a test on a Kafka 2.8.2 of its own needs: its jars too.
pub fn with_2_8() -> Result<(), Missing> {
    let jars = jars().and_then(|jars| jars.beside("2.8.2"));
    jars.map(|_| ()).map_err(Missing::Kafka)
}

/// Whether the shared Kafka was started here, so that its version and settings are known.
pub fn is_ours() -> bool {
    given().is_none()
}

/// A name that no other test, and no earlier run against the same cluster, has used.
pub fn unique(hint: &str) -> String {
    static NAMES: AtomicU32 = AtomicU32::new(0);
    let number = NAMES.fetch_add(1, Ordering::Relaxed);
    format!("{hint}-{:08x}-{number}", random() as u32)
}

/// Kills the shared nodes; called once, after the last test.
pub(crate) fn stop_shared() {
    #[cfg(feature = "docker")]
    crate::docker::stop();
    if let Some(Ok(kafka)) = SHARED.get() {
        for node in kafka.lock_nodes().iter_mut() {
            node.process = None;
        }
    }
}

static SHARED: OnceLock<Result<Kafka, String>> = OnceLock::new();

fn shared() -> &'static Result<Kafka, String> {
    SHARED.get_or_init(|| match given() {
        Some(given) => match given.strip_prefix("docker") {
            Some(image) => in_docker(image.trim_start_matches(':')).and_then(Kafka::external),
            None => Kafka::external(given),
        },
        None => Kafka::start(1),
    })
}

#[cfg(feature = "docker")]
fn in_docker(image: &str) -> Result<String, String> {
    crate::docker::start(image)
}

#[cfg(not(feature = "docker"))]
fn in_docker(image: &str) -> Result<String, String> {
    Err(format!(
        "LANEWAY_KAFKA asks for a container ({image:?}): build with the feature `docker`"
    ))
}

fn given() -> Option<String> {
    env::var("LANEWAY_KAFKA")
        .ok()
        .filter(|addresses| !addresses.is_empty())
}

fn jars() -> Result<Jars, String> {
    static JARS: OnceLock<Result<Jars, String>> = OnceLock::new();
    JARS.get_or_init(Jars::asked).clone()
}

pub(crate) fn random() -> u64 {
    use hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(Instant::now())
}

fn tool_class(name: &str) -> Option<&'static str> {
    Some(match name {
        "topics" => "org.apache.kafka.tools.TopicCommand",
        "configs" => "kafka.admin.ConfigCommand",
        "consumer-groups" => "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        "get-offsets" => "org.apache.kafka.tools.GetOffsetShell",
        "console-producer" => "org.apache.kafka.tools.ConsoleProducer",
        "console-consumer" => "org.apache.kafka.tools.consumer.ConsoleConsumer",
        "verifiable-producer" => "org.apache.kafka.tools.VerifiableProducer",
        "verifiable-consumer" => "org.apache.kafka.tools.VerifiableConsumer",
        "delete-records" => "org.apache.kafka.tools.DeleteRecordsCommand",
        "leader-election" => "org.apache.kafka.tools.LeaderElectionCommand",
        _ => return None,
    })
}

pub(crate) const COPIES_MAX: usize = 3;
const START_ATTEMPTS: u32 = 3;
pub(crate) const READY_LIMIT: Duration = Duration::from_secs(120);
const STOP_LIMIT: Duration = Duration::from_secs(60);
const ASK_LIMIT: Duration = Duration::from_secs(120);
/// Java agents of one Kafka at most: tests that run at once must not wait for each other's commands.
const AGENTS: usize = 3;
const POLL: Duration = Duration::from_millis(50);
