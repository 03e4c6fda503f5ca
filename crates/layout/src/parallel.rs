//! Runs the same work for every array at once. Arrays are independent, and results come back in the
//! order of arrays, so how many threads there are changes nothing but the time.

use std::{
    sync::atomic::{AtomicU16, Ordering},
    thread::{self, Builder},
};

/// `work` of each array 0 .. `arrays`, on as many threads as there are processors.
pub(crate) fn for_each_array<T: Send>(arrays: u16, work: impl Fn(u16) -> T + Sync) -> Vec<T> {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicU16::new(0);
    let run = || {
        let take =
            || next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < arrays).then_some(n + 1));
        let mut done = Vec::new();
        while let Ok(array) = take() {
            done.push((array, work(array)));
        }
        done
    };
    let mut done = thread::scope(|scope| {
        // Where no thread can be started, this one does it all.
        let helpers: Vec<_> = (1..processors.min(arrays.into()))
            .map_while(|_| Builder::new().name("layout".into()).spawn_scoped(scope, run).ok())
            .collect();
        let mut done = run();
        for helper in helpers {
            match helper.join() {
                Ok(more) => done.extend(more),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        done
    });
    done.sort_unstable_by_key(|(array, _)| *array);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order_each_once() {
        for arrays in [0, 1, 2, 100] {
            let expected: Vec<u32> = (0..arrays).map(|a| u32::from(a) * 3).collect();
            assert_eq!(for_each_array(arrays, |a| u32::from(a) * 3), expected);
        }
    }
}
