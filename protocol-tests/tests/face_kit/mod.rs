//! What tests of the tokio shell begin with.

use laneway::broker::{ClusterConfig, Listen, Server};

/// A broker on a port of its own, and a topic `t` in it: so many records of so many keys, each with
/// its number for a value, and each key in one partition.
pub async fn filled(partitions: i32, records: usize, keys: usize) -> Server {
    let server = Server::start(ClusterConfig::default(), Listen::default())
        .await
        .unwrap();
    server.cluster().create_topic("t", partitions).unwrap();
    let mut cluster = server.cluster();
    let now = cluster.now();
    for at in 0..records {
        let key = format!("k{}", at % keys);
        let value = at.to_string();
        let pair = (Some(key.as_bytes()), Some(value.as_bytes()));
        let partition = (at % keys) as i32 % partitions;
        cluster
            .append_records(now, "t", partition, &[pair])
            .unwrap();
    }
    drop(cluster);
    server
}
