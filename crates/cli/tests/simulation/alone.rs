//! What one client does in directories of its own, with its names made ahead of the manager (docs/names-ahead.md), and what is there
//! afterwards: of each program a beginning of what it did, in the order in which it did it, and no less than what an fsync said was
//! durable, or another client could see. What the client itself said of each inode is what another one finds.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use base::InodeNo;
use client::{Client, Errno, SetAttrs};
use tokio::{sync::RwLock, time::sleep};
use wire::mgr::{Attr, FileKind};

use super::{
    programs::RW,
    tree::{self, Act, Found, MODE, Path, Step, Thing, Tree, UID, When, inside, split},
};
use crate::common::Random;

/// How what is said begins if it could not be looked.
pub const LOOK: &str = "look at";
/// The name of the extended attribute that some things have.
pub const VALUE: &[u8] = b"user.value";
/// Inodes without a name of which a program remembers that they were its own.
const LOST_MAX: usize = 8;

/// What one program did.
pub(super) struct Done {
    /// Its directory as it was made.
    first: Tree,
    pub steps: Vec<Step>,
    /// How many were answered: all, or all but the last.
    answered: usize,
    /// How many must be there, whatever happens.
    durable: usize,
    pub now: Tree,
    /// What lost its name last.
    pub lost: Vec<InodeNo>,
}

/// What is said of an inode, beside what depends on where its bytes are and on who has read it.
fn said(attr: Attr) -> Attr {
    let (atime, stored, inline) = Default::default();
    Attr { atime, stored, inline, ..attr }
}

/// The programs of one client.
pub struct Ledger {
    /// Its own directories have numbers from here on.
    first: usize,
    tops: Vec<InodeNo>,
    done: Mutex<Vec<Done>>,
    /// Held by who takes a step, and by who looks at all of it at one moment.
    still: RwLock<()>,
    /// What the client said in the end of what its programs made.
    said: Mutex<Option<Vec<BTreeMap<Path, Attr>>>>,
}

fn top(program: usize) -> String {
    format!("top{program}")
}

pub(super) async fn ask_value(client: &Client, ino: InodeNo) -> Result<Option<u64>, Errno> {
    match client.getxattr(ino, VALUE).await {
        Ok(bytes) => Ok(Some(u64::from_le_bytes(bytes.try_into().expect("eight bytes")))),
        Err(Errno(libc::ENODATA)) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Ledger {
    /// Each program's own directory.
    pub async fn begin(client: &Client, programs: usize) -> Result<Arc<Ledger>, Errno> {
        Ledger::begin_from(client, 0, programs).await
    }

    /// The same of a client beside another one, whose directories have other numbers.
    pub async fn begin_from(client: &Client, first: usize, programs: usize) -> Result<Arc<Ledger>, Errno> {
        let (mut tops, mut all) = (Vec::new(), Vec::new());
        for program in 0..programs {
            let (name, mut made) = (top(first + program), When::begins());
            tops.push(make(client, InodeNo::ROOT, &name, FileKind::Directory, "").await?);
            made.end();
            let first = tree::top(&name, tops[program], made);
            let (steps, now, lost) = (Vec::new(), first.clone(), Vec::new());
            all.push(Done { first, steps, answered: 0, durable: 0, now, lost });
            client.fsync(tops[program], false).await?;
        }
        let done = Mutex::new(all);
        Ok(Arc::new(Ledger { first, tops, done, still: RwLock::default(), said: Mutex::default() }))
    }

    /// Asks a client for the attributes of all that its programs made: nothing is done any more, and all is told.
    pub async fn ask_attrs(&self, client: &Client) -> Result<(), Errno> {
        let trees: Vec<Tree> = self.done().iter().map(|done| done.now.clone()).collect();
        let mut all = Vec::new();
        for (program, tree) in trees.into_iter().enumerate() {
            let top = self.tops[program];
            let mut said_of = BTreeMap::from([(String::new(), said(client.getattr(top).await?))]);
            for path in tree.into_keys().filter(|path| !path.is_empty()) {
                let (above, name) = split(&path);
                let attr = client.lookup(said_of[above].ino, name.as_bytes()).await?;
                said_of.insert(path, said(attr));
            }
            all.push(said_of);
        }
        *self.said.lock().unwrap() = Some(all);
        Ok(())
    }

    pub(super) fn done(&self) -> MutexGuard<'_, Vec<Done>> {
        self.done.lock().unwrap()
    }

    /// How many steps of each program were answered.
    pub fn answered(&self) -> Vec<usize> {
        self.done().iter().map(|done| done.answered).collect()
    }

    /// What was answered up to `answered` is durable, or others could see it.
    pub fn must_be_there(&self, answered: &[usize]) {
        for (done, answered) in self.done().iter_mut().zip(answered) {
            done.durable = done.durable.max(*answered);
        }
    }

    /// Compares what a client that lives beside this one finds with what the programs did up to now, all of which it sees.
    pub async fn check_beside(&self, observer: &Client) -> Result<(), String> {
        let seen = self.answered();
        self.check_seen(observer, &seen).await?;
        self.must_be_there(&seen);
        Ok(())
    }

    /// Compares what a client finds with what the programs did up to now. They wait meanwhile.
    pub async fn check(&self, observer: &Client) -> Result<(), String> {
        self.check_seen(observer, &vec![0; self.tops.len()]).await
    }

    async fn check_seen(&self, observer: &Client, seen: &[usize]) -> Result<(), String> {
        let _still = self.still.write().await;
        let least: Vec<usize> =
            self.done().iter().zip(seen).map(|(done, seen)| done.durable.max(*seen)).collect();
        for (program, least) in least.into_iter().enumerate() {
            let failed = |error: Errno| format!("{LOOK} what program {program} made: {error:?}");
            let top = observer
                .lookup(InodeNo::ROOT, top(self.first + program).as_bytes())
                .await
                .map_err(failed)?
                .ino;
            let mut found = BTreeMap::from([(Path::new(), find(observer, top).await.map_err(failed)?)]);
            let mut dirs = vec![(Path::new(), top)];
            while let Some((above, dir)) = dirs.pop() {
                for entry in observer.readdir(dir, 0, 4096, false).await.map_err(failed)?.entries {
                    let name = String::from_utf8(entry.name).expect("ours");
                    let path = if above.is_empty() { name } else { format!("{above}/{name}") };
                    let thing = find(observer, entry.ino).await.map_err(failed)?;
                    if thing.thing.is_directory() {
                        dirs.push((path.clone(), entry.ino));
                    }
                    found.insert(path, thing);
                }
            }
            if let Some(said_of) = &*self.said.lock().unwrap() {
                for (path, attr) in &said_of[program] {
                    let found = found.get(path).map(|found| said(found.attr.clone()));
                    if found.as_ref() != Some(attr) {
                        return Err(format!(
                            "program {program}, {path:?}: it was said {attr:?}, found is {found:?}"
                        ));
                    }
                }
            }
            let all = self.done();
            let Done { first, steps, .. } = &all[program];
            let mut tree = first.clone();
            steps[..least].iter().for_each(|step| drop(tree::apply(&mut tree, step)));
            let mut steps_left = steps[least..].iter();
            while !tree::fits(&tree, &found) {
                let Some(step) = steps_left.next() else {
                    let did = steps.iter().zip(1..).map(|(step, at)| format!("{at} {step:?}"));
                    let did = did.collect::<Vec<_>>().join("\n");
                    return Err(format!(
                        "program {program}: {found:?} is no beginning of what it did, of which {least} must be there; all of it is {tree:?}\n{did}"
                    ));
                };
                tree::apply(&mut tree, step);
            }
        }
        Ok(())
    }
}

/// What is at an inode.
async fn find(client: &Client, ino: InodeNo) -> Result<Found, Errno> {
    let attr = client.getattr(ino).await?;
    let thing = look(client, &attr).await?;
    let value = if attr.plain { None } else { ask_value(client, ino).await? };
    Ok(Found { thing, attr, value })
}

async fn look(client: &Client, attr: &Attr) -> Result<Thing, Errno> {
    let ino = attr.ino;
    Ok(match attr.kind {
        FileKind::Directory => Thing::Directory { mode: attr.mode },
        FileKind::Symlink => {
            let target = client.readlink(ino).await?;
            Thing::Link { target: String::from_utf8(target).expect("ours") }
        }
        _ => Thing::File { may: vec![content(client, ino).await?] },
    })
}

pub(super) async fn content(client: &Client, ino: InodeNo) -> Result<u64, Errno> {
    let handle = client.open(ino, RW).await?;
    let read = client.read(handle, 0, 8).await;
    client.release(handle);
    let mut bytes = read?.to_vec();
    bytes.resize(8, 0);
    Ok(u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
}

async fn make(
    client: &Client,
    parent: InodeNo,
    name: &str,
    kind: FileKind,
    target: &str,
) -> Result<InodeNo, Errno> {
    let made = client
        .create(parent, name.as_bytes(), kind, MODE, UID, tree::group(name), 0, target.as_bytes(), false)
        .await?;
    Ok(made.0.ino)
}

/// One program.
pub struct Program {
    pub client: Client,
    pub number: usize,
    pub ledger: Arc<Ledger>,
    pub random: Random,
}

impl Program {
    /// Does `steps`, or as many as there are before one fails.
    pub async fn run(mut self, steps: u64) -> Result<(), Errno> {
        for _ in 0..steps {
            // What is not told is told then.
            if self.random.below(8) == 0 {
                sleep(Duration::from_millis(self.random.below(120))).await;
            }
            let ledger = self.ledger.clone();
            let _step = ledger.still.read().await;
            self.step().await?;
            self.ask().await?;
        }
        Ok(())
    }

    fn pick(&mut self, fits: impl Fn(&Path, &Thing) -> bool) -> Option<Path> {
        let paths: Vec<Path> = {
            let all = self.ledger.done();
            all[self.number]
                .now
                .iter()
                .filter(|(path, entry)| !path.is_empty() && fits(path, &entry.thing))
                .map(|at| at.0.clone())
                .collect()
        };
        let nth = self.random.below(paths.len().max(1) as u64) as usize;
        paths.get(nth).cloned()
    }

    /// A path that may or may not be there, in a directory that is.
    fn place(&mut self) -> Path {
        let dir = self
            .pick(|_, thing| matches!(thing, Thing::Directory { .. }))
            .filter(|_| self.random.below(3) > 0);
        let name = ["a", "b", "c", "d", "e"][self.random.below(5) as usize];
        dir.map_or_else(|| name.into(), |dir| format!("{dir}/{name}"))
    }

    fn thing(&self, path: &str) -> Option<Thing> {
        self.ledger.done()[self.number].now.get(path).map(|entry| entry.thing.clone())
    }

    /// Whether both lead to one inode.
    fn are_one(&self, path: &str, other: &str) -> bool {
        let now = &self.ledger.done()[self.number].now;
        let at = |path: &str| now.get(path).map(|entry| entry.ino);
        at(path) == at(other)
    }

    /// Where a path stands: its directory, and its last name.
    async fn resolve<'a>(&self, path: &'a str) -> Result<(InodeNo, &'a [u8]), Errno> {
        let mut at = self.ledger.tops[self.number];
        let (above, name) = split(path);
        for part in above.split('/').filter(|part| !part.is_empty()) {
            at = self.client.lookup(at, part.as_bytes()).await?.ino;
        }
        Ok((at, name.as_bytes()))
    }

    fn begin(&self, act: Act) {
        let done = &mut self.ledger.done()[self.number];
        let step = Step { act, when: When::begins(), ino: InodeNo(0) };
        let lost = tree::apply(&mut done.now, &step);
        done.lost.extend(lost.map(|entry| entry.ino));
        let too_many = done.lost.len().saturating_sub(LOST_MAX);
        done.lost.drain(..too_many);
        done.steps.push(step);
    }

    fn end(&self) {
        self.end_made(InodeNo(0));
    }

    /// The last step was answered; `ino` is what it made.
    fn end_made(&self, ino: InodeNo) {
        let Done { steps, now, answered, .. } = &mut self.ledger.done()[self.number];
        if let Some(last) = steps.last_mut() {
            tree::answered(now, last, ino);
        }
        *answered = steps.len();
    }

    async fn write(&mut self, path: &str, ino: InodeNo) -> Result<(), Errno> {
        let value = 1 + self.random.next() / 2;
        self.begin(Act::Write(path.into(), value));
        let handle = self.client.open(ino, RW).await?;
        assert_eq!(self.client.write(handle, 0, &value.to_le_bytes()).await?, 8, "a short write");
        self.client.release(handle);
        self.end();
        Ok(())
    }

    async fn step(&mut self) -> Result<(), Errno> {
        let path = self.place();
        match self.random.below(14) {
            0..6 if self.thing(&path).is_none() => {
                let (dir, name) = self.resolve(&path).await?;
                let (kind, thing) = match self.random.below(6) {
                    0 | 1 if path.matches('/').count() < 3 => {
                        let mode = tree::mode_in(&self.ledger.done()[self.number].now, split(&path).0);
                        (FileKind::Directory, Thing::Directory { mode })
                    }
                    2 => {
                        (FileKind::Symlink, Thing::Link { target: format!("to{}", self.random.below(1000)) })
                    }
                    _ => (FileKind::File, Thing::File { may: vec![0] }),
                };
                let target = if let Thing::Link { target } = &thing { target.clone() } else { String::new() };
                self.begin(Act::Make(path.clone(), thing));
                let name = std::str::from_utf8(name).expect("ours");
                let ino = make(&self.client, dir, name, kind, &target).await?;
                self.end_made(ino);
                if kind == FileKind::File && self.random.below(4) > 0 {
                    self.write(&path, ino).await?;
                }
            }
            0..2 => {
                let Some(path) = self.pick(|_, thing| matches!(thing, Thing::File { .. })) else {
                    return Ok(());
                };
                let (dir, name) = self.resolve(&path).await?;
                let ino = self.client.lookup(dir, name).await?.ino;
                self.write(&path, ino).await?;
            }
            2..7 => {
                let Some(thing) = self.thing(&path) else { return Ok(()) };
                let directory = thing.is_directory();
                let empty = !self.ledger.done()[self.number].now.keys().any(|other| inside(&path, other));
                let (dir, name) = self.resolve(&path).await?;
                if directory && !empty {
                    match self.client.unlink(dir, name, true).await {
                        Err(Errno(libc::ENOTEMPTY)) => {}
                        Ok(()) => panic!("{path} is not empty, and gone"),
                        Err(error) => return Err(error),
                    }
                    return Ok(());
                }
                self.begin(Act::Remove(path.clone()));
                self.client.unlink(dir, name, directory).await?;
                self.end();
            }
            7..9 => self.rename(&path).await?,
            9 => {
                let Some(path) = self.pick(|_, thing| thing.is_directory()) else {
                    return Ok(());
                };
                let (dir, name) = self.resolve(&path).await?;
                let ino = self.client.lookup(dir, name).await?.ino;
                let mode = self.random.below(0o4000) as u16;
                self.begin(Act::Mode(path.clone(), mode));
                self.client.setattr(ino, SetAttrs { mode: Some(mode), ..SetAttrs::default() }).await?;
                self.end();
            }
            10 => self.look().await?,
            12 => {
                let file = self.pick(|_, thing| matches!(thing, Thing::File { .. }));
                let Some(file) = file.filter(|_| self.thing(&path).is_none()) else { return Ok(()) };
                let (dir, name) = self.resolve(&file).await?;
                let ino = self.client.lookup(dir, name).await?.ino;
                let (dir, name) = self.resolve(&path).await?;
                self.begin(Act::Link(file, path.clone()));
                self.client.link(ino, dir, name).await?;
                self.end();
            }
            11 => {
                let Some(path) = self.pick(|_, thing| !matches!(thing, Thing::Link { .. })) else {
                    return Ok(());
                };
                let (dir, name) = self.resolve(&path).await?;
                let ino = self.client.lookup(dir, name).await?.ino;
                let value = self.random.next();
                self.begin(Act::Value(path, value));
                self.client.setxattr(ino, VALUE, &value.to_le_bytes(), false, false).await?;
                self.end();
            }
            _ => self.sync().await?,
        }
        Ok(())
    }

    /// To another name, which may lead to something of its kind.
    async fn rename(&mut self, from: &str) -> Result<(), Errno> {
        let to = self.place();
        let Some(thing) = self.thing(from) else { return Ok(()) };
        let directory = thing.is_directory();
        let fits = match self.thing(&to) {
            None => true,
            Some(replaced) => !directory && !replaced.is_directory(),
        };
        if to == from || inside(from, &to) || !fits || self.are_one(from, &to) {
            return Ok(());
        }
        let (dir, name) = self.resolve(from).await?;
        let (new_dir, new_name) = self.resolve(&to).await?;
        self.begin(Act::Move(from.into(), to.clone()));
        self.client.rename(dir, name, new_dir, new_name, false, false).await?;
        self.end();
        Ok(())
    }

    /// What it made itself is there for it.
    async fn look(&mut self) -> Result<(), Errno> {
        let path = self.place();
        let (dir, name) = self.resolve(&path).await?;
        let found = match self.client.lookup(dir, name).await {
            Ok(attr) => Some(look(&self.client, &attr).await?),
            Err(Errno::ENOENT) => None,
            Err(error) => return Err(error),
        };
        let wanted = self.thing(&path).map(|thing| match thing {
            Thing::File { may } => Thing::File { may: may[may.len() - 1..].to_vec() },
            other => other,
        });
        assert_eq!(found, wanted, "{path}");
        Ok(())
    }

    /// fsync of a file or a directory: all names that this client made are durable, and the file's content.
    async fn sync(&mut self) -> Result<(), Errno> {
        let Some(path) = self.pick(|_, thing| !matches!(thing, Thing::Link { .. })) else { return Ok(()) };
        let (dir, name) = self.resolve(&path).await?;
        let ino = self.client.lookup(dir, name).await?.ino;
        let answered = self.ledger.answered();
        self.client.fsync(ino, false).await?;
        self.ledger.must_be_there(&answered);
        self.begin(Act::Settle(path));
        self.end();
        let mut all = self.ledger.done();
        let own = &mut all[self.number];
        own.durable = own.answered;
        Ok(())
    }
}
