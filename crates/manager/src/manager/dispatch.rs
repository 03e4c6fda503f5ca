//! Each request to the part that answers it: what the store knows is read from the last committed snapshot, names and
//! attributes are changed by the writer, everything else is asked of the cluster's task.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use base::{Epoch, FsId, MemberId, NodeId};
use libc::{E2BIG, EIO, ETIMEDOUT};
use tokio::sync::{oneshot, watch};
use wire::{
    hello::Role,
    map::ClusterMap,
    mgr::{AuthorityReport, MgrError, MgrReply, MgrRequest, PATHS_MAX},
};

use super::{ANSWER_BEFORE, Caller, Manager, read_refusal, shared::Asker, stopping};
use crate::{
    cluster::{Ask, Event, NewPool, Question, Removal},
    format, keys, lost, owned, paths, scrub,
};

impl Manager {
    /// Answers one request.
    pub async fn handle(&self, caller: Caller, request: MgrRequest) -> MgrReply {
        match self.answer(caller, request).await {
            Ok(reply) => reply,
            Err(error) => MgrReply::Error(error),
        }
    }

    async fn answer(&self, caller: Caller, request: MgrRequest) -> Result<MgrReply, MgrError> {
        match request {
            MgrRequest::Mutate { op, change, hold, by } => {
                let mut outcomes = self.mutate(caller, by.as_ref(), vec![(op, change)]).await?;
                match outcomes.pop().unwrap_or(Err(MgrError::Errno(EIO)))? {
                    MgrReply::Created { attr, new: true } if hold => Ok(self.made_held(caller, attr).await),
                    done => Ok(done),
                }
            }
            MgrRequest::MutateMany { changes } => {
                Ok(MgrReply::Many(self.mutate(caller, None, changes).await?))
            }
            MgrRequest::Tell { changes } => Ok(MgrReply::Many(self.tell(caller, changes).await?)),
            MgrRequest::GetMap => Ok(MgrReply::Map(Box::new((**self.map_of(caller).borrow()).clone()))),
            MgrRequest::WaitMap { have } => self.wait_map(caller, have).await,
            MgrRequest::RegisterServer { .. } | MgrRequest::OpenSession { .. } => {
                self.with_config(self.ask(caller, request).await?)
            }
            MgrRequest::StatFs { fs } => match self.ask(caller, request).await? {
                MgrReply::StatFs { total, free, .. } => {
                    Ok(MgrReply::StatFs { total, free, inodes: self.inodes(fs)? })
                }
                other => Ok(other),
            },
            MgrRequest::Authorities => match self.ask(caller, request).await? {
                MgrReply::Authorities(mut report) => {
                    let known = self.inner.authorities.lock().clone();
                    (report.believed, report.others) = (known.believed, known.others);
                    Ok(MgrReply::Authorities(report))
                }
                other => Ok(other),
            },
            MgrRequest::Cluster => self.cluster_report(caller).await,
            MgrRequest::ConfigSet { pairs } => self.config_set(pairs).await,
            MgrRequest::ConfigGet => Ok(MgrReply::Config(self.config()?)),
            MgrRequest::Acquire { ino, need } => self.acquire(caller, ino, need).await,
            MgrRequest::Locks { fs, .. } => {
                let reply = self.ask(caller, request).await?;
                let MgrReply::Locks { locks, more } = reply else { return Ok(reply) };
                let snapshot = self.snapshot();
                let name = move || paths::name_locks(&*snapshot, fs, locks);
                let named = self.inner.writer.aside(name).await?;
                let locks = named.map_err(read_refusal)?;
                Ok(MgrReply::Locks { locks, more })
            }
            MgrRequest::PoolCreate { name, code, block_size, pdisks, survives } => {
                let seed = format::random_key().map_err(|error| MgrError::Store(error.to_string()))?[0];
                let new = NewPool { name, code, block_size, pdisks, survives, seed };
                self.ask(caller, Ask::MakePool(new)).await
            }
            MgrRequest::FsCreate { name, pool } => {
                self.ask(caller, Ask::MakeFs { name, pool, now: format::wall_clock() }).await
            }
            MgrRequest::LostFiles { fs, after } => {
                let reply = self.ask(caller, MgrRequest::Cluster).await?;
                let MgrReply::Cluster(report) = reply else { return Ok(reply) };
                let snapshot = self.snapshot();
                // Goes over all extents.
                let look = move || lost::lost_files(&*snapshot, &report, fs, after);
                let found = self.inner.writer.aside(look).await?;
                let found = found.map_err(read_refusal)?;
                Ok(MgrReply::LostFiles(found))
            }
            MgrRequest::Losses => self.told_losses(),
            MgrRequest::PoolDelete { name } => self.pool_delete(caller, name).await,
            MgrRequest::FsDelete { name } => self.remove(caller, Removal::RemoveFs(name)).await,
            MgrRequest::Owned { fs, ino, block } => {
                let snapshot = self.snapshot();
                let look = move || owned::runs(&*snapshot, fs, ino, block);
                let found = self.inner.writer.aside(look).await?;
                let (runs, more) = found.map_err(read_refusal)?;
                Ok(MgrReply::Owned { runs, more })
            }
            MgrRequest::Owners { blocks } => {
                let snapshot = self.snapshot();
                let look = move || owned::owners(&*snapshot, &blocks);
                let found = self.inner.writer.aside(look).await?;
                Ok(MgrReply::Owners(found.map_err(read_refusal)?))
            }
            MgrRequest::Invite { token, hash, role, expires, now, mut limits } => {
                self.find_subtree(&mut limits)?;
                self.ask(caller, MgrRequest::Invite { token, hash, role, expires, now, limits }).await
            }
            MgrRequest::MayUse { session, files, write } => {
                Ok(MgrReply::MayUse(self.may_use_content(session, &files, write)?))
            }
            MgrRequest::Paths { fs, files } if files.len() <= PATHS_MAX => {
                let snapshot = self.snapshot();
                // Goes over all names.
                let look = move || {
                    let mut found = paths::last_paths(&*snapshot, fs, files.iter().copied())?;
                    Ok(files.iter().map(|file| found.remove(file).unwrap_or_default()).collect())
                };
                let found = self.inner.writer.aside(look).await?;
                Ok(MgrReply::Paths(found.map_err(read_refusal)?))
            }
            // It is asked of the active one: that is this.
            MgrRequest::ManagerRemove { name }
                if self.following().and_then(|of| of.leader()).is_some_and(|leader| leader.name == name) =>
            {
                Err(MgrError::Config(format!(
                    "{name} is the active manager; let another one be that first: ropewalk manager promote NAME"
                )))
            }
            MgrRequest::CopyTable { after } => self.copy_table(after).await,
            MgrRequest::Dump { dump, after } => self.dump(dump, after).await,
            MgrRequest::Resign { to } => self.resign(&to),
            MgrRequest::Paths { .. } => Err(MgrError::Errno(E2BIG)),
            MgrRequest::Events { after } => Ok(MgrReply::Events(self.inner.log.after(after))),
            MgrRequest::Lookup { .. }
            | MgrRequest::GetAttr { .. }
            | MgrRequest::ReadDir { .. }
            | MgrRequest::ReadLink { .. }
            | MgrRequest::ReadInline { .. }
            | MgrRequest::Extents { .. }
            | MgrRequest::GetXattr { .. }
            | MgrRequest::ListXattr { .. } => self.read(caller, request).await,
            of_cluster => self.ask(caller, of_cluster).await,
        }
    }

    /// What [`MgrRequest::Authorities`] hears from now on: which are believed, and who is connected by another than the newest.
    /// A change is an event.
    pub fn set_authorities(&self, believed: Vec<[u8; 32]>, others: Vec<(MemberId, Role, NodeId)>) {
        let mut now = self.inner.authorities.lock();
        if believed.len() > 1 && now.believed != believed {
            self.inner.log.add("the cluster's authority is being exchanged: a new one signs".to_owned());
        } else if now.believed.len() > 1 && now.believed != believed {
            self.inner.log.add("the former authority of the cluster is believed no more".to_owned());
        }
        *now = AuthorityReport { believed, own: None, others };
    }

    /// Asks the cluster's task.
    pub(crate) async fn ask(&self, caller: Caller, ask: impl Into<Ask>) -> Result<MgrReply, MgrError> {
        let ask = ask.into();
        // Answers that wait for something are under way in time; a mount that can begin begins up to the end.
        let ahead = match &ask {
            Ask::Request(MgrRequest::OpenSession { .. }) => Duration::ZERO,
            _ => ANSWER_BEFORE,
        };
        self.ask_until(self.expiry(caller).saturating_sub(ahead), caller, ask).await
    }

    /// The same; who cannot be answered before `expires` is told so then.
    pub(super) async fn ask_until(
        &self,
        expires: Duration,
        caller: Caller,
        ask: Ask,
    ) -> Result<MgrReply, MgrError> {
        let ticket = self.inner.tickets.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        let asker = Asker { session: caller.session, answer };
        let Caller { session, member, build, .. } = caller;
        let question = Question { ticket, session, member, expires, build };
        self.inner.tell(Event::Asked(question, ask), Some((ticket, asker))).await?;
        match tokio::time::timeout_at(caller.expires, answered).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(_)) => Err(stopping()),
            Err(_) => Err(MgrError::Errno(ETIMEDOUT)),
        }
    }

    /// The map as it concerns who asks.
    fn map_of(&self, caller: Caller) -> watch::Receiver<Arc<ClusterMap>> {
        let client = self.inner.map.borrow().client(caller.session).is_some();
        if client { self.inner.client_map.clone() } else { self.inner.map.clone() }
    }

    async fn wait_map(&self, caller: Caller, have: Epoch) -> Result<MgrReply, MgrError> {
        self.inner.tell(Event::InForce { session: caller.session, epoch: have }, None).await?;
        let mut map = self.map_of(caller);
        // Safe to cancel: waiting on a watch changes nothing.
        match tokio::time::timeout_at(caller.expires, map.wait_for(|map| map.epoch > have)).await {
            Ok(Ok(map)) => Ok(MgrReply::Map(Box::new((**map).clone()))),
            Ok(Err(_)) => Err(stopping()),
            Err(_) => Ok(MgrReply::MapUnchanged),
        }
    }

    /// When a caller stops waiting, by the time of the cluster.
    fn expiry(&self, caller: Caller) -> Duration {
        let expires = caller.expires.saturating_duration_since(self.inner.started);
        self.inner.presence.lock().present(expires)
    }

    fn inodes(&self, fs: FsId) -> Result<u64, MgrError> {
        let record = keys::read::<keys::FsRecord>(&*self.snapshot(), &keys::fs_key(fs));
        let record = record.map_err(read_refusal)?;
        Ok(record.unwrap_or_default().inodes)
    }

    /// What the store waits for, and for how long it has.
    pub fn store_waits(&self) -> Option<(Duration, String)> {
        self.inner.store.upgrade()?.waits_for()
    }

    /// What an admin should see to of the store, for people.
    pub fn store_remarks(&self) -> Vec<String> {
        let remarks = self.inner.store.upgrade().map(|store| store.remarks()).unwrap_or_default();
        remarks.into_iter().map(|remark| remark.text).collect()
    }

    async fn cluster_report(&self, caller: Caller) -> Result<MgrReply, MgrError> {
        let reply = self.ask(caller, MgrRequest::Cluster).await?;
        let MgrReply::Cluster(mut report) = reply else { return Ok(reply) };
        if let Some(limits) = report.map.limits_of(caller.member).cloned() {
            report.map.filesystems.retain(|fs| limits.allow(fs.id));
            report.map.clients.retain(|client| limits.allow(client.fs));
            report.clients.retain(|client| limits.allow(client.fs));
        }
        let counts: Result<Vec<u64>, MgrError> =
            report.map.filesystems.iter().map(|fs| self.inodes(fs.id)).collect();
        report.inodes = counts?;
        let queue = keys::read::<keys::DeleteQueueRecord>(&*self.snapshot(), &keys::delete_queue_key());
        let queue = queue.map_err(read_refusal)?;
        report.deletes_pending = queue.unwrap_or_default().blocks;
        report.store =
            self.inner.store.upgrade().map_or_else(|| self.inner.place.clone(), |store| store.describe());
        report.store_damage = scrub::damage(&self.inner);
        Ok(MgrReply::Cluster(report))
    }
}
