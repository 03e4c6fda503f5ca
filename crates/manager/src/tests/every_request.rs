//! Every request, sent over the network by every role: refused exactly where the table of docs/security.md, which is made of the
//! same function, has no `yes`. What a role may not ask changes nothing.

use net::Role;

use super::{roles::endpoint, *};
use crate::samples::samples;

/// How long a request may take that waits for something which does not come.
const WAIT: Duration = Duration::from_millis(500);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_role_asks_everything_and_gets_what_the_table_says() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("manager");
    format(&path, spec(3)).unwrap();
    let at = endpoint(Role::Manager, 0, vec!["127.0.0.1:0".parse().unwrap()]);
    let running = Manager::open(&path).unwrap().serve(&at).unwrap();
    let known = |request: &MgrRequest| std::mem::discriminant(request);
    let mut all: Vec<MgrRequest> = Vec::new();
    for bytes in samples::<MgrRequest>(1) {
        let request: MgrRequest = postcard::from_bytes(&bytes).unwrap();
        // Some of each kind.
        if all.iter().filter(|other| known(other) == known(&request)).count() < 2 {
            all.push(request);
        }
    }
    let map = running.manager().map();
    // Those who may least begin: what they ask is refused, and they find all as it was.
    for role in [Role::Lab, Role::Client, Role::Server, Role::Admin, Role::Manager] {
        let from = endpoint(role, u32::from(role == Role::Server), vec![]);
        let (mut refused, mut heard) = (0, 0);
        for request in &all {
            let before = map.borrow().epoch;
            let body = wire::frame::encode(request);
            // What is refused never waits.
            let wait = if request.is_for(role) { WAIT } else { 60 * WAIT };
            let call = net::Call::new(net::Service::Manager, 1, body, std::time::Instant::now() + wait);
            let told = match from.peer(at.local_addrs()).call(call).await {
                Ok(reply) => Some(wire::frame::decode::<MgrReply>(&reply.body).unwrap()),
                // It waits for another map, or for recalls.
                Err(net::CallError::Deadline) => None,
                Err(error) => panic!("{role:?} {request:?}: {error}"),
            };
            let is_refused = matches!(&told, Some(MgrReply::Error(MgrError::Role(_))));
            // What names another's node or session is refused before its role is looked at.
            let is_anothers = matches!(&told, Some(MgrReply::Error(MgrError::Config(_))));
            let may = request.is_for(role);
            assert!(is_refused != may || is_anothers, "{role:?} {request:?}: {told:?}");
            if !may {
                assert_eq!(map.borrow().epoch, before, "{role:?} has changed the map by {request:?}");
            }
            *(if may { &mut heard } else { &mut refused }) += 1;
        }
        assert!(refused > 0 && (heard > 0) == (role != Role::Lab), "{role:?}: {heard} {refused}");
    }
    running.stop().await;
}
