//! What etcd commits by itself: transactions a second, each a put of so many bytes guarded by another key, as a manager's commits are; each
//! worker has a connection of its own and waits for one answer at a time. For `bench/managers.sh`.
//!
//! `etcd_transactions HOST:PORT,... WORKERS COUNT BYTES`
#![allow(clippy::print_stdout, clippy::expect_used)] // it prints its figure, and ends where something fails

use std::time::Instant;

use etcd_client::{Client, Compare, CompareOp, Txn, TxnOp};

const USAGE: &str = "etcd_transactions HOST:PORT,... WORKERS COUNT BYTES";

async fn work(endpoints: Vec<String>, worker: usize, count: usize, bytes: usize) {
    let mut client = Client::connect(&endpoints, None).await.expect("connect to etcd");
    let (guard, value) = (format!("raw/{worker}"), vec![worker as u8; bytes]);
    client.put(guard.clone(), "guard", None).await.expect("put");
    for i in 0..count {
        let put = TxnOp::put(format!("raw/{worker}/{}", i % 64), value.clone(), None);
        let txn = Txn::new().when([Compare::value(guard.clone(), CompareOp::Equal, "guard")]).and_then([put]);
        let answer = client.txn(txn).await.expect("a transaction");
        assert!(answer.succeeded(), "the guard holds");
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [places, numbers @ ..] = args.as_slice() else { panic!("{USAGE}") };
    let numbers: Vec<usize> = numbers.iter().map(|text| text.parse().expect(USAGE)).collect();
    let [workers, count, bytes] = numbers[..] else { panic!("{USAGE}") };
    let endpoints: Vec<String> = places.split(',').map(|place| format!("http://{place}")).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("threads");
    let each = count.div_ceil(workers.max(1));
    let begun = Instant::now();
    runtime.block_on(async {
        let all: Vec<_> =
            (0..workers).map(|worker| tokio::spawn(work(endpoints.clone(), worker, each, bytes))).collect();
        for one in all {
            one.await.expect("a worker");
        }
    });
    println!("{:.0}", (each * workers) as f64 / begun.elapsed().as_secs_f64());
}
