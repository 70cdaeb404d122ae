//! Handlers are told when their lease ends.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use crate::ids::LeaseId;
use crate::lane::{Lanes, LanesConfig, Lease, LeaseState, Mode};

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// The future resolves at the end, for each who waits, once; one that was dropped is forgotten,
/// and one that is made later is ready at once.
#[test]
fn who_waits_for_a_leases_end_is_woken() {
    for how in [LeaseState::Draining, LeaseState::Lost] {
        let mut lanes: Lanes<()> = Lanes::new(&LanesConfig::new(Mode::InTurn));
        let lease = Lease::new(LeaseId(1));
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let mut cx = Context::from_waker(&waker);
        let (mut one, mut two) = (pin!(lease.ended()), pin!(lease.ended()));
        {
            let mut gone = pin!(Box::pin(lease.ended()));
            assert_eq!(gone.as_mut().poll(&mut cx), Poll::Pending);
        }
        for _ in 0..3 {
            assert_eq!(one.as_mut().poll(&mut cx), Poll::Pending);
            assert_eq!(two.as_mut().poll(&mut cx), Poll::Pending);
        }
        lanes.end_lease(&lease, LeaseState::Granted);
        assert_eq!(count.0.load(Ordering::SeqCst), 0);
        lanes.end_lease(&lease, how);
        lanes.end_lease(&lease, LeaseState::Lost);
        assert_eq!(count.0.load(Ordering::SeqCst), 2);
        assert_eq!(one.as_mut().poll(&mut cx), Poll::Ready(()));
        assert_eq!(two.as_mut().poll(&mut cx), Poll::Ready(()));
        assert_eq!(pin!(lease.ended()).poll(&mut cx), Poll::Ready(()));
    }
}
