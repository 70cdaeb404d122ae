//! A user's own assignor.

use super::*;
use crate::group::assign::{AssignMember, Assignor, CustomAssignor, Shares};
use std::collections::BTreeSet;

/// What the scenario makes of it.
type Way = fn(&BTreeMap<Arc<str>, i32>, &[AssignMember]) -> Shares;

struct Own {
    way: Way,
    cooperative: bool,
}

impl Assignor for Own {
    fn name(&self) -> &str {
        "own"
    }

    fn cooperative(&self) -> bool {
        self.cooperative
    }

    fn user_data(&self, topics: &BTreeSet<Arc<str>>) -> Option<Bytes> {
        Some(Bytes::from(format!("wants {}", topics.len())))
    }

    fn assign(&self, counts: &BTreeMap<Arc<str>, i32>, members: &[AssignMember]) -> Shares {
        (self.way)(counts, members)
    }
}

fn own(way: Way, cooperative: bool) -> GroupConfig {
    let mut cfg = config();
    cfg.assignors.clear();
    cfg.custom = Some(CustomAssignor(Arc::new(Own { way, cooperative })));
    cfg
}

/// All to the last member.
fn all_to_last(counts: &BTreeMap<Arc<str>, i32>, members: &[AssignMember]) -> Shares {
    let last = members.iter().max_by_key(|m| &m.member_id).unwrap();
    let all = counts
        .iter()
        .flat_map(|(topic, n)| (0..*n).map(move |p| TopicPartition::new(topic.clone(), p)));
    [(last.member_id.clone(), all.collect())].into()
}

fn lead(desk: &mut Desk, members: Vec<JoinGroupMember>) {
    desk.subscribe(&["t"]);
    desk.partitions(&[("t", 3)]);
    desk.answer_join(leads("own", 1, members));
}

fn given(desk: &mut Desk) -> BTreeMap<String, Vec<TopicPartition>> {
    let Some((_, Request::SyncGroup(request))) = desk.take(is_sync) else {
        panic!("nothing is shared out: {:?}", desk.seen);
    };
    shares(&request)
}

fn two() -> Vec<JoinGroupMember> {
    vec![member("me", &["t"], &[], -1), member("z", &["t"], &[], -1)]
}

/// It is offered by its name, with its user data, and asked when we lead.
#[test]
fn it_is_offered_and_asked() {
    let mut desk = Desk::new(own(all_to_last, false));
    desk.subscribe(&["t"]);
    let join = desk.join_out().unwrap();
    assert_eq!(join.protocols.len(), 1);
    assert_eq!(&*join.protocols[0].0, "own");
    let said = decode_subscription(&join.protocols[0].1).unwrap();
    assert_eq!(said.user_data.as_deref(), Some(&b"wants 1"[..]));
    desk.partitions(&[("t", 3)]);
    desk.answer_join(leads("own", 1, two()));
    let given = given(&mut desk);
    assert_eq!(given["z"], tps([0, 1, 2]));
    assert_eq!(given["me"], []);
}

/// With others listed too it comes first.
#[test]
fn it_comes_before_those_listed() {
    let mut cfg = own(all_to_last, true);
    cfg.assignors = vec![AssignorKind::Range];
    let mut desk = Desk::new(cfg);
    desk.subscribe(&["t"]);
    let names: Vec<_> = desk
        .join_out()
        .unwrap()
        .protocols
        .iter()
        .map(|p| p.0.clone())
        .collect();
    assert_eq!(names, [Arc::from("own"), Arc::from("range")]);
    desk.partitions(&[("t", 3)]);
    desk.answer_join(leads("range", 1, two()));
    assert_eq!(given(&mut desk)["me"], tps([0, 1]));
}

/// G45: a panic in it ends the membership with an error that says so.
#[test]
fn g45_a_panic_ends_with_an_error() {
    let mut desk = Desk::new(own(|_, _| panic!("no way"), false));
    lead(&mut desk, two());
    let error = desk.fatal().unwrap();
    assert_eq!(error.kind(), ErrorKind::Handler);
    let words = error.to_string();
    assert!(
        words.contains(".assignor") && words.contains("no way"),
        "{words}"
    );
}

/// G30: shares that would give a partition two owners, or none that can read it, are refused by
/// name; shares that leave some out are sent, and warned of.
#[test]
fn g30_shares_are_checked() {
    let cases: [(&str, Way); 5] = [
        ("already", |_, members| {
            members
                .iter()
                .map(|m| (m.member_id.clone(), tps([0])))
                .collect()
        }),
        ("does not exist", |_, members| {
            [(members[0].member_id.clone(), tps([3]))].into()
        }),
        ("does not exist", |_, members| {
            let other = vec![TopicPartition::new("u", 0)];
            [(members[0].member_id.clone(), other)].into()
        }),
        ("does not exist", |_, members| {
            [(members[0].member_id.clone(), tps([-1]))].into()
        }),
        ("no member", |_, _| [(Arc::from("x"), tps([0]))].into()),
    ];
    for (words, way) in cases {
        let mut desk = Desk::new(own(way, false));
        lead(&mut desk, two());
        let error = desk.fatal().unwrap().to_string();
        assert!(error.contains(words) && error.contains("own"), "{error}");
    }
    let unwanted: Way = |_, members| {
        let me = members.iter().find(|m| &*m.member_id == "me").unwrap();
        [(me.member_id.clone(), vec![TopicPartition::new("u", 0)])].into()
    };
    let mut desk = Desk::new(own(unwanted, false));
    desk.subscribe(&["t"]);
    desk.partitions(&[("t", 3), ("u", 1)]);
    let members = vec![member("me", &["t"], &[], -1), member("z", &["u"], &[], -1)];
    desk.answer_join(leads("own", 1, members));
    assert!(desk.fatal().unwrap().to_string().contains("does not want"));
    let mut desk = Desk::new(own(|_, _| Shares::new(), false));
    lead(&mut desk, two());
    assert!(desk.noticed(|e| *e == GroupEvent::LeftOut { partitions: 3 }));
    assert!(given(&mut desk).values().all(Vec::is_empty));
}

/// G27, G28: who cannot be read wants nothing, and who is listed twice counts once, before the
/// user's assignor sees them.
#[test]
fn g27_g28_it_sees_members_that_make_sense() {
    let mut members = two();
    members.push(members[1].clone());
    members.push(JoinGroupMember {
        member_id: Arc::from("zz"),
        instance_id: None,
        metadata: Bytes::from_static(&[1, 2, 3]),
    });
    let wanting: Way = |counts, members| {
        let ids: BTreeSet<_> = members.iter().map(|m| &m.member_id).collect();
        assert_eq!(ids.len(), members.len());
        let able: Vec<_> = members
            .iter()
            .filter(|m| !m.topics.is_empty())
            .cloned()
            .collect();
        assert_eq!(able.len(), 2);
        all_to_last(counts, &able)
    };
    let mut desk = Desk::new(own(wanting, false));
    lead(&mut desk, members);
    let given = given(&mut desk);
    assert_eq!(given["z"], tps([0, 1, 2]));
    assert_eq!(given["zz"], []);
}

/// G08: a cooperative one moves nothing in one step: what another has is held back for a round.
#[test]
fn g08_a_cooperative_one_takes_two_steps() {
    let mut desk = Desk::new(own(all_to_last, true));
    let members = vec![
        member("me", &["t"], &tps([0, 1]), 4),
        member("z", &["t"], &tps([2]), 4),
    ];
    lead(&mut desk, members);
    assert_eq!(given(&mut desk)["z"], tps([2]));
}

/// A name that is empty or one of ours is refused before anything is sent.
#[test]
fn names_are_checked() {
    struct Named(&'static str);
    impl Assignor for Named {
        fn name(&self) -> &str {
            self.0
        }
        fn assign(&self, _: &BTreeMap<Arc<str>, i32>, _: &[AssignMember]) -> Shares {
            Shares::new()
        }
    }
    for name in ["", "range", "cooperative-sticky"] {
        let mut cfg = config();
        cfg.custom = Some(CustomAssignor(Arc::new(Named(name))));
        assert!(cfg.check().unwrap_err().to_string().contains(".assignor"));
    }
}
