//! Work on many things at once, shared out over the processors.

use std::num::NonZero;
use std::thread;

/// Fewer than this are not worth a thread.
const WORTH_IT: usize = 256;

/// What `f` answers for each item, in their order. It runs on several threads, each with a stretch of
/// neighbours; where the system gives no thread, on this one.
pub(super) fn each<T: Sync, R: Send>(items: &[T], f: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let stretch = items.len().div_ceil(threads).max(WORTH_IT);
    let on_all = |part: &[T]| part.iter().map(&f).collect::<Vec<R>>();
    let (first, rest) = items.split_at(stretch.min(items.len()));
    thread::scope(|scope| {
        let helpers: Vec<_> = rest
            .chunks(stretch)
            .map(|part| {
                let helper = thread::Builder::new()
                    .name("share".into())
                    .spawn_scoped(scope, move || on_all(part));
                (part, helper)
            })
            .collect();
        let mut out = on_all(first);
        for (part, helper) in helpers {
            match helper.map(thread::ScopedJoinHandle::join) {
                Ok(Ok(done)) => out.extend(done),
                Ok(Err(panic)) => std::panic::resume_unwind(panic),
                Err(_) => out.extend(on_all(part)),
            }
        }
        out
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn answers_come_in_the_order_of_the_items() {
        for n in [0, 1, 255, 256, 257, 10_000] {
            let items: Vec<usize> = (0..n).collect();
            assert_eq!(
                super::each(&items, |i| i * 2),
                items.iter().map(|i| i * 2).collect::<Vec<_>>()
            );
        }
    }
}
