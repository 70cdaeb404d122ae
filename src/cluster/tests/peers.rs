//! Addresses, brokers that come and go, bootstrapping again.

use super::*;

/// L15: several addresses: each is tried, in a shuffled order, without a pause between them.
#[test]
fn l15_every_bootstrap_address_is_tried_at_once() {
    let mut firsts = BTreeSet::new();
    for seed in 0..32 {
        let mut b = Bench::with(3, |c| c.seed = [seed; 32]);
        b.want(&["t".into()]);
        let start = b.now;
        let tried: BTreeSet<Peer> = (0..3).map(|_| b.fail()).collect();
        assert_eq!(tried.len(), 3);
        assert_eq!(b.now, start);
        assert!(b.asked.is_empty(), "then there is a pause");
        firsts.insert(b.sent[0].1);
    }
    assert_eq!(firsts.len(), 3, "the start is spread");
}

/// Q11: an address leads to a node that does not know Metadata: the next one is asked, at once.
#[test]
fn q11_a_bootstrap_without_metadata_is_passed_over() {
    let mut b = Bench::new(2);
    b.want(&["t".into()]);
    let (start, asked) = (b.now, b.asked.pop_front().expect("asked"));
    b.cluster.link_up(b.now, asked.to);
    let error = Error::new(ErrorKind::Peer, "the broker does not know Metadata");
    b.answer(&asked, Err(error));
    assert_ne!(b.asked[0].to, asked.to);
    b.metadata(t(vec![part(0, 1, 0)]));
    assert_eq!((b.leader(0), b.now), (Some((1, 0)), start));
}

/// L15: an address is looked up by its name at every attempt; the machine keeps only the name.
#[test]
fn l15_a_dead_address_does_not_stop_the_others() {
    let mut b = Bench::new(2);
    b.want(&["t".into()]);
    let dead = b.fail();
    assert_ne!(b.asked[0].to, dead);
    b.metadata(t(vec![part(0, 1, 0)]));
    assert_eq!(b.leader(0), Some((1, 0)));
}

/// L17: every broker that we knew is gone; the bootstrap names lead to new ones.
#[test]
fn l17_all_known_brokers_replaced() {
    let mut b = Bench::settled(t(vec![part(0, 1, 5), part(1, 2, 5)]));
    b.cluster.link_down(b.now, Peer::Bootstrap(0));
    b.refresh();
    let start = b.now;
    let new = || {
        meta(
            &[11, 12],
            vec![topic("t", A, vec![part(0, 11, 6), part(1, 12, 6)])],
        )
    };
    b.play(SEC(20), |peer, _| match peer {
        Peer::Bootstrap(_) => Ok(Response::Metadata(new())),
        Peer::Node(n) if n.0 > 10 => Ok(Response::Metadata(new())),
        Peer::Node(_) => Err(refused()),
    });
    assert_eq!(b.leader(0), Some((11, 6)));
    assert_eq!(b.leader(1), Some((12, 6)));
    assert_eq!(b.cluster.address(Peer::Node(NodeId(1))), None);
    let found = b
        .sent
        .iter()
        .position(|(_, p)| *p == Peer::Bootstrap(0) && b.sent[0].1 == *p);
    assert!(found.is_some());
    assert!(
        b.sent
            .iter()
            .any(|(at, p)| *p == Peer::Bootstrap(0) && at.since(start) < SEC(5))
    );
}

/// L17: brokers that accept and then time out are given up after a bounded time.
#[test]
fn l17_without_metadata_for_long_the_brokers_are_given_up() {
    let mut b = Bench::settled(t(vec![part(0, 1, 5)]));
    b.refresh();
    let start = b.now;
    let mut given_up = None;
    for _ in 0..100 {
        while b.asked.is_empty() {
            b.wake();
        }
        let asked = b.asked.pop_front().expect("asked");
        if asked.to == Peer::Bootstrap(0) && b.now.since(start) > SEC(60) {
            given_up = Some(b.now);
            break;
        }
        // Links stay up; only the answers do not come.
        b.cluster.link_up(b.now, asked.to);
        b.now = b.now + SEC(30);
        b.answer(&asked, Err(refused()));
        for n in [1, 2] {
            b.cluster.link_up(b.now, Peer::Node(NodeId(n)));
        }
        b.cluster.link_down(b.now, Peer::Bootstrap(0));
    }
    let after = given_up
        .expect("the bootstrap address is asked again")
        .since(start);
    assert!(after >= SEC(300) && after < SEC(400), "{after:?}");
    assert!(b.has(|a| matches!(a, ClusterAction::Notice(ClusterNotice::Rebootstrap))));
}

/// L18: code 129 is obeyed.
#[test]
fn l18_code_129_is_obeyed() {
    let mut b = Bench::settled(t(vec![part(0, 1, 5)]));
    b.cluster.link_up(b.now, Peer::Node(NodeId(1)));
    b.cluster.link_down(b.now, Peer::Bootstrap(0));
    b.pass(SEC(1));
    b.refresh();
    b.drain();
    assert_eq!(b.asked[0].to, Peer::Node(NodeId(1)));
    b.metadata(MetadataResponse {
        code: Code(129),
        ..MetadataResponse::default()
    });
    b.wake();
    assert_eq!(b.asked[0].to, Peer::Bootstrap(0));
    b.metadata(meta(&[5], vec![topic("t", A, vec![part(0, 5, 6)])]));
    assert_eq!(b.leader(0), Some((5, 6)));
    assert_eq!(b.cluster.address(Peer::Node(NodeId(1))), None);
}

/// L18: a cluster that answers 129 for ever is asked at a bounded rate.
#[test]
fn l18_rebootstrap_is_no_loop() {
    let mut b = Bench::new(2);
    b.want(&["t".into()]);
    b.play(SEC(300), |_, _| {
        Ok(Response::Metadata(MetadataResponse {
            code: Code(129),
            ..MetadataResponse::default()
        }))
    });
    assert!(
        (20..70).contains(&b.sent.len()),
        "{} in five minutes",
        b.sent.len()
    );
    // Also when the bootstrap answers well and every broker then says 129.
    let mut b = Bench::new(1);
    b.want(&["t".into()]);
    b.play(SEC(300), |peer, _| {
        Ok(Response::Metadata(match peer {
            // Leaderless, so that it is asked again soon.
            Peer::Bootstrap(_) => t(vec![part(0, -1, -1)]),
            Peer::Node(_) => MetadataResponse {
                code: Code(129),
                ..MetadataResponse::default()
            },
        }))
    });
    assert!(b.sent.len() < 400, "{} in five minutes", b.sent.len());
}

/// L31: a broker that accepts and then drops is tried ever more rarely: only an answer resets.
#[test]
fn l31_accepting_is_no_success() {
    let mut b = Bench::new(1);
    let peer = Peer::Bootstrap(0);
    let mut attempts = 0;
    let end = b.now + SEC(60);
    while b.now < end {
        match b.cluster.may_connect(b.now, peer) {
            Ok(()) => {
                attempts += 1;
                b.cluster.link_up(b.now, peer);
                b.now = b.now + MS(1);
                b.cluster.link_down(b.now, peer);
            }
            Err(at) => b.now = at,
        }
    }
    assert!(
        (8..=20).contains(&attempts),
        "{attempts} attempts in a minute"
    );
    b.cluster.proven(peer);
    assert_eq!(b.cluster.may_connect(b.now, peer), Ok(()));
    b.cluster.link_down(b.now, peer);
    let wait = b
        .cluster
        .may_connect(b.now, peer)
        .expect_err("a pause")
        .since(b.now);
    assert!(wait <= MS(60), "{wait:?}");
}

/// L31: many links that one fault takes down are one failure.
#[test]
fn l31_one_fault_counts_once() {
    let mut b = Bench::settled(t(vec![part(0, 1, 0)]));
    let peer = Peer::Node(NodeId(1));
    for _ in 0..200 {
        b.cluster.link_down(b.now, peer);
    }
    let wait = b
        .cluster
        .may_connect(b.now, peer)
        .expect_err("a pause")
        .since(b.now);
    assert!(wait <= MS(60), "{wait:?}");
}

/// A broker that moved is told, so that links to its old address can be closed.
#[test]
fn a_moved_broker_is_told() {
    let mut b = Bench::settled(t(vec![part(0, 1, 0)]));
    b.refresh();
    let mut answer = t(vec![part(0, 1, 0)]);
    answer.brokers[0].host = "elsewhere".into();
    b.next_metadata(answer);
    assert!(b.has(|a| matches!(a, ClusterAction::Relocated(NodeId(1)))));
    let address = b.cluster.address(Peer::Node(NodeId(1)));
    assert_eq!(address, Some(("elsewhere".into(), 9092)));
}

/// At the start metadata and look-up go to the same peer: one connection, not two.
#[test]
fn the_start_needs_one_connection() {
    let mut b = Bench::new(3);
    b.cluster.want_coordinator(b.now, &"g".into());
    b.want(&["t".into()]);
    assert_eq!(b.asked.len(), 2);
    assert_eq!(b.asked[0].to, b.asked[1].to);
}
