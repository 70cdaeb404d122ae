//! A fetch machine with its requests laid out, and answers built by hand.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use crate::error::{Error, ErrorKind};
use crate::fetch::{
    Charge, Fetch, FetchAction, FetchConfig, FetchLink, Fetched, PartitionView, Start,
};
use crate::ids::{LeaseId, NodeId, Token, TopicId, TopicPartition};
use crate::records::{BatchBuilder, Encoder, RawBatch};
use crate::time::Now;
use crate::wire::message::{
    Code, EpochEnd, EpochEndAnswer, EpochEndRequest, EpochEndResponse, FetchPartition,
    FetchRequest, FetchResponse, FetchResponsePartition, FetchResponseTopic, ListOffsetsAnswer,
    ListOffsetsRequest, ListOffsetsResponse,
};
use crate::wire::{Request, Response};

pub const ID: TopicId = TopicId([7; 16]);

pub struct Out {
    pub token: Token,
    pub node: NodeId,
    pub link: FetchLink,
    pub request: Request,
}

pub struct Rig {
    pub fetch: Fetch,
    pub now: Now,
    pub out: Vec<Out>,
    /// Everything but `Send`.
    pub said: Vec<FetchAction>,
    pub sends: usize,
}

impl Rig {
    pub fn new(cfg: FetchConfig) -> Self {
        Rig {
            fetch: Fetch::new(cfg, Now(0)),
            now: Now(0),
            out: Vec::new(),
            said: Vec::new(),
            sends: 0,
        }
    }

    /// Leader 1 at epoch 5 for `partitions` of topic "t", leases 1, 2, ... at offset 100.
    pub fn with(cfg: FetchConfig, partitions: i32) -> Self {
        let mut rig = Rig::new(cfg);
        for p in 0..partitions {
            rig.leader(p, 1, 5);
            rig.add(p, at(100));
        }
        rig.run();
        rig
    }

    pub fn leader(&mut self, partition: i32, node: i32, epoch: i32) {
        let node = (node >= 0).then_some(NodeId(node));
        self.fetch
            .set_leader(self.now, &tp(partition), node, epoch, ID);
    }

    /// Under lease `partition` + 1.
    pub fn add(&mut self, partition: i32, start: Start) {
        self.add_as(lease(partition), partition, start);
    }

    pub fn add_as(&mut self, lease: LeaseId, partition: i32, start: Start) {
        self.fetch
            .add(self.now, lease, tp(partition), ID, start, false);
    }

    /// Does what the machine wants, and checks what must hold for every request.
    pub fn run(&mut self) {
        while let Some(action) = self.fetch.poll_action() {
            let FetchAction::Send {
                token,
                node,
                link,
                request,
                answer_bytes_max,
                ..
            } = action
            else {
                self.said.push(action);
                continue;
            };
            assert!(answer_bytes_max > 0);
            self.sends += 1;
            self.out.push(Out {
                token,
                node,
                link,
                request,
            });
        }
        let mut seen: BTreeMap<(NodeId, FetchLink, u8), usize> = BTreeMap::new();
        for out in &self.out {
            let api = match &out.request {
                Request::Fetch(_) => 1,
                Request::ListOffsets(_) => 2,
                _ => 3,
            };
            *seen.entry((out.node, out.link, api)).or_default() += 1;
            if let (Request::Fetch(r), FetchLink::Prompt) = (&out.request, out.link) {
                assert_eq!((r.session_id, r.session_epoch), (0, -1));
                assert!(r.max_wait.is_zero() && r.forgotten.is_empty());
            }
        }
        assert!(
            seen.values().all(|n| *n == 1),
            "two requests of a kind for one broker"
        );
    }

    /// Time passes, with every deadline on the way.
    pub fn pass(&mut self, duration: Duration) {
        let until = self.now + duration;
        for _ in 0..100_000 {
            match self.fetch.next_deadline() {
                Some(at) if at <= until => {
                    self.now = self.now.max(at);
                    self.fetch.handle_timeout(self.now);
                    self.run();
                }
                _ => {
                    self.now = until;
                    return;
                }
            }
        }
        panic!("the machine spins");
    }

    pub fn is_out(&self, node: i32, link: FetchLink) -> bool {
        self.out
            .iter()
            .any(|o| o.node == NodeId(node) && o.link == link)
    }

    fn pick(&mut self, node: i32, link: FetchLink) -> Out {
        let at = self
            .out
            .iter()
            .position(|o| o.node == NodeId(node) && o.link == link)
            .unwrap_or_else(|| panic!("no {link:?} request is out for node {node}"));
        self.out.remove(at)
    }

    pub fn fetch_out(&self, node: i32, link: FetchLink) -> &FetchRequest {
        let found = self.out.iter().find_map(|o| match &o.request {
            Request::Fetch(r) if o.node == NodeId(node) && o.link == link => Some(r),
            _ => None,
        });
        found.unwrap_or_else(|| panic!("no {link:?} fetch is out for node {node}"))
    }

    /// What the fetch asks for one partition.
    pub fn asked(&self, node: i32, link: FetchLink, partition: i32) -> Option<&FetchPartition> {
        partition_of(self.fetch_out(node, link), partition)
    }

    pub fn answer(&mut self, node: i32, link: FetchLink, result: Result<Response, Error>) -> Out {
        let out = self.pick(node, link);
        self.fetch.handle_response(self.now, out.token, result);
        self.run();
        out
    }

    pub fn give(&mut self, node: i32, link: FetchLink, parts: Vec<FetchResponsePartition>) -> Out {
        self.answer(node, link, Ok(Response::Fetch(body(0, parts))))
    }

    pub fn give_session(&mut self, node: i32, id: i32, parts: Vec<FetchResponsePartition>) -> Out {
        self.answer(
            node,
            FetchLink::Waiting,
            Ok(Response::Fetch(body(id, parts))),
        )
    }

    pub fn fail(&mut self, node: i32, link: FetchLink) {
        let error = Error::new(ErrorKind::Transport, "cut").retriable();
        self.answer(node, link, Err(error));
    }

    pub fn offsets_out(&self, node: i32) -> &ListOffsetsRequest {
        let found = self.out.iter().find_map(|o| match &o.request {
            Request::ListOffsets(r) if o.node == NodeId(node) => Some(r),
            _ => None,
        });
        found.expect("no ListOffsets is out")
    }

    pub fn epochs_out(&self, node: i32) -> &EpochEndRequest {
        let found = self.out.iter().find_map(|o| match &o.request {
            Request::EpochEnd(r) if o.node == NodeId(node) => Some(r),
            _ => None,
        });
        found.expect("no OffsetForLeaderEpoch is out")
    }

    /// Answers ListOffsets of node 1 for partition 0.
    pub fn give_offset(&mut self, offset: i64) -> i64 {
        let asked = self.offsets_out(1).topics[0].1[0].timestamp;
        self.give_offset_code(offset, 0);
        asked
    }

    pub fn give_offset_code(&mut self, offset: i64, code: i16) {
        let answer = ListOffsetsAnswer {
            partition: 0,
            code: Code(code),
            timestamp: -1,
            offset,
            leader_epoch: 5,
        };
        let response = ListOffsetsResponse {
            throttle: Duration::ZERO,
            topics: vec![("t".into(), vec![answer])],
        };
        self.answer(1, FetchLink::Lookup, Ok(Response::ListOffsets(response)));
    }

    pub fn give_epoch_end(&mut self, node: i32, code: i16, epoch: i32, end_offset: i64) {
        let answer = EpochEndAnswer {
            partition: 0,
            code: Code(code),
            end: EpochEnd { epoch, end_offset },
        };
        let response = EpochEndResponse {
            throttle: Duration::ZERO,
            topics: vec![("t".into(), vec![answer])],
        };
        self.answer(node, FetchLink::Lookup, Ok(Response::EpochEnd(response)));
    }

    /// Takes everything, as (lease, from, to) for batches and (lease, -1, to) for gaps.
    pub fn take_all(&mut self) -> Vec<(u64, i64, i64)> {
        let mut all = Vec::new();
        while let Some(fetched) = self.fetch.take(self.now) {
            all.push(match fetched {
                Fetched::Batch {
                    lease, from, raw, ..
                } => (lease.0, from, raw.header().next_offset()),
                Fetched::Gap { lease, to } => (lease.0, -1, to),
            });
        }
        self.run();
        all
    }

    pub fn take_batch(&mut self) -> (LeaseId, RawBatch, Charge) {
        match self.fetch.take(self.now) {
            Some(Fetched::Batch {
                lease, raw, charge, ..
            }) => (lease, raw, charge),
            other => panic!("{other:?}"),
        }
    }

    pub fn view(&self, partition: i32) -> PartitionView {
        self.fetch.view(lease(partition)).expect("a leased one")
    }

    pub fn refreshes(&self) -> usize {
        let is = |a: &&FetchAction| matches!(a, FetchAction::RefreshMetadata);
        self.said.iter().filter(is).count()
    }

    pub fn stopped(&self) -> Option<&Error> {
        self.said.iter().find_map(|a| match a {
            FetchAction::Stopped { error, .. } => Some(error),
            _ => None,
        })
    }

    /// (lease, from, to) of the first reset.
    pub fn reset(&self) -> Option<(u64, i64, i64)> {
        self.said.iter().find_map(|a| match a {
            FetchAction::Reset {
                lease, from, to, ..
            } => Some((lease.0, *from, *to)),
            _ => None,
        })
    }

    /// The prompt fetch says that partition 0 ends where it is; the session opens as 77.
    pub fn open_session(&mut self) {
        self.give(1, FetchLink::Prompt, vec![part(0, 100, &[])]);
        self.give_session(1, 77, vec![part(0, 100, &[])]);
    }
}

pub fn partition_of(request: &FetchRequest, partition: i32) -> Option<&FetchPartition> {
    request
        .topics
        .iter()
        .flat_map(|t| &t.partitions)
        .find(|p| p.partition == partition)
}

pub fn tp(partition: i32) -> TopicPartition {
    TopicPartition::new("t", partition)
}

pub fn lease(partition: i32) -> LeaseId {
    LeaseId(u64::try_from(partition).expect("small") + 1)
}

pub fn at(offset: i64) -> Start {
    Start::At { offset, epoch: -1 }
}

/// Records at offsets `from..to`, in one batch.
pub fn batch(from: i64, to: i64) -> Bytes {
    sized(from, to, 10)
}

pub fn sized(from: i64, to: i64, value: usize) -> Bytes {
    let mut builder = BatchBuilder::new(from).leader_epoch(5);
    for _ in from..to {
        builder
            .push(1, None, Some(&vec![b'v'; value]), &[])
            .expect("rising");
    }
    builder.build(&mut Encoder::new()).expect("small")
}

pub fn part(partition: i32, high_watermark: i64, records: &[Bytes]) -> FetchResponsePartition {
    FetchResponsePartition {
        partition,
        code: Code::NONE,
        high_watermark,
        last_stable_offset: high_watermark,
        log_start: 0,
        diverging: None,
        current_leader: None,
        aborted: Vec::new(),
        preferred_replica: -1,
        records: records.concat().into(),
    }
}

pub fn error_part(partition: i32, code: i16) -> FetchResponsePartition {
    FetchResponsePartition {
        code: Code(code),
        last_stable_offset: -1,
        log_start: -1,
        ..part(partition, -1, &[])
    }
}

/// As from version 13 on: by id.
pub fn body(session_id: i32, partitions: Vec<FetchResponsePartition>) -> FetchResponse {
    FetchResponse {
        throttle: Duration::ZERO,
        code: Code::NONE,
        session_id,
        topics: vec![FetchResponseTopic {
            name: "".into(),
            id: ID,
            partitions,
        }],
        endpoints: Vec::new(),
    }
}

pub fn error_body(code: i16) -> Response {
    Response::Fetch(FetchResponse {
        code: Code(code),
        topics: Vec::new(),
        ..body(0, Vec::new())
    })
}

pub fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}
