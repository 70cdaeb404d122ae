//! Rules that are easy to break without noticing, each with what happens then.
//!
//! Every module states its own at its top. These are the ones that other clients, or early
//! versions of this one, got wrong. Each is held by tests that carry the ids of
//! `protocol-tests/scenarios.tsv`.
//!
//! # Epochs
//!
//! 1. **Compare the lease first.** Every result, answer, timer and commit carries the lease or link
//!    it was born under, and that is compared before anything else. A ghost of the last life at a
//!    reused offset otherwise swallows the fresh record (E09, E10, F38, C17).
//! 2. **A link's and a lease's number is never used again.** What comes late finds nothing.
//! 3. **Whatever moves a position back ends the lease:** a seek, a reset, a truncation, a topic made
//!    anew under its old name (F17, F28). There is no other way back.
//! 4. **A partition that is revoked and assigned in one step is a new lease** (G08).
//! 5. **Draining is not lost.** While draining, results count; once lost, none does (C29, G23).
//! 6. **A key stays busy until its old run has ended, across leases** (E11): counts and lanes are
//!    freed by the run that held them, never by the end of the lease.
//!
//! # Lanes
//!
//! 7. **A record that must run again seals its lane** in the executor, until the engine, which has
//!    all of the lane's records again, opens it anew. A segment that opens a sealed lane must not be
//!    withdrawn when its own lease ends: later ones rely on it.
//! 8. **A lane is bound to one executor while a record of it is out.** Two executors would race.
//! 9. **A wait needs a reason that ends it:** a record out, a timer, or a place in a list (I8). Nothing
//!    is woken by luck.
//! 10. **A panic is caught in the call, in each poll and in the future's drop** (E25).
//!
//! # Settlement and commits
//!
//! 11. **An open record leaves the tracker by settling, or with its whole lease,** in no other way
//!     (C04). Nothing sweeps.
//! 12. **Gaps are settled by definition,** wherever they are: inside a batch, behind its last record,
//!     a whole batch of them (D04, D05, D26, C07). Otherwise the watermark waits for ever.
//! 13. **Progress is compared by version; there is no dirty flag** (C28). What settles while a commit
//!     is in flight is committed by the next.
//! 14. **One commit in flight for a group,** or an older one lands last (C02).
//! 15. **Only a broker's word makes "nothing was committed"** (C12, F21, G46). A time-out, an omitted
//!     partition or an error is no such word: the start policy would skip or repeat days.
//! 16. **A load waits for the commit of its own partition** that is still out, or it reads the past.
//!
//! # Fetching
//!
//! 17. **An incremental fetch that omits a partition goes on from its old offset.** Left out means on
//!     the forget list (F05, F07).
//! 18. **An answer's error carries -1 for the watermarks:** not to be stored.
//! 19. **A slice keeps its whole frame.** The budget counts frames whole until the last slice is gone.
//! 20. **With nothing else held one batch may overdraw the budget,** or a batch larger than it would
//!     never come.
//!
//! # Peers
//!
//! 21. **No length is believed before its bytes are there.** Nested lists reserve at each level what
//!     they claim, before the inner one fails: the bound must hold for their product.
//! 22. **A retry is paced, and only real success resets the pace** (I10, L31): accepting a connection
//!     is no success.
//! 23. **A lower leader epoch, or none, never replaces a higher one** of the same topic id (F22, F23).
//! 24. **The answer of an earlier generation says nothing about this one** (G04).
//! 25. **Past the session's end by our own clock nothing starts,** whatever has not been heard yet
//!     (G22): a process that was stopped wakes up with records of partitions that are another's.
