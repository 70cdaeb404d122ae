//! The machine, request by request.

mod random;

use std::collections::BTreeMap;

use super::*;
use crate::records::{BatchHeader, Decoder, Limits, Piece, split};
use crate::wire::Code;
use crate::wire::message::{
    InitProducerIdResponse, ProduceAnswer, ProduceResponse, ProduceResponseTopic,
};

/// A request that waits for its answer.
#[derive(Clone, Debug)]
struct Sent {
    token: Token,
    node: Option<NodeId>,
    request: Request,
}

impl Sent {
    fn is_identity(&self) -> bool {
        matches!(self.request, Request::InitProducerId(_))
    }

    /// Topic, partition and batch of each.
    fn batches(&self) -> Vec<(Arc<str>, i32, Bytes)> {
        let Request::Produce(request) = &self.request else {
            return Vec::new();
        };
        assert_eq!(request.acks, -1);
        let of = |t: &ProduceTopic| {
            let name = t.name.clone();
            let partitions = t.partitions.clone().into_iter();
            partitions.map(move |(index, bytes)| (name.clone(), index, bytes))
        };
        request.topics.iter().flat_map(of).collect()
    }

    fn batch(&self) -> Bytes {
        let mut batches = self.batches();
        assert_eq!(batches.len(), 1, "{self:?}");
        batches.remove(0).2
    }
}

/// A batch, read by our own reader, checksum and all.
fn read(bytes: &Bytes) -> (BatchHeader, Vec<Option<Vec<u8>>>) {
    let mut pieces = split(bytes.clone());
    let Some(Ok(Piece::Batch(raw))) = pieces.next() else {
        panic!("no batch");
    };
    assert!(pieces.next().is_none());
    raw.check_crc().unwrap();
    let batch = raw
        .decode(&mut Decoder::new(), 0, &Limits::default())
        .unwrap();
    let values = (0..batch.len()).map(|i| batch.value(i).map(<[u8]>::to_vec));
    (*raw.header(), values.collect())
}

/// Id, epoch, first sequence number and count.
fn stamp(bytes: &Bytes) -> (i64, i16, i32, usize) {
    let (h, _) = read(bytes);
    (
        h.producer_id(),
        h.producer_epoch(),
        h.base_sequence(),
        h.count(),
    )
}

struct Rig {
    now: Now,
    produce: Produce,
    sent: VecDeque<Sent>,
    done: BTreeMap<Ticket, Result<Written, Error>>,
    refreshes: usize,
    notices: Vec<ProduceNotice>,
}

impl Rig {
    fn new(cfg: ProduceConfig) -> Self {
        let now = Now(1_000_000_000);
        Rig {
            now,
            produce: Produce::new(cfg, now),
            sent: VecDeque::new(),
            done: BTreeMap::new(),
            refreshes: 0,
            notices: Vec::new(),
        }
    }

    /// With a producer id, and a topic `t` whose partitions node 1 leads.
    fn ready(cfg: ProduceConfig, partitions: usize) -> Self {
        let mut rig = Rig::new(cfg);
        let first = rig.push(Some(0), "first");
        rig.topic(partitions);
        rig.identity(7, 0);
        let sent = rig.take();
        rig.answer(&sent, Code::NONE, 0);
        assert_eq!(rig.done.remove(&first).unwrap().unwrap().offset, 0);
        rig
    }

    fn topic(&mut self, partitions: usize) {
        let view = TopicView {
            id: TopicId([1; 16]),
            leaders: vec![Some(NodeId(1)); partitions],
        };
        self.produce.set_topic(self.now, "t", Some(view));
        self.absorb();
    }

    fn push(&mut self, partition: Option<i32>, value: &'static str) -> Ticket {
        let mut record = Outgoing::new("t");
        record.partition = partition;
        record.value = Some(value.into());
        let ticket = self.produce.push(self.now, record).unwrap();
        self.absorb();
        ticket
    }

    fn absorb(&mut self) {
        while let Some(action) = self.produce.poll_action() {
            match action {
                ProduceAction::Send {
                    token,
                    node,
                    request,
                    ..
                } => self.sent.push_back(Sent {
                    token,
                    node,
                    request,
                }),
                ProduceAction::Done { ticket, result } => {
                    assert!(self.done.insert(ticket, result).is_none(), "done twice");
                }
                ProduceAction::RefreshMetadata => self.refreshes += 1,
                ProduceAction::Hint { .. } => {}
                ProduceAction::Notice(notice) => self.notices.push(notice),
            }
        }
    }

    fn take(&mut self) -> Sent {
        self.sent.pop_front().expect("a request is out")
    }

    fn identity(&mut self, producer_id: i64, epoch: i16) {
        let sent = self.take();
        assert!(sent.is_identity(), "{sent:?}");
        assert_eq!(sent.node, None);
        let answer = InitProducerIdResponse {
            throttle: Duration::ZERO,
            code: Code::NONE,
            producer_id,
            epoch,
        };
        self.respond(&sent, Ok(Response::InitProducerId(answer)));
    }

    fn respond(&mut self, sent: &Sent, result: Result<Response, Error>) {
        self.produce.handle_response(self.now, sent.token, result);
        self.absorb();
    }

    fn answer(&mut self, sent: &Sent, code: Code, base_offset: i64) {
        let answers = sent.batches().into_iter().map(|(name, partition, _)| {
            let answer = ProduceAnswer {
                partition,
                code,
                base_offset,
                append_time: -1,
                log_start: 0,
                record_errors: Vec::new(),
                message: None,
                current_leader: None,
            };
            ProduceResponseTopic {
                name,
                id: TopicId::ZERO,
                partitions: vec![answer],
            }
        });
        let response = ProduceResponse {
            throttle: Duration::ZERO,
            topics: answers.collect(),
            endpoints: Vec::new(),
        };
        self.respond(sent, Ok(Response::Produce(response)));
    }

    fn lose(&mut self, sent: &Sent) {
        let lost = Error::new(ErrorKind::Transport, "lost").retriable();
        self.respond(sent, Err(lost));
    }

    /// To the machine's next deadline.
    fn wait(&mut self) {
        let at = self
            .produce
            .next_deadline()
            .expect("it waits for something");
        self.now = self.now.max(at);
        self.produce.handle_timeout(self.now);
        self.absorb();
    }

    fn result(&mut self, ticket: Ticket) -> Result<Written, Error> {
        self.done.remove(&ticket).expect("it is done")
    }
}

fn timed() -> ProduceConfig {
    ProduceConfig {
        delivery_timeout: Some(Duration::from_secs(10)),
        ..ProduceConfig::default()
    }
}

#[test]
fn one_batch_is_in_flight_and_the_next_follows_its_numbers() {
    let mut rig = Rig::ready(ProduceConfig::default(), 2);
    let a = rig.push(Some(0), "a");
    let (b, c) = (rig.push(Some(0), "b"), rig.push(Some(0), "c"));
    let other = rig.push(Some(1), "x");
    let first = rig.take();
    assert_eq!(stamp(&first.batch()), (7, 0, 1, 1));
    // Another partition waits for nothing.
    let second = rig.take();
    assert_eq!(stamp(&second.batch()), (7, 0, 0, 1));
    assert!(rig.sent.is_empty());
    rig.answer(&first, Code::NONE, 10);
    let third = rig.take();
    let (_, values) = read(&third.batch());
    assert_eq!(values, [Some(b"b".to_vec()), Some(b"c".to_vec())]);
    assert_eq!(stamp(&third.batch()), (7, 0, 2, 2));
    rig.answer(&third, Code::NONE, 11);
    rig.answer(&second, Code::NONE, 5);
    assert_eq!(rig.result(a).unwrap().offset, 10);
    assert_eq!(
        (rig.result(b).unwrap().offset, rig.result(c).unwrap().offset),
        (11, 12)
    );
    let written = Written {
        partition: 1,
        offset: 5,
    };
    assert_eq!(rig.result(other).unwrap(), written);
    assert_eq!((rig.produce.records(), rig.produce.bytes()), (0, 0));
    assert_eq!(rig.produce.next_deadline(), None);
}

#[test]
fn null_and_empty_and_repeated_headers_are_kept() {
    let mut rig = Rig::ready(ProduceConfig::default(), 1);
    let mut record = Outgoing::new("t");
    record.key = Some(Bytes::new());
    record.timestamp = 1234;
    record.headers = vec![
        ("h".into(), Some("1".into())),
        (Bytes::from_static(&[0xff]), None),
        ("h".into(), Some(Bytes::new())),
    ];
    rig.produce.push(rig.now, record.clone()).unwrap();
    rig.absorb();
    let bytes = rig.take().batch();
    let Some(Ok(Piece::Batch(raw))) = split(bytes).next() else {
        panic!("no batch");
    };
    let batch = raw
        .decode(&mut Decoder::new(), 0, &Limits::default())
        .unwrap();
    assert_eq!((batch.key(0), batch.value(0)), (Some(&b""[..]), None));
    assert_eq!(batch.timestamp(0), 1234);
    let headers: Vec<_> = batch
        .headers(0)
        .map(|h| (h.key_bytes(), h.value()))
        .collect();
    let expected: [(&[u8], Option<&[u8]>); 3] =
        [(b"h", Some(b"1")), (&[0xff], None), (b"h", Some(b""))];
    assert_eq!(headers, expected);
}

/// P06: a batch that is sent again is the same bytes, however much has come behind it.
#[test]
fn p06_a_retried_batch_is_identical() {
    let mut rig = Rig::ready(ProduceConfig::default(), 1);
    let a = rig.push(Some(0), "a");
    let first = rig.take();
    rig.push(Some(0), "b");
    rig.lose(&first);
    rig.push(Some(0), "c");
    assert!(rig.sent.is_empty(), "a retry is paced");
    rig.wait();
    let again = rig.take();
    assert_eq!(again.batch(), first.batch());
    assert!(rig.sent.is_empty(), "nothing overtakes it");
    // An answer to the first copy that comes now is nobody's.
    rig.answer(&first, Code::NONE, 3);
    assert!(rig.done.is_empty());
    rig.answer(&again, Code::NONE, 3);
    assert_eq!(rig.result(a).unwrap().offset, 3);
    assert_eq!(stamp(&rig.take().batch()), (7, 0, 2, 2));
}

/// P08: a partition is chosen once, whatever the topic grows to in between.
#[test]
fn p08_a_retry_keeps_its_partition() {
    let mut rig = Rig::ready(ProduceConfig::default(), 3);
    let mut record = Outgoing::new("t");
    record.key = Some("some key".into());
    rig.produce.push(rig.now, record).unwrap();
    rig.absorb();
    let first = rig.take();
    let chosen = first.batches()[0].1;
    assert_eq!(chosen, partition_of(b"some key", 3));
    rig.answer(&first, Code::NOT_LEADER_OR_FOLLOWER, -1);
    for partitions in 4..50 {
        rig.topic(partitions);
    }
    rig.wait();
    assert_eq!(rig.take().batches()[0].1, chosen);
}

/// P09: a topic without partitions is not there: nothing counts as written to it.
#[test]
fn p09_no_partitions_is_no_success() {
    let mut rig = Rig::new(timed());
    let ticket = rig.push(None, "a");
    rig.topic(0);
    assert!(rig.sent.is_empty() && rig.done.is_empty());
    // It is asked for meanwhile, at a pace.
    while rig.done.is_empty() {
        rig.wait();
    }
    assert!((10..25).contains(&rig.refreshes), "{}", rig.refreshes);
    let error = rig.result(ticket).unwrap_err();
    assert!(
        error.is_retriable() && error.message().contains("topic"),
        "{error}"
    );
    assert_eq!(rig.produce.records(), 0);
}

/// P01: a topic that vanishes from metadata and returns keeps its sequence numbers: 0 again would
/// be taken for a duplicate, answered with success, and lost.
#[test]
fn p01_a_vanished_topic_keeps_its_sequence() {
    let mut rig = Rig::ready(ProduceConfig::default(), 1);
    rig.produce.set_topic(rig.now, "t", None);
    let waits = rig.push(Some(0), "b");
    assert!(rig.sent.is_empty());
    rig.topic(1);
    let sent = rig.take();
    assert_eq!(stamp(&sent.batch()), (7, 0, 1, 1));
    rig.answer(&sent, Code::NONE, 1);
    assert!(rig.result(waits).is_ok());
}

/// P02: a batch that is out is waited for past its records' time; given up without a word of its
/// fate, it ends the epoch, so that no other record is taken for it.
#[test]
fn p02_an_ambiguous_batch_ends_the_epoch() {
    let mut rig = Rig::ready(timed(), 2);
    let a = rig.push(Some(0), "a");
    let sent = rig.take();
    rig.now = rig.now + Duration::from_secs(60);
    rig.produce.handle_timeout(rig.now);
    rig.absorb();
    assert!(rig.done.is_empty(), "its answer may be on its way");
    rig.lose(&sent);
    let error = rig.result(a).unwrap_err();
    assert!(error.message().contains("within its time"), "{error}");
    // The same numbers under the same epoch would make this one a duplicate.
    rig.push(Some(0), "b");
    rig.wait();
    assert_eq!(stamp(&rig.take().batch()), (7, 1, 0, 1));
}

/// P03: a raised epoch is every partition's, and each begins at 0 under it.
#[test]
fn p03_a_new_epoch_restarts_every_partition() {
    let mut rig = Rig::ready(ProduceConfig::default(), 3);
    for partition in [1, 1, 2] {
        rig.push(Some(partition), "x");
        let sent = rig.take();
        rig.answer(&sent, Code::NONE, 0);
    }
    rig.push(Some(2), "in flight under the old epoch");
    let old = rig.take();
    let lost = rig.push(Some(0), "a");
    let sent = rig.take();
    assert_eq!(stamp(&sent.batch()), (7, 0, 1, 1));
    rig.answer(&sent, Code::OUT_OF_ORDER_SEQUENCE_NUMBER, -1);
    let told = rig.notices.last().unwrap().to_string();
    assert!(told.contains("t-0") && told.contains("epoch"), "{told}");
    rig.wait();
    let again = rig.take();
    assert_eq!(stamp(&again.batch()), (7, 1, 0, 1));
    rig.answer(&again, Code::NONE, 9);
    assert_eq!(rig.result(lost).unwrap().offset, 9);
    rig.push(Some(1), "y");
    let sent = rig.take();
    assert_eq!(stamp(&sent.batch()), (7, 1, 0, 1));
    // What was frozen before is sent again as it was, and the partition goes on under the new one.
    rig.lose(&old);
    rig.wait();
    let again = rig.take();
    assert_eq!(again.batch(), old.batch());
    rig.answer(&again, Code::NONE, 4);
    rig.push(Some(2), "z");
    assert_eq!(stamp(&rig.take().batch()), (7, 1, 0, 1));
}

/// P04: after the last epoch comes another id.
#[test]
fn p04_an_exhausted_epoch_is_a_new_id() {
    let mut rig = Rig::new(ProduceConfig::default());
    rig.push(Some(0), "a");
    rig.topic(1);
    rig.identity(7, i16::MAX);
    let sent = rig.take();
    rig.answer(&sent, Code::UNKNOWN_PRODUCER_ID, -1);
    rig.wait();
    rig.identity(8, 0);
    if rig.sent.is_empty() {
        rig.wait();
    }
    assert_eq!(stamp(&rig.take().batch()), (8, 0, 0, 1));
}

/// P22: a batch that is too large is halved until the record that is too large is alone; it fails,
/// once, and the others are written, in order.
#[test]
fn p22_the_record_that_is_too_large_is_found() {
    let mut rig = Rig::ready(ProduceConfig::default(), 1);
    rig.push(Some(0), "hold");
    let hold = rig.take();
    let tickets = ["a", "b", "BAD", "c", "d"].map(|value| rig.push(Some(0), value));
    rig.answer(&hold, Code::NONE, 1);
    let (mut log, mut refusals, mut next) = (Vec::new(), 0, 2);
    while let Some(sent) = rig.sent.pop_front() {
        let (header, values) = read(&sent.batch());
        assert_eq!(
            header.base_sequence(),
            next,
            "refused ones use no number up"
        );
        if values.contains(&Some(b"BAD".to_vec())) {
            refusals += 1;
            rig.answer(&sent, Code::MESSAGE_TOO_LARGE, -1);
        } else {
            next += i32::try_from(values.len()).unwrap();
            let base = i64::try_from(log.len()).unwrap();
            log.extend(values);
            rig.answer(&sent, Code::NONE, base);
        }
    }
    assert_eq!(log, [b"a", b"b", b"c", b"d"].map(|v| Some(v.to_vec())));
    assert!(refusals <= 3, "{refusals}");
    let results = tickets.map(|ticket| rig.result(ticket));
    let codes = results.map(|r| r.err().and_then(|e| e.code()));
    assert_eq!(codes, [None, None, Some(10), None, None]);
}

/// P23: an invalid record is refused for good, a corrupt message is sent again.
#[test]
fn p23_invalid_is_final_and_corrupt_is_not() {
    let mut rig = Rig::ready(ProduceConfig::default(), 1);
    let bad = rig.push(Some(0), "a");
    let sent = rig.take();
    rig.answer(&sent, Code::INVALID_RECORD, -1);
    assert_eq!(rig.result(bad).unwrap_err().code(), Some(87));
    let good = rig.push(Some(0), "b");
    let sent = rig.take();
    assert_eq!(stamp(&sent.batch()), (7, 0, 1, 1));
    rig.answer(&sent, Code::CORRUPT_MESSAGE, -1);
    rig.wait();
    let again = rig.take();
    rig.answer(&again, Code::NONE, 1);
    assert!(rig.result(good).is_ok());
}

#[test]
fn a_duplicate_is_a_success() {
    let mut rig = Rig::ready(ProduceConfig::default(), 1);
    let a = rig.push(Some(0), "a");
    let sent = rig.take();
    rig.answer(&sent, Code::DUPLICATE_SEQUENCE_NUMBER, -1);
    assert_eq!(rig.result(a).unwrap().offset, -1);
    rig.push(Some(0), "b");
    assert_eq!(stamp(&rig.take().batch()), (7, 0, 2, 1));
}

#[test]
fn what_is_forbidden_fails_and_is_asked_again_at_a_pace() {
    let mut rig = Rig::ready(ProduceConfig::default(), 1);
    let a = rig.push(Some(0), "a");
    let sent = rig.take();
    rig.answer(&sent, Code::TOPIC_AUTHORIZATION_FAILED, -1);
    let error = rig.result(a).unwrap_err();
    assert_eq!((error.code(), error.topic()), (Some(29), Some("t")));

    let mut rig = Rig::new(ProduceConfig::default());
    rig.topic(1);
    let a = rig.push(Some(0), "a");
    rig.topic(1);
    let sent = rig.take();
    let refused = InitProducerIdResponse {
        throttle: Duration::ZERO,
        code: Code::CLUSTER_AUTHORIZATION_FAILED,
        producer_id: -1,
        epoch: -1,
    };
    rig.respond(&sent, Ok(Response::InitProducerId(refused)));
    assert!(
        rig.result(a)
            .unwrap_err()
            .message()
            .contains("IdempotentWrite")
    );
    rig.push(Some(0), "b");
    assert!(rig.sent.is_empty(), "not at once");
    rig.wait();
    assert!(rig.take().is_identity());
}

/// I10: a leader that refuses for ever is asked at a pace.
#[test]
fn refusals_are_paced() {
    let mut rig = Rig::ready(ProduceConfig::default(), 1);
    rig.push(Some(0), "a");
    let (end, mut requests) = (rig.now + Duration::from_secs(60), 0);
    while rig.now < end {
        let sent = rig.take();
        requests += 1;
        rig.answer(&sent, Code(19), -1);
        rig.wait();
    }
    assert!((50..90).contains(&requests), "{requests}");
    let told = rig.notices.iter().map(ToString::to_string);
    assert!(told.clone().any(|t| t.contains("NOT_ENOUGH_REPLICAS")));
    assert!(told.count() <= 3);
}

#[test]
fn the_queue_is_bounded_and_can_be_taken_back() {
    let cfg = ProduceConfig {
        records_max: 3,
        bytes_max: 500,
        ..ProduceConfig::default()
    };
    let mut rig = Rig::new(cfg);
    let mut large = Outgoing::new("t");
    large.value = Some(vec![0; 1000].into());
    let only = rig.produce.push(rig.now, large.clone()).unwrap();
    assert!(rig.produce.push(rig.now, Outgoing::new("t")).is_err());
    assert!(rig.produce.cancel(only) && !rig.produce.cancel(only));
    let kept = rig.push(Some(0), "a");
    let gone = rig.push(Some(0), "b");
    rig.push(Some(0), "c");
    let refused = rig.produce.push(rig.now, Outgoing::new("u")).unwrap_err();
    assert_eq!(&*refused.topic, "u");
    rig.topic(1);
    assert!(rig.produce.cancel(gone));
    rig.identity(1, 0);
    let sent = rig.take();
    let (_, values) = read(&sent.batch());
    assert_eq!(values, [Some(b"a".to_vec()), Some(b"c".to_vec())]);
    assert!(!rig.produce.cancel(kept), "it is on its way");
    rig.answer(&sent, Code::NONE, 0);
    assert_eq!((rig.done.len(), rig.produce.records()), (2, 0));
}

/// P25: given up, every record has its answer, and what comes back later is nobody's.
#[test]
fn p25_giving_up_answers_all() {
    let mut rig = Rig::ready(ProduceConfig::default(), 2);
    let tickets = [Some(0), Some(0), Some(1), None].map(|p| rig.push(p, "a"));
    let sent = rig.take();
    let over = Error::new(ErrorKind::Transport, "closed");
    rig.produce.fail_all(rig.now, &over);
    rig.absorb();
    for ticket in tickets {
        assert_eq!(rig.result(ticket).unwrap_err().message(), "closed");
    }
    rig.answer(&sent, Code::NONE, 0);
    assert!(rig.done.is_empty());
    assert_eq!(rig.produce.next_deadline(), None);
    rig.push(Some(0), "b");
    let sent = rig.sent.pop_back().unwrap();
    assert_eq!(stamp(&sent.batch()), (7, 1, 0, 1));
}

/// A topic made anew with fewer partitions: what was for one that is gone goes to another.
#[test]
fn a_partition_that_is_gone_gives_its_records_back() {
    let mut rig = Rig::new(ProduceConfig::default());
    let mut record = Outgoing::new("t");
    // In a topic of 8 it is for partition 7.
    let key = (0..)
        .map(|n: i32| n.to_string())
        .find(|k| partition_of(k.as_bytes(), 8) == 7);
    record.key = key.map(Into::into);
    let ticket = rig.produce.push(rig.now, record).unwrap();
    rig.topic(8);
    rig.identity(7, 0);
    let sent = rig.take();
    assert_eq!(sent.batches()[0].1, 7);
    rig.topic(2);
    rig.answer(&sent, Code::UNKNOWN_TOPIC_OR_PARTITION, -1);
    while rig.sent.is_empty() {
        rig.wait();
    }
    let sent = rig.take();
    assert!(sent.batches()[0].1 < 2);
    rig.answer(&sent, Code::NONE, 0);
    assert!(rig.result(ticket).is_ok());
}
