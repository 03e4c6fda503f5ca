//! A whole cluster in one process: real pdisks in temporary directories, real servers over loopback TCP,
//! and a small stand-in for the manager that keeps the map.
#![allow(dead_code, clippy::unwrap_used, clippy::print_stdout)]

use std::{
    collections::{BTreeSet, HashMap},
    path::PathBuf,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use base::{
    BlockIndex, ClusterId, Epoch, FsId, Grant, GroupId, InodeNo, MemberId, NodeId, OpClass, PdiskId, PoolId,
    SessionId, StripeId, Version, tunables::Tunables,
};
use bytes::Bytes;
use layout::{Code, LayoutTable, PdiskDesc};
use net::{BoxFuture, Endpoint, EndpointConfig};
use nsd::{ServedPdisk, Server, ServerConfig, Tuning};
use pdisk::{CreateOptions, EngineChoice, FaultPlan, IoConfig as PdiskIo, IoNode, OpenOptions, Pdisk};
use stripe::{
    BlockMeta, ClusterView, IoConfig, LinkError, ManagerLink, MembershipConfig, NetTransport, NsdTransport,
    SessionCell, SilenceReporter, StripeIo, WriteStripe, parity_ranges,
};
use tokio::sync::watch;
use wire::{
    map::{ClientEntry, ClusterMap, FsEntry, NodeEntry, PdiskEntry, PdiskState, PoolEntry, StripMove},
    mgr::{Filled, LogMark, MgrError, MgrReply, MgrRequest, ProcessIdent},
    nsd::{NsdReply, NsdRequest},
    strip::{DeleteStrips, Range, ReadStrip, ReadVersion, StripState},
};

pub const CLUSTER: ClusterId = ClusterId(7);
/// Of every process of the tests.
pub fn endpoint_config() -> EndpointConfig {
    let identity = net::Identity::from_secret(CLUSTER, &net::Secret::new([7; 32])).ok();
    EndpointConfig { cluster: CLUSTER, identity, role: net::Role::Client, ..EndpointConfig::default() }
}

pub const POOL: PoolId = PoolId(1);
pub const FS: FsId = FsId(1);
pub const INODE: InodeNo = InodeNo(42);
pub const UNIT: u32 = 4096;

/// Keeps the map as the manager does, without storing it.
pub struct FakeManager {
    map: watch::Sender<Arc<ClusterMap>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    sessions: u64,
    acked: HashMap<SessionId, Epoch>,
    /// Moves that are made in full.
    filled: BTreeSet<Filled>,
    /// Why strips of a pdisk wait, as it was reported last.
    waits: HashMap<PdiskId, String>,
}

impl FakeManager {
    pub fn view(&self) -> Arc<ClusterMap> {
        self.map.borrow().clone()
    }
    pub fn change(&self, change: impl FnOnce(&mut ClusterMap, Epoch)) {
        self.map.send_modify(|map| {
            let mut next = (**map).clone();
            next.epoch.0 += 1;
            let epoch = next.epoch;
            change(&mut next, epoch);
            *map = Arc::new(next);
        });
    }
    pub fn set_state(&self, id: PdiskId, state: PdiskState) {
        self.change(|map, epoch| set_state(map, id, state, epoch));
    }
    /// The node is gone: its lease ran out, its pdisks are missing.
    pub fn lost_node(&self, node: NodeId) {
        self.change(|map, epoch| {
            map.nodes.iter_mut().filter(|n| n.id == node).for_each(|n| n.session = None);
            let ids: Vec<_> = map.pdisks.iter().filter(|p| p.nodes[0] == node).map(|p| p.id).collect();
            ids.into_iter().for_each(|id| set_state(map, id, PdiskState::Missing, epoch));
        });
    }
    pub fn new_session(&self) -> SessionId {
        let mut state = self.state.lock().unwrap();
        state.sessions += 1;
        SessionId(state.sessions)
    }
    pub fn client(&self) -> SessionId {
        let session = self.new_session();
        self.change(|map, _| map.clients.push(ClientEntry { session, fs: FS, member: MemberId(0) }));
        session
    }
    pub fn fence(&self, session: SessionId) {
        self.change(|map, _| map.clients.retain(|c| c.session != session));
    }
    /// Whether all of a move is in its new place.
    pub fn is_filled(&self, what: StripMove) -> bool {
        self.state.lock().unwrap().filled.contains(&Filled { pool: POOL, what })
    }
    /// Why a strip of a pdisk waits; empty if none does.
    pub fn waits(&self, id: PdiskId) -> String {
        self.state.lock().unwrap().waits.get(&id).cloned().unwrap_or_default()
    }
    /// Waits until every live server says that the present map is in force.
    pub async fn in_force(&self) {
        let map = self.view();
        let servers: Vec<_> = map.nodes.iter().filter_map(|n| n.session).collect();
        wait(|| {
            let state = self.state.lock().unwrap();
            servers.iter().all(|s| state.acked.get(s).is_some_and(|e| *e >= map.epoch))
        })
        .await;
    }
}

fn set_state(map: &mut ClusterMap, id: PdiskId, state: PdiskState, epoch: Epoch) {
    let entry = map.pdisks.iter_mut().find(|p| p.id == id).unwrap();
    entry.state = state;
    entry.changed = epoch;
}

pub struct Link(pub Arc<FakeManager>);

impl ManagerLink for Link {
    fn call(
        &self,
        session: SessionId,
        _epoch: Epoch,
        request: MgrRequest,
        deadline: Instant,
    ) -> BoxFuture<'static, Result<MgrReply, LinkError>> {
        let manager = Arc::clone(&self.0);
        Box::pin(async move {
            let lease_us = 10_000_000;
            match request {
                MgrRequest::LogMarks { pdisks } => {
                    Ok(MgrReply::LogMarks(vec![LogMark::default(); pdisks.len()]))
                }
                MgrRequest::RegisterServer { node, addrs, pdisks, .. } => {
                    let session = manager.new_session();
                    manager.change(|map, epoch| {
                        let entry = map.nodes.iter_mut().find(|n| n.id == node).unwrap();
                        entry.session = Some(session);
                        entry.addrs = addrs;
                        for report in &pdisks {
                            let state = map.pdisk(report.id).unwrap().state;
                            if state == PdiskState::Missing {
                                set_state(map, report.id, PdiskState::Returning, epoch);
                            }
                        }
                    });
                    let map = Box::new((*manager.view()).clone());
                    Ok(MgrReply::Registered { session, lease_us, map, config: vec![] })
                }
                MgrRequest::Renew { epoch, pdisks } => {
                    let map = manager.view();
                    if !map.nodes.iter().any(|n| n.session == Some(session)) {
                        return Err(LinkError::Refused(MgrError::NoSession));
                    }
                    let everywhere = pdisks.iter().map(|p| p.in_force).fold(epoch, Epoch::min);
                    manager.state.lock().unwrap().acked.insert(session, everywhere);
                    for report in pdisks {
                        let mut state = manager.state.lock().unwrap();
                        state.filled.extend(&report.filled);
                        state.waits.insert(report.id, report.waits);
                        drop(state);
                        let entry = map.pdisk(report.id).unwrap();
                        let caught_up = report.caught_up.is_some_and(|e| e >= entry.changed);
                        if entry.state == PdiskState::Returning && caught_up {
                            manager.set_state(report.id, PdiskState::Ok);
                        }
                    }
                    Ok(MgrReply::Renewed { lease_us, epoch: manager.view().epoch })
                }
                MgrRequest::GetMap => Ok(MgrReply::Map(Box::new((*manager.view()).clone()))),
                MgrRequest::WaitMap { have } => {
                    let mut map = manager.map.subscribe();
                    let newer = map.wait_for(|m| m.epoch > have);
                    match tokio::time::timeout_at(deadline.into(), newer).await {
                        Ok(Ok(map)) => Ok(MgrReply::Map(Box::new((**map).clone()))),
                        _ => Ok(MgrReply::MapUnchanged),
                    }
                }
                // Who may not use everything may read this file.
                MgrRequest::MayUse { files, write, .. } => {
                    Ok(MgrReply::MayUse(!write && files.iter().all(|file| *file == INODE)))
                }
                // No record is kept here: the strips decide.
                MgrRequest::Owners { blocks } => {
                    Ok(MgrReply::Owners(vec![wire::owned::Owner::Unrecorded; blocks.len()]))
                }
                _ => Ok(MgrReply::Done),
            }
        })
    }
}

pub struct Node {
    pub endpoint: Endpoint,
    pub server: Server,
    pub pdisks: Vec<Pdisk>,
}

pub struct Cluster {
    pub dir: tempfile::TempDir,
    pub manager: Arc<FakeManager>,
    pub io: IoNode,
    pub code: Code,
    pub nodes: Vec<Option<Node>>,
    pub per_node: u32,
    views: watch::Receiver<Arc<ClusterView>>,
}

impl Cluster {
    pub async fn start(code: &str, block_size: u32, nodes: u32, per_node: u32) -> Cluster {
        Cluster::start_on(code, block_size, nodes, per_node, None).await
    }

    /// With faults below the pdisks.
    pub async fn start_on(
        code: &str,
        block_size: u32,
        nodes: u32,
        per_node: u32,
        fault: Option<FaultPlan>,
    ) -> Cluster {
        let code: Code = code.parse().unwrap();
        let desc = |n: u32, p: u32| PdiskDesc {
            id: PdiskId(n * per_node + p + 1),
            node: NodeId(n + 1),
            enclosure: None,
            weight: 1 << 30,
        };
        let pdisks: Vec<_> = (0..nodes).flat_map(|n| (0..per_node).map(move |p| desc(n, p))).collect();
        let table = LayoutTable::build(code, &pdisks, 0, 16, 5).unwrap();
        let members = table.group_ids().flat_map(|g| table.members(g).to_vec()).collect();
        let map = ClusterMap {
            epoch: Epoch(1),
            cluster: CLUSTER,
            name: "test".into(),
            nodes: (0..nodes).map(|n| NodeEntry { id: NodeId(n + 1), ..NodeEntry::default() }).collect(),
            pdisks: pdisks
                .iter()
                .map(|p| PdiskEntry { id: p.id, nodes: vec![p.node], ..PdiskEntry::default() })
                .collect(),
            pools: vec![PoolEntry {
                id: POOL,
                name: "p".into(),
                code: code.to_string(),
                block_size,
                width: code.width(),
                spare: 0,
                seed: 5,
                table: members,
                changed: Epoch(1),
                ..PoolEntry::default()
            }],
            filesystems: vec![FsEntry { id: FS, name: "fs1".into(), pool: POOL }],
            clients: vec![],
            revoked: Vec::new(),
            limited: Vec::new(),
            racks: Vec::new(),
            managers: Vec::new(),
            level: 1,
        };
        let manager =
            Arc::new(FakeManager { map: watch::Sender::new(Arc::new(map)), state: Mutex::default() });
        let views = watch::Sender::new(Arc::new(ClusterView::new((*manager.view()).clone())));
        let receiver = views.subscribe();
        let mut maps = manager.map.subscribe();
        tokio::spawn(async move {
            while maps.changed().await.is_ok() {
                let map = maps.borrow_and_update().clone();
                views.send_replace(Arc::new(ClusterView::new((*map).clone())));
            }
        });
        let config = PdiskIo { engine: EngineChoice::Auto, num_io_queues: 2, fault, ..PdiskIo::default() };
        let mut cluster = Cluster {
            dir: tempfile::tempdir().unwrap(),
            manager,
            io: IoNode::start(config).unwrap(),
            code,
            nodes: (0..nodes).map(|_| None).collect(),
            per_node,
            views: receiver,
        };
        for n in 0..nodes {
            for p in 0..per_node {
                let id = PdiskId(n * per_node + p + 1);
                let options =
                    CreateOptions { log_size: Some(4 << 20), ..CreateOptions::new(CLUSTER, id, 64 << 20) };
                Pdisk::create(&cluster.pdisk_dir(id), options).unwrap();
            }
            cluster.start_node(n).await;
        }
        cluster.manager.in_force().await;
        cluster
    }

    pub fn pdisk_dir(&self, id: PdiskId) -> PathBuf {
        self.dir.path().join(format!("pdisk{}", id.0))
    }

    pub async fn start_node(&mut self, n: u32) {
        let endpoint = Endpoint::start(EndpointConfig {
            role: net::Role::Server,
            node: NodeId(n + 1),
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            inbound_bytes_max: (wire::frame::PAYLOAD_LEN_MAX + wire::frame::BODY_LEN_MAX) as usize,
            ..endpoint_config()
        })
        .unwrap();
        let mut served = Vec::new();
        for p in 0..self.per_node {
            let id = PdiskId(n * self.per_node + p + 1);
            let (pdisk, report) =
                Pdisk::open(&self.pdisk_dir(id), OpenOptions::new(CLUSTER, id), &self.io).unwrap();
            served.push(ServedPdisk { id, pdisk, damaged: report.damaged.strip_ids() });
        }
        let pdisks = served.iter().map(|s| s.pdisk.clone()).collect();
        let config = ServerConfig {
            node: NodeId(n + 1),
            process: ProcessIdent::default(),
            addrs: endpoint.local_addrs().iter().map(ToString::to_string).collect(),
            pdisks: served,
            manager: Arc::new(Link(Arc::clone(&self.manager))),
            membership: MembershipConfig::default(),
            io: IoConfig::default(),
            tuning: Tuning { list_page: 3, ..Tuning::default() }, // small pages: many of them
        };
        let server = Server::start(&endpoint, config).await.unwrap();
        self.nodes[n as usize] = Some(Node { endpoint, server, pdisks });
    }

    /// The node's process is gone; the manager does not know yet.
    pub async fn kill(&mut self, n: u32) {
        let node = self.nodes[n as usize].take().unwrap();
        node.endpoint.shutdown();
        node.server.stop();
        drop(node.server);
        for pdisk in node.pdisks {
            pdisk.close().await.unwrap();
        }
    }

    pub async fn all_ok(&self) {
        let ok = || self.manager.view().pdisks.iter().all(|p| p.state == PdiskState::Ok);
        let until = Instant::now() + Duration::from_secs(60);
        while !ok() {
            if Instant::now() > until {
                for node in self.nodes.iter().flatten() {
                    println!("{:#?}", node.server.status());
                }
                panic!("pdisks do not catch up: {:?}", self.manager.view().pdisks);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub fn client(&self) -> Client {
        self.client_over(|endpoint| Arc::new(NetTransport::new(endpoint)))
    }

    pub fn client_over(&self, transport: impl FnOnce(Endpoint) -> Arc<dyn NsdTransport>) -> Client {
        self.client_with(IoConfig::default(), transport)
    }

    /// One that waits for answers however late they are, instead of reading parity: for who counts what is read, on a busy machine too.
    pub fn patient_client(&self, transport: impl FnOnce(Endpoint) -> Arc<dyn NsdTransport>) -> Client {
        let hedge_min = Duration::from_secs(30);
        self.client_with(IoConfig { hedge_min, ..IoConfig::default() }, transport)
    }

    fn client_with(
        &self,
        config: IoConfig,
        transport: impl FnOnce(Endpoint) -> Arc<dyn NsdTransport>,
    ) -> Client {
        let session = self.manager.client();
        let endpoint = Endpoint::start(endpoint_config()).unwrap();
        let transport = transport(endpoint.clone());
        let config = IoConfig { deadline: Duration::from_secs(30), ..config };
        let reporter: Arc<dyn SilenceReporter> = Arc::new(());
        let io = StripeIo::new(transport, self.views.clone(), SessionCell::new(session), reporter, config);
        let grant = Grant(session.0);
        Client {
            io,
            session,
            endpoint,
            grant,
            seq: 0,
            code: self.code,
            blocks: HashMap::new(),
            metas: HashMap::new(),
        }
    }

    /// Nobody reads but the test.
    pub fn no_scrub(&self) {
        let mut tunables = Tunables::default();
        tunables.set("scrub_interval", "0").unwrap();
        self.nodes.iter().flatten().for_each(|node| node.server.set_pace(&tunables));
    }

    /// The map the clients see is the manager's present one.
    pub async fn seen(&self) {
        let epoch = self.manager.view().epoch;
        let mut views = self.views.clone();
        views.wait_for(|v| v.epoch() >= epoch).await.unwrap();
    }

    /// The state of every strip of a block, straight from the pdisks.
    pub async fn strips(&self, block: u64) -> Vec<(Pdisk, StripState)> {
        let view = self.views.borrow().clone();
        let group: GroupId = view.pool(POOL).unwrap().group_of(stripe(block));
        let mut out = Vec::new();
        for (i, id) in view.members(POOL, group).iter().enumerate() {
            let (n, p) = ((id.0 - 1) / self.per_node, (id.0 - 1) % self.per_node);
            let pdisk = self.nodes[n as usize].as_ref().unwrap().pdisks[p as usize].clone();
            let strip = stripe(block).strip(base::StripIndex(i as u8));
            let state = pdisk.state(vec![strip]).await.unwrap().pop().unwrap();
            out.push((pdisk, state));
        }
        out
    }

    /// Proves a stripe: versions agree, nothing is prepared, parity is what the data encodes to, data is
    /// what is expected.
    pub async fn prove(&self, block: u64, expected: Option<&[u8]>) {
        let strips = self.strips(block).await;
        let geometry = self.views.borrow().pool(POOL).unwrap().geometry;
        let Some(expected) = expected else {
            let left: Vec<_> = strips
                .iter()
                .map(|(_, s)| s)
                .filter(|s| s.adopted.is_some() || s.prepared.is_some())
                .collect();
            assert!(left.is_empty(), "block {block} was deleted, strips are left: {left:?}");
            return;
        };
        let mut content = Vec::new();
        for (pdisk, state) in &strips {
            assert!(state.prepared.is_none() && !state.lost, "block {block}: {state:?}");
            let mut bytes = vec![0; geometry.strip_len as usize];
            if let Some(info) = &state.adopted {
                let ranges = vec![Range { offset: 0, len: geometry.strip_len }];
                let read =
                    ReadStrip { strip: state.strip, version: ReadVersion::Exactly(info.version), ranges };
                let (read, payload) = pdisk.read(vec![read]).await.pop().unwrap().unwrap();
                assert_eq!(read.crcs, wire::crc::unit_crcs(&payload).collect::<Vec<_>>());
                bytes[..payload.len()].copy_from_slice(&payload);
            }
            content.push(bytes);
        }
        let k = geometry.k();
        let flat = content[..k].concat();
        assert!(flat[..expected.len()] == *expected, "block {block}: data differs");
        assert!(flat[expected.len()..].iter().all(|b| *b == 0), "block {block}: bytes beyond the end");
        let codec = layout::Codec::new(self.code);
        let data: Vec<&[u8]> = content[..k].iter().map(Vec::as_slice).collect();
        let parity: Vec<&[u8]> = content[k..].iter().map(Vec::as_slice).collect();
        assert!(codec.verify(&data, &parity), "block {block}: parity does not match");
        let newest = strips.iter().filter_map(|(_, s)| s.adopted.as_ref()).map(|i| i.version).max();
        for (i, (_, state)) in strips.iter().enumerate().skip(k) {
            let info = state.adopted.as_ref().unwrap_or_else(|| panic!("block {block}: parity {i} absent"));
            assert_eq!(Some(info.version), newest, "block {block} parity {i}");
            for (j, covered) in info.covers.iter().enumerate() {
                let held = strips[j].1.adopted.as_ref().map(|a| a.version);
                assert_eq!(*covered, held, "block {block}: parity {i} covers {j}");
            }
        }
    }
}

pub fn stripe(block: u64) -> StripeId {
    StripeId { fs: FS, inode: INODE, block: BlockIndex(block) }
}

/// A writer with a model of what it has written.
pub struct Client {
    pub io: StripeIo,
    pub session: SessionId,
    pub endpoint: Endpoint,
    pub grant: Grant,
    pub seq: u64,
    pub code: Code,
    /// Acknowledged content.
    pub blocks: HashMap<u64, Vec<u8>>,
    pub metas: HashMap<u64, BlockMeta>,
}

impl Client {
    pub fn version(&mut self) -> Version {
        self.seq += 1;
        Version { grant: self.grant, seq: self.seq }
    }

    fn strip_len(&self) -> u32 {
        self.io.view().pool(POOL).unwrap().geometry.strip_len
    }

    pub fn pieces(&self, at: u32, bytes: &[u8]) -> Vec<(u32, Bytes)> {
        cut(at, bytes, self.strip_len())
    }

    /// What it knows of a block; of one that another session wrote, only that it is there.
    fn known(&self, block: u64) -> Option<BlockMeta> {
        let unknown = self.blocks.contains_key(&block).then(|| BlockMeta::unknown(self.code.data().into()));
        self.metas.get(&block).cloned().or(unknown)
    }

    /// Writes a whole new block, or over a whole one.
    pub async fn put(&mut self, block: u64, bytes: Vec<u8>) {
        let old = self.blocks.get(&block).map_or(0, Vec::len) as u32;
        let len = bytes.len() as u32;
        let write = WriteStripe {
            stripe: stripe(block),
            pool: POOL,
            version: self.version(),
            len,
            dirty: vec![Range { offset: 0, len: len.max(old) }],
            pieces: self.pieces(0, &bytes),
            previous: self.known(block),
            replaces: true,
        };
        let meta = self.io.write(write).await.unwrap();
        self.metas.insert(block, meta);
        self.blocks.insert(block, bytes);
    }

    /// What a partial write needs: the rows of all data strips, with the change laid over.
    pub async fn update(&mut self, block: u64, at: u32, bytes: &[u8]) -> WriteStripe {
        let dirty = vec![Range { offset: at, len: bytes.len() as u32 }];
        let rows = parity_ranges(self.code, self.strip_len(), &dirty);
        let read = self.io.read(stripe(block), POOL, &rows, OpClass::Write).await.unwrap();
        let mut content = read.pieces;
        content.retain(|(o, _)| *o < at || *o >= at + bytes.len() as u32 || o + UNIT > at);
        // Through a flat block: the test is not in a hurry.
        let geometry = self.io.view().pool(POOL).unwrap().geometry;
        let mut flat = vec![0; geometry.block_len() as usize];
        for (o, b) in &content {
            flat[*o as usize..*o as usize + b.len()].copy_from_slice(b);
        }
        flat[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
        let pieces = rows
            .iter()
            .flat_map(|r| cut(r.offset, &flat[r.offset as usize..r.end() as usize], self.strip_len()))
            .collect();
        let model = self.blocks.get(&block).map_or(0, Vec::len) as u32;
        WriteStripe {
            stripe: stripe(block),
            pool: POOL,
            version: self.version(),
            len: model.max(at + bytes.len() as u32),
            dirty,
            pieces,
            previous: self.known(block),
            replaces: false,
        }
    }

    pub async fn patch(&mut self, block: u64, at: u32, bytes: &[u8]) {
        let write = self.update(block, at, bytes).await;
        let meta = self.io.write(write).await.unwrap();
        self.metas.insert(block, meta);
        let model = self.blocks.entry(block).or_default();
        model.resize(model.len().max(at as usize + bytes.len()), 0);
        model[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
    }

    /// What a block is; or why it cannot be read.
    pub async fn try_read(&self, block: u64) -> Result<(), stripe::StripeError> {
        let geometry = self.io.view().pool(POOL).unwrap().geometry;
        let whole = [Range { offset: 0, len: geometry.block_len() }];
        self.io.read(stripe(block), POOL, &whole, OpClass::Read).await.map(drop)
    }

    pub async fn read(&self, block: u64) -> Vec<u8> {
        let geometry = self.io.view().pool(POOL).unwrap().geometry;
        let whole = [Range { offset: 0, len: geometry.block_len() }];
        let read = self.io.read(stripe(block), POOL, &whole, OpClass::Read).await.unwrap();
        let mut flat = vec![0; geometry.block_len() as usize];
        for (o, b) in &read.pieces {
            flat[*o as usize..*o as usize + b.len()].copy_from_slice(b);
        }
        flat
    }

    pub async fn check_all(&self) {
        for (block, expected) in &self.blocks {
            let flat = self.read(*block).await;
            assert!(flat[..expected.len()] == expected[..], "block {block} differs");
            assert!(flat[expected.len()..].iter().all(|b| *b == 0), "block {block}: bytes beyond the end");
        }
    }

    pub async fn delete(&mut self, block: u64) {
        self.blocks.remove(&block);
        self.metas.remove(&block);
        let item = DeleteStrips {
            fs: FS,
            inode: INODE,
            first: BlockIndex(block),
            last: BlockIndex(block),
            highest: self.version(),
        };
        // As the manager does: also those that are written to only since the map has changed.
        let (mut answered, until) = (BTreeSet::new(), Instant::now() + Duration::from_secs(60));
        loop {
            let view = self.io.view();
            let left = view.map.pdisks.iter().find(|p| p.state.written() && !answered.contains(&p.id));
            let Some(pdisk) = left.map(|p| p.id) else { return };
            let request = NsdRequest::Delete { pdisk, items: vec![item] };
            match self.io.call(pdisk, request, vec![], OpClass::Write, until).await {
                Ok((reply, _)) => {
                    assert_eq!(reply, NsdReply::Done);
                    answered.insert(pdisk);
                    continue;
                }
                Err(fault) => assert!(Instant::now() < until, "{fault}"),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub async fn adopt_all(&self) {
        self.io.adopt_all(Instant::now() + Duration::from_secs(60)).await.unwrap();
    }
}

pub fn cut(at: u32, bytes: &[u8], strip_len: u32) -> Vec<(u32, Bytes)> {
    let mut out = Vec::new();
    let mut from = 0;
    while from < bytes.len() {
        let offset = at + from as u32;
        let room = (strip_len - offset % strip_len) as usize;
        let to = bytes.len().min(from + room);
        out.push((offset, Bytes::copy_from_slice(&bytes[from..to])));
        from = to;
    }
    out
}

/// Bytes that say where they belong.
pub fn content(seed: u64, units: u32) -> Vec<u8> {
    let word = |i: u64| {
        (seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ i.wrapping_mul(0xD134_2543_DE82_EF95)).to_le_bytes()
    };
    (0..u64::from(units) * 512).flat_map(word).collect()
}

/// `ROPEWALK_TEST_SEED`, or 1.
pub fn seed() -> u64 {
    std::env::var("ROPEWALK_TEST_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1)
}

/// A small generator: tests print their seed and replay.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, n: u32) -> u32 {
        (self.next() % u64::from(n)) as u32
    }
}

/// Waits for a condition, at most a minute.
pub async fn wait(condition: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < until, "waited for a minute");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
