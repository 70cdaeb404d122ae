use super::*;
use crate::wire::VersionRange;
use crate::wire::message::{FetchRequest, HeartbeatRequest, Isolation, MetadataRequest};

const SECOND: Duration = Duration::from_secs(1);

fn at(seconds: u64) -> Now {
    Now(0) + SECOND * u32::try_from(seconds).unwrap()
}

fn link() -> Link {
    Link::new(
        Arc::new(LinkConfig::default()),
        "broker:9092".into(),
        Now(0),
    )
}

fn heartbeat() -> Request {
    Request::Heartbeat(HeartbeatRequest {
        group: "g".into(),
        generation: 3,
        member_id: "m".into(),
        instance_id: None,
    })
}

fn metadata() -> Request {
    Request::Metadata(MetadataRequest {
        topics: Some(vec![]),
    })
}

fn fetch() -> Request {
    Request::Fetch(FetchRequest {
        max_wait: SECOND,
        min_bytes: 1,
        max_bytes: 1 << 20,
        isolation: Isolation::ReadUncommitted,
        session_id: 0,
        session_epoch: -1,
        topics: vec![],
        forgotten: vec![],
        rack: "".into(),
        by_id: true,
    })
}

/// The header of a request: API, version, correlation id.
fn head(frame: &[u8]) -> (i16, i16, i32) {
    let i16_at = |i: usize| i16::from_be_bytes([frame[i], frame[i + 1]]);
    let id = i32::from_be_bytes([frame[8], frame[9], frame[10], frame[11]]);
    (i16_at(4), i16_at(6), id)
}

fn actions(link: &mut Link) -> Vec<LinkAction> {
    std::iter::from_fn(|| link.poll_action()).collect()
}

/// The only action, a request.
fn sent(link: &mut Link) -> (i16, i16, i32) {
    match &actions(link)[..] {
        [LinkAction::Send(frame)] => {
            let len = i32::from_be_bytes([frame[0], frame[1], frame[2], frame[3]]);
            assert_eq!(usize::try_from(len).unwrap() + 4, frame.len());
            head(frame)
        }
        other => panic!("{other:?}"),
    }
}

/// An `ApiVersions` answer in the layout of version 0 or of 3 and above.
fn versions(id: i32, code: i16, flexible: bool, apis: &[(i16, i16, i16)]) -> Bytes {
    let mut b = id.to_be_bytes().to_vec();
    b.extend(code.to_be_bytes());
    match flexible {
        true => b.push(u8::try_from(apis.len()).unwrap() + 1),
        false => b.extend(i32::try_from(apis.len()).unwrap().to_be_bytes()),
    }
    for (key, min, max) in apis {
        b.extend([*key, *min, *max].iter().flat_map(|n| n.to_be_bytes()));
        if flexible {
            b.push(0);
        }
    }
    if flexible {
        b.extend([0, 0, 0, 0, 0]); // throttle, tags
    }
    b.into()
}

const ALL: [(i16, i16, i16); 4] = [(1, 4, 18), (3, 0, 13), (12, 0, 4), (18, 0, 4)];

fn ready() -> Link {
    let mut link = link();
    link.handle_up(Now(0));
    let (_, version, id) = sent(&mut link);
    assert_eq!(version, 4);
    link.handle_frame(Now(0), versions(id, 0, true, &ALL));
    assert!(matches!(actions(&mut link)[..], [LinkAction::Ready]));
    link
}

/// A heartbeat's answer, version 4.
fn beat(id: i32, throttle_ms: i32) -> Bytes {
    let mut b = id.to_be_bytes().to_vec();
    b.push(0);
    b.extend(throttle_ms.to_be_bytes());
    b.extend([0, 0, 0]);
    b.into()
}

/// The end of a link: what each token got, then why it closed, then silence.
fn ended(link: &mut Link) -> (Vec<(u64, Error)>, Error, Option<i16>) {
    assert!(link.is_over());
    let mut answers = Vec::new();
    let mut rest = actions(link).into_iter();
    loop {
        match rest.next() {
            Some(LinkAction::Answer { token, result }) => {
                answers.push((token.0, result.unwrap_err()));
            }
            Some(LinkAction::Close {
                error,
                api_versions_max,
            }) => {
                assert!(rest.next().is_none());
                assert_eq!(link.pending(), 0);
                assert_eq!(link.next_deadline(), None);
                return (answers, error, api_versions_max);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn requests_wait_for_the_versions_and_are_answered_once() {
    let mut link = link();
    link.send(Now(0), Token(1), heartbeat(), SECOND * 30);
    assert!(link.poll_action().is_none());
    link.handle_up(Now(0));
    assert_eq!(sent(&mut link), (18, 4, 0));
    assert!(!link.is_ready());
    link.handle_frame(Now(0), versions(0, 0, true, &ALL));
    match &actions(&mut link)[..] {
        [LinkAction::Ready, LinkAction::Send(frame)] => assert_eq!(head(frame), (12, 4, 1)),
        other => panic!("{other:?}"),
    }
    assert!(link.is_ready());
    assert_eq!(
        link.ranges().unwrap().of(Api::Fetch),
        Some(VersionRange::new(4, 18))
    );
    assert_eq!((link.in_flight(), link.pending()), (1, 1));
    link.handle_frame(at(2), beat(1, 0));
    match &actions(&mut link)[..] {
        [
            LinkAction::Answer {
                token: Token(1),
                result: Ok(Response::Heartbeat(r)),
            },
        ] => {
            assert!(r.code.is_none());
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(link.pending(), 0);
    assert_eq!(link.idle_since(), at(2));
    assert_eq!(link.next_deadline(), None);
}

/// L02: a mute peer. The deadline of the oldest request ends the link, and with it all others.
#[test]
fn l02_a_mute_peer_costs_the_link_at_the_deadline() {
    let mut link = ready();
    link.send(at(0), Token(1), fetch(), SECOND * 31);
    link.send(at(1), Token(2), metadata(), SECOND * 40);
    actions(&mut link);
    assert_eq!(link.next_deadline(), Some(at(31)));
    link.handle_timeout(at(30));
    assert!(link.poll_action().is_none(), "not before its time");
    link.handle_timeout(at(31));
    let (answers, error, _) = ended(&mut link);
    assert_eq!(answers.iter().map(|a| a.0).collect::<Vec<_>>(), [1, 2]);
    for (_, e) in &answers {
        assert!(
            e.is_retriable() && e.to_string().contains("outcome of"),
            "{e}"
        );
    }
    assert_eq!(error.kind(), ErrorKind::Transport);
    assert!(
        error.to_string().contains("no answer to Fetch within 31s"),
        "{error}"
    );
    assert_eq!(error.broker(), Some("broker:9092"));
}

/// L02: the same before the first word.
#[test]
fn l02_a_peer_that_never_names_its_versions() {
    let mut link = link();
    link.send(Now(0), Token(1), metadata(), SECOND * 60);
    link.handle_up(at(1));
    sent(&mut link);
    assert_eq!(link.next_deadline(), Some(at(31)));
    link.handle_timeout(at(31));
    let (answers, error, _) = ended(&mut link);
    assert_eq!(answers.len(), 1);
    assert!(answers[0].1.to_string().contains("not sent"));
    assert!(error.is_retriable());
}

/// L30: a broker under a limit on connections takes 8 s to answer the first word. The link waits,
/// and what was asked meanwhile goes out then, with its whole time before it.
#[test]
fn l30_a_slow_handshake_is_waited_for() {
    let mut link = link();
    link.send(Now(0), Token(1), heartbeat(), SECOND * 30);
    link.handle_up(at(1));
    assert_eq!(sent(&mut link).0, 18);
    link.handle_timeout(at(8));
    assert!(
        actions(&mut link).is_empty(),
        "nothing ends, nothing is sent"
    );
    link.handle_frame(at(9), versions(0, 0, true, &[(12, 0, 4)]));
    match &actions(&mut link)[..] {
        [LinkAction::Ready, LinkAction::Send(frame)] => assert_eq!(head(frame).0, 12),
        other => panic!("{other:?}"),
    }
    link.handle_timeout(at(20));
    assert!(actions(&mut link).is_empty());
    link.handle_frame(at(21), beat(1, 0));
    assert!(matches!(
        &actions(&mut link)[..],
        [LinkAction::Answer { result: Ok(_), .. }]
    ));
}

/// L03: the peer went in mid-frame. What was written has an unknown outcome, what waited was not
/// sent, each is told once, and later bytes or requests change nothing.
#[test]
fn l03_down_answers_every_request_once() {
    let config = LinkConfig {
        in_flight_max: 1,
        ..LinkConfig::default()
    };
    let mut link = Link::new(Arc::new(config), "broker:9092".into(), Now(0));
    link.handle_up(Now(0));
    sent(&mut link);
    link.handle_frame(Now(0), versions(0, 0, true, &ALL));
    link.send(Now(0), Token(1), heartbeat(), SECOND);
    link.send(Now(0), Token(2), metadata(), SECOND);
    assert_eq!((link.in_flight(), link.pending()), (1, 2));
    actions(&mut link);
    link.handle_down(Now(0), transport("connection reset"));
    let (answers, error, _) = ended(&mut link);
    assert!(
        answers[0]
            .1
            .to_string()
            .contains("link lost, outcome of Heartbeat unknown")
    );
    assert!(answers[1].1.to_string().contains("Metadata not sent: "));
    assert_eq!(answers.len(), 2);
    assert!(error.to_string().contains("connection reset"));
    link.handle_frame(Now(0), beat(1, 0));
    link.handle_down(Now(0), transport("again"));
    link.handle_timeout(at(99));
    assert!(link.poll_action().is_none());
    link.send(Now(0), Token(3), metadata(), SECOND);
    match &actions(&mut link)[..] {
        [
            LinkAction::Answer {
                token: Token(3),
                result: Err(e),
            },
        ] => {
            assert!(e.to_string().contains("not sent"));
        }
        other => panic!("{other:?}"),
    }
}

/// L04: whoever sends cannot take a request back half-way: frames leave whole, in order, and an
/// answer that nobody waits for any more still takes its place in the order.
#[test]
fn l04_frames_leave_whole_and_in_order() {
    let mut link = ready();
    for token in 1..=3 {
        link.send(Now(0), Token(token), heartbeat(), SECOND);
    }
    let ids: Vec<i32> = actions(&mut link)
        .iter()
        .map(|a| match a {
            LinkAction::Send(frame) => {
                let len = i32::from_be_bytes([frame[0], frame[1], frame[2], frame[3]]);
                assert_eq!(usize::try_from(len).unwrap() + 4, frame.len());
                head(frame).2
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(ids, [1, 2, 3]);
    for id in ids {
        link.handle_frame(Now(0), beat(id, 0));
        assert!(matches!(
            &actions(&mut link)[..],
            [LinkAction::Answer { token, result: Ok(_) }] if token.0 == u64::try_from(id).unwrap()
        ));
    }
}

/// L05: an answer out of turn, or one that nobody asked for, ends the link.
#[test]
fn l05_unknown_correlation_ids_poison_the_link() {
    let mut link = ready();
    link.send(Now(0), Token(1), heartbeat(), SECOND);
    link.send(Now(0), Token(2), metadata(), SECOND);
    actions(&mut link);
    link.handle_frame(Now(0), beat(2, 0));
    let (answers, error, _) = ended(&mut link);
    assert_eq!(answers.len(), 2);
    assert_eq!(error.kind(), ErrorKind::Peer);
    assert!(
        error
            .to_string()
            .contains("correlation id 2 came where 1 is due"),
        "{error}"
    );

    let mut link = ready();
    link.handle_frame(Now(0), beat(1, 0));
    assert_eq!(ended(&mut link).1.kind(), ErrorKind::Peer);

    let mut link = self::link();
    link.handle_frame(Now(0), beat(0, 0));
    assert_eq!(ended(&mut link).1.kind(), ErrorKind::Peer);
}

/// L05: ids wrap from 2^31 - 1 to 0 and are never negative.
#[test]
fn l05_correlation_ids_wrap() {
    let mut link = ready();
    link.correlation_id = i32::MAX;
    for (token, id) in [(1, i32::MAX), (2, 0), (3, 1)] {
        link.send(Now(0), Token(token), heartbeat(), SECOND);
        assert_eq!(sent(&mut link).2, id);
        link.handle_frame(Now(0), beat(id, 0));
        assert!(matches!(
            &actions(&mut link)[..],
            [LinkAction::Answer { result: Ok(_), .. }]
        ));
    }
}

/// An answer that cannot be read ends the link: what follows may be as wrong.
#[test]
fn an_unreadable_answer_poisons_the_link() {
    let mut link = ready();
    link.send(Now(0), Token(1), heartbeat(), SECOND);
    actions(&mut link);
    link.handle_frame(Now(0), Bytes::from_static(&[0, 0, 0, 1, 0, 0]));
    let (answers, error, _) = ended(&mut link);
    assert_eq!(answers.len(), 1);
    assert_eq!(error.kind(), ErrorKind::Peer);
    assert!(error.to_string().contains("Heartbeat"), "{error}");
}

/// L08: an end at the first request, or before the first word, comes with a hint; a later one
/// does not.
#[test]
fn l08_an_early_end_hints_at_credentials_and_tls() {
    let mut link = link();
    link.handle_up(Now(0));
    sent(&mut link);
    link.handle_down(Now(0), transport("end of stream"));
    let early = ended(&mut link).1.to_string();
    assert!(
        early.contains("TLS") && early.contains("end of stream"),
        "{early}"
    );

    let mut link = ready();
    link.send(Now(0), Token(1), metadata(), SECOND);
    actions(&mut link);
    link.handle_down(Now(0), transport("end of stream"));
    let first = ended(&mut link).1.to_string();
    assert!(first.contains("SASL"), "{first}");

    let mut link = ready();
    link.send(Now(0), Token(1), heartbeat(), SECOND);
    actions(&mut link);
    link.handle_frame(Now(0), beat(1, 0));
    link.send(Now(0), Token(2), heartbeat(), SECOND);
    actions(&mut link);
    link.handle_down(Now(0), transport("end of stream"));
    let later = ended(&mut link).1.to_string();
    assert!(!later.contains("SASL") && !later.contains("TLS"), "{later}");
}

/// L09, L12: error 35 comes in a version 0 body under header 0 whatever was asked. One step
/// down, to what the broker named; refused again, the link ends.
#[test]
fn l09_unsupported_version_is_obeyed_once() {
    let mut link = link();
    link.handle_up(Now(0));
    assert_eq!(sent(&mut link), (18, 4, 0));
    link.handle_frame(Now(0), versions(0, 35, false, &[(18, 0, 2)]));
    assert_eq!(sent(&mut link), (18, 2, 1));
    link.handle_frame(Now(0), versions(1, 35, false, &[(18, 0, 1)]));
    let (_, error, _) = ended(&mut link);
    assert_eq!((error.kind(), error.code()), (ErrorKind::Peer, Some(35)));
    assert!(error.to_string().contains("0 to 1"), "{error}");
}

/// L09: a broker that names nothing is asked in version 0; one that names what it refuses, or
/// something we do not speak, is left.
#[test]
fn l09_refusals_that_make_no_sense() {
    let mut bare = link();
    bare.handle_up(Now(0));
    sent(&mut bare);
    bare.handle_frame(Now(0), versions(0, 35, false, &[]));
    assert_eq!(sent(&mut bare), (18, 0, 1));
    // Cut after the code.
    let mut cut = link();
    cut.handle_up(Now(0));
    sent(&mut cut);
    cut.handle_frame(Now(0), Bytes::from_static(&[0, 0, 0, 0, 0, 35]));
    assert_eq!(sent(&mut cut), (18, 0, 1));
    cut.handle_frame(Now(0), Bytes::from_static(&[0, 0, 0, 1, 0, 35]));
    ended(&mut cut);
    for named in [(18, 0, 4), (18, 0, 9), (18, 7, 9), (18, 3, 1)] {
        let mut link = link();
        link.handle_up(Now(0));
        sent(&mut link);
        link.handle_frame(Now(0), versions(0, 35, false, &[named]));
        assert_eq!(ended(&mut link).1.code(), Some(35), "{named:?}");
    }
}

/// L10: dropped on `ApiVersions` 4: told to offer 3 next time, then 0, then nothing.
#[test]
fn l10_a_reset_on_api_versions_names_the_next_try() {
    for (max, next) in [
        (9, Some(3)),
        (4, Some(3)),
        (3, Some(0)),
        (2, Some(0)),
        (0, None),
    ] {
        let config = Arc::new(LinkConfig::default());
        let mut link = Link::new_with_api_versions_max(config, "eh:9093".into(), Now(0), max);
        link.handle_up(Now(0));
        assert_eq!(sent(&mut link).1, max.min(4));
        link.handle_down(Now(0), transport("connection reset"));
        assert_eq!(ended(&mut link).2, next);
    }
    // A connection that never came up, or was lost later, says nothing about it.
    let mut link = link();
    link.handle_down(Now(0), transport("refused"));
    assert_eq!(ended(&mut link).2, None);
    let mut link = ready();
    link.handle_down(Now(0), transport("reset"));
    assert_eq!(ended(&mut link).2, None);
}

/// L11: no version in common costs that request alone; others go on.
#[test]
fn l11_disjoint_ranges_fail_the_request_alone() {
    let mut link = link();
    link.handle_up(Now(0));
    sent(&mut link);
    link.handle_frame(
        Now(0),
        versions(0, 0, true, &[(1, 5, 2), (3, 14, 15), (12, 0, 4)]),
    );
    actions(&mut link);
    for (request, words) in [(fetch(), "5 to 2"), (metadata(), "14 to 15")] {
        link.send(Now(0), Token(1), request, SECOND);
        match &actions(&mut link)[..] {
            [LinkAction::Answer { result: Err(e), .. }] => {
                assert!(e.to_string().contains(words) && !e.is_retriable(), "{e}");
            }
            other => panic!("{other:?}"),
        }
    }
    link.send(Now(0), Token(3), heartbeat(), SECOND);
    assert_eq!(sent(&mut link).0, 12);
}

/// L29: the broker's wish for silence holds back this link's requests until it is over, and no
/// other link's; one that carries heartbeats goes on.
#[test]
fn l29_throttle_mutes_this_link_for_its_time() {
    let mut link = ready();
    link.send(at(0), Token(1), heartbeat(), SECOND * 60);
    actions(&mut link);
    link.handle_frame(at(0), beat(1, 30_000));
    actions(&mut link);
    assert_eq!(link.muted_until(), at(30));
    link.send(at(1), Token(2), metadata(), SECOND * 60);
    assert!(link.poll_action().is_none());
    assert_eq!(link.next_deadline(), Some(at(30)));
    link.handle_timeout(at(29));
    assert!(link.poll_action().is_none());
    link.handle_timeout(at(30));
    assert_eq!(sent(&mut link).0, 3);
    // Its time runs from when it was written.
    assert_eq!(link.next_deadline(), Some(at(90)));

    let mut group = ready().ignoring_throttle();
    group.send(at(0), Token(1), heartbeat(), SECOND);
    actions(&mut group);
    group.handle_frame(at(0), beat(1, 30_000));
    actions(&mut group);
    group.send(at(0), Token(2), heartbeat(), SECOND);
    assert_eq!(sent(&mut group).0, 12);
}

/// L29: a number that is damaged silences a link for minutes, not weeks; a negative one not at all.
#[test]
fn l29_silence_is_bounded() {
    let mut link = ready();
    link.send(at(0), Token(1), heartbeat(), SECOND);
    actions(&mut link);
    link.handle_frame(at(0), beat(1, i32::MAX));
    assert_eq!(link.muted_until(), Now(0) + THROTTLE_MAX);
    let mut link = ready();
    link.send(at(0), Token(1), heartbeat(), SECOND);
    actions(&mut link);
    link.handle_frame(at(0), beat(1, -5));
    assert_eq!(link.muted_until(), Now(0));
}

/// L29: a full link that is also muted asks for no wake-up in the past.
#[test]
fn l29_deadlines_of_a_full_link_lie_ahead() {
    let config = LinkConfig {
        in_flight_max: 1,
        ..LinkConfig::default()
    };
    let mut link = Link::new(Arc::new(config), "broker:9092".into(), Now(0));
    link.handle_up(Now(0));
    sent(&mut link);
    link.handle_frame(Now(0), versions(0, 0, true, &ALL));
    link.send(at(0), Token(1), heartbeat(), SECOND * 60);
    link.send(at(0), Token(2), heartbeat(), SECOND * 90);
    actions(&mut link);
    assert_eq!(link.next_deadline(), Some(at(60)));
    link.handle_frame(at(1), beat(1, 5_000));
    assert!(matches!(
        actions(&mut link)[..],
        [LinkAction::Answer { .. }]
    ));
    assert_eq!(link.next_deadline(), Some(at(6)));
    link.handle_timeout(at(6));
    sent(&mut link);
    link.send(at(7), Token(3), heartbeat(), SECOND * 90);
    assert_eq!(link.next_deadline(), Some(at(96)));
}

/// A request whose time runs out while it waits fails alone: nothing was written.
#[test]
fn a_request_that_waits_too_long_fails_alone() {
    let config = LinkConfig {
        in_flight_max: 1,
        ..LinkConfig::default()
    };
    let mut link = Link::new(Arc::new(config), "broker:9092".into(), Now(0));
    link.send(Now(0), Token(1), heartbeat(), SECOND * 5);
    assert_eq!(link.next_deadline(), Some(at(5)));
    link.handle_timeout(at(5));
    match &actions(&mut link)[..] {
        [
            LinkAction::Answer {
                token: Token(1),
                result: Err(e),
            },
        ] => {
            assert!(
                e.to_string().contains("not sent") && e.is_retriable(),
                "{e}"
            );
        }
        other => panic!("{other:?}"),
    }
    assert!(!link.is_over());
}

#[test]
fn the_queue_is_bounded() {
    let config = LinkConfig {
        queued_max: 2,
        ..LinkConfig::default()
    };
    let mut link = Link::new(Arc::new(config), "broker:9092".into(), Now(0));
    for token in 1..=3 {
        link.send(Now(0), Token(token), heartbeat(), SECOND);
    }
    match &actions(&mut link)[..] {
        [
            LinkAction::Answer {
                token: Token(3),
                result: Err(e),
            },
        ] => assert!(e.is_retriable()),
        other => panic!("{other:?}"),
    }
    assert_eq!(link.pending(), 2);
}

/// A request that Kafka cannot carry is the caller's mistake and costs the link nothing.
#[test]
fn a_request_that_cannot_be_written_fails_alone() {
    let mut link = link();
    link.handle_up(Now(0));
    sent(&mut link);
    link.handle_frame(Now(0), versions(0, 0, true, &[(12, 0, 3)]));
    actions(&mut link);
    let group = "g".repeat(40_000); // classic strings end at 32,767 bytes
    let request = Request::Heartbeat(HeartbeatRequest {
        group: group.into(),
        generation: 1,
        member_id: "m".into(),
        instance_id: None,
    });
    link.send(Now(0), Token(1), request, SECOND);
    match &actions(&mut link)[..] {
        [LinkAction::Answer { result: Err(e), .. }] => assert_eq!(e.kind(), ErrorKind::Misuse),
        other => panic!("{other:?}"),
    }
    assert!(link.is_ready());
    assert_eq!(link.in_flight(), 0);
}
