//! A dump that is taken part after part while the manager goes on is of one moment, or comes to no end.

use super::*;
use crate::store::{self, Damaged, DumpWriter};

type Records = Vec<(Vec<u8>, Vec<u8>)>;

async fn part(manager: &Manager, dump: u64, after: &[u8]) -> Result<(Records, bool), MgrError> {
    let request = MgrRequest::Dump { dump, after: after.to_vec() };
    match manager.handle(caller(SessionId(0)), request).await {
        MgrReply::Dumped { records, more } => Ok((records, more)),
        MgrReply::Error(error) => Err(error),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dump_is_of_the_moment_of_its_first_part() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("manager");
    format(&path, spec(3)).unwrap();
    let manager = Manager::open(&path).unwrap();
    for node in 1..=3 {
        register(&manager, node, 1).await;
    }
    let (session, _) = open_session(&manager).await;
    let mut seq = 0;
    let mut make = async || {
        seq += 1;
        let request = mutate(seq, create(&format!("f{seq}"), FileKind::File));
        let made = manager.handle(caller(session), request).await;
        assert!(!matches!(made, MgrReply::Error(_)), "{made:?}");
    };
    for _ in 0..100 {
        make().await;
    }
    let snapshot = manager.snapshot();
    let (mut parts, mut after, mut all) = (0, Vec::new(), Records::new());
    loop {
        let (records, more) = part(&manager, 7, &after).await.unwrap();
        // An answer that was lost: the same again.
        assert_eq!(part(&manager, 7, &after).await.unwrap().0, records);
        make().await;
        parts += 1;
        after = records.last().unwrap().0.clone();
        all.extend(records);
        if !more {
            break;
        }
    }
    assert!(parts > 5, "{parts}");
    let (mut whole, mut written) = (Vec::new(), Vec::new());
    store::dump(&*snapshot, &mut whole, Damaged::Refuse).unwrap();
    let mut dump = DumpWriter::begin(&mut written).unwrap();
    all.iter().for_each(|(key, value)| dump.record(key, value).unwrap());
    dump.finish().unwrap();
    assert!(whole == written);
    // Another one ends it, and what was not begun does not go on.
    part(&manager, 8, &[]).await.unwrap();
    for ended in [7, 9] {
        let error = part(&manager, ended, &after).await.unwrap_err().to_string();
        assert!(error.contains("begin anew"), "{error}");
    }
    manager.stop().await;
}
