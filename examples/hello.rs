//! Handles payments, those of one key in order and many keys at once.

use laneway::{Kafka, LaneKey, Record, Topics};

#[tokio::main]
async fn main() -> Result<(), laneway::Error> {
    let broker = std::env::args().nth(1).unwrap_or("localhost:9092".into());
    Kafka::new([broker])
        .subscribe(Topics::named(["payments"]).group("billing"))
        .workers_by_key(64)
        .lane_key(LaneKey::RecordKey)
        .run(|record: Record| async move { println!("{:?}", record.value()) })
        .await
}
