//! What a program asks its client about what it has just changed, by inode numbers: no name is looked up, for which all would be told
//! that was made ahead of the manager. The answer must be as after all that the program did.

use base::InodeNo;
use client::Errno;

use super::{
    alone::{Done, Program, VALUE, ask_value, content},
    tree::{self, Act, Entry, Path, Step, Thing, split},
};

/// Where inode numbers begin that nothing has.
const NOBODYS: u64 = 1 << 40;
/// Questions about these for which a small cache forgets the rest.
const CROWD: u64 = 6;

/// How what is said begins if an answer is wrong.
pub const ASKED: &str = "asked about";

/// What is asked about.
enum About {
    Path(Path),
    /// What has no name any more.
    Lost(InodeNo),
}

/// What the last step of a program changed.
fn changed(done: &Done) -> Vec<About> {
    let above = |path: &Path| split(path).0.to_owned();
    let lost = || done.lost.last().map(|ino| About::Lost(*ino));
    let paths = match done.steps.last().map(|step| &step.act) {
        Some(Act::Make(path, _)) => vec![above(path), path.clone()],
        Some(Act::Remove(path)) => vec![above(path)],
        Some(Act::Move(from, to)) => vec![above(from), above(to), to.clone()],
        Some(Act::Link(path, to)) => vec![above(to), to.clone(), path.clone()],
        Some(Act::Write(path, _) | Act::Mode(path, _) | Act::Value(path, _) | Act::Settle(path)) => {
            vec![path.clone()]
        }
        None => Vec::new(),
    };
    let own = paths.into_iter().filter(|path| done.now.contains_key(path)).map(About::Path);
    own.chain(lost()).collect()
}

impl Program {
    /// At times: asks, mostly about what was changed last.
    pub(super) async fn ask(&mut self) -> Result<(), Errno> {
        // A move has most that can be told of a time before it.
        let is_move = |step: &Step| matches!(step.act, Act::Move(..));
        let moved = self.ledger.done()[self.number].steps.last().is_some_and(is_move);
        if !moved && self.random.below(2) == 0 {
            return Ok(());
        }
        if self.random.below(if moved { 2 } else { 4 }) == 0 {
            self.crowd().await?;
        }
        let any = self.random.below(4) == 0;
        let mut about = {
            let done = &self.ledger.done()[self.number];
            match any {
                true => done.now.keys().cloned().map(About::Path).collect(),
                false => changed(done),
            }
        };
        for _ in 0..2 {
            if about.is_empty() {
                break;
            }
            match about.swap_remove(self.random.below(about.len() as u64) as usize) {
                About::Path(path) => self.ask_about(&path).await?,
                About::Lost(ino) => self.ask_lost(ino).await?,
            }
        }
        Ok(())
    }

    /// Asks about much else, so that what is kept in memory may go.
    async fn crowd(&mut self) -> Result<(), Errno> {
        for _ in 0..CROWD {
            let ino = InodeNo(NOBODYS + self.random.below(1 << 20));
            match self.client.getattr(ino).await {
                Err(Errno::ENOENT) => {}
                Ok(attr) => panic!("nobody made {ino}: {attr:?}"),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn ask_about(&mut self, path: &str) -> Result<(), Errno> {
        let Entry { thing, ino, value, .. } = self.ledger.done()[self.number].now[path].clone();
        let what = self.random.below(5);
        let answer = match (what, &thing) {
            (0, _) => ask_value(&self.client, ino)
                .await
                .map(|said| (said != value).then(|| format!("the value {said:?}, not {value:?}"))),
            (1, _) => self.client.listxattr(ino).await.map(|said| {
                let wanted: Vec<Vec<u8>> = value.iter().map(|_| VALUE.to_vec()).collect();
                (said != wanted).then(|| format!("{} attributes, not {}", said.len(), wanted.len()))
            }),
            (2, Thing::File { may }) => content(&self.client, ino).await.map(|said| {
                let wanted = may.last().copied();
                (Some(said) != wanted).then(|| format!("the content {said}, not {wanted:?}"))
            }),
            (2, Thing::Link { target }) => self.client.readlink(ino).await.map(|said| {
                (said != target.as_bytes()).then(|| format!("the target {said:?}, not {target:?}"))
            }),
            _ => {
                let said = self.client.getattr(ino).await;
                said.map(|attr| tree::wrong(&self.ledger.done()[self.number].now, path, &attr, true))
            }
        };
        match answer {
            Ok(None) => Ok(()),
            Ok(Some(wrong)) => panic!("{ASKED} {path:?}, {ino}: {wrong}"),
            Err(Errno::ENOENT) => panic!("{ASKED} {path:?}, {ino}: nothing is there"),
            Err(error) => Err(error),
        }
    }

    async fn ask_lost(&mut self, ino: InodeNo) -> Result<(), Errno> {
        match self.client.getattr(ino).await {
            Err(Errno::ENOENT) => Ok(()),
            Ok(attr) if attr.nlink == 0 => Ok(()),
            Ok(attr) => panic!("{ASKED} {ino}, which is gone: {attr:?}"),
            Err(error) => Err(error),
        }
    }
}
