//! Kafka from a container, for machines that have Docker and no JDK: the feature `docker`.
//!
//! It compiles, and CI checks that it does. No Docker answered where it was written, so it has not been seen to run.

use std::sync::{Mutex, PoisonError};

use testcontainers::core::{IntoContainerPort, WaitFor};
use testcontainers::runners::SyncRunner;
use testcontainers::{Container, GenericImage, ImageExt};

use crate::node;

/// What is taken where no image is named.
const IMAGE: &str = "apache/kafka:4.1.1";

/// The container that runs. Dropping it removes it, and a static is never dropped by itself.
static RUNNING: Mutex<Option<Container<GenericImage>>> = Mutex::new(None);

/// Starts `image`, or [`IMAGE`] where that is empty: one node with a plain listener. Gives its address.
pub(crate) fn start(image: &str) -> Result<String, String> {
    let image = if image.is_empty() { IMAGE } else { image };
    let (name, tag) = image.rsplit_once(':').unwrap_or((image, "latest"));
    // Clients are told the address that they came by, so the port is the same inside and outside.
    let port = node::free_ports(1)?[0];
    let listeners = format!("PLAINTEXT://0.0.0.0:{port},CONTROLLER://127.0.0.1:{CONTROLLER}");
    let mut request = GenericImage::new(name, tag)
        .with_wait_for(WaitFor::message_on_stdout("Kafka Server started"))
        .with_mapped_port(port, port.tcp());
    for (property, value) in [
        ("PROCESS_ROLES", "broker,controller"),
        ("NODE_ID", "1"),
        (
            "CONTROLLER_QUORUM_VOTERS",
            &format!("1@127.0.0.1:{CONTROLLER}"),
        ),
        ("CONTROLLER_LISTENER_NAMES", "CONTROLLER"),
        ("LISTENERS", &listeners),
        (
            "ADVERTISED_LISTENERS",
            &format!("PLAINTEXT://127.0.0.1:{port}"),
        ),
        (
            "LISTENER_SECURITY_PROTOCOL_MAP",
            "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        ),
        ("OFFSETS_TOPIC_REPLICATION_FACTOR", "1"),
        ("OFFSETS_TOPIC_NUM_PARTITIONS", "4"),
        ("TRANSACTION_STATE_LOG_REPLICATION_FACTOR", "1"),
        ("TRANSACTION_STATE_LOG_MIN_ISR", "1"),
        ("GROUP_INITIAL_REBALANCE_DELAY_MS", "0"),
        ("GROUP_MIN_SESSION_TIMEOUT_MS", "1000"),
        ("LOG_CLEANER_BACKOFF_MS", "500"),
        ("AUTO_CREATE_TOPICS_ENABLE", "false"),
    ] {
        request = request.with_env_var(format!("KAFKA_{property}"), value);
    }
    let container = request
        .start()
        .map_err(|e| format!("no Kafka from the image {image}: {e}"))?;
    *RUNNING.lock().unwrap_or_else(PoisonError::into_inner) = Some(container);
    Ok(format!("127.0.0.1:{port}"))
}

/// Removes the container, if there is one.
pub(crate) fn stop() {
    drop(
        RUNNING
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take(),
    );
}

/// Inside the container alone.
const CONTROLLER: u16 = 9093;
