//! Dead letters, read off the logs of their topics: what the engine says of them is not asked.

use super::World;
use laneway::ids::TopicPartition;
use laneway::records::{Decoder, Limits, Piece, split};

/// A record of a dead-letter topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// Where the record was, by its headers.
    pub source: TopicPartition,
    /// Its offset there.
    pub offset: i64,
    /// Where the dead letter is.
    pub at: (TopicPartition, i64),
    /// As it was written.
    pub key: Option<Vec<u8>>,
    /// As it was written.
    pub value: Option<Vec<u8>>,
    /// As it was written.
    pub timestamp: i64,
    /// All of them, in order.
    pub headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl DeadLetter {
    /// The last header of this name, as text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<String> {
        let mut named = self.headers.iter().rev();
        let (_, value) = named.find(|(key, _)| key == name.as_bytes())?;
        value
            .as_ref()
            .map(|v| String::from_utf8_lossy(v).into_owned())
    }
}

/// What the world has read of dead-letter topics.
#[derive(Default)]
pub(super) struct Letters {
    topics: Vec<Watched>,
    found: Vec<DeadLetter>,
}

struct Watched {
    name: String,
    id: Option<[u8; 16]>,
    /// Where the log of each partition was read up to.
    ends: Vec<i64>,
}

impl World {
    /// Takes what stands in this topic for dead letters: whoever has one is finished.
    pub fn watch_dead_letters(&mut self, topic: &str) {
        self.letters.topics.push(Watched {
            name: topic.to_owned(),
            id: None,
            ends: Vec::new(),
        });
    }

    /// Every dead letter so far, in the order in which they were written, also those of topics that
    /// were deleted since.
    #[must_use]
    pub fn dead_letters(&self) -> &[DeadLetter] {
        &self.letters.found
    }

    /// Looks at the ends of the logs; few of the many times there is something new.
    pub(super) fn read_dead_letters(&mut self) {
        let mut grown = Vec::new();
        for watched in &mut self.letters.topics {
            let id = self.cluster.topic_id(&watched.name);
            if watched.id != id {
                watched.id = id;
                watched.ends.clear();
            }
            for (partition, at) in (0..).zip(0..) {
                let Some(view) = self.cluster.partition_view(&watched.name, partition) else {
                    break;
                };
                if watched.ends.len() <= at {
                    watched.ends.push(0);
                }
                let from = std::mem::replace(&mut watched.ends[at], view.log_end);
                if from < view.log_end {
                    grown.push((TopicPartition::new(watched.name.as_str(), partition), from));
                }
            }
        }
        for (tp, from) in grown {
            self.read_log(&tp, from);
        }
    }

    fn read_log(&mut self, tp: &TopicPartition, from: i64) {
        let bytes = self.cluster.batches(&tp.topic, tp.partition);
        let mut decoder = Decoder::new();
        for piece in split(bytes.unwrap_or_default()) {
            let Ok(Piece::Batch(raw)) = piece else {
                panic!("the log of {tp} cannot be read");
            };
            raw.check_crc().unwrap();
            if raw.header().next_offset() <= from {
                continue;
            }
            let batch = raw.decode(&mut decoder, from, &Limits::default()).unwrap();
            for i in 0..batch.len() {
                let mut letter = DeadLetter {
                    source: tp.clone(),
                    offset: -1,
                    at: (tp.clone(), batch.offset(i)),
                    key: batch.key(i).map(<[u8]>::to_vec),
                    value: batch.value(i).map(<[u8]>::to_vec),
                    timestamp: batch.timestamp(i),
                    headers: batch
                        .headers(i)
                        .map(|h| (h.key_bytes().to_vec(), h.value().map(<[u8]>::to_vec)))
                        .collect(),
                };
                let named = |name: &str| {
                    // A record may have had headers of ours before; of Connect's none here has.
                    let connect = letter.header(&format!("__connect.errors.{name}"));
                    connect.or_else(|| letter.header(&format!("laneway.dlq.{name}")))
                };
                let number = |name: &str| named(name).and_then(|n| n.parse::<i64>().ok());
                let topic = named("topic").expect("a dead letter says where it is from");
                let partition = number("partition").and_then(|n| i32::try_from(n).ok());
                let offset = number("offset").expect("a dead letter says where it is from");
                letter.source = TopicPartition::new(topic, partition.unwrap_or(-1));
                letter.offset = offset;
                let written = letter.header("laneway.dlq.timestamp");
                let written = written.and_then(|t| t.parse().ok());
                let written = written.expect("a dead letter says when its record was written");
                self.book().dead_lettered(&letter.source, offset, written);
                self.letters.found.push(letter);
            }
        }
    }
}
