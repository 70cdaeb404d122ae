//! The embedded broker's logs: Produce, Fetch, sessions, offsets, and faults by script.

mod broker_kit;

use std::time::Duration;

use broker_kit::{Batch, Kit, hello, text};
use bytes::Bytes;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic, ForgottenTopic};
use kafka_protocol::messages::fetch_response::PartitionData;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::produce_response::PartitionProduceResponse;
use kafka_protocol::messages::{
    ApiVersionsRequest, BrokerId, FetchRequest, FetchResponse, InitProducerIdRequest,
    ListOffsetsRequest, MetadataRequest, OffsetForLeaderEpochRequest, ProduceRequest, TopicName,
};
use laneway::broker::{ClusterConfig, ConnId, Fault, Rule};
use laneway::records::{BatchBuilder, Compression, Encoder};

fn produce_request(acks: i16, partition: i32, records: Option<Bytes>) -> ProduceRequest {
    let data = PartitionProduceData::default()
        .with_index(partition)
        .with_records(records);
    let topic = TopicProduceData::default()
        .with_name(TopicName(text("t")))
        .with_partition_data(vec![data]);
    ProduceRequest::default()
        .with_acks(acks)
        .with_timeout_ms(1000)
        .with_topic_data(vec![topic])
}

fn produce(kit: &mut Kit, conn: ConnId, records: Bytes) -> PartitionProduceResponse {
    let answer = kit.call(conn, 9, &produce_request(-1, 0, Some(records)));
    answer.responses[0].partition_responses[0].clone()
}

/// Code and base offset.
fn produced(kit: &mut Kit, conn: ConnId, batch: Batch) -> (i16, i64) {
    let answer = produce(kit, conn, batch.bytes());
    (answer.error_code, answer.base_offset)
}

fn partition(index: i32, offset: i64) -> FetchPartition {
    FetchPartition::default()
        .with_partition(index)
        .with_fetch_offset(offset)
        .with_current_leader_epoch(-1)
        .with_partition_max_bytes(1 << 20)
}

/// Sessionless, at once.
fn fetch_request(partitions: Vec<FetchPartition>) -> FetchRequest {
    let topic = FetchTopic::default()
        .with_topic(TopicName(text("t")))
        .with_partitions(partitions);
    FetchRequest::default()
        .with_max_bytes(1 << 24)
        .with_min_bytes(1)
        .with_session_epoch(-1)
        .with_topics(vec![topic])
}

fn only(answer: &FetchResponse) -> &PartitionData {
    assert_eq!(answer.responses.len(), 1);
    assert_eq!(answer.responses[0].partitions.len(), 1);
    &answer.responses[0].partitions[0]
}

fn fetch(kit: &mut Kit, conn: ConnId, offset: i64) -> PartitionData {
    let answer = kit.call(conn, 12, &fetch_request(vec![partition(0, offset)]));
    only(&answer).clone()
}

fn bytes_of(data: &PartitionData) -> usize {
    data.records.as_ref().map_or(0, Bytes::len)
}

#[test]
fn what_was_produced_comes_back_with_offsets_and_epoch() {
    let mut kit = Kit::with_topic("t", 1);
    let conn = kit.connect(1);
    let (a, b) = (Batch::of(3), Batch::of(2));
    assert_eq!(produced(&mut kit, conn, a), (0, 0));
    assert_eq!(produced(&mut kit, conn, b), (0, 3));
    let data = fetch(&mut kit, conn, 1);
    let records = data.records.unwrap();
    // From the middle of a batch: the whole of it, then the rest, but for base offset and epoch
    // byte for byte.
    assert_eq!(records.len(), a.bytes().len() + b.bytes().len());
    let second = &records[a.bytes().len()..];
    assert_eq!(second[..8], 3i64.to_be_bytes());
    assert_eq!(second[12..16], 0i32.to_be_bytes());
    assert_eq!(second[16..], b.bytes()[16..]);
    assert_eq!((data.high_watermark, data.log_start_offset), (5, 0));
    assert_eq!(data.aborted_transactions, None);
}

#[test]
fn a_repeated_batch_is_answered_as_the_first_was() {
    let mut kit = Kit::with_topic("t", 1);
    let conn = kit.connect(1);
    let req = InitProducerIdRequest::default().with_transactional_id(None);
    let id = kit.call(conn, 4, &req).producer_id.0;
    assert!(id >= 0);
    let batch = |sequence| Batch::of(2).producer(id, 0, sequence);
    for i in 0..6 {
        assert_eq!(
            produced(&mut kit, conn, batch(i * 2)),
            (0, i64::from(i) * 2)
        );
    }
    // The five newest are known again.
    let again = produce(&mut kit, conn, batch(2).bytes());
    assert_eq!((again.error_code, again.base_offset), (0, 2));
    assert_eq!(
        again.log_append_time_ms, 1001,
        "the batch's greatest timestamp, as Kafka says"
    );
    assert_eq!(produced(&mut kit, conn, batch(0)).0, 45, "the sixth is not");
    assert_eq!(produced(&mut kit, conn, batch(14)).0, 45, "a gap");
    assert_eq!(kit.cluster.partition_view("t", 0).unwrap().log_end, 12);
    // A new epoch begins at 0, and the old one is fenced.
    assert_eq!(
        produced(&mut kit, conn, Batch::of(1).producer(id, 1, 5)).0,
        45
    );
    assert_eq!(
        produced(&mut kit, conn, Batch::of(1).producer(id, 1, 0)),
        (0, 12)
    );
    assert_eq!(produced(&mut kit, conn, batch(12)).0, 47);
    // Sequences wrap.
    let other = |sequence| Batch::of(2).producer(77, 0, sequence);
    assert_eq!(produced(&mut kit, conn, other(i32::MAX - 1)), (0, 13));
    assert_eq!(produced(&mut kit, conn, other(0)), (0, 15));
}

#[test]
fn records_that_are_none_are_refused() {
    let mut kit = Kit::with_topic("t", 1);
    let conn = kit.connect(1);
    assert_eq!(produce(&mut kit, conn, Bytes::new()).error_code, 87);
    let mut broken = Batch::of(1).bytes().to_vec();
    *broken.last_mut().unwrap() ^= 1;
    assert_eq!(produce(&mut kit, conn, broken.into()).error_code, 2);
    let two = [Batch::of(1).bytes(), Batch::of(1).bytes()].concat();
    assert_eq!(produce(&mut kit, conn, two.into()).error_code, 87);
    assert_eq!(
        produce(&mut kit, conn, Batch::of(1).control(true)).error_code,
        87
    );
    let large = Batch {
        value_bytes: 2 << 20,
        ..Batch::of(1)
    };
    assert_eq!(produced(&mut kit, conn, large).0, 10);
    let answer = kit.call(conn, 9, &produce_request(7, 0, Some(Batch::of(1).bytes())));
    assert_eq!(answer.responses[0].partition_responses[0].error_code, 21);
    assert_eq!(kit.cluster.partition_view("t", 0).unwrap().log_end, 0);
    // Null is another matter: silence, for this and for what comes behind.
    kit.send(conn, 9, &produce_request(-1, 0, None));
    kit.send(conn, 3, &hello());
    kit.advance(Duration::from_secs(60));
    assert_eq!(kit.frame(conn), None);
    assert!(!kit.closed.contains(&conn));
}

#[test]
fn acks_0_has_no_answer_and_an_error_ends_the_connection() {
    let mut kit = Kit::with_topic("t", 1);
    let conn = kit.connect(1);
    kit.send(conn, 9, &produce_request(0, 0, Some(Batch::of(1).bytes())));
    assert_eq!(kit.frame(conn), None);
    let answer = kit.call(conn, 3, &hello());
    assert_eq!(answer.error_code, 0, "the next request is served");
    assert_eq!(kit.cluster.partition_view("t", 0).unwrap().log_end, 1);
    kit.send(conn, 9, &produce_request(0, 5, Some(Batch::of(1).bytes())));
    assert!(kit.closed.contains(&conn));
}

#[test]
fn a_long_poll_waits_for_bytes_or_time() {
    let mut kit = Kit::with_topic("t", 2);
    let (reader, writer) = (kit.connect(1), kit.connect(1));
    let one = Batch::of(1).bytes().len() as i32;
    let req = fetch_request(vec![partition(0, 0)])
        .with_max_wait_ms(500)
        .with_min_bytes(one * 2);
    kit.send(reader, 12, &req);
    produced(&mut kit, writer, Batch::of(1));
    assert_eq!(kit.frame(reader), None, "one batch is not enough");
    kit.advance(Duration::from_millis(300));
    produced(&mut kit, writer, Batch::of(1));
    let answer = kit.take::<FetchRequest>(reader, 12).expect("now it is");
    assert_eq!(bytes_of(only(&answer)), 2 * one as usize);

    kit.send(
        reader,
        12,
        &fetch_request(vec![partition(0, 2)]).with_max_wait_ms(500),
    );
    kit.advance(Duration::from_millis(499));
    assert_eq!(kit.frame(reader), None);
    // What comes behind a long poll waits for it.
    kit.send(reader, 3, &hello());
    assert_eq!(kit.frame(reader), None);
    kit.advance(Duration::from_millis(1));
    let answer = kit.take::<FetchRequest>(reader, 12).expect("time is up");
    assert_eq!(bytes_of(only(&answer)), 0);
    assert!(kit.take::<ApiVersionsRequest>(reader, 3).is_some());

    // An error does not wait.
    kit.send(
        reader,
        12,
        &fetch_request(vec![partition(0, 9)]).with_max_wait_ms(500),
    );
    let answer = kit.take::<FetchRequest>(reader, 12).expect("at once");
    let data = only(&answer);
    assert_eq!(
        (data.error_code, data.high_watermark, data.log_start_offset),
        (1, -1, -1)
    );
}

#[test]
fn limits_hold_but_for_the_first_batch() {
    let mut kit = Kit::with_topic("t", 2);
    let conn = kit.connect(1);
    let size = Batch::of(5).bytes().len();
    for p in 0..2 {
        for _ in 0..3 {
            kit.cluster
                .append(kit.now, "t", p, Batch::of(5).bytes())
                .unwrap();
        }
    }
    let all = || vec![partition(0, 0), partition(1, 0)];
    let sizes = |answer: &FetchResponse| -> Vec<usize> {
        answer.responses[0]
            .partitions
            .iter()
            .map(bytes_of)
            .collect()
    };
    let req = fetch_request(all()).with_max_bytes(1);
    assert_eq!(
        sizes(&kit.call(conn, 12, &req)),
        [size, 0],
        "one batch, whole"
    );
    // A later batch may be cut.
    let req = fetch_request(all()).with_max_bytes(size as i32 + 10);
    assert_eq!(sizes(&kit.call(conn, 12, &req)), [size + 10, 0]);
    let mut each = all();
    each[0].partition_max_bytes = 1;
    let answer = kit.call(conn, 12, &fetch_request(each));
    assert_eq!(sizes(&answer), [size, 3 * size]);
}

#[test]
fn a_session_says_only_what_changed() {
    let mut kit = Kit::with_topic("t", 3);
    let conn = kit.connect(1);
    let writer = kit.connect(1);
    let all = (0..3).map(|p| partition(p, 0)).collect();
    let full = fetch_request(all).with_session_epoch(0);
    let answer = kit.call(conn, 12, &full);
    let id = answer.session_id;
    assert_ne!(id, 0);
    assert_eq!(
        answer.responses[0].partitions.len(),
        3,
        "a full answer names all"
    );
    assert_eq!(kit.cluster.fetch_sessions(1), 1);

    let next = |epoch: i32| {
        FetchRequest::default()
            .with_max_bytes(1 << 24)
            .with_session_id(id)
            .with_session_epoch(epoch)
    };
    let answer = kit.call(conn, 12, &next(1));
    assert!(answer.responses.is_empty());
    assert_eq!(answer.session_id, id);

    produced(&mut kit, writer, Batch::of(1));
    let answer = kit.call(conn, 12, &next(2));
    assert_eq!(only(&answer).partition_index, 0);
    // Left out is not forgotten: it goes on from the old offset.
    let answer = kit.call(conn, 12, &next(3));
    assert!(bytes_of(only(&answer)) > 0);
    // Moved on: nothing new, nothing said.
    let mut moved = fetch_request(vec![partition(0, 1)]);
    moved.session_id = id;
    moved.session_epoch = 4;
    assert!(kit.call(conn, 12, &moved).responses.is_empty());
    // Forgotten: said no more.
    let forgotten = ForgottenTopic::default()
        .with_topic(TopicName(text("t")))
        .with_partitions(vec![0]);
    let forget = next(5).with_forgotten_topics_data(vec![forgotten]);
    kit.call(conn, 12, &forget);
    produced(&mut kit, writer, Batch::of(1));
    assert!(kit.call(conn, 12, &next(6)).responses.is_empty());

    // The wrong epoch, twice the same, the wrong id.
    let answer = kit.call(conn, 12, &next(6));
    assert_eq!((answer.error_code, answer.session_id), (71, 0));
    let answer = kit.call(conn, 12, &next(7).with_session_id(id + 1));
    assert_eq!(answer.error_code, 70);
    // Ended.
    let answer = kit.call(conn, 12, &next(-1));
    assert_eq!((answer.error_code, answer.session_id), (0, 0));
    assert_eq!(kit.cluster.fetch_sessions(1), 0);
}

#[test]
fn a_session_repeats_an_error_until_it_is_over() {
    let mut kit = Kit::with_topic("t", 1);
    let conn = kit.connect(1);
    kit.cluster
        .append(kit.now, "t", 0, Batch::of(4).bytes())
        .unwrap();
    kit.cluster.delete_records(kit.now, "t", 0, 4);
    let full = fetch_request(vec![partition(0, 1)]).with_session_epoch(0);
    let answer = kit.call(conn, 12, &full);
    assert_eq!(only(&answer).error_code, 1);
    let id = answer.session_id;
    for epoch in 1..4 {
        let next = FetchRequest::default()
            .with_max_bytes(1 << 20)
            .with_session_id(id)
            .with_session_epoch(epoch);
        assert_eq!(only(&kit.call(conn, 12, &next)).error_code, 1);
    }
}

#[test]
fn no_room_for_a_session_is_session_0() {
    let mut kit = Kit::new(ClusterConfig {
        fetch_sessions_max: 1,
        ..ClusterConfig::default()
    });
    kit.cluster.create_topic("t", 1).unwrap();
    let conn = kit.connect(1);
    let full = fetch_request(vec![partition(0, 0)]).with_session_epoch(0);
    assert_ne!(kit.call(conn, 12, &full).session_id, 0);
    let answer = kit.call(conn, 12, &full);
    assert_eq!((answer.error_code, answer.session_id), (0, 0));
    // One that was not used for two minutes makes room.
    kit.advance(Duration::from_secs(121));
    assert_ne!(kit.call(conn, 12, &full).session_id, 0);
    assert_eq!(kit.cluster.fetch_sessions(1), 1);
}

#[test]
fn topics_go_by_id_from_version_13_and_a_new_one_has_another() {
    let mut kit = Kit::with_topic("t", 1);
    let conn = kit.connect(1);
    kit.cluster
        .append(kit.now, "t", 0, Batch::of(1).bytes())
        .unwrap();
    let metadata = MetadataRequest::default().with_topics(None);
    let id = kit.call(conn, 12, &metadata).topics[0].topic_id;
    assert_eq!(*id.as_bytes(), kit.cluster.topic_id("t").unwrap());
    let topic = FetchTopic::default()
        .with_topic_id(id)
        .with_partitions(vec![partition(0, 0)]);
    let req = fetch_request(Vec::new()).with_topics(vec![topic]);
    let answer = kit.call(conn, 17, &req);
    assert!(bytes_of(only(&answer)) > 0);
    assert_eq!(answer.responses[0].topic_id, id);
    kit.cluster.recreate_topic(kit.now, "t", 1).unwrap();
    assert_eq!(only(&kit.call(conn, 17, &req)).error_code, 100);
    assert_ne!(kit.cluster.topic_id("t").unwrap(), *id.as_bytes());
}

#[test]
fn read_committed_stops_at_the_open_transaction_and_names_the_aborted() {
    let mut kit = Kit::with_topic("t", 1);
    let conn = kit.connect(1);
    let (a, b) = (
        Batch::of(2).producer(1, 0, 0).transactional(),
        Batch::of(2).producer(2, 0, 0).transactional(),
    );
    for bytes in [
        a.bytes(),
        b.bytes(),
        a.control(false),
        a.producer(1, 0, 2).bytes(),
    ] {
        kit.cluster.append(kit.now, "t", 0, bytes).unwrap();
    }
    // 0-1 of producer 1, aborted at 4; 2-3 of producer 2, open; 5-6 of producer 1, open.
    let committed = fetch_request(vec![partition(0, 0)]).with_isolation_level(1);
    let answer = kit.call(conn, 12, &committed);
    let data = only(&answer);
    assert_eq!((data.high_watermark, data.last_stable_offset), (7, 2));
    assert_eq!(bytes_of(data), a.bytes().len());
    let aborted = data.aborted_transactions.as_ref().unwrap();
    assert_eq!(aborted.len(), 1);
    assert_eq!((aborted[0].producer_id.0, aborted[0].first_offset), (1, 0));
    kit.cluster
        .append(kit.now, "t", 0, b.control(true))
        .unwrap();
    let answer = kit.call(conn, 12, &committed);
    assert_eq!(only(&answer).last_stable_offset, 5);
    assert_eq!(fetch(&mut kit, conn, 0).high_watermark, 8);
}

#[test]
fn a_truncated_log_is_told_of() {
    let mut kit = Kit::with_topic("t", 1);
    let conn = kit.connect(1);
    for _ in 0..4 {
        kit.cluster
            .append(kit.now, "t", 0, Batch::of(1).bytes())
            .unwrap();
    }
    kit.cluster.truncate(kit.now, "t", 0, 2);
    kit.cluster
        .append(kit.now, "t", 0, Batch::of(1).bytes())
        .unwrap();
    // A reader at 4 which saw epoch 0 last: that epoch ended at 2.
    let mut at = partition(0, 3);
    at.last_fetched_epoch = 0;
    let answer = kit.call(
        conn,
        12,
        &fetch_request(vec![at.clone()]).with_max_wait_ms(1000),
    );
    let data = only(&answer);
    assert_eq!((data.error_code, bytes_of(data)), (0, 0));
    assert_eq!(
        (data.diverging_epoch.epoch, data.diverging_epoch.end_offset),
        (0, 2)
    );
    // The same by OffsetForLeaderEpoch.
    let asked = OffsetForLeaderPartition::default()
        .with_leader_epoch(0)
        .with_current_leader_epoch(-1);
    let topic = OffsetForLeaderTopic::default()
        .with_topic(TopicName(text("t")))
        .with_partitions(vec![asked]);
    let req = OffsetForLeaderEpochRequest::default()
        .with_replica_id(BrokerId(-1))
        .with_topics(vec![topic]);
    let answer = kit.call(conn, 4, &req);
    let end = &answer.topics[0].partitions[0];
    assert_eq!(
        (end.error_code, end.leader_epoch, end.end_offset),
        (0, 0, 2)
    );
    // An old epoch of the leader is fenced, one to come unknown.
    at.current_leader_epoch = 0;
    assert_eq!(
        only(&kit.call(conn, 12, &fetch_request(vec![at.clone()]))).error_code,
        74
    );
    at.current_leader_epoch = 9;
    assert_eq!(
        only(&kit.call(conn, 12, &fetch_request(vec![at]))).error_code,
        75
    );
}

#[test]
fn a_moved_leader_wakes_who_waits_and_says_who_leads() {
    let mut kit = Kit::new(ClusterConfig {
        nodes: 3,
        replication_factor: 1,
        ..ClusterConfig::default()
    });
    kit.cluster.create_topic("t", 1).unwrap();
    kit.cluster.set_advertised(2, "two", 9);
    let conn = kit.connect(1);
    let mut at = partition(0, 0);
    at.current_leader_epoch = 0;
    let id = kit.cluster.topic_id("t").unwrap();
    let topic = FetchTopic::default()
        .with_topic_id(id.to_vec().try_into().unwrap())
        .with_partitions(vec![at]);
    let req = fetch_request(Vec::new())
        .with_topics(vec![topic])
        .with_max_wait_ms(60_000);
    kit.send(conn, 16, &req);
    assert_eq!(kit.frame(conn), None);
    kit.cluster.move_leader(kit.now, "t", 0, 2);
    let answer = kit.take::<FetchRequest>(conn, 16).expect("at once");
    let data = only(&answer);
    assert_eq!(data.error_code, 6);
    assert_eq!(
        (
            data.current_leader.leader_id.0,
            data.current_leader.leader_epoch
        ),
        (2, 1)
    );
    let node = &answer.node_endpoints[0];
    assert_eq!((node.node_id.0, &*node.host, node.port), (2, "two", 9));
    assert_eq!(produced(&mut kit, conn, Batch::of(1)).0, 6);
}

#[test]
fn a_dead_node_is_gone_from_metadata_and_its_partitions_move() {
    let mut kit = Kit::new(ClusterConfig {
        nodes: 3,
        ..ClusterConfig::default()
    });
    kit.cluster.create_topic("t", 3).unwrap();
    let (dead, alive) = (kit.connect(1), kit.connect(2));
    kit.cluster.crash(kit.now, 1);
    kit.drain();
    assert!(kit.closed.contains(&dead));
    assert_eq!(kit.cluster.connect(kit.now, 1), None);
    let metadata = MetadataRequest::default().with_topics(None);
    let answer = kit.call(alive, 9, &metadata);
    assert_eq!(answer.brokers.len(), 2);
    for p in &answer.topics[0].partitions {
        assert_ne!(p.leader_id.0, 1);
        assert_eq!(p.offline_replicas, [BrokerId(1)]);
    }
    kit.cluster.restart(kit.now, 1);
    assert_eq!(kit.call(alive, 9, &metadata).brokers.len(), 3);
    assert!(kit.cluster.connect(kit.now, 1).is_some());
}

#[test]
fn offsets_are_found_by_time() {
    let mut kit = Kit::with_topic("t", 1);
    let conn = kit.connect(1);
    for timestamp in [1000, 2000, 1500] {
        let batch = Batch {
            timestamp,
            ..Batch::of(3)
        };
        kit.cluster.append(kit.now, "t", 0, batch.bytes()).unwrap();
    }
    // Compressed ones are looked into as well.
    let mut late = BatchBuilder::new(0).compression(Compression::Zstd);
    for timestamp in [3000, 3005, 3010] {
        late.push(timestamp, None, Some(b"value"), &[]).unwrap();
    }
    let late = late.build(&mut Encoder::new()).unwrap();
    kit.cluster.append(kit.now, "t", 0, late).unwrap();
    let mut find = |v: i16, timestamp: i64| {
        let asked = ListOffsetsPartition::default()
            .with_current_leader_epoch(-1)
            .with_timestamp(timestamp);
        let topic = ListOffsetsTopic::default()
            .with_name(TopicName(text("t")))
            .with_partitions(vec![asked]);
        let req = ListOffsetsRequest::default()
            .with_replica_id(BrokerId(-1))
            .with_topics(vec![topic]);
        let answer = kit.call(conn, v, &req);
        let p = &answer.topics[0].partitions[0];
        (p.error_code, p.offset, p.timestamp)
    };
    assert_eq!(find(7, -2), (0, 0, -1));
    assert_eq!(find(7, -1), (0, 12, -1));
    assert_eq!(find(7, 1001), (0, 1, 1001));
    assert_eq!(find(7, 1003), (0, 3, 2000));
    assert_eq!(find(7, 2003), (0, 9, 3000));
    assert_eq!(find(7, 3001), (0, 10, 3005));
    assert_eq!(find(7, 3011), (0, -1, -1), "nothing so late: no error");
    assert_eq!(find(7, -3), (0, 11, 3010));
    assert_eq!(find(6, -3).0, 35);
    assert_eq!(find(7, -9).0, 35);
}

#[test]
fn compaction_leaves_gaps_and_the_end_stays() {
    let mut kit = Kit::with_topic("t", 1);
    let conn = kit.connect(1);
    for _ in 0..3 {
        kit.cluster
            .append(kit.now, "t", 0, Batch::of(2).bytes())
            .unwrap();
    }
    let left = Batch {
        base_offset: 2,
        ..Batch::of(1)
    };
    kit.cluster.replace_log("t", 0, left.bytes()).unwrap();
    let data = fetch(&mut kit, conn, 0);
    assert_eq!(bytes_of(&data), left.bytes().len());
    assert_eq!((data.log_start_offset, data.high_watermark), (0, 6));
    assert_eq!(bytes_of(&fetch(&mut kit, conn, 3)), 0);
}

#[test]
fn faults_come_by_script_and_are_counted() {
    let mut kit = Kit::with_topic("t", 2);
    let conn = kit.connect(1);
    kit.cluster.script().add(
        Rule::new(Fault::Error(6))
            .api(1)
            .topic("t", Some(1))
            .times(1),
    );
    let both = || fetch_request(vec![partition(0, 0), partition(1, 0)]);
    let codes = |answer: &FetchResponse| -> Vec<i16> {
        answer.responses[0]
            .partitions
            .iter()
            .map(|p| p.error_code)
            .collect()
    };
    assert_eq!(codes(&kit.call(conn, 12, &both())), [0, 6]);
    assert_eq!(codes(&kit.call(conn, 12, &both())), [0, 0]);
    assert_eq!(kit.cluster.script().matches(), [2]);

    // Done, and said not to be.
    kit.cluster.script().clear();
    kit.cluster
        .script()
        .add(Rule::new(Fault::LateError(7)).api(0).times(1));
    assert_eq!(produced(&mut kit, conn, Batch::of(1)).0, 7);
    assert_eq!(kit.cluster.partition_view("t", 0).unwrap().log_end, 1);

    // Slow, then slow to answer.
    kit.cluster.script().clear();
    let second = Duration::from_secs(1);
    kit.cluster
        .script()
        .add(Rule::new(Fault::Delay(second)).api(18).times(1));
    kit.cluster
        .script()
        .add(Rule::new(Fault::DelayAnswer(second)).api(18).times(1));
    kit.send(conn, 3, &hello());
    kit.advance(second + second / 2);
    assert_eq!(kit.frame(conn), None);
    kit.advance(second);
    assert!(kit.take::<ApiVersionsRequest>(conn, 3).is_some());

    // Any bytes, then the plain answer again.
    kit.cluster.script().clear();
    let http = Bytes::from_static(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    kit.cluster
        .script()
        .add(Rule::new(Fault::Bytes(http.clone())).times(1));
    kit.send(conn, 3, &hello());
    assert_eq!(kit.frame(conn), Some(http));
    assert!(kit.call(conn, 3, &hello()).error_code == 0);

    // Throttled, in words.
    kit.cluster
        .script()
        .add(Rule::new(Fault::Throttle(second)).times(1));
    assert_eq!(kit.call(conn, 3, &hello()).throttle_time_ms, 1000);

    // Cut in the middle of the answer.
    kit.cluster.script().clear();
    kit.cluster
        .script()
        .add(Rule::new(Fault::CutAnswer(5)).node(1).client_id("kit"));
    kit.send(conn, 3, &hello());
    assert_eq!(kit.frame(conn).unwrap().len(), 5);
    assert!(kit.closed.contains(&conn));

    // Swallowed: silent from then on.
    kit.cluster.script().clear();
    kit.cluster.script().add(Rule::new(Fault::Swallow).times(1));
    let conn = kit.connect(1);
    kit.send(conn, 3, &hello());
    kit.send(conn, 3, &hello());
    kit.advance(Duration::from_secs(600));
    assert_eq!(kit.frame(conn), None);
    assert!(!kit.closed.contains(&conn));
    assert!(kit.cluster.requests(18) >= 6);
}

#[test]
fn it_can_act_older_than_it_is() {
    let mut cfg = ClusterConfig::default();
    cfg.versions.insert(18, (0, 2));
    cfg.versions.insert(1, (4, 11));
    cfg.versions.insert(22, (0, -1));
    let mut kit = Kit::new(cfg);
    let conn = kit.connect(1);
    kit.send(conn, 3, &hello());
    let frame = kit.frame(conn).unwrap();
    // Error 35, one entry: API 18, versions 0 to 2.
    assert_eq!(frame[8..], [0, 35, 0, 0, 0, 1, 0, 18, 0, 0, 0, 2]);
    let answer = kit.call(conn, 2, &hello());
    let find = |key: i16| answer.api_keys.iter().find(|k| k.api_key == key);
    assert_eq!(find(1).unwrap().max_version, 11);
    assert_eq!(find(22), None);
    kit.send(conn, 4, &InitProducerIdRequest::default());
    assert!(kit.closed.contains(&conn));
}

#[test]
fn a_length_that_lies_is_refused_before_memory_is_reserved() {
    let mut kit = Kit::with_topic("t", 1);
    // Metadata 4 with two thousand million topics, in 15 bytes.
    let frame = [0, 3, 0, 4, 0, 0, 0, 1, 255, 255, 0x7f, 255, 255, 255, 0];
    let conn = kit.connect(1);
    kit.raw(conn, Bytes::copy_from_slice(&frame));
    assert!(kit.closed.contains(&conn));
    assert_eq!(kit.frame(conn), None);
}
