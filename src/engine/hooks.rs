//! The user's hooks: told of partitions that come and go, one after the other, and waited for.
//!
//! 1. One hook runs at a time, in the order in which things happened, so that what a revoke's hook
//!    saves is there before a grant's hook of the same partition loads it.
//! 2. A granted partition is read once its hook has ended; a revoked one is given back once what
//!    ran has ended, what settled is committed, and its hook has ended.
//! 3. Each of them but a grant's has a moment when it is given up; a grant's gets one when its
//!    partitions are taken away again. So no hook holds up the group, or the end.
//! 4. A hook that fails ends the subscription with its error, after the step that it was part of.

use super::{Action, Engine, Phase};
use crate::error::{Error, ErrorKind};
use crate::ids::{LeaseId, TopicId, TopicPartition};
use crate::time::Now;
use std::collections::VecDeque;

/// What the user is told of, and waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hook {
    /// These are ours; they are read once the hook has ended.
    Granted(Vec<TopicPartition>),
    /// These go back to the group, or the subscription ends: nothing of them runs any more, and
    /// what settled is committed.
    Revoked(Vec<TopicPartition>),
    /// These are no longer ours, without a chance to commit; another member may have them already.
    Lost(Vec<TopicPartition>),
}

/// Names one run of a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HookId(pub u64);

/// Which hooks there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HookSet {
    /// [`Hook::Granted`].
    pub granted: bool,
    /// [`Hook::Revoked`].
    pub revoked: bool,
    /// [`Hook::Lost`].
    pub lost: bool,
}

/// A lease that waits for its hook.
pub(super) type Load = (LeaseId, TopicPartition, TopicId);

/// Hooks that run or are to run.
#[derive(Default)]
pub(super) struct Hooks {
    /// The first is out, if `out` says so. At most a few for each partition: what comes and goes
    /// before its hook has begun is never told.
    queue: VecDeque<Entry>,
    out: Option<HookId>,
    next: u64,
}

struct Entry {
    hook: Hook,
    /// What a grant begins.
    loads: Vec<Load>,
    /// What the group waits to hear is free.
    release: Vec<TopicPartition>,
    until: Now,
}

impl Hooks {
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether this lease has not begun, for its hook has not ended.
    pub(super) fn waits(&self, lease: LeaseId) -> bool {
        let mut loads = self.queue.iter().flat_map(|entry| &entry.loads);
        loads.any(|(id, ..)| *id == lease)
    }

    pub(super) fn next_deadline(&self) -> Option<Now> {
        let untils = self.queue.iter().map(|entry| entry.until);
        untils.min().filter(|at| *at != Now::NEVER)
    }

    /// Grants are not waited for any longer than this.
    pub(super) fn hurry(&mut self, until: Now) {
        for entry in &mut self.queue {
            entry.until = entry.until.min(until);
        }
    }

    /// These go away again. Those whose grant nobody was told of yet are taken out of both.
    fn unsay(&mut self, partitions: &mut Vec<TopicPartition>, until: Now) {
        let out = usize::from(self.out.is_some());
        for (at, entry) in self.queue.iter_mut().enumerate() {
            let Hook::Granted(granted) = &mut entry.hook else {
                continue;
            };
            if at < out {
                if granted.iter().any(|p| partitions.contains(p)) {
                    entry.until = entry.until.min(until);
                }
                continue;
            }
            granted.retain(|p| {
                let at = partitions.iter().position(|gone| gone == p);
                at.map(|at| partitions.swap_remove(at)).is_none()
            });
        }
        let mut at = 0;
        self.queue.retain(|entry| {
            at += 1;
            at <= out || !matches!(&entry.hook, Hook::Granted(p) if p.is_empty())
        });
        partitions.sort();
    }
}

impl Engine {
    /// Leases that the group has given: they begin, after the hook if there is one.
    pub(super) fn begin_granted(&mut self, now: Now, loads: Vec<Load>) {
        if !self.config.hooks.granted || loads.is_empty() {
            return self.begin_leases(now, loads);
        }
        let partitions = loads.iter().map(|(_, tp, _)| tp.clone()).collect();
        self.hooks.queue.push_back(Entry {
            hook: Hook::Granted(partitions),
            loads,
            release: Vec::new(),
            until: Now::NEVER,
        });
    }

    /// Drained and committed: the hook, if there is one, and then the group may have them.
    /// `release` is all that the group waits for; `gone` those of them that were ours to the end.
    pub(super) fn tell_revoked(
        &mut self,
        now: Now,
        mut gone: Vec<TopicPartition>,
        release: Vec<TopicPartition>,
        until: Now,
    ) {
        self.hooks.unsay(&mut gone, until);
        if !self.config.hooks.revoked || gone.is_empty() {
            return self.release(now, &release);
        }
        self.hooks.queue.push_back(Entry {
            hook: Hook::Revoked(gone),
            loads: Vec::new(),
            release,
            until,
        });
    }

    pub(super) fn tell_lost(&mut self, now: Now, mut lost: Vec<TopicPartition>) {
        let until = now + self.config.drain_max;
        self.hooks.unsay(&mut lost, until);
        if self.config.hooks.lost && !lost.is_empty() {
            self.hooks.queue.push_back(Entry {
                hook: Hook::Lost(lost),
                loads: Vec::new(),
                release: Vec::new(),
                until,
            });
        }
    }

    /// Starts the next hook, and gives up those whose time is over.
    pub(super) fn pump_hooks(&mut self, now: Now) -> bool {
        let mut moved = false;
        while let Some(at) = self.hooks.queue.iter().position(|e| e.until <= now) {
            moved = true;
            let entry = self.hooks.queue.remove(at);
            if at == 0
                && let Some(id) = self.hooks.out.take()
            {
                self.actions.push_back(Action::EndHook { id });
            }
            if let Some(entry) = entry {
                self.hook_late(now, entry);
            }
        }
        if self.hooks.out.is_none()
            && let Some(entry) = self.hooks.queue.front()
        {
            let id = HookId(self.hooks.next);
            self.hooks.next += 1;
            self.hooks.out = Some(id);
            let hook = entry.hook.clone();
            self.actions.push_back(Action::Hook { id, hook });
            moved = true;
        }
        moved
    }

    fn hook_late(&mut self, now: Now, entry: Entry) {
        let (name, partitions) = match &entry.hook {
            Hook::Granted(p) => ("on_granted", p),
            Hook::Revoked(p) => ("on_revoked", p),
            Hook::Lost(p) => ("on_lost", p),
        };
        let words = format!(
            "{name} took longer than there was time, and was dropped; the partitions go on without"
        );
        let mut error = Error::new(ErrorKind::Handler, words);
        if let Some(tp) = partitions.first() {
            error = error.at(tp.topic.clone(), tp.partition);
        }
        self.warn(error);
        self.hook_over(now, entry);
    }

    /// A hook has ended.
    pub(super) fn hook_done(&mut self, now: Now, id: HookId, result: Result<(), Error>) {
        if self.hooks.out != Some(id) {
            return; // it was given up
        }
        self.hooks.out = None;
        let Some(mut entry) = self.hooks.queue.pop_front() else {
            return;
        };
        if result.is_err() {
            entry.loads.clear();
        }
        self.hook_over(now, entry);
        let Err(error) = result else { return };
        match &mut self.phase {
            Phase::Closing(how) | Phase::Leaving(how) => {
                if how.is_ok() {
                    *how = Err(error);
                }
            }
            _ => {
                let deadline = now + self.config.drain_max;
                self.close(now, deadline, Err(error));
            }
        }
    }

    fn hook_over(&mut self, now: Now, entry: Entry) {
        self.release(now, &entry.release);
        self.begin_leases(now, entry.loads);
    }

    /// The group may have these.
    fn release(&mut self, now: Now, partitions: &[TopicPartition]) {
        if let Some(group) = self.group.as_mut().filter(|_| !partitions.is_empty()) {
            group.released(now, partitions);
        }
    }
}
