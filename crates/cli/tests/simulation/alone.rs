//! What one client does in directories of its own, with its names made ahead of the manager (docs/names-ahead.md), and what is there
//! afterwards: of each program a beginning of what it did, in the order in which it did it, and no less than what an fsync said was
//! durable, or another client could see. What the client itself said of each inode is what another one finds.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
};

use base::InodeNo;
use client::{Client, Errno, SetAttrs};
use tokio::sync::RwLock;
use wire::mgr::{Attr, FileKind};

use super::programs::RW;
use crate::common::Random;

/// How what is said begins if it could not be looked.
pub const LOOK: &str = "look at";
const S_ISGID: u16 = 0o2000;

/// What a path leads to.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Thing {
    Directory {
        mode: u16,
    },
    /// What it may hold: the last is what was written, those before as long as nothing has settled that.
    File {
        may: Vec<u64>,
    },
    Link {
        target: String,
    },
}

/// A path below a program's own directory: `a`, or `d1/a`.
type Path = String;
type Tree = BTreeMap<Path, Thing>;

/// One change, as a program did it.
#[derive(Clone, Debug)]
enum Step {
    Make(Path, Thing),
    Write(Path, u64),
    Remove(Path),
    Move(Path, Path),
    Mode(Path, u16),
    /// Its content is stored.
    Settle(Path),
}

fn inside(dir: &str, path: &str) -> bool {
    path.strip_prefix(dir).is_some_and(|rest| rest.starts_with('/'))
}

fn apply(tree: &mut Tree, step: &Step) {
    match step.clone() {
        Step::Make(path, thing) => drop(tree.insert(path, thing)),
        Step::Write(path, value) => {
            if let Some(Thing::File { may }) = tree.get_mut(&path) {
                may.push(value);
            }
        }
        Step::Remove(path) => drop(tree.remove(&path)),
        Step::Mode(path, mode) => drop(tree.insert(path, Thing::Directory { mode })),
        Step::Settle(path) => settle(tree, &path),
        Step::Move(from, to) => {
            // The content of what replaces another comes before it.
            if tree.contains_key(&to) {
                settle(tree, &from);
            }
            let moved: Vec<Path> =
                tree.keys().filter(|path| **path == from || inside(&from, path)).cloned().collect();
            for path in moved {
                let thing = tree.remove(&path).expect("it is there");
                tree.insert(format!("{to}{}", &path[from.len()..]), thing);
            }
        }
    }
}

fn settle(tree: &mut Tree, path: &str) {
    if let Some(Thing::File { may }) = tree.get_mut(path) {
        may.drain(..may.len() - 1);
    }
}

/// What one program did.
#[derive(Default)]
struct Done {
    steps: Vec<Step>,
    /// How many were answered: all, or all but the last.
    answered: usize,
    /// How many must be there, whatever happens.
    durable: usize,
    now: Tree,
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

impl Ledger {
    /// Each program's own directory.
    pub async fn begin(client: &Client, programs: usize) -> Result<Arc<Ledger>, Errno> {
        Ledger::begin_from(client, 0, programs).await
    }

    /// The same of a client beside another one, whose directories have other numbers.
    pub async fn begin_from(client: &Client, first: usize, programs: usize) -> Result<Arc<Ledger>, Errno> {
        let mut tops = Vec::new();
        for program in 0..programs {
            tops.push(make(client, InodeNo::ROOT, &top(first + program), FileKind::Directory, "").await?);
            client.fsync(tops[program], false).await?;
        }
        let done = Mutex::new((0..programs).map(|_| Done::default()).collect());
        Ok(Arc::new(Ledger { first, tops, done, still: RwLock::default(), said: Mutex::default() }))
    }

    /// Asks a client for the attributes of all that its programs made: nothing is done any more, and all is told.
    pub async fn ask_attrs(&self, client: &Client) -> Result<(), Errno> {
        let trees: Vec<Tree> = self.done().iter().map(|done| done.now.clone()).collect();
        let mut all = Vec::new();
        for (program, tree) in trees.into_iter().enumerate() {
            let top = self.tops[program];
            let mut said_of = BTreeMap::from([(String::new(), said(client.getattr(top).await?))]);
            for path in tree.into_keys() {
                let (above, name) = path.rsplit_once('/').unwrap_or(("", &path));
                let attr = client.lookup(said_of[above].ino, name.as_bytes()).await?;
                said_of.insert(path, said(attr));
            }
            all.push(said_of);
        }
        *self.said.lock().unwrap() = Some(all);
        Ok(())
    }

    fn done(&self) -> MutexGuard<'_, Vec<Done>> {
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
            let (mut found, mut dirs) = (Tree::new(), vec![(String::new(), top)]);
            let mut attrs =
                BTreeMap::from([(String::new(), said(observer.getattr(top).await.map_err(failed)?))]);
            while let Some((above, dir)) = dirs.pop() {
                for entry in observer.readdir(dir, 0, 4096, false).await.map_err(failed)?.entries {
                    let name = String::from_utf8(entry.name).expect("ours");
                    let path = if above.is_empty() { name } else { format!("{above}/{name}") };
                    attrs.insert(path.clone(), said(observer.getattr(entry.ino).await.map_err(failed)?));
                    let thing = look(observer, entry.ino).await.map_err(failed)?;
                    if let Thing::Directory { .. } = thing {
                        dirs.push((path.clone(), entry.ino));
                    }
                    found.insert(path, thing);
                }
            }
            if let Some(said) = &*self.said.lock().unwrap() {
                for (path, attr) in &said[program] {
                    if attrs.get(path) != Some(attr) {
                        let found = attrs.get(path);
                        return Err(format!(
                            "program {program}, {path:?}: it was said {attr:?}, found is {found:?}"
                        ));
                    }
                }
            }
            let all = self.done();
            let steps = &all[program].steps;
            let mut tree = Tree::new();
            steps[..least].iter().for_each(|step| apply(&mut tree, step));
            let fits = |tree: &Tree| {
                tree.len() == found.len()
                    && tree.iter().zip(&found).all(|(made, seen)| made.0 == seen.0 && may_be(made.1, seen.1))
            };
            let mut steps_left = steps[least..].iter();
            while !fits(&tree) {
                let Some(step) = steps_left.next() else {
                    let did = steps.iter().zip(1..).map(|(step, at)| format!("{at} {step:?}"));
                    let did = did.collect::<Vec<_>>().join("\n");
                    return Err(format!(
                        "program {program}: {found:?} is no beginning of what it did, of which {least} must be there; all of it is {tree:?}\n{did}"
                    ));
                };
                apply(&mut tree, step);
            }
        }
        Ok(())
    }
}

fn may_be(made: &Thing, seen: &Thing) -> bool {
    match (made, seen) {
        (Thing::File { may }, Thing::File { may: seen }) => may.contains(&seen[0]),
        (made, seen) => made == seen,
    }
}

async fn look(client: &Client, ino: InodeNo) -> Result<Thing, Errno> {
    let attr = client.getattr(ino).await?;
    Ok(match attr.kind {
        FileKind::Directory => Thing::Directory { mode: attr.mode },
        FileKind::Symlink => {
            let target = client.readlink(ino).await?;
            Thing::Link { target: String::from_utf8(target).expect("ours") }
        }
        _ => Thing::File { may: vec![value(client, ino).await?] },
    })
}

async fn value(client: &Client, ino: InodeNo) -> Result<u64, Errno> {
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
        .create(parent, name.as_bytes(), kind, 0o755, 3, gid(name), 0, target.as_bytes(), false)
        .await?;
    Ok(made.0.ino)
}

/// A group, another for each name.
fn gid(name: &str) -> u32 {
    name.bytes().map(u32::from).sum()
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
            let ledger = self.ledger.clone();
            let _step = ledger.still.read().await;
            self.step().await?;
        }
        Ok(())
    }

    fn pick(&mut self, fits: impl Fn(&Path, &Thing) -> bool) -> Option<Path> {
        let paths: Vec<Path> = {
            let all = self.ledger.done();
            all[self.number]
                .now
                .iter()
                .filter(|(path, thing)| fits(path, thing))
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
        self.ledger.done()[self.number].now.get(path).cloned()
    }

    /// Where a path stands: its directory, and its last name.
    async fn resolve<'a>(&self, path: &'a str) -> Result<(InodeNo, &'a [u8]), Errno> {
        let mut at = self.ledger.tops[self.number];
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        for part in above.split('/').filter(|part| !part.is_empty()) {
            at = self.client.lookup(at, part.as_bytes()).await?.ino;
        }
        Ok((at, name.as_bytes()))
    }

    fn begin(&self, step: Step) {
        let done = &mut self.ledger.done()[self.number];
        apply(&mut done.now, &step);
        done.steps.push(step);
    }

    fn end(&self) {
        let done = &mut self.ledger.done()[self.number];
        done.answered = done.steps.len();
    }

    async fn write(&mut self, path: &str, ino: InodeNo) -> Result<(), Errno> {
        let value = 1 + self.random.next() / 2;
        self.begin(Step::Write(path.into(), value));
        let handle = self.client.open(ino, RW).await?;
        assert_eq!(self.client.write(handle, 0, &value.to_le_bytes()).await?, 8, "a short write");
        self.client.release(handle);
        self.end();
        Ok(())
    }

    async fn step(&mut self) -> Result<(), Errno> {
        let path = self.place();
        match self.random.below(12) {
            0..6 if self.thing(&path).is_none() => {
                let (dir, name) = self.resolve(&path).await?;
                let (kind, thing) = match self.random.below(6) {
                    0 | 1 if path.matches('/').count() < 3 => {
                        (FileKind::Directory, Thing::Directory { mode: 0o755 })
                    }
                    2 => {
                        (FileKind::Symlink, Thing::Link { target: format!("to{}", self.random.below(1000)) })
                    }
                    _ => (FileKind::File, Thing::File { may: vec![0] }),
                };
                let above = path.rsplit_once('/').and_then(|(above, _)| self.thing(above));
                let thing = match (thing, above) {
                    (Thing::Directory { mode }, Some(Thing::Directory { mode: above })) => {
                        Thing::Directory { mode: mode | above & S_ISGID }
                    }
                    (thing, _) => thing,
                };
                let target = if let Thing::Link { target } = &thing { target.clone() } else { String::new() };
                self.begin(Step::Make(path.clone(), thing));
                let name = std::str::from_utf8(name).expect("ours");
                let ino = make(&self.client, dir, name, kind, &target).await?;
                self.end();
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
                let directory = matches!(thing, Thing::Directory { .. });
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
                self.begin(Step::Remove(path.clone()));
                self.client.unlink(dir, name, directory).await?;
                self.end();
            }
            7..9 => self.rename(&path).await?,
            9 => {
                let Some(path) = self.pick(|_, thing| matches!(thing, Thing::Directory { .. })) else {
                    return Ok(());
                };
                let (dir, name) = self.resolve(&path).await?;
                let ino = self.client.lookup(dir, name).await?.ino;
                let mode = self.random.below(0o4000) as u16;
                self.begin(Step::Mode(path.clone(), mode));
                self.client.setattr(ino, SetAttrs { mode: Some(mode), ..SetAttrs::default() }).await?;
                self.end();
            }
            10 => self.look().await?,
            _ => self.sync().await?,
        }
        Ok(())
    }

    /// To another name, which may lead to something of its kind.
    async fn rename(&mut self, from: &str) -> Result<(), Errno> {
        let to = self.place();
        let Some(thing) = self.thing(from) else { return Ok(()) };
        let directory = matches!(thing, Thing::Directory { .. });
        let fits = match self.thing(&to) {
            None => true,
            Some(replaced) => !directory && !matches!(replaced, Thing::Directory { .. }),
        };
        if to == from || inside(from, &to) || !fits {
            return Ok(());
        }
        let (dir, name) = self.resolve(from).await?;
        let (new_dir, new_name) = self.resolve(&to).await?;
        self.begin(Step::Move(from.into(), to.clone()));
        self.client.rename(dir, name, new_dir, new_name, false, false).await?;
        self.end();
        Ok(())
    }

    /// What it made itself is there for it.
    async fn look(&mut self) -> Result<(), Errno> {
        let path = self.place();
        let (dir, name) = self.resolve(&path).await?;
        let found = match self.client.lookup(dir, name).await {
            Ok(attr) => Some(look(&self.client, attr.ino).await?),
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
        self.begin(Step::Settle(path));
        self.end();
        let mut all = self.ledger.done();
        let own = &mut all[self.number];
        own.durable = own.answered;
        Ok(())
    }
}
