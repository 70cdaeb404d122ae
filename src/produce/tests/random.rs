//! Random lives against a naive model of brokers: answers lost, requests that arrive late or twice,
//! leaders that move, topics that vanish and return. Each record is there exactly once, in order.

use super::*;
use proptest::prelude::*;

/// First number, count, offset.
type Recent = (i32, usize, i64);

/// A leader's memory and the log, as simple as it can be.
#[derive(Default)]
struct Log {
    values: Vec<Vec<u8>>,
    /// Epoch, and the last five batches.
    producers: BTreeMap<i64, (i16, VecDeque<Recent>)>,
}

impl Log {
    fn append(&mut self, bytes: &Bytes) -> (Code, i64) {
        let (header, values) = read(bytes);
        let (epoch, base) = (header.producer_epoch(), header.base_sequence());
        let known = self
            .producers
            .entry(header.producer_id())
            .or_insert((epoch, VecDeque::new()));
        if epoch < known.0 {
            return (Code::INVALID_PRODUCER_EPOCH, -1);
        }
        if epoch > known.0 {
            if base != 0 {
                return (Code::OUT_OF_ORDER_SEQUENCE_NUMBER, -1);
            }
            *known = (epoch, VecDeque::new());
        }
        let twice = known.1.iter().find(|b| (b.0, b.1) == (base, values.len()));
        if let Some((.., offset)) = twice {
            return (Code::NONE, *offset);
        }
        let expected = known
            .1
            .back()
            .map_or(0, |b| b.0 + i32::try_from(b.1).unwrap());
        if base != expected {
            return (Code::OUT_OF_ORDER_SEQUENCE_NUMBER, -1);
        }
        let offset = i64::try_from(self.values.len()).unwrap();
        known.1.push_back((base, values.len(), offset));
        if known.1.len() > 5 {
            known.1.pop_front();
        }
        self.values.extend(values.into_iter().flatten());
        (Code::NONE, offset)
    }
}

#[derive(Clone, Debug)]
enum Op {
    /// Records for a partition.
    Push(i32, u8),
    /// The oldest request arrives and is answered.
    Serve,
    /// It arrives, and its answer is lost.
    LoseAnswer,
    /// It is lost.
    LoseRequest,
    /// It is refused for now.
    Refuse(i16),
    /// Its link dies; the request arrives later all the same.
    Delay,
    /// A delayed request arrives.
    Arrive,
    /// The newest request is served before the older ones.
    ServeLast,
    /// Leaders move, or there are none.
    Lead(Option<i32>),
    /// The topic vanishes from metadata.
    Vanish,
    /// Time goes by.
    Wait,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..PARTITIONS, 1..4u8).prop_map(|(p, n)| Op::Push(p, n)),
        6 => Just(Op::Serve),
        2 => Just(Op::LoseAnswer),
        2 => Just(Op::LoseRequest),
        2 => prop_oneof![Just(6i16), Just(3), Just(7), Just(19), Just(2), Just(-1)].prop_map(Op::Refuse),
        2 => Just(Op::Delay),
        2 => Just(Op::Arrive),
        1 => Just(Op::ServeLast),
        1 => prop_oneof![Just(None), (1..4i32).prop_map(Some)].prop_map(Op::Lead),
        1 => Just(Op::Vanish),
        4 => Just(Op::Wait),
    ]
}

const PARTITIONS: i32 = 3;

struct Life {
    rig: Rig,
    logs: BTreeMap<i32, Log>,
    delayed: VecDeque<Sent>,
    pushed: BTreeMap<i32, Vec<(Ticket, Vec<u8>)>>,
    leader: i32,
    next: u32,
}

impl Life {
    fn new() -> Self {
        let cfg = ProduceConfig {
            batch_bytes_max: 300,
            ..ProduceConfig::default()
        };
        let mut life = Life {
            rig: Rig::new(cfg),
            logs: BTreeMap::new(),
            delayed: VecDeque::new(),
            pushed: BTreeMap::new(),
            leader: 1,
            next: 0,
        };
        life.push(0);
        life.lead(Some(1));
        life
    }

    fn push(&mut self, partition: i32) {
        let value = format!("{partition}/{}", self.next).into_bytes();
        self.next += 1;
        let mut record = Outgoing::new("t");
        record.partition = Some(partition);
        record.value = Some(value.clone().into());
        let ticket = self.rig.produce.push(self.rig.now, record).unwrap();
        self.pushed
            .entry(partition)
            .or_default()
            .push((ticket, value));
        self.rig.absorb();
    }

    fn lead(&mut self, leader: Option<i32>) {
        self.leader = leader.unwrap_or(self.leader);
        let view = TopicView {
            id: TopicId([1; 16]),
            leaders: vec![leader.map(NodeId); PARTITIONS as usize],
        };
        self.rig.produce.set_topic(self.rig.now, "t", Some(view));
        self.rig.absorb();
    }

    /// What the brokers make of it.
    fn arrive(&mut self, sent: &Sent) -> Vec<(Arc<str>, i32, Code, i64)> {
        let leads = sent.node == Some(NodeId(self.leader));
        let one = |(topic, partition, bytes): (Arc<str>, i32, Bytes)| {
            let (code, offset) = match leads {
                true => self.logs.entry(partition).or_default().append(&bytes),
                false => (Code::NOT_LEADER_OR_FOLLOWER, -1),
            };
            (topic, partition, code, offset)
        };
        sent.batches().into_iter().map(one).collect()
    }

    fn serve(&mut self, sent: &Sent) {
        if sent.is_identity() {
            self.rig.sent.push_front(sent.clone());
            self.rig.identity(7, 0);
            return;
        }
        let answers = self
            .arrive(sent)
            .into_iter()
            .map(|(name, partition, code, base_offset)| {
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
        self.rig.respond(sent, Ok(Response::Produce(response)));
    }

    fn do_op(&mut self, op: Op) {
        match op {
            Op::Push(partition, n) => (0..n).for_each(|_| self.push(partition)),
            Op::Lead(leader) => self.lead(leader),
            Op::Vanish => {
                self.rig.produce.set_topic(self.rig.now, "t", None);
                self.rig.absorb();
            }
            Op::Wait => {
                if self.rig.produce.next_deadline().is_some() {
                    self.rig.wait();
                }
            }
            Op::Arrive => {
                if let Some(sent) = self.delayed.pop_front() {
                    // Nobody hears its answer.
                    self.arrive(&sent);
                }
            }
            Op::ServeLast => {
                if let Some(sent) = self.rig.sent.pop_back() {
                    self.serve(&sent);
                }
            }
            _ => {
                let Some(sent) = self.rig.sent.pop_front() else {
                    return;
                };
                match op {
                    Op::Serve => self.serve(&sent),
                    Op::LoseAnswer => {
                        self.arrive(&sent);
                        self.rig.lose(&sent);
                    }
                    Op::Delay => {
                        self.rig.lose(&sent);
                        self.delayed.push_back(sent);
                    }
                    Op::Refuse(code) if !sent.is_identity() => {
                        self.rig.answer(&sent, Code(code), -1);
                    }
                    _ => self.rig.lose(&sent),
                }
            }
        }
    }

    /// The network heals; everything must come to its end.
    fn settle(&mut self) {
        self.lead(Some(self.leader));
        for _ in 0..10_000 {
            if self.rig.produce.records() == 0 {
                break;
            }
            match self.rig.sent.pop_front() {
                Some(sent) => self.serve(&sent),
                None => self.rig.wait(),
            }
        }
        // Requests that were on their way all the time.
        while let Some(sent) = self.delayed.pop_front() {
            self.arrive(&sent);
        }
    }

    fn check(&self) {
        assert_eq!(
            (self.rig.produce.records(), self.rig.produce.bytes()),
            (0, 0)
        );
        for (partition, pushed) in &self.pushed {
            let expected: Vec<_> = pushed.iter().map(|(_, value)| value.clone()).collect();
            let log = &self.logs[partition];
            assert_eq!(log.values, expected, "partition {partition}");
            for (ticket, value) in pushed {
                let written = self.rig.done[ticket].as_ref().unwrap();
                let at = usize::try_from(written.offset).unwrap();
                assert_eq!((&log.values[at], written.partition), (value, *partition));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// P02: whatever is lost, late or twice on the way, each record is in its log once, in order, and
    /// said to be where it is.
    #[test]
    fn p02_each_record_once_and_in_order(ops in prop::collection::vec(op(), 1..120)) {
        let mut life = Life::new();
        for op in ops {
            life.do_op(op);
        }
        life.settle();
        life.check();
    }
}
