//! Subscriptions of a cluster that was given by properties.

mod hostile_kit;
mod tls_kit;

use hostile_kit::{assert_closes, until, watched};
use laneway::{Kafka, Partitions, Topics, properties};
use tls_kit::{Shows, behind, file};

/// A file as Java programs have it: the group, TLS and the rest reach the subscription.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_of_properties_makes_a_subscription() {
    let shows = Shows {
        wants_client: true,
        ..Shows::default()
    };
    let behind = behind(&shows, "localhost").await;
    behind.fill(40);
    let text = format!(
        "bootstrap.servers = {}\n\
         group.id = billing\n\
         security.protocol = SSL\n\
         ssl.ca.location = {}\n\
         ssl.certificate.location = {}\n\
         ssl.key.location = {}\n\
         auto.offset.reset = earliest\n\
         max.poll.records = 500\n",
        behind.front.localhost(),
        file("ca.pem").display(),
        file("client.pem").display(),
        file("client-pkcs1.key").display(),
    );
    let kafka = Kafka::from_properties(properties::parse(&text)).unwrap();
    assert_eq!(kafka.ignored_properties().len(), 1);
    let (running, seen) = watched(kafka.subscribe(Topics::named(["t"])));
    until(&seen, "every record", || seen.distinct() >= 40).await;
    assert_closes(running, &seen).await;
    let committed = |group: &str| {
        let cluster = behind.server.cluster();
        (0..4)
            .filter_map(|p| Some(cluster.committed(group, "t", p)?.offset))
            .sum::<i64>()
    };
    assert_eq!(committed("billing"), 40);

    // What is called on a builder wins, and partitions by hand keep their offsets under the group.
    let (running, seen) = watched(kafka.subscribe(Topics::named(["t"]).group("other")));
    until(&seen, "every record again", || seen.distinct() >= 40).await;
    assert_closes(running, &seen).await;
    assert_eq!(committed("other"), 40);
    behind.fill(4);
    let (running, seen) = watched(kafka.subscribe(Partitions::of("t", [0, 1, 2, 3])));
    until(&seen, "what is new", || seen.distinct() >= 4).await;
    assert_closes(running, &seen).await;
    assert_eq!((seen.distinct(), committed("billing")), (4, 44));
}
