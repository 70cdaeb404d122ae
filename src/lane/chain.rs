//! Many queues in one slab: linked nodes with a free list. Nothing is allocated for an entry once
//! the slab has grown to the largest number that was ever queued at once.

use std::cmp::Ordering;

/// The nodes of any number of [`Chain`]s.
#[derive(Debug)]
pub(super) struct Nodes<T> {
    slots: Vec<Slot<T>>,
    free: u32,
    used: usize,
}

#[derive(Debug)]
struct Slot<T> {
    /// None while the node is free.
    value: Option<T>,
    next: u32,
}

/// One queue. Used only with the `Nodes` that it began with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chain {
    head: u32,
    tail: u32,
    /// The last node that [`Nodes::insert`] put in: the next goes behind it.
    mark: u32,
}

const NIL: u32 = u32::MAX;

impl Chain {
    pub(super) const EMPTY: Chain = Chain {
        head: NIL,
        tail: NIL,
        mark: NIL,
    };

    pub(super) fn is_empty(&self) -> bool {
        self.head == NIL
    }

    /// The next inserted entry goes to the very front.
    pub(super) fn unmark(&mut self) {
        self.mark = NIL;
    }
}

impl<T> Nodes<T> {
    pub(super) fn new() -> Self {
        Nodes {
            slots: Vec::new(),
            free: NIL,
            used: 0,
        }
    }

    pub(super) fn push(&mut self, chain: &mut Chain, value: T) {
        let node = self.take(value, NIL);
        match chain.tail {
            NIL => chain.head = node,
            tail => self.slots[tail as usize].next = node,
        }
        chain.tail = node;
    }

    /// Puts `value` before everything that was pushed and behind everything inserted since the
    /// last [`Chain::unmark`].
    pub(super) fn insert(&mut self, chain: &mut Chain, value: T) {
        let next = match chain.mark {
            NIL => chain.head,
            mark => self.slots[mark as usize].next,
        };
        let node = self.take(value, next);
        match chain.mark {
            NIL => chain.head = node,
            mark => self.slots[mark as usize].next = node,
        }
        if next == NIL {
            chain.tail = node;
        }
        chain.mark = node;
    }

    /// Puts `value` where it belongs among its own: `order` says how another entry stands to it, if
    /// it is one of them. They are in order already. Without any it is not put in, and comes back.
    pub(super) fn insert_among(
        &mut self,
        chain: &mut Chain,
        value: T,
        order: impl Fn(&T) -> Option<Ordering>,
    ) -> Option<T> {
        let (mut at, mut before, mut place) = (chain.head, NIL, None);
        while let Some(slot) = self.slots.get(at as usize) {
            match slot.value.as_ref().and_then(&order) {
                Some(Ordering::Greater) => {
                    place = Some(before);
                    break;
                }
                Some(_) => place = Some(at),
                None => {}
            }
            before = at;
            at = slot.next;
        }
        let Some(before) = place else {
            return Some(value);
        };
        let next = match before {
            NIL => chain.head,
            before => self.slots[before as usize].next,
        };
        let node = self.take(value, next);
        match before {
            NIL => chain.head = node,
            before => self.slots[before as usize].next = node,
        }
        if next == NIL {
            chain.tail = node;
        }
        None
    }

    pub(super) fn pop(&mut self, chain: &mut Chain) -> Option<T> {
        if chain.is_empty() {
            return None;
        }
        let node = chain.head;
        chain.head = self.slots[node as usize].next;
        if chain.head == NIL {
            chain.tail = NIL;
        }
        if chain.mark == node {
            chain.mark = NIL;
        }
        self.give(node)
    }

    pub(super) fn front(&self, chain: &Chain) -> Option<&T> {
        self.slots.get(chain.head as usize)?.value.as_ref()
    }

    pub(super) fn front_mut(&mut self, chain: &Chain) -> Option<&mut T> {
        self.slots.get_mut(chain.head as usize)?.value.as_mut()
    }

    pub(super) fn back_mut(&mut self, chain: &Chain) -> Option<&mut T> {
        self.slots.get_mut(chain.tail as usize)?.value.as_mut()
    }

    pub(super) fn iter(&self, chain: &Chain) -> impl Iterator<Item = &T> {
        let mut at = chain.head;
        std::iter::from_fn(move || {
            let slot = self.slots.get(at as usize)?;
            at = slot.next;
            slot.value.as_ref()
        })
    }

    pub(super) fn for_each_mut(&mut self, chain: &Chain, mut f: impl FnMut(&mut T)) {
        let mut at = chain.head;
        while let Some(slot) = self.slots.get_mut(at as usize) {
            if let Some(value) = &mut slot.value {
                f(value);
            }
            at = slot.next;
        }
    }

    /// Takes out what `goes` says, in order, and hands it to `out`.
    pub(super) fn drain_where(
        &mut self,
        chain: &mut Chain,
        mut goes: impl FnMut(&T) -> bool,
        mut out: impl FnMut(T),
    ) {
        let (mut at, mut before) = (chain.head, NIL);
        while at != NIL {
            let slot = &self.slots[at as usize];
            let next = slot.next;
            if slot.value.as_ref().is_some_and(&mut goes) {
                match before {
                    NIL => chain.head = next,
                    before => self.slots[before as usize].next = next,
                }
                if chain.tail == at {
                    chain.tail = before;
                }
                if chain.mark == at {
                    chain.mark = before;
                }
                if let Some(value) = self.give(at) {
                    out(value);
                }
            } else {
                before = at;
            }
            at = next;
        }
    }

    /// Everything that is queued anywhere, in no order.
    pub(super) fn all(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|slot| slot.value.as_ref())
    }

    fn take(&mut self, value: T, next: u32) -> u32 {
        self.used += 1;
        let slot = Slot {
            value: Some(value),
            next,
        };
        if self.free == NIL {
            // The byte budget ends long before four thousand million nodes of 32 bytes.
            let node = self.slots.len() as u32;
            assert!(node != NIL, "a queue outgrew its numbers");
            self.slots.push(slot);
            return node;
        }
        let node = self.free;
        self.free = self.slots[node as usize].next;
        self.slots[node as usize] = slot;
        node
    }

    fn give(&mut self, node: u32) -> Option<T> {
        self.used -= 1;
        let value = self.slots[node as usize].value.take();
        self.slots[node as usize].next = self.free;
        self.free = node;
        if self.used == 0 && self.slots.capacity() > NODES_KEPT {
            self.slots = Vec::new();
            self.free = NIL;
        }
        value
    }
}

/// An empty slab larger than this is given back.
const NODES_KEPT: usize = 65_536;

#[cfg(test)]
mod tests {
    use super::*;

    fn all(nodes: &mut Nodes<u32>, chain: &mut Chain) -> Vec<u32> {
        std::iter::from_fn(|| nodes.pop(chain)).collect()
    }

    #[test]
    fn inserted_entries_go_first_and_keep_their_order() {
        let mut nodes = Nodes::new();
        let mut chain = Chain::EMPTY;
        nodes.push(&mut chain, 10);
        nodes.insert(&mut chain, 1);
        nodes.push(&mut chain, 11);
        nodes.insert(&mut chain, 2);
        chain.unmark();
        nodes.insert(&mut chain, 0);
        assert_eq!(all(&mut nodes, &mut chain), [0, 1, 2, 10, 11]);
        assert!(chain.is_empty());
        nodes.insert(&mut chain, 5);
        nodes.push(&mut chain, 6);
        assert_eq!(all(&mut nodes, &mut chain), [5, 6]);
        assert_eq!(nodes.slots.len(), 5, "nodes are used again");
    }

    #[test]
    fn an_entry_finds_its_place_among_its_own() {
        let own = |n: u32| move |other: &u32| (other % 2 == n % 2).then(|| other.cmp(&n));
        let mut nodes = Nodes::new();
        let mut chain = Chain::EMPTY;
        assert_eq!(nodes.insert_among(&mut chain, 4, own(4)), Some(4));
        for n in [4, 11, 8] {
            nodes.push(&mut chain, n);
        }
        for n in [6, 2, 10, 9, 13] {
            assert_eq!(nodes.insert_among(&mut chain, n, own(n)), None);
        }
        nodes.push(&mut chain, 20);
        assert_eq!(all(&mut nodes, &mut chain), [2, 4, 9, 11, 13, 6, 8, 10, 20]);
    }

    #[test]
    fn draining_keeps_head_tail_and_mark() {
        for keep in 0..8u32 {
            let mut nodes = Nodes::new();
            let mut chain = Chain::EMPTY;
            nodes.insert(&mut chain, 0);
            nodes.push(&mut chain, 1);
            nodes.push(&mut chain, 2);
            let mut out = Vec::new();
            nodes.drain_where(&mut chain, |n| keep >> n & 1 == 0, |n| out.push(n));
            let kept: Vec<u32> = (0..3).filter(|n| keep >> n & 1 == 1).collect();
            let gone: Vec<u32> = (0..3).filter(|n| keep >> n & 1 == 0).collect();
            assert_eq!(out, gone);
            nodes.insert(&mut chain, 7);
            nodes.push(&mut chain, 8);
            let mut expected = kept.clone();
            expected.insert(usize::from(kept.first() == Some(&0)), 7);
            expected.push(8);
            assert_eq!(all(&mut nodes, &mut chain), expected, "kept {kept:?}");
        }
    }
}
