//! From stretches of open offsets to text.

use super::{Form, Kind, Run, text};

/// Writes maps. It keeps its buffers, more than a megabyte once zstd has been used: keep one.
///
/// See [`Map`](super::Map) for an example.
#[derive(Default)]
pub struct MapWriter {
    /// Made at first use.
    zstd: Option<Box<zrip::CompressContext>>,
    pairs: Vec<Pair>,
    body: Vec<u8>,
    packed: Vec<u8>,
}

/// A stretch of open offsets and the settled ones that follow it.
#[derive(Clone, Copy)]
struct Pair {
    open: u64,
    settled: u64,
    /// Offsets up to its end.
    total: u64,
    /// The longest of all runs up to its end.
    longest: u64,
}

/// A map that was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// What to commit; empty where there is nothing to say, or no room to say any of it.
    pub text: String,
    /// Whether all of it is there.
    pub is_whole: bool,
    /// How many characters all of it takes; where it was too much even to try, `usize::MAX`.
    pub whole_chars: usize,
    /// How much work it was, in bytes that were packed or looked at.
    pub work: usize,
}

/// The best that was found for some number of pairs.
struct Found {
    pairs: usize,
    payload: Vec<u8>,
}

impl MapWriter {
    /// A writer that has reserved nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The map of a commit at `base`: `open` are the offsets that have not settled, in stretches
    /// that rise, the first of which begins at `base`; `end` is one past the last offset that has
    /// settled. Stretches from there on say nothing and may be left out. At most `chars_max`
    /// characters come out.
    ///
    /// The time is bounded, however many stretches there are: at most sixteen are looked at for
    /// each of `chars_max`, and more than two only where those show a regular pattern. For 4,096
    /// characters that took up to 6 ms on the mean and 12 ms once (`benches/maps.rs`, a busy
    /// machine), and 0.03 ms for a hundred stretches.
    pub fn write(
        &mut self,
        base: i64,
        end: i64,
        open: impl Iterator<Item = Run>,
        chars_max: usize,
    ) -> Written {
        let mut is_all = self.gather(base, end, open, chars_max.saturating_mul(PAIRS_PER_CHAR));
        let mut written = Written {
            is_whole: true,
            ..Written::default()
        };
        if self.pairs.is_empty() && is_all {
            return written;
        }
        let room = text::bytes_in(chars_max).saturating_sub(1);
        let likely = chars_max.saturating_mul(2);
        if self.pairs.len() > likely && !self.fits_packed(likely, room, &mut written) {
            self.pairs.truncate(likely);
            is_all = false;
        }
        let found = self.whole(room, is_all, &mut written);
        let found = match found {
            Some(found) => Some(found),
            None => {
                written.is_whole = false;
                self.lower_part(room, is_all, &mut written)
            }
        };
        if let Some(found) = found {
            written.text = text::encode(&found.payload);
            debug_assert!(written.text.len() <= chars_max);
        }
        written
    }

    /// Fills `pairs`. False where there were more than it may take.
    fn gather(
        &mut self,
        base: i64,
        end: i64,
        open: impl Iterator<Item = Run>,
        pairs_max: usize,
    ) -> bool {
        self.pairs.clear();
        let mut last: Option<Run> = None;
        for run in open {
            if run.first >= end {
                break;
            }
            debug_assert!(run.first < run.end && last.is_none_or(|l| l.end <= run.first));
            match &mut last {
                Some(last) if last.end == run.first => last.end = run.end,
                Some(before) => {
                    if self.pairs.len() == pairs_max {
                        return false;
                    }
                    let before = std::mem::replace(before, run);
                    self.pair(before, run.first);
                }
                // A map that does not begin with an open offset would be thrown away by others.
                None if run.first != base => return true,
                None => last = Some(run),
            }
        }
        if let Some(run) = last.filter(|run| run.end < end) {
            if self.pairs.len() == pairs_max {
                return false;
            }
            self.pair(run, end);
        }
        true
    }

    fn pair(&mut self, run: Run, settled_to: i64) {
        let (open, settled) = (run.end.abs_diff(run.first), settled_to.abs_diff(run.end));
        let before = self.pairs.last();
        self.pairs.push(Pair {
            open,
            settled,
            total: before.map_or(0, |p| p.total) + open + settled,
            longest: before.map_or(0, |p| p.longest).max(open).max(settled),
        });
    }

    /// Whether the first `pairs` fit once they are packed.
    fn fits_packed(&mut self, pairs: usize, room: usize, written: &mut Written) -> bool {
        [Kind::Runs, Kind::Bits].into_iter().any(|kind| {
            let payload = self.pack(kind, pairs, room, written);
            payload.is_some_and(|payload| payload.len() - 1 <= room)
        })
    }

    /// All pairs in the smallest form, if that fits in `room` bytes behind the letter.
    fn whole(&mut self, room: usize, is_all: bool, written: &mut Written) -> Option<Found> {
        let pairs = self.pairs.len();
        written.work = pairs;
        written.whole_chars = usize::MAX;
        if !is_all {
            return None;
        }
        let plain = PLAIN
            .into_iter()
            .filter_map(|form| Some((self.plain_len(form, pairs)?, form)))
            .min_by_key(|(len, _)| *len);
        let (mut least, form) = plain?;
        let mut packed = None;
        if least >= PACK_FROM {
            for kind in [Kind::Bits, Kind::Runs] {
                if let Some(payload) = self.pack(kind, pairs, room, written)
                    && payload.len() - 1 < least
                {
                    least = payload.len() - 1;
                    packed = Some(payload);
                }
            }
        }
        written.whole_chars = text::chars_of(least + 1);
        if least > room {
            return None;
        }
        let payload = match packed {
            Some(payload) => payload,
            None => self.plain(form, pairs),
        };
        Some(Found { pairs, payload })
    }

    /// As many pairs as fit, from the lowest on. Not always the very most: trying costs time.
    fn lower_part(&mut self, room: usize, is_all: bool, written: &mut Written) -> Option<Found> {
        let (pairs, form) = PLAIN
            .into_iter()
            .map(|form| (self.pairs_that_fit(form, room), form))
            .reduce(|a, b| if b.0 > a.0 { b } else { a })?;
        let mut best = (pairs > 0).then(|| Found {
            pairs,
            payload: self.plain(form, pairs),
        });
        if room < PACK_FROM {
            return best;
        }
        // Between what fits without packing and all of it.
        let (mut low, mut high) = (pairs, self.pairs.len());
        let mut kind = None;
        for n in 0..TRIES {
            let middle = match n {
                // Only a regular pattern has so many that not all were gathered.
                0 if !is_all => high,
                _ => low + (high - low).div_ceil(2),
            };
            if middle == low {
                break;
            }
            // The first try shows which of the two packs better here.
            let kinds: &[Kind] = match kind {
                None => &[Kind::Runs, Kind::Bits],
                Some(Kind::Runs) => &[Kind::Runs],
                Some(Kind::Bits) => &[Kind::Bits],
            };
            let tried = kinds
                .iter()
                .filter_map(|k| Some((self.pack(*k, middle, room, written)?, *k)))
                .min_by_key(|(payload, _)| payload.len());
            let Some((payload, which)) = tried else {
                high = middle - 1;
                continue;
            };
            kind = Some(which);
            if payload.len() - 1 <= room {
                low = middle;
                best = Some(Found {
                    pairs: middle,
                    payload,
                });
            } else {
                high = middle - 1;
            }
        }
        debug_assert!(
            best.as_ref()
                .is_none_or(|found| found.pairs <= self.pairs.len())
        );
        best
    }

    /// The length of a plain body of the first `pairs`, if the form can hold them.
    fn plain_len(&self, form: Form, pairs: usize) -> Option<usize> {
        let last = self.pairs.get(pairs.checked_sub(1)?)?;
        match form.kind {
            Kind::Bits => {
                let bytes = usize::try_from(last.total.div_ceil(8)).ok()?;
                (last.total <= form.number_max()).then_some(form.width + bytes + 1)
            }
            Kind::Runs => (last.longest <= form.number_max()).then_some(2 * pairs * form.width),
        }
    }

    fn pairs_that_fit(&self, form: Form, room: usize) -> usize {
        let most = self.pairs.len();
        let fits = |pairs: usize| self.plain_len(form, pairs).is_some_and(|len| len <= room);
        // The length and the numbers in it only rise.
        let (mut low, mut high) = (0, most);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if fits(middle) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        low
    }

    fn plain(&mut self, form: Form, pairs: usize) -> Vec<u8> {
        self.build(form, pairs);
        let mut payload = Vec::with_capacity(1 + self.body.len());
        payload.push(form.letters().0);
        payload.extend_from_slice(&self.body);
        payload
    }

    /// The body as bits or runs, compressed, with its letter; nothing where it is too long to try.
    fn pack(
        &mut self,
        kind: Kind,
        pairs: usize,
        room: usize,
        written: &mut Written,
    ) -> Option<Vec<u8>> {
        let narrow = Form { kind, width: 2 };
        let wide = Form { kind, width: 4 };
        let (form, len) = [narrow, wide]
            .into_iter()
            .find_map(|form| Some((form, self.plain_len(form, pairs)?)))?;
        if len > room.saturating_mul(PACK_RATIO_MAX) {
            return None;
        }
        self.build(form, pairs);
        written.work += self.body.len();
        let zstd = match &mut self.zstd {
            Some(zstd) => zstd,
            none => {
                let mut zstd = Box::new(zrip::CompressContext::new(LEVEL).ok()?);
                zstd.set_content_checksum(false);
                none.insert(zstd)
            }
        };
        self.packed.clear();
        self.packed
            .resize(1 + zrip::compress_bound(self.body.len()), 0);
        self.packed[0] = form.letters().1;
        let len = zstd.compress_into(&self.body, &mut self.packed[1..]).ok()?;
        Some(self.packed[..=len].to_vec())
    }

    /// Writes the body of the first `pairs` into `body`. The form can hold them.
    fn build(&mut self, form: Form, pairs: usize) {
        let (body, pairs) = (&mut self.body, &self.pairs[..pairs]);
        body.clear();
        let number = |body: &mut Vec<u8>, n: u64| match form.width {
            2 => body.extend_from_slice(&(n as u16).to_be_bytes()),
            _ => body.extend_from_slice(&(n as u32).to_be_bytes()),
        };
        match form.kind {
            Kind::Runs => {
                for pair in pairs {
                    number(body, pair.open);
                    number(body, pair.settled);
                }
            }
            Kind::Bits => {
                let total = pairs.last().map_or(0, |p| p.total);
                number(body, total);
                body.resize(form.width + total.div_ceil(8) as usize + 1, 0);
                for pair in pairs {
                    let end = pair.total as usize;
                    set_bits(&mut body[form.width..], end - pair.settled as usize, end);
                }
            }
        }
    }
}

impl std::fmt::Debug for MapWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MapWriter").finish_non_exhaustive()
    }
}

/// Sets the bits `from..to`, counted from the lowest of the first byte.
fn set_bits(bytes: &mut [u8], from: usize, to: usize) {
    let (first, last) = (from / 8, to / 8);
    let (head, tail) = (0xff << (from % 8), (1u8 << (to % 8)) - 1);
    if first == last {
        bytes[first] |= head & tail;
        return;
    }
    bytes[first] |= head;
    bytes[first + 1..last].fill(0xff);
    // With no bits in it this is the spare byte.
    bytes[last] |= tail;
}

/// Plain forms, from the one that is chosen among equals on.
const PLAIN: [Form; 4] = [Form::BITS, Form::RUNS, Form::BITS_WIDE, Form::RUNS_WIDE];

/// A plain body under so many bytes is not packed.
const PACK_FROM: usize = 200;

/// Bodies longer than this many times what must come out are not packed for a try.
const PACK_RATIO_MAX: usize = 128;

/// Stretches that are looked at for each character that may come out.
const PAIRS_PER_CHAR: usize = 16;

/// How often a shorter map is packed until it is good enough: within a 64th of the most.
const TRIES: usize = 6;

/// Kafka's own default.
const LEVEL: i32 = 3;
