//! Any log of transactions, any list of aborted ones, read from any batch on: the same verdicts as a
//! plain search of the list gives.
#![no_main]

use laneway::records::{
    AbortedFilter, AbortedTransaction, BatchBuilder, ControlKind, Decoder, Encoder, Limits, Piece,
    Verdict, control_batch, split,
};
use laneway_fuzz::Script;
use libfuzzer_sys::fuzz_target;

/// A batch of the log.
struct Entry {
    producer_id: i64,
    first: i64,
    last: i64,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    Transactional,
    Abort,
    Commit,
}

fuzz_target!(|input: &[u8]| {
    let mut script = Script::new(input);
    let listed = script.below(8);
    let list: Vec<AbortedTransaction> = (0..listed)
        .map(|_| AbortedTransaction {
            producer_id: script.below(4) as i64,
            first_offset: script.below(64) as i64,
        })
        .collect();
    let (mut log, mut field, mut next) = (Vec::new(), Vec::new(), 0i64);
    while !script.is_over() && log.len() < 64 {
        let (how, len) = (script.byte(), i64::from(script.byte() % 8));
        let producer_id = i64::from(how & 3);
        let kind = match how >> 2 & 7 {
            0 => Kind::Plain,
            1..=4 => Kind::Transactional,
            5 | 6 => Kind::Abort,
            _ => Kind::Commit,
        };
        let first = next + i64::from(how >> 5);
        let last = match kind {
            Kind::Abort | Kind::Commit => first,
            _ => first + len,
        };
        next = last + 1;
        field.extend_from_slice(&batch(producer_id, first, last, kind));
        log.push(Entry {
            producer_id,
            first,
            last,
            kind,
        });
    }
    let mut filter = AbortedFilter::read_committed(list.clone());
    let mut uncommitted = AbortedFilter::read_uncommitted();
    let (mut decoder, limits) = (Decoder::new(), Limits::default());
    let mut naive = Naive {
        list,
        open: [false; 4],
    };
    for (piece, entry) in split(field.into()).zip(&log) {
        let Ok(Piece::Batch(raw)) = piece else {
            panic!("what was built is whole");
        };
        assert_eq!(raw.header().base_offset(), entry.first);
        let verdict = filter.judge(&raw, &mut decoder, &limits);
        assert_eq!(verdict, Ok(naive.judge(entry)));
        let all = match entry.kind {
            Kind::Abort | Kind::Commit => Verdict::Control,
            _ => Verdict::Keep,
        };
        assert_eq!(uncommitted.judge(&raw, &mut decoder, &limits), Ok(all));
    }
});

/// The rule by the words alone, with no order kept in the list.
struct Naive {
    list: Vec<AbortedTransaction>,
    open: [bool; 4],
}

impl Naive {
    fn judge(&mut self, entry: &Entry) -> Verdict {
        let reached = |t: &AbortedTransaction| t.first_offset <= entry.last;
        for t in self.list.iter().filter(|t| reached(t)) {
            self.open[t.producer_id as usize] = true;
        }
        self.list.retain(|t| !reached(t));
        let open = &mut self.open[entry.producer_id as usize];
        match entry.kind {
            Kind::Abort => *open = false,
            Kind::Transactional if *open => return Verdict::Aborted,
            Kind::Plain | Kind::Transactional => return Verdict::Keep,
            Kind::Commit => {}
        }
        Verdict::Control
    }
}

fn batch(producer_id: i64, first: i64, last: i64, kind: Kind) -> bytes::Bytes {
    let control = match kind {
        Kind::Abort => ControlKind::Abort,
        Kind::Commit => ControlKind::Commit,
        Kind::Plain | Kind::Transactional => {
            let mut batch = BatchBuilder::new(first).producer(producer_id, 0, 0);
            if kind == Kind::Transactional {
                batch = batch.transactional();
            }
            for offset in first..=last {
                batch.push_at(offset, 0, None, None, &[]).expect("rises");
            }
            return batch.build(&mut Encoder::new()).expect("small");
        }
    };
    control_batch(first, control, producer_id, 0, 0, 0)
}
