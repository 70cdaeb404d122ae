//! The shape of every request we serve, walked before it is decoded.
//!
//! kafka-protocol reserves memory for as many elements as an array's length field says, before it
//! looks at what is there: a frame of 20 bytes could ask for gigabytes. So each request is walked
//! first by this table, which reads every length against the bytes that follow and allocates
//! nothing. What passes has all its elements: decoding it takes no more memory than a small
//! multiple (about 30) of its frame.

use kafka_protocol::messages::ApiKey;

/// Whether `body`, after the header, is all there.
pub(crate) fn fits(api: ApiKey, version: i16, body: &[u8]) -> bool {
    let Some(fields) = request(api) else {
        return false;
    };
    let walk = Walk {
        version,
        is_flexible: api.request_header_version(version) >= 2,
    };
    let mut rest = body;
    walk.fields(fields, &mut rest).is_some()
}

/// The group that a request is about, where it is about one.
pub(crate) fn group_of(api: ApiKey, version: i16, body: &[u8]) -> Option<String> {
    let walk = Walk {
        version,
        is_flexible: api.request_header_version(version) >= 2,
    };
    let mut rest = body;
    match api {
        ApiKey::JoinGroup
        | ApiKey::SyncGroup
        | ApiKey::Heartbeat
        | ApiKey::LeaveGroup
        | ApiKey::ConsumerGroupHeartbeat
        | ApiKey::OffsetCommit
        | ApiKey::OffsetDelete => {}
        ApiKey::OffsetFetch => {
            if version >= 8 && walk.count(&mut rest)? == 0 {
                return None;
            }
        }
        _ => return None,
    }
    let name = walk.string(&mut rest)?;
    Some(String::from_utf8_lossy(name).into_owned())
}

/// A field, in versions `.0..=.1`.
struct Field(i16, i16, Kind);

enum Kind {
    /// So many bytes.
    Fixed(usize),
    /// A string, nullable or not.
    Text,
    /// Bytes or records, nullable or not.
    Blob,
    /// An array of values of so many bytes.
    FixedArray(usize),
    /// An array of strings.
    Texts,
    /// An array of structures.
    Array(&'static [Field]),
}

struct Walk {
    version: i16,
    is_flexible: bool,
}

impl Walk {
    fn fields(&self, fields: &[Field], rest: &mut &[u8]) -> Option<()> {
        for Field(min, max, kind) in fields {
            if (*min..=*max).contains(&self.version) {
                self.field(kind, rest)?;
            }
        }
        if self.is_flexible {
            self.tags(rest)?;
        }
        Some(())
    }

    fn field(&self, kind: &Kind, rest: &mut &[u8]) -> Option<()> {
        match kind {
            Kind::Fixed(n) => take(rest, *n).map(drop),
            Kind::Text => self.string(rest).map(drop),
            Kind::Blob => {
                let n = match self.is_flexible {
                    true => i64::from(varint(rest)?) - 1,
                    false => i64::from(int(rest)?),
                };
                take(rest, usize::try_from(n.max(0)).ok()?).map(drop)
            }
            Kind::FixedArray(n) => {
                let bytes = self.count(rest)?.checked_mul(*n)?;
                take(rest, bytes).map(drop)
            }
            Kind::Texts => {
                for _ in 0..self.count(rest)? {
                    self.string(rest)?;
                }
                Some(())
            }
            Kind::Array(fields) => {
                for _ in 0..self.count(rest)? {
                    self.fields(fields, rest)?;
                }
                Some(())
            }
        }
    }

    /// An array's length, null as 0; each element takes a byte at least.
    fn count(&self, rest: &mut &[u8]) -> Option<usize> {
        let n = match self.is_flexible {
            true => i64::from(varint(rest)?) - 1,
            false => i64::from(int(rest)?),
        };
        let n = usize::try_from(n.max(0)).ok()?;
        (n <= rest.len()).then_some(n)
    }

    fn string<'a>(&self, rest: &mut &'a [u8]) -> Option<&'a [u8]> {
        let n = match self.is_flexible {
            true => i64::from(varint(rest)?) - 1,
            false => {
                let raw = take(rest, 2)?;
                i64::from(i16::from_be_bytes([raw[0], raw[1]]))
            }
        };
        take(rest, usize::try_from(n.max(0)).ok()?)
    }

    fn tags(&self, rest: &mut &[u8]) -> Option<()> {
        for _ in 0..varint(rest)? {
            varint(rest)?;
            let size = varint(rest)?;
            take(rest, usize::try_from(size).ok()?)?;
        }
        Some(())
    }
}

fn take<'a>(rest: &mut &'a [u8], n: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(n)?;
    *rest = left;
    Some(taken)
}

fn int(rest: &mut &[u8]) -> Option<i32> {
    let raw = take(rest, 4)?;
    Some(i32::from_be_bytes([raw[0], raw[1], raw[2], raw[3]]))
}

fn varint(rest: &mut &[u8]) -> Option<u32> {
    let mut value = 0u32;
    for shift in [0, 7, 14, 21, 28] {
        let byte = take(rest, 1)?[0];
        value |= u32::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// A field of every version.
const fn all(kind: Kind) -> Field {
    Field(0, MAX, kind)
}

/// A field from a version on.
const fn from(min: i16, kind: Kind) -> Field {
    Field(min, MAX, kind)
}

const MAX: i16 = i16::MAX;

fn request(api: ApiKey) -> Option<&'static [Field]> {
    use Kind::{Array, Blob, Fixed, FixedArray, Text, Texts};
    Some(match api {
        ApiKey::Produce => {
            const PARTITION: &[Field] = &[all(Fixed(4)), all(Blob)];
            const TOPIC: &[Field] = &[
                Field(0, 12, Text),
                from(13, Fixed(16)),
                all(Array(PARTITION)),
            ];
            const { &[all(Text), all(Fixed(2)), all(Fixed(4)), all(Array(TOPIC))] }
        }
        ApiKey::Fetch => {
            const PARTITION: &[Field] = &[
                all(Fixed(4)),
                from(9, Fixed(4)),
                all(Fixed(8)),
                from(12, Fixed(4)),
                from(5, Fixed(8)),
                all(Fixed(4)),
            ];
            const TOPIC: &[Field] = &[
                Field(0, 12, Text),
                from(13, Fixed(16)),
                all(Array(PARTITION)),
            ];
            const FORGOTTEN: &[Field] =
                &[Field(0, 12, Text), from(13, Fixed(16)), all(FixedArray(4))];
            const {
                &[
                    Field(0, 14, Fixed(4)),
                    all(Fixed(4)),
                    all(Fixed(4)),
                    all(Fixed(4)),
                    all(Fixed(1)),
                    from(7, Fixed(4)),
                    from(7, Fixed(4)),
                    all(Array(TOPIC)),
                    from(7, Array(FORGOTTEN)),
                    from(11, Text),
                ]
            }
        }
        ApiKey::ListOffsets => {
            const PARTITION: &[Field] = &[all(Fixed(4)), from(4, Fixed(4)), all(Fixed(8))];
            const TOPIC: &[Field] = &[all(Text), all(Array(PARTITION))];
            const {
                &[
                    all(Fixed(4)),
                    from(2, Fixed(1)),
                    all(Array(TOPIC)),
                    from(10, Fixed(4)),
                ]
            }
        }
        ApiKey::Metadata => {
            const TOPIC: &[Field] = &[from(10, Fixed(16)), all(Text)];
            const {
                &[
                    all(Array(TOPIC)),
                    from(4, Fixed(1)),
                    Field(8, 10, Fixed(1)),
                    from(8, Fixed(1)),
                ]
            }
        }
        ApiKey::OffsetCommit => {
            const PARTITION: &[Field] =
                &[all(Fixed(4)), all(Fixed(8)), from(6, Fixed(4)), all(Text)];
            const TOPIC: &[Field] = &[all(Text), all(Array(PARTITION))];
            const {
                &[
                    all(Text),
                    all(Fixed(4)),
                    all(Text),
                    from(7, Text),
                    Field(2, 4, Fixed(8)),
                    all(Array(TOPIC)),
                ]
            }
        }
        ApiKey::OffsetFetch => {
            const TOPIC: &[Field] = &[all(Text), all(FixedArray(4))];
            const GROUP: &[Field] = &[
                all(Text),
                from(9, Text),
                from(9, Fixed(4)),
                all(Array(TOPIC)),
            ];
            const {
                &[
                    Field(0, 7, Text),
                    Field(0, 7, Array(TOPIC)),
                    from(8, Array(GROUP)),
                    from(7, Fixed(1)),
                ]
            }
        }
        ApiKey::FindCoordinator => {
            const { &[Field(0, 3, Text), from(1, Fixed(1)), from(4, Texts)] }
        }
        ApiKey::JoinGroup => {
            const PROTOCOL: &[Field] = &[all(Text), all(Blob)];
            const {
                &[
                    all(Text),
                    all(Fixed(4)),
                    from(1, Fixed(4)),
                    all(Text),
                    from(5, Text),
                    all(Text),
                    all(Array(PROTOCOL)),
                    from(8, Text),
                ]
            }
        }
        ApiKey::SyncGroup => {
            const ASSIGNMENT: &[Field] = &[all(Text), all(Blob)];
            const {
                &[
                    all(Text),
                    all(Fixed(4)),
                    all(Text),
                    from(3, Text),
                    from(5, Text),
                    from(5, Text),
                    all(Array(ASSIGNMENT)),
                ]
            }
        }
        ApiKey::Heartbeat => const { &[all(Text), all(Fixed(4)), all(Text), from(3, Text)] },
        ApiKey::LeaveGroup => {
            const MEMBER: &[Field] = &[all(Text), all(Text), from(5, Text)];
            const { &[all(Text), Field(0, 2, Text), from(3, Array(MEMBER))] }
        }
        ApiKey::DescribeGroups => const { &[all(Texts), from(3, Fixed(1))] },
        ApiKey::ListGroups => const { &[from(4, Texts), from(5, Texts)] },
        ApiKey::SaslHandshake => const { &[all(Text)] },
        ApiKey::SaslAuthenticate => const { &[all(Blob)] },
        ApiKey::ApiVersions => const { &[from(3, Text), from(3, Text)] },
        ApiKey::CreateTopics => {
            const ASSIGNMENT: &[Field] = &[all(Fixed(4)), all(FixedArray(4))];
            const CONFIG: &[Field] = &[all(Text), all(Text)];
            const TOPIC: &[Field] = &[
                all(Text),
                all(Fixed(4)),
                all(Fixed(2)),
                all(Array(ASSIGNMENT)),
                all(Array(CONFIG)),
            ];
            const { &[all(Array(TOPIC)), all(Fixed(4)), all(Fixed(1))] }
        }
        ApiKey::DeleteTopics => {
            const TOPIC: &[Field] = &[all(Text), all(Fixed(16))];
            const { &[from(6, Array(TOPIC)), Field(0, 5, Texts), all(Fixed(4))] }
        }
        ApiKey::DeleteRecords => {
            const PARTITION: &[Field] = &[all(Fixed(4)), all(Fixed(8))];
            const TOPIC: &[Field] = &[all(Text), all(Array(PARTITION))];
            const { &[all(Array(TOPIC)), all(Fixed(4))] }
        }
        ApiKey::InitProducerId => {
            const {
                &[
                    all(Text),
                    all(Fixed(4)),
                    from(3, Fixed(8)),
                    from(3, Fixed(2)),
                ]
            }
        }
        ApiKey::OffsetForLeaderEpoch => {
            const PARTITION: &[Field] = &[all(Fixed(4)), all(Fixed(4)), all(Fixed(4))];
            const TOPIC: &[Field] = &[all(Text), all(Array(PARTITION))];
            const { &[from(3, Fixed(4)), all(Array(TOPIC))] }
        }
        ApiKey::DescribeConfigs => {
            const RESOURCE: &[Field] = &[all(Fixed(1)), all(Text), all(Texts)];
            const { &[all(Array(RESOURCE)), all(Fixed(1)), from(3, Fixed(1))] }
        }
        ApiKey::CreatePartitions => {
            const ASSIGNMENT: &[Field] = &[all(FixedArray(4))];
            const TOPIC: &[Field] = &[all(Text), all(Fixed(4)), all(Array(ASSIGNMENT))];
            const { &[all(Array(TOPIC)), all(Fixed(4)), all(Fixed(1))] }
        }
        ApiKey::DeleteGroups => const { &[all(Texts)] },
        ApiKey::OffsetDelete => {
            const PARTITION: &[Field] = &[all(Fixed(4))];
            const TOPIC: &[Field] = &[all(Text), all(Array(PARTITION))];
            const { &[all(Text), all(Array(TOPIC))] }
        }
        ApiKey::ConsumerGroupHeartbeat => {
            const TOPIC: &[Field] = &[all(Fixed(16)), all(FixedArray(4))];
            const {
                &[
                    all(Text),
                    all(Text),
                    all(Fixed(4)),
                    all(Text),
                    all(Text),
                    all(Fixed(4)),
                    all(Texts),
                    from(1, Text),
                    all(Text),
                    all(Array(TOPIC)),
                ]
            }
        }
        ApiKey::DescribeCluster => const { &[all(Fixed(1)), from(1, Fixed(1)), from(2, Fixed(1))] },
        _ => return None,
    })
}
