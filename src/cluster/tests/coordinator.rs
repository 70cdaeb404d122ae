//! Who coordinates the group.

use super::*;

/// G16: the coordinator moves: it is found again, and told.
#[test]
fn g16_a_coordinator_that_moved_is_found_again() {
    let mut b = Bench::settled(t(vec![part(0, 1, 0)]));
    b.cluster.want_coordinator(b.now, &"g".into());
    b.drain();
    assert_eq!(b.cluster.coordinator(), None);
    b.lookup(coordinator(2));
    assert_eq!(b.cluster.coordinator(), Some(NodeId(2)));
    assert!(b.has(|a| matches!(a, ClusterAction::Coordinator(NodeId(2)))));
    b.cluster.coordinator_failed(b.now);
    b.drain();
    assert_eq!(b.cluster.coordinator(), None);
    b.lookup(coordinator(3));
    assert_eq!(b.cluster.coordinator(), Some(NodeId(3)));
    assert_eq!(
        b.cluster.address(Peer::Node(NodeId(3))),
        Some(("node3".into(), 9092))
    );
}

/// G16: metadata that does not list the coordinator's broker leaves it its address.
#[test]
fn g16_metadata_does_not_take_the_coordinator_away() {
    let mut b = Bench::settled(t(vec![part(0, 1, 0)]));
    b.cluster.want_coordinator(b.now, &"g".into());
    b.drain();
    b.lookup(coordinator(8));
    b.refresh();
    b.next_metadata(t(vec![part(0, 1, 1)]));
    assert_eq!(b.cluster.coordinator(), Some(NodeId(8)));
    assert!(b.cluster.address(Peer::Node(NodeId(8))).is_some());
}

/// G17: the look-up is the machine's: askers that give up or fail do not end it.
#[test]
fn g17_one_lookup_serves_all_askers() {
    let mut b = Bench::settled(t(vec![part(0, 1, 0)]));
    b.cluster.want_coordinator(b.now, &"g".into());
    b.drain();
    b.lookup(coordinator(1));
    // Heartbeat, commit and fetch of offsets all fail by one fault, and then once more.
    for _ in 0..3 {
        b.cluster.coordinator_failed(b.now);
        b.cluster.want_coordinator(b.now, &"g".into());
        b.drain();
    }
    let lookups = b
        .asked
        .iter()
        .filter(|a| matches!(a.request, Request::FindCoordinator(_)));
    assert_eq!(lookups.count(), 1);
    b.lookup(coordinator(2));
    assert_eq!(b.cluster.coordinator(), Some(NodeId(2)));
}

/// G17: a look-up whose peer dies goes to the next one.
#[test]
fn g17_a_lookup_outlives_the_broker_it_asked() {
    let mut b = Bench::settled(t(vec![part(0, 1, 0)]));
    b.cluster.want_coordinator(b.now, &"g".into());
    b.drain();
    let first = b.fail();
    assert_ne!(b.asked[0].to, first);
    b.lookup(coordinator(2));
    assert_eq!(b.cluster.coordinator(), Some(NodeId(2)));
}

/// G18: a look-up that fails for ever is neither tight nor given up.
#[test]
fn g18_lookups_are_paced() {
    let answers: [fn() -> Result<Response, Error>; 3] = [
        || Ok(Response::FindCoordinator(no_coordinator(15))),
        || Ok(Response::FindCoordinator(no_coordinator(-1))),
        || Err(refused()),
    ];
    for reply in answers {
        let mut b = Bench::new(1);
        b.cluster.want_coordinator(b.now, &"g".into());
        b.drain();
        b.play(SEC(60), |_, _| reply());
        assert!(
            (6..=80).contains(&b.sent.len()),
            "{} in a minute",
            b.sent.len()
        );
        b.play(SEC(20), |_, _| {
            Ok(Response::FindCoordinator(coordinator(1)))
        });
        assert_eq!(b.cluster.coordinator(), Some(NodeId(1)));
    }
}

/// G18: a coordinator that is named again and again and never serves is asked for at a bounded
/// rate.
#[test]
fn g18_a_useless_coordinator_is_no_loop() {
    let mut b = Bench::new(1);
    b.cluster.want_coordinator(b.now, &"g".into());
    let end = b.now + SEC(60);
    let mut steps = 0;
    while b.now < end {
        b.drain();
        if b.asked.is_empty() {
            b.wake();
        } else {
            b.lookup(coordinator(1));
            b.now = b.now + MS(1);
            b.cluster.coordinator_failed(b.now);
        }
        steps += 1;
        assert!(steps < 1000, "a storm");
    }
    assert!(b.sent.len() <= 80, "{} look-ups in a minute", b.sent.len());
}

#[test]
fn a_group_without_rights_is_fatal_in_words() {
    let mut b = Bench::new(1);
    b.cluster.want_coordinator(b.now, &"g".into());
    b.drain();
    b.lookup(no_coordinator(30));
    let said = b.did.iter().any(|a| {
        matches!(a, ClusterAction::Fatal(e) if e.code() == Some(30) && e.to_string().contains("`g`"))
    });
    assert!(said, "{:?}", b.did);
}
