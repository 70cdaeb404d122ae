//! Shares compared with Kafka's own, and properties that hold for any group.

use super::*;

/// One case of `kafka_shares.txt`.
struct Case {
    kind: AssignorKind,
    counts: BTreeMap<Arc<str>, i32>,
    members: Vec<AssignMember>,
    shares: BTreeMap<Arc<str>, BTreeSet<TopicPartition>>,
}

fn list(text: &str, by: char) -> impl Iterator<Item = &str> {
    text.split(by).filter(|part| !part.is_empty())
}

fn partitions(text: &str) -> Vec<TopicPartition> {
    let one = |tp: &str| {
        let (topic, p) = tp.split_once('-').unwrap();
        TopicPartition::new(topic, p.parse().unwrap())
    };
    list(text, '+').map(one).collect()
}

fn parse(line: &str) -> Case {
    let mut fields = line.split(';');
    let mut next = || fields.next().unwrap();
    let kind = AssignorKind::from_name(next()).unwrap();
    let counts = list(next(), ',').map(|count| {
        let (topic, n) = count.split_once('=').unwrap();
        (Arc::from(topic), n.parse().unwrap())
    });
    let counts = counts.collect();
    let members = list(next(), '|').map(|member| {
        let mut fields = member.split(':');
        let mut next = || fields.next().unwrap();
        AssignMember {
            member_id: Arc::from(next()),
            instance_id: None,
            topics: list(next(), '+').map(Arc::from).collect(),
            owned: partitions(next()),
            generation: next().parse().ok().filter(|g: &i32| *g >= 0),
            user_data: None,
        }
    });
    let members = members.collect();
    let shares = list(next(), '|').map(|share| {
        let (member, share) = share.split_once(':').unwrap();
        (Arc::from(member), partitions(share).into_iter().collect())
    });
    Case {
        kind,
        counts,
        members,
        shares: shares.collect(),
    }
}

/// G30: shares equal those that Kafka 4.3.1's own classes gave for groups that change over four
/// rounds: members come and go, topics grow, wishes change.
#[test]
fn g30_shares_equal_kafkas() {
    let mut cases = BTreeMap::new();
    for (i, line) in include_str!("kafka_shares.txt").lines().enumerate() {
        let case = parse(line);
        let shares = assign(case.kind, &case.counts, &case.members);
        let shares: BTreeMap<_, BTreeSet<_>> = shares
            .into_iter()
            .map(|(member, share)| (member, share.into_iter().collect()))
            .collect();
        assert_eq!(shares, case.shares, "line {}: {line}", i + 1);
        let alike = case.members.windows(2).all(|w| w[0].topics == w[1].topics);
        *cases.entry((case.kind.name(), alike)).or_insert(0) += 1;
    }
    assert_eq!(cases.len(), 6);
    assert!(cases.values().all(|n| *n >= 60), "{cases:?}");
}

fn member(id: &str, topics: &[&str], owned: &[&str], generation: i32) -> AssignMember {
    AssignMember {
        member_id: Arc::from(id),
        instance_id: None,
        topics: topics.iter().map(|t| Arc::from(*t)).collect(),
        owned: owned.iter().flat_map(|tp| partitions(tp)).collect(),
        generation: Some(generation).filter(|g| *g >= 0),
        user_data: None,
    }
}

fn counts(topics: &[(&str, i32)]) -> BTreeMap<Arc<str>, i32> {
    topics.iter().map(|(t, n)| (Arc::from(*t), *n)).collect()
}

fn share(shares: &Shares, member: &str) -> Vec<String> {
    shares[member].iter().map(|tp| tp.to_string()).collect()
}

/// Range gives members of two topics the same numbers of both.
#[test]
fn range_keeps_numbers_together() {
    let members = [
        member("a", &["t", "u"], &[], -1),
        member("b", &["t", "u"], &[], -1),
    ];
    let shares = assign(
        AssignorKind::Range,
        &counts(&[("t", 3), ("u", 3)]),
        &members,
    );
    assert_eq!(share(&shares, "a"), ["t-0", "t-1", "u-0", "u-1"]);
    assert_eq!(share(&shares, "b"), ["t-2", "u-2"]);
}

/// Static members come first, by instance id, whatever their member ids are.
#[test]
fn instance_ids_come_first() {
    for kind in [AssignorKind::Range, AssignorKind::RoundRobin] {
        let mut members = vec![
            member("a", &["t"], &[], -1),
            member("x", &["t"], &[], -1),
            member("y", &["t"], &[], -1),
        ];
        members[1].instance_id = Some(Arc::from("2"));
        members[2].instance_id = Some(Arc::from("1"));
        let shares = assign(kind, &counts(&[("t", 3)]), &members);
        assert_eq!(share(&shares, "y"), ["t-0"]);
        assert_eq!(share(&shares, "x"), ["t-1"]);
        assert_eq!(share(&shares, "a"), ["t-2"]);
    }
}

/// The example of Kafka's own documentation.
#[test]
fn round_robin_passes_over() {
    let members = [
        member("C0", &["t0"], &[], -1),
        member("C1", &["t0", "t1"], &[], -1),
        member("C2", &["t0", "t1", "t2"], &[], -1),
    ];
    let counts = counts(&[("t0", 1), ("t1", 2), ("t2", 3)]);
    let shares = assign(AssignorKind::RoundRobin, &counts, &members);
    assert_eq!(share(&shares, "C0"), ["t0-0"]);
    assert_eq!(share(&shares, "C1"), ["t1-0"]);
    assert_eq!(share(&shares, "C2"), ["t1-1", "t2-0", "t2-1", "t2-2"]);
}

/// G10: what an older generation claims as well is not taken from it before it lets go: its
/// member is told by an assignment without it, and then it is free.
#[test]
fn g10_conflicts_end() {
    for topics in [&["t"][..], &["t", "u"]] {
        // With a second topic for one member the other way is taken.
        let counts = counts(&[("t", 2), ("u", 1)]);
        let mut members = [
            member("a", &["t"], &["t-0"], 7),
            member("b", topics, &["t-0"], 7),
        ];
        let shares = assign(AssignorKind::CooperativeSticky, &counts, &members);
        assert!(shares.values().flatten().all(|tp| tp.to_string() != "t-0"));
        for m in &mut members {
            (m.owned, m.generation) = (shares[&m.member_id].clone(), Some(8));
        }
        let shares = assign(AssignorKind::CooperativeSticky, &counts, &members);
        assert!(shares.values().flatten().any(|tp| tp.to_string() == "t-0"));
    }
}

/// G27: a member that wants nothing (its metadata was unreadable) gets nothing, be it the first.
#[test]
fn g27_who_wants_nothing_gets_nothing() {
    for kind in KINDS {
        let members = [member("a", &[], &[], -1), member("b", &["t"], &[], -1)];
        let shares = assign(kind, &counts(&[("t", 3)]), &members);
        assert_eq!(share(&shares, "a"), Vec::<String>::new(), "{kind}");
        assert_eq!(share(&shares, "b").len(), 3, "{kind}");
    }
}

/// Claims on partitions that do not exist, or below zero, mean nothing.
#[test]
fn nonsense_claims() {
    let mut m = member("a", &["t"], &["t-7", "z-0"], 3);
    m.owned.push(TopicPartition::new("t", -1));
    let counts = counts(&[("t", 2), ("gone", 0), ("odd", -4)]);
    let shares = assign(AssignorKind::CooperativeSticky, &counts, &[m]);
    assert_eq!(share(&shares, "a"), ["t-0", "t-1"]);
}

/// G30: a large group is no trouble: 300 members of 1 to 40 topics, 12,000 partitions.
#[test]
fn g30_large_group() {
    let topics: Vec<String> = (0..40).map(|t| format!("t{t:02}")).collect();
    let counts = topics
        .iter()
        .map(|t| (Arc::from(t.as_str()), 300))
        .collect();
    let members: Vec<_> = (0..300)
        .map(|m| {
            let first = m * 7 % 40;
            let wanted: Vec<&str> = topics
                .iter()
                .cycle()
                .skip(first)
                .take(1 + m % 40)
                .map(String::as_str)
                .collect();
            member(&format!("m{m:03}"), &wanted, &[], -1)
        })
        .collect();
    let shares = assign(AssignorKind::CooperativeSticky, &counts, &members);
    assert_eq!(shares.values().map(Vec::len).sum::<usize>(), 12_000);
    check_balance(&counts, &members, &shares);
}

/// No single move makes two shares more alike.
fn check_balance(counts: &BTreeMap<Arc<str>, i32>, members: &[AssignMember], shares: &Shares) {
    for m in members {
        let size = shares[&m.member_id].len();
        for (other, share) in shares {
            let better =
                share.len() > size + 1 && share.iter().any(|tp| m.topics.contains(&tp.topic));
            assert!(!better, "{other} could give to {}: {counts:?}", m.member_id);
        }
    }
}

/// A member with these topics of `t0..`, by bit.
fn of_bits(id: usize, bits: u8, topics: usize) -> AssignMember {
    let wanted = (0..topics)
        .filter(|t| bits & (1 << t) != 0)
        .map(|t| Arc::from(format!("t{t}")));
    AssignMember {
        member_id: Arc::from(format!("m{id:02}")),
        topics: wanted.collect(),
        ..AssignMember::default()
    }
}

fn wanted(counts: &BTreeMap<Arc<str>, i32>, members: &[AssignMember]) -> BTreeSet<TopicPartition> {
    let topics = counts
        .iter()
        .filter(|(t, _)| members.iter().any(|m| m.topics.contains(*t)));
    topics
        .flat_map(|(t, n)| (0..*n).map(|p| TopicPartition::new(t.clone(), p)))
        .collect()
}

/// Each partition at most once, and only to who wants it; returns what is given out.
fn check_exclusive(members: &[AssignMember], shares: &Shares) -> BTreeSet<TopicPartition> {
    let mut given = BTreeSet::new();
    assert_eq!(shares.len(), members.len());
    for m in members {
        for tp in &shares[&m.member_id] {
            assert!(
                m.topics.contains(&tp.topic),
                "{} gets {tp} unasked",
                m.member_id
            );
            assert!(given.insert(tp.clone()), "{tp} twice");
        }
    }
    given
}

/// Lets a cooperative group run until nothing changes; what each round gives is owned in the
/// next. Asserts that no partition goes to a member before its owner has let go of it.
fn settle(counts: &BTreeMap<Arc<str>, i32>, members: &mut [AssignMember]) -> Shares {
    for round in 0..4 {
        let shares = assign(AssignorKind::CooperativeSticky, counts, members);
        check_exclusive(members, &shares);
        for m in members.iter() {
            for other in members.iter().filter(|o| o.member_id != m.member_id) {
                let taken = other
                    .owned
                    .iter()
                    .find(|tp| shares[&m.member_id].contains(tp));
                assert!(
                    taken.is_none(),
                    "{taken:?} from {} too early",
                    other.member_id
                );
            }
        }
        let still = members.iter().all(|m| {
            let share: BTreeSet<_> = shares[&m.member_id].iter().collect();
            m.owned.iter().collect::<BTreeSet<_>>() == share
        });
        if still {
            return shares;
        }
        for m in members.iter_mut() {
            m.owned = shares[&m.member_id].clone();
            m.generation = Some(round + 10);
        }
    }
    panic!("does not settle: {members:?}");
}

const KINDS: [AssignorKind; 3] = [
    AssignorKind::Range,
    AssignorKind::RoundRobin,
    AssignorKind::CooperativeSticky,
];

mod properties {
    use super::*;
    use proptest::prelude::*;

    fn group() -> impl Strategy<Value = (Vec<i32>, Vec<u8>)> {
        (
            proptest::collection::vec(0..20i32, 1..6),
            proptest::collection::vec(any::<u8>(), 1..9),
        )
    }

    fn cluster(sizes: &[i32]) -> BTreeMap<Arc<str>, i32> {
        let topic = |(t, n): (usize, &i32)| (Arc::from(format!("t{t}")), *n);
        sizes.iter().enumerate().map(topic).collect()
    }

    fn members(bits: &[u8], topics: usize) -> Vec<AssignMember> {
        bits.iter()
            .enumerate()
            .map(|(m, bits)| of_bits(m, *bits, topics))
            .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        /// G30: complete and exclusive, whatever the wishes; equal input, equal shares.
        #[test]
        fn g30_complete((sizes, bits) in group()) {
            let counts = cluster(&sizes);
            let members = members(&bits, sizes.len());
            for kind in KINDS {
                let shares = assign(kind, &counts, &members);
                prop_assert_eq!(check_exclusive(&members, &shares), wanted(&counts, &members));
                let mut shuffled = members.clone();
                shuffled.reverse();
                prop_assert_eq!(assign(kind, &counts, &shuffled), shares);
            }
        }

        /// G30: balanced: with equal wishes shares differ by one at most, else no single move
        /// helps.
        #[test]
        fn g30_balanced((sizes, bits) in group(), alike: bool) {
            let counts = cluster(&sizes);
            let bits = match alike {
                true => vec![0xff; bits.len()],
                false => bits,
            };
            let mut members = members(&bits, sizes.len());
            let shares = settle(&counts, &mut members);
            check_balance(&counts, &members, &shares);
            for kind in [AssignorKind::RoundRobin, AssignorKind::CooperativeSticky] {
                let sizes = assign(kind, &counts, &members).into_values().map(|s| s.len());
                let sizes: Vec<_> = sizes.collect();
                let spread = sizes.iter().max().unwrap() - sizes.iter().min().unwrap();
                prop_assert!(!alike || spread <= 1, "{:?}", sizes);
            }
        }

        /// G30: sticky: a group that is settled does not move; when a member leaves, the others
        /// keep all they had; when one comes to a group of equal wishes, nothing goes from one
        /// old member to another.
        #[test]
        fn g30_sticky((sizes, bits) in group(), gone in any::<prop::sample::Index>()) {
            let counts = cluster(&sizes);
            let bits = vec![0xff; bits.len()];
            let mut before = members(&bits, sizes.len());
            let shares = settle(&counts, &mut before);
            prop_assert_eq!(&assign(AssignorKind::CooperativeSticky, &counts, &before), &shares);

            let mut fewer = before.clone();
            fewer.remove(gone.index(before.len()));
            if !fewer.is_empty() {
                let after = settle(&counts, &mut fewer.clone());
                for m in &fewer {
                    for tp in &shares[&m.member_id] {
                        prop_assert!(after[&m.member_id].contains(tp), "{} lost {}", m.member_id, tp);
                    }
                }
            }

            let mut more = before.clone();
            more.push(of_bits(99, 0xff, sizes.len()));
            let after = settle(&counts, &mut more);
            for m in &before {
                for tp in &after[&m.member_id] {
                    prop_assert!(shares[&m.member_id].contains(tp), "{} got {}", m.member_id, tp);
                }
            }
        }

        /// G10, G30: any claims at all, also false ones: exclusive, balanced after all have let
        /// go, and settled within four rounds.
        #[test]
        fn g10_any_claims(
            (sizes, bits) in group(),
            claims in proptest::collection::vec((0..9usize, 0..6usize, -1..22i32), 0..60),
            generations in proptest::collection::vec(-1..4i32, 9),
        ) {
            let counts = cluster(&sizes);
            let mut members = members(&bits, sizes.len());
            for (m, topic, p) in claims {
                let n = members.len();
                members[m % n].owned.push(TopicPartition::new(format!("t{topic}"), p));
            }
            for (m, generation) in generations.into_iter().enumerate() {
                if let Some(m) = members.get_mut(m) {
                    m.generation = Some(generation).filter(|g| *g >= 0);
                }
            }
            let first = assign(AssignorKind::CooperativeSticky, &counts, &members);
            check_exclusive(&members, &first);
            for m in &mut members {
                m.owned = first[&m.member_id].clone();
                m.generation = Some(9);
            }
            let shares = settle(&counts, &mut members);
            prop_assert_eq!(check_exclusive(&members, &shares), wanted(&counts, &members));
            check_balance(&counts, &members, &shares);
        }
    }
}
