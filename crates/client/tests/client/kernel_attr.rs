//! What a kernel is told of a directory while others have the file system mounted too: for how long it may believe that, and that it hears
//! before anybody else when it may not any more.
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use crate::support::{
    link::{NoServers, Recalls, SmallManager, mount_small},
    until,
};
use base::{Grant, InodeNo};
use client::{Client, KernelCache, SetAttrs};
use wire::{
    mgr::{Attr, Change, FileKind, MgrReply, MgrRequest},
    token::{Recall, Token, TokenMode},
};

const DIR: InodeNo = InodeNo(7);
const SECOND: Duration = Duration::from_secs(1);
const DROPPED: &str = "the kernel drops what it has";
const NOT_YET: &str = "the kernel has it not yet";
const GIVEN_UP: &str = "the manager hears that the token is given up";
const CLAIMED: &str = "the manager hears what is held";

/// A manager with one directory, and a kernel that has it.
struct World {
    lease: Duration,
    mode: AtomicU32,
    grants: AtomicU32,
    recalls: Recalls,
    /// How often the kernel will not have the directory yet.
    not_yet: AtomicU32,
    /// What happened, in this order.
    heard: Mutex<Vec<&'static str>>,
}

impl World {
    async fn mount(lease: Duration) -> (Arc<World>, Client) {
        let (grants, recalls, not_yet, heard) = Default::default();
        let world = Arc::new(World { lease, mode: AtomicU32::new(0o755), grants, recalls, not_yet, heard });
        let client = mount_small(&world, Arc::new(NoServers)).await;
        client.set_kernel(Arc::new(Kernel(world.clone())));
        (world, client)
    }

    fn hear(&self, what: &'static str) {
        self.heard.lock().unwrap().push(what);
    }

    async fn heard(&self, last: &'static str) -> Vec<&'static str> {
        until(last, || self.heard.lock().unwrap().contains(&last)).await;
        std::mem::take(&mut *self.heard.lock().unwrap())
    }

    fn attr(&self) -> Attr {
        let mode = self.mode.load(SeqCst) as u16;
        Attr { ino: DIR, kind: FileKind::Directory, mode, nlink: 2, ..Attr::default() }
    }

    fn token(&self, mode: TokenMode) -> Token {
        Token::new(DIR, mode, Grant(u64::from(self.grants.load(SeqCst)) + 1))
    }
}

impl SmallManager for World {
    fn lease(&self) -> Duration {
        self.lease
    }
    fn recalls(&self) -> &Recalls {
        &self.recalls
    }

    async fn answer(&self, request: MgrRequest) -> MgrReply {
        match request {
            MgrRequest::GetAttr { .. } => MgrReply::Attr(Box::new(self.attr())),
            MgrRequest::Acquire { .. } => {
                self.grants.fetch_add(1, SeqCst);
                let (token, attr) = (self.token(TokenMode::Read), Some(Box::new(self.attr())));
                MgrReply::Token { token, resolve: false, attr, empty: false }
            }
            MgrRequest::Mutate { change: Change::SetAttr { mode: Some(mode), .. }, .. } => {
                self.mode.store(mode.into(), SeqCst);
                MgrReply::Attr(Box::new(self.attr()))
            }
            MgrRequest::Release { .. } => {
                self.hear(GIVEN_UP);
                MgrReply::Done
            }
            MgrRequest::Claim { .. } => {
                self.hear(CLAIMED);
                MgrReply::Done
            }
            _ => MgrReply::Done,
        }
    }
}

struct Kernel(Arc<World>);

impl KernelCache for Kernel {
    fn drop_pages(&self, _: InodeNo, _: u64, _: u64) {}
    fn drop_attr(&self, ino: InodeNo) -> bool {
        assert_eq!(ino, DIR);
        let has = self.0.not_yet.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_err();
        self.0.hear(if has { DROPPED } else { NOT_YET });
        has
    }
    fn set_shared(&self, _: bool) {}
    fn drop_all(&self) {}
}

/// The kernel asks, and may believe the answer.
async fn looked_at(client: &Client) -> Attr {
    // That it is a directory, and then its token.
    client.getattr(DIR).await.unwrap();
    let attr = client.getattr(DIR).await.unwrap();
    assert_eq!(client.attr_ttl(&attr), SECOND);
    attr
}

#[tokio::test]
async fn a_kernel_drops_attributes_before_the_token_goes_also_those_that_it_is_just_taking_in() {
    let (world, client) = World::mount(3600 * SECOND).await;
    let attr = looked_at(&client).await;
    world.not_yet.store(2, SeqCst);
    world.recalls.push(Recall::Token(world.token(TokenMode::None)));
    assert_eq!(world.heard(GIVEN_UP).await, [NOT_YET, NOT_YET, DROPPED, GIVEN_UP]);
    assert_eq!(client.attr_ttl(&attr), Duration::ZERO, "the token is gone");
    // It may come back after others have changed the directory.
    world.mode.store(0o700, SeqCst);
    while world.grants.load(SeqCst) < 2 {
        client.getattr(DIR).await.unwrap();
    }
    let new = client.getattr(DIR).await.unwrap();
    assert_eq!((client.attr_ttl(&attr), client.attr_ttl(&new)), (Duration::ZERO, SECOND));
}

#[tokio::test]
async fn a_kernel_drops_attributes_before_it_is_said_what_is_held() {
    let (world, client) = World::mount(3600 * SECOND).await;
    let attr = looked_at(&client).await;
    world.recalls.push(Recall::Share);
    assert_eq!(world.heard(CLAIMED).await, [DROPPED, CLAIMED]);
    assert_eq!(client.attr_ttl(&attr), Duration::ZERO, "a directory's token is not claimed");
}

/// What is answered meanwhile the kernel would believe, if it took that in after the answer to the change.
#[tokio::test]
async fn a_kernel_drops_attributes_that_were_changed_here() {
    let (world, client) = World::mount(3600 * SECOND).await;
    let old = looked_at(&client).await;
    let set = SetAttrs { mode: Some(0o700), ..SetAttrs::default() };
    let new = client.setattr(DIR, set).await.unwrap();
    assert_eq!(*world.heard.lock().unwrap(), [DROPPED]);
    assert_eq!((client.attr_ttl(&old), client.attr_ttl(&new)), (Duration::ZERO, SECOND));
}

#[tokio::test]
async fn a_kernel_believes_attributes_no_longer_than_the_lease() {
    let lease = Duration::from_millis(700);
    let (_world, client) = World::mount(lease).await;
    let mut attr = client.getattr(DIR).await.unwrap();
    let end = Instant::now() + 60 * SECOND;
    loop {
        let ttl = client.attr_ttl(&attr);
        assert!(ttl <= lease, "{ttl:?}");
        if !ttl.is_zero() {
            return;
        }
        // The lease was over for a moment.
        assert!(Instant::now() < end, "it never may");
        tokio::time::sleep(Duration::from_millis(5)).await;
        attr = client.getattr(DIR).await.unwrap();
    }
}
