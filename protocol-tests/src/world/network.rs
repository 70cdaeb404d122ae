//! The network between members and brokers, and what drives each engine.

use super::{Happening, HookRun, Link, World};
use bytes::Buf;
use laneway::broker::{BrokerAction, ConnId};
use laneway::engine::{Action, Command, Done, Event, Hook, HookId, LinkEvent};
use laneway::ids::{CommandId, ExecutorId, LinkId, TopicPartition};
use laneway::settle::Map;
use laneway::time::Now;
use laneway::wire::Framer;
use laneway::{Error, ErrorKind};
use std::sync::atomic::Ordering;
use std::time::Duration;

impl World {
    pub(super) fn tell_engine(&mut self, member: usize, link: LinkId, event: LinkEvent) {
        let now = self.now;
        let slot = &mut self.members[member];
        if !slot.alive || !slot.links.contains_key(&link) {
            return;
        }
        if slot.frozen {
            // The kernel keeps it for when the process goes on.
            slot.kept.push_back((link, event));
            return;
        }
        if matches!(event, LinkEvent::Down(_)) {
            slot.links.remove(&link);
        }
        slot.engine.handle_link(now, link, event);
        self.act(member);
    }

    pub(super) fn happen(&mut self, what: Happening) {
        let now = self.now;
        match what {
            Happening::Dialled {
                member,
                link,
                port,
                until,
            } => self.dialled(member, link, port, until),
            Happening::ToBroker { conn, frame } => {
                if self.conns.contains_key(&conn) {
                    self.cluster.handle_frame(now, conn, frame);
                }
            }
            Happening::ToEngine {
                member,
                link,
                event,
            } => {
                self.tell_engine(member, link, event);
            }
            Happening::Bytes {
                member,
                link,
                bytes,
            } => {
                for event in self.cut_frames(member, link, &bytes) {
                    self.happen(Happening::ToEngine {
                        member,
                        link,
                        event,
                    });
                }
            }
            Happening::HookEnds { member, id, result } => self.hook_ends(member, id, result),
            Happening::HungUp { conn } => {
                self.conns.remove(&conn);
                self.cluster.disconnect(now, conn);
            }
            Happening::Provided { member, came } => {
                let slot = &mut self.members[member];
                if slot.alive && !slot.frozen && slot.finished.is_none() {
                    slot.engine.handle_credentials(now, came);
                    self.act(member);
                }
            }
        }
    }

    /// As a socket's reader does it.
    fn cut_frames(&mut self, member: usize, link: LinkId, bytes: &[u8]) -> Vec<LinkEvent> {
        let mut events = Vec::new();
        let Some(slot) = self.members[member].links.get_mut(&link) else {
            return events;
        };
        let mut rest = bytes;
        while !rest.is_empty() {
            let space = slot.framer.space();
            let n = space.len().min(rest.len());
            space[..n].copy_from_slice(&rest[..n]);
            rest = &rest[n..];
            let mut cut = slot.framer.filled(n);
            loop {
                match cut {
                    Ok(Some(frame)) => events.push(LinkEvent::Frame(frame)),
                    Ok(None) => break,
                    Err(e) => {
                        let error = Error::new(ErrorKind::Peer, e.to_string());
                        events.push(LinkEvent::Down(error));
                        return events;
                    }
                }
                cut = slot.framer.next_frame();
            }
        }
        events
    }

    fn dialled(&mut self, member: usize, link: LinkId, port: u16, until: Now) {
        let node = self.ports.get(&port).copied();
        let is_mute = |node: &i32| {
            let pair = (member, *node);
            self.mute.contains(&pair) || self.half_mute.contains(&pair)
        };
        let node = node.filter(|node| !is_mute(node));
        let Some(node) = node.filter(|_| self.members[member].links.contains_key(&link)) else {
            // No answer: the dial's own deadline ends it.
            let error = Error::new(ErrorKind::Transport, "no answer").retriable();
            let event = LinkEvent::Down(error);
            self.at(
                until,
                Happening::ToEngine {
                    member,
                    link,
                    event,
                },
            );
            return;
        };
        let conn = self.cluster.connect(self.now, node);
        let Some(slot) = self.members[member].links.get_mut(&link) else {
            return;
        };
        let event = match conn {
            Some(conn) => {
                slot.conn = Some(conn);
                self.conns.insert(conn, (member, link, node));
                LinkEvent::Up
            }
            None => LinkEvent::Down(Error::new(ErrorKind::Transport, "refused").retriable()),
        };
        self.later(
            Duration::from_micros(50),
            Happening::ToEngine {
                member,
                link,
                event,
            },
        );
    }

    /// Whether nothing passes on this connection. Once something was lost, nothing that comes
    /// after it can arrive.
    fn is_mute(&mut self, conn: ConnId, is_answer: bool) -> bool {
        let at = self.conns.get(&conn);
        if let Some(pair) = at.map(|(member, _, node)| (*member, *node)) {
            if self.mute.contains(&pair) {
                self.deaf.insert(conn);
            }
            if is_answer && self.half_mute.contains(&pair) {
                self.half_deaf.insert(conn);
            }
        }
        self.deaf.contains(&conn) || is_answer && self.half_deaf.contains(&conn)
    }

    pub(super) fn broker_acts(&mut self) {
        while let Some(action) = self.cluster.poll_action() {
            match action {
                BrokerAction::Send { conn, frame: bytes } => {
                    let Some((member, link, _)) = self.conns.get(&conn).copied() else {
                        continue;
                    };
                    if self.is_mute(conn, true) {
                        continue;
                    }
                    let at = self.now + self.latency();
                    let Some(slot) = self.members[member].links.get_mut(&link) else {
                        continue;
                    };
                    let at = at.max(slot.to_engine + Duration::from_nanos(1));
                    slot.to_engine = at;
                    self.at(
                        at,
                        Happening::Bytes {
                            member,
                            link,
                            bytes,
                        },
                    );
                }
                BrokerAction::Close { conn } => {
                    let Some((member, link, _)) = self.conns.remove(&conn) else {
                        continue;
                    };
                    let Some(slot) = self.members[member].links.get(&link) else {
                        continue;
                    };
                    let at = slot.to_engine.max(self.now) + Duration::from_micros(50);
                    let error = Error::new(ErrorKind::Transport, "closed by the broker");
                    let event = LinkEvent::Down(error.retriable());
                    self.at(
                        at,
                        Happening::ToEngine {
                            member,
                            link,
                            event,
                        },
                    );
                }
            }
        }
    }

    /// Does what an engine says and polls its runners until neither has more to say.
    pub(super) fn act(&mut self, number: usize) {
        if !self.members[number].alive {
            return;
        }
        loop {
            while let Some(action) = self.members[number].engine.poll_action() {
                self.do_one(number, action);
            }
            if !self.poll_executors(number) {
                break;
            }
        }
        self.members[number].ask_deadline();
    }

    fn poll_executors(&mut self, number: usize) -> bool {
        let now = self.now;
        let member = &mut self.members[number];
        let fence = member.engine.fence().load(Ordering::Acquire);
        if now.0 >= fence {
            // Past the session by our own clock nothing may start; the engine is told first.
            member.engine.handle_timeout(now);
            if member.engine.fence().load(Ordering::Acquire) != fence {
                return true;
            }
        }
        for i in 0..member.executors.len() {
            if let Some(done) = member.executors[i].poll(now) {
                if matches!(done, laneway::lane::Done::Group(_)) {
                    member.groups_out[i] -= 1;
                }
                let executor = ExecutorId(u32::try_from(i).unwrap_or(0));
                member.engine.handle_done(now, Done { executor, done });
                return true;
            }
        }
        false
    }

    fn hook_begins(&mut self, member: usize, id: HookId, hook: Hook) {
        let running = |h: &HookRun| h.member == member && h.ended.is_none();
        assert!(!self.hooks.iter().any(running), "one hook at a time");
        let plan = self.hook_plan.as_ref().map(|plan| plan(member, &hook));
        let (takes, result) = plan.unwrap_or((Duration::ZERO, Ok(())));
        self.hooks.push(HookRun {
            member,
            id,
            hook,
            began: self.now,
            ended: None,
            dropped: false,
        });
        self.later(takes, Happening::HookEnds { member, id, result });
    }

    fn hook_drops(&mut self, member: usize, id: HookId) {
        let now = self.now;
        let mut runs = self.hooks.iter_mut();
        let run = runs.find(|h| h.member == member && h.id == id);
        let run = run.expect("only a hook that began is dropped");
        assert_eq!(run.ended, None, "it had ended");
        (run.ended, run.dropped) = (Some(now), true);
    }

    fn hook_ends(&mut self, member: usize, id: HookId, result: Result<(), Error>) {
        let now = self.now;
        if !self.members[member].alive {
            return;
        }
        if self.members[member].frozen {
            let wait = Duration::from_millis(50);
            return self.later(wait, Happening::HookEnds { member, id, result });
        }
        let mut runs = self.hooks.iter_mut();
        let run = runs.find(|h| h.member == member && h.id == id && h.ended.is_none());
        let Some(run) = run else {
            return; // it was dropped
        };
        run.ended = Some(now);
        let done = Command::HookDone { id, result };
        let engine = &mut self.members[member].engine;
        engine.handle_command(now, CommandId(u64::MAX), done);
        self.act(member);
    }

    fn do_one(&mut self, number: usize, action: Action) {
        let is_over = self.members[number].finished.is_some();
        assert!(!is_over, "after the end, member {number}: {action:?}");
        match action {
            Action::Open {
                link,
                host: _,
                port,
                until,
                frame_max,
            } => {
                let (to_broker, to_engine) = (self.now, self.now);
                let framer = Framer::new(frame_max);
                let slot = Link {
                    conn: None,
                    framer,
                    to_broker,
                    to_engine,
                };
                self.members[number].links.insert(link, slot);
                let latency = self.latency();
                self.later(
                    latency,
                    Happening::Dialled {
                        member: number,
                        link,
                        port,
                        until,
                    },
                );
            }
            Action::Send {
                link, mut frame, ..
            } => {
                frame.advance(4);
                let at = self.now + self.latency();
                let slot = self.members[number].links.get_mut(&link);
                let slot = slot.expect("I7: a frame for a link that is over");
                let conn = slot.conn.expect("I7: a frame for a link that is not up");
                let at = at.max(slot.to_broker + Duration::from_nanos(1));
                slot.to_broker = at;
                if self.is_mute(conn, false) {
                    return;
                }
                self.at(at, Happening::ToBroker { conn, frame });
            }
            Action::Close { link } => {
                if let Some(conn) = self.members[number]
                    .links
                    .remove(&link)
                    .and_then(|l| l.conn)
                {
                    self.later(Duration::from_micros(200), Happening::HungUp { conn });
                }
            }
            Action::Run { executor, group } => {
                let member = &mut self.members[number];
                let out = &mut member.groups_out[executor.0 as usize];
                *out += 1;
                assert!(*out <= 2, "three groups out for one executor");
                member.executors[executor.0 as usize].give(group);
            }
            Action::Recall {
                executor,
                lease,
                what,
            } => {
                self.members[number].executors[executor.0 as usize].recall(lease, what);
            }
            Action::Hook { id, hook } => self.hook_begins(number, id, hook),
            Action::EndHook { id } => self.hook_drops(number, id),
            Action::Reply { id, result } => self.members[number].replies.push((id, result)),
            Action::Event(event) => {
                if let Event::Granted { partition, offset } = &event {
                    self.grants.push((number, partition.clone(), self.now));
                    let now = self.now;
                    self.book().granted(number, partition, now);
                    let map = self.map_at(number, partition, *offset);
                    self.book().covers(number, partition, map);
                }
                if let Event::Warning { error } = &event
                    && let (Some(topic), Some(partition)) = (error.topic(), error.partition())
                    && error.message().contains("offset map")
                {
                    let tp = TopicPartition::new(topic, partition);
                    self.book().covers(number, &tp, None);
                }
                if let Event::DataLoss { partition, .. } = &event {
                    self.commits.forget(partition);
                }
                self.heed(number, &event);
                self.members[number].events.push(event);
            }
            Action::Again => {
                let now = self.now;
                self.members[number].engine.handle_timeout(now);
            }
            Action::Finished(result) => {
                let member = &mut self.members[number];
                assert!(member.finished.is_none(), "finished twice");
                member.finished = Some(result);
            }
            Action::CredentialsWanted => {
                self.members[number].credentials_wanted += 1;
                self.ask_provider(number);
            }
            other => panic!("an action that the world does not know: {other:?}"),
        }
    }

    /// What the commit that a member begins with says of the records above it.
    fn map_at(&self, member: usize, partition: &TopicPartition, offset: i64) -> Option<Map> {
        let group = self.members[member].maps_of.as_ref()?;
        let committed = self
            .cluster
            .committed(group, &partition.topic, partition.partition)?;
        if committed.offset != offset {
            return None;
        }
        Map::read(offset, &committed.metadata).ok()
    }
}
