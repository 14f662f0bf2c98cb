//! Strategies for everything that is stored.

#![allow(unreachable_pub)]

use proptest::collection::{btree_map, vec};
use proptest::option::of;
use proptest::prelude::*;
use txfs_journal::*;

macro_rules! ids {
    ($($f:ident -> $t:ident($int:ty)),*) => {$(
        fn $f() -> impl Strategy<Value = $t> + Clone {
            any::<$int>().prop_map($t)
        }
    )*};
}
ids!(
    generation -> Generation(u64), obj -> ObjId(u64), proc_id -> ProcId(u32), seq -> Seq(u64),
    slot_id -> SlotId(u64), step_id -> StepId(u32), txn_id -> TxnId(u64)
);

fn bytes() -> impl Strategy<Value = Vec<u8>> + Clone {
    vec(any::<u8>(), 0..40)
}

fn name() -> impl Strategy<Value = Name> + Clone {
    let bytes = prop_oneof![
        vec(1u8.., 1..20),
        Just(vec![0xff; 255]),
        Just(b"...".to_vec()),
        Just(b"\n\x1b[".to_vec()),
    ];
    bytes.prop_filter_map("no name", |b| Name::new(b).ok())
}

fn path() -> impl Strategy<Value = RelPath> + Clone {
    vec(name(), 0..4).prop_map(|names| names.iter().fold(RelPath::root(), |p, n| p.join(n)))
}

fn time() -> impl Strategy<Value = Timestamp> + Clone {
    (any::<i64>(), 0u32..1_000_000_000).prop_map(|(secs, nanos)| Timestamp { secs, nanos })
}

fn kind() -> impl Strategy<Value = Kind> + Clone {
    prop_oneof![
        Just(Kind::File),
        Just(Kind::Dir),
        Just(Kind::Symlink),
        Just(Kind::Fifo),
        Just(Kind::Socket),
        Just(Kind::Char),
        Just(Kind::Block),
    ]
}

fn ident() -> impl Strategy<Value = Ident> + Clone {
    (any::<u64>(), of(time()), kind()).prop_map(|(ino, btime, kind)| Ident { ino, btime, kind })
}

fn print() -> impl Strategy<Value = Fingerprint> + Clone {
    let numbers = (any::<u32>(), any::<u32>(), any::<u32>(), any::<u32>(), any::<u64>());
    (ident(), bytes(), numbers, any::<u64>(), time(), time()).prop_map(
        |(ident, handle, (mode, uid, gid, nlink, size), rdev, mtime, ctime)| Fingerprint {
            ident,
            handle,
            mode,
            uid,
            gid,
            nlink,
            size,
            rdev,
            mtime,
            ctime,
        },
    )
}

fn place() -> impl Strategy<Value = Place> + Clone {
    (path(), any::<u64>()).prop_map(|(path, parent_ino)| Place { path, parent_ino })
}

fn slot() -> impl Strategy<Value = Slot> + Clone {
    (obj(), name()).prop_map(|(parent, name)| Slot { parent, name })
}

fn xattrs() -> impl Strategy<Value = Xattrs> + Clone {
    btree_map(bytes(), bytes(), 0..4)
}

fn overrides() -> impl Strategy<Value = Overrides> + Clone {
    let ids = (of(any::<u32>()), of(any::<u32>()), of(any::<u32>()));
    (ids, of(time()), of(time()), of(time())).prop_map(|((mode, uid, gid), atime, mtime, ctime)| {
        Overrides { mode, uid, gid, atime, mtime, ctime }
    })
}

fn meta() -> impl Strategy<Value = Meta> + Clone {
    let ids = (any::<u32>(), any::<u32>(), any::<u32>());
    (ids, of(time()), time(), of(xattrs())).prop_map(|((mode, uid, gid), atime, mtime, xattrs)| {
        Meta { mode, uid, gid, atime, mtime, xattrs }
    })
}

fn over() -> impl Strategy<Value = Over> + Clone {
    prop_oneof![
        Just(Over::Nothing),
        obj().prop_map(Over::Replaced),
        obj().prop_map(Over::Exchanged),
    ]
}

fn node() -> impl Strategy<Value = NewNode> + Clone {
    prop_oneof![
        slot_id().prop_map(|slot| NewNode::File { slot }),
        bytes().prop_map(|target| NewNode::Symlink { target }),
        Just(NewNode::Fifo),
        Just(NewNode::Socket),
        any::<u64>().prop_map(|rdev| NewNode::Char { rdev }),
        any::<u64>().prop_map(|rdev| NewNode::Block { rdev }),
    ]
}

fn change() -> BoxedStrategy<Change> {
    prop_oneof![
        (slot(), node(), overrides(), xattrs())
            .prop_map(|(at, node, attrs, xattrs)| Change::Create { at, node, attrs, xattrs }),
        slot().prop_map(|at| Change::Link { at }),
        slot_id().prop_map(|slot| Change::Content { slot }),
        overrides().prop_map(Change::Attrs),
        (bytes(), of(bytes())).prop_map(|(name, value)| Change::Xattr { name, value }),
    ]
    .boxed()
}

fn effect() -> BoxedStrategy<Effect> {
    prop_oneof![
        (obj(), slot(), slot(), over()).prop_map(|(obj, from, to, over)| Effect::Move {
            obj,
            from,
            to,
            over
        }),
        (obj(), slot()).prop_map(|(obj, at)| Effect::Rm { obj, at }),
        (obj(), slot(), overrides(), xattrs()).prop_map(|(obj, at, attrs, xattrs)| Effect::Mkdir {
            obj,
            at,
            attrs,
            xattrs
        }),
        (obj(), change()).prop_map(|(obj, change)| Effect::Write { obj, change }),
    ]
    .boxed()
}

fn preimage() -> BoxedStrategy<Preimage> {
    prop_oneof![
        slot().prop_map(|at| Preimage::Absent { at }),
        of(slot_id()).prop_map(|slot| Preimage::Content { slot }),
        overrides().prop_map(Preimage::Attrs),
        (bytes(), of(of(bytes()))).prop_map(|(name, before)| Preimage::Xattr { name, before }),
    ]
    .boxed()
}

fn inverse() -> BoxedStrategy<Inverse> {
    prop_oneof![
        (obj(), slot(), slot(), over()).prop_map(|(obj, from, to, over)| Inverse::Unmove {
            obj,
            from,
            to,
            over
        }),
        (obj(), slot()).prop_map(|(obj, at)| Inverse::Unrm { obj, at }),
        (obj(), slot()).prop_map(|(obj, at)| Inverse::RmdirIfEmpty { obj, at }),
        (obj(), preimage()).prop_map(|(obj, to)| Inverse::Restore { obj, to }),
    ]
    .boxed()
}

fn times() -> impl Strategy<Value = TimesBefore> {
    (obj(), of(time()), of(time())).prop_map(|(obj, mtime, ctime)| TimesBefore {
        obj,
        mtime,
        ctime,
    })
}

fn bind() -> BoxedStrategy<Bind> {
    (obj(), obj(), name(), print())
        .prop_map(|(obj, parent, name, print)| Bind { obj, parent, name, print })
        .boxed()
}

fn effect_entry() -> BoxedStrategy<EffectEntry> {
    (effect(), inverse(), vec(times(), 0..3), vec(bind(), 0..3), proc_id())
        .prop_map(|(effect, inverse, times, binds, proc)| EffectEntry {
            effect,
            inverse,
            times,
            binds,
            proc,
        })
        .boxed()
}

fn entry() -> BoxedStrategy<Entry> {
    prop_oneof![
        4 => effect_entry().prop_map(|e| Entry::Effect(Box::new(e))),
        1 => (step_id(), bytes()).prop_map(|(step, what)| Entry::Step { step, what }),
        1 => bytes().prop_map(|name| Entry::Savepoint { name }),
        1 => seq().prop_map(|to| Entry::RolledBack { to }),
        1 => (proc_id(), any::<u32>(), of(proc_id()), bytes(), bytes())
            .prop_map(|(proc, pid, parent, exe, argv)| Entry::Process { proc, pid, parent, exe, argv }),
    ]
    .boxed()
}

pub fn any_record() -> impl Strategy<Value = Record> {
    (seq(), time(), entry()).prop_map(|(seq, time, entry)| Record { seq, time, entry })
}

pub fn any_head() -> impl Strategy<Value = TxnHead> {
    let state = prop_oneof![
        Just(TxnState::Open),
        Just(TxnState::Sealed),
        generation().prop_map(TxnState::Committed),
        Just(TxnState::Aborting),
        Just(TxnState::Aborted),
    ];
    (txn_id(), ".{0,20}", any::<u32>(), generation(), time(), state).prop_map(
        |(id, name, owner, base, began, state)| TxnHead { id, name, owner, base, began, state },
    )
}

fn seen() -> impl Strategy<Value = Seen> {
    (any::<u64>(), time()).prop_map(|(size, mtime)| Seen { size, mtime })
}

fn holds() -> impl Strategy<Value = Holds> {
    prop_oneof![Just(Holds::Anything), Just(Holds::Same), Just(Holds::Nothing)]
}

pub fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (place(), slot_id(), ident(), time(), of(any::<u64>()), holds()).prop_map(
            |(from, slot, ident, mtime, size, holds)| Step::Evacuate {
                from,
                slot,
                ident,
                mtime,
                size,
                holds
            }
        ),
        (slot_id(), place(), ident()).prop_map(|(slot, to, ident)| Step::Place { slot, to, ident }),
        (slot_id(), place(), ident(), ident(), of(seen()))
            .prop_map(|(slot, at, new, old, was)| Step::Exchange { slot, at, new, old, was }),
        (place(), place(), ident()).prop_map(|(existing, to, ident)| Step::Link {
            existing,
            to,
            ident
        }),
        (place(), ident(), slot_id(), slot_id(), of(seen())).prop_map(
            |(at, ident, content, preimage, was)| Step::Rewrite {
                at,
                ident,
                content,
                preimage,
                was
            }
        ),
        (place(), ident(), meta(), meta()).prop_map(|(at, ident, before, after)| Step::SetMeta {
            at,
            ident,
            before,
            after
        }),
        (generation(), slot_id(), slot_id(), ident()).prop_map(|(from, from_slot, slot, ident)| {
            Step::Fetch { from, from_slot, slot, ident }
        }),
        Just(Step::Barrier),
        (place(), place(), ident()).prop_map(|(from, existing, ident)| Step::Unlink {
            from,
            existing,
            ident
        }),
    ]
}

pub fn any_plan_head() -> impl Strategy<Value = PlanHead> {
    let undo_of = vec(generation(), 0..4);
    (txn_id(), generation(), undo_of, any::<u32>(), time(), bytes(), any::<u64>()).prop_map(
        |(txn, generation, undo_of, uid, time, message, steps)| PlanHead {
            txn,
            generation,
            undo_of,
            uid,
            time,
            message,
            steps,
        },
    )
}

pub fn any_generation() -> impl Strategy<Value = GenerationHead> {
    (any_plan_head(), any::<u64>(), any::<u64>(), any::<u64>(), any::<bool>()).prop_map(
        |(plan, after, history_bytes, entries, pruned)| GenerationHead {
            plan,
            after,
            history_bytes,
            entries,
            pruned,
        },
    )
}

pub fn any_after() -> impl Strategy<Value = (Place, Fingerprint)> {
    (place(), print())
}
