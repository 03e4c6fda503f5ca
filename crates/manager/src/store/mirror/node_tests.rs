//! A copy that another machine keeps, three servers and a manager in one process: machines are cut off, stopped and started, and what
//! was acknowledged is in whatever may be promoted.

use std::{fs, sync::atomic::Ordering::SeqCst};

use base::NodeId;
use wire::frame;

use super::{
    super::{Read, RedbStore},
    message::{Answer, Ask},
    node::LEASE,
    tests::{Map, all, commit, put},
    *,
};

/// All machines but the manager's.
struct Others {
    copy: PathBuf,
    /// None: it does not answer.
    keeper: Mutex<Option<Keeper>>,
    /// It hears, and its answers are lost.
    mute: AtomicBool,
    servers: Vec<Mutex<(bool, Ballots)>>,
    /// Sees each commit that is sent to the keeper.
    sees: Mutex<Option<Sees>>,
}

type Sees = Box<dyn Fn() + Send>;

struct To(Arc<Others>);

impl Way for To {
    fn keeper(&self, body: Vec<u8>, patience: Duration) -> Result<Vec<u8>, String> {
        if let (Ok(Ask::Commit { .. }), Some(sees)) = (frame::decode(&body), &*self.0.sees.lock()) {
            sees();
        }
        let heard = self.0.keeper.lock().as_ref().map(|keeper| keeper.answer(&body));
        if let Some(answer) = heard.filter(|_| !self.0.mute.load(SeqCst)) {
            return Ok(answer);
        }
        thread::sleep(patience.min(Duration::from_millis(20)));
        Err("no connection".into())
    }

    fn voters(&self, voters: &[Voter], body: &[u8], _: Duration) -> Vec<Result<Vec<u8>, String>> {
        let answer = |voter: &Voter| {
            let server = self.0.servers[usize::from(voter.addrs[0].port())].lock();
            if server.0 { Ok(server.1.answer(body)) } else { Err("no connection".into()) }
        };
        voters.iter().map(answer).collect()
    }
}

const KEY: &[u8] = b"servers";
/// Those whose numbers are there, or three.
const SERVERS: Voters = Voters { key: || KEY.to_vec(), of: servers };

fn servers(state: &dyn Read) -> Result<Vec<Voter>, StoreError> {
    let voter = |n: &u8| Voter {
        id: NodeId(u32::from(*n)),
        name: format!("n{n}"),
        addrs: vec![([127, 0, 0, 1], u16::from(*n)).into()],
    };
    Ok(state.get(KEY)?.unwrap_or(vec![0, 1, 2]).iter().map(voter).collect())
}

struct Cluster {
    _dir: tempfile::TempDir,
    own: PathBuf,
    witness: PathBuf,
    others: Arc<Others>,
}

impl Cluster {
    fn new() -> Cluster {
        let dir = tempfile::tempdir().unwrap();
        let (own, copy) = (dir.path().join("manager"), dir.path().join("copy"));
        [&own, &copy].into_iter().for_each(|dir| fs::create_dir(dir).unwrap());
        drop(RedbStore::create(&own.join("store.redb"), 1 << 20).unwrap());
        let server = |n| Mutex::new((true, Ballots::new(dir.path().join(format!("votes{n}")))));
        let others = Others {
            keeper: Mutex::new(Some(Keeper::new(&copy))),
            mute: AtomicBool::new(false),
            sees: Mutex::default(),
            copy,
            servers: (0..3).map(server).collect(),
        };
        Cluster { own, witness: dir.path().join("mirror"), others: Arc::new(others), _dir: dir }
    }

    fn place(&self) -> Node {
        Node::new(Box::new(To(self.others.clone())), "m2", &self.witness, SERVERS).unwrap()
    }

    fn open(&self) -> Result<MirroredStore, String> {
        let opened = MirroredStore::open(&self.own.join("store.redb"), 1 << 20, Arc::new(self.place()), None);
        opened.map_err(|error| error.to_string())
    }

    fn keeper(&self, there: bool) {
        *self.others.keeper.lock() = there.then(|| Keeper::new(&self.others.copy));
    }

    fn servers(&self, there: [bool; 3]) {
        self.others.servers.iter().zip(there).for_each(|(server, there)| server.lock().0 = there);
    }

    /// The keeper's process has ended.
    fn promote(&self) -> Result<Map, String> {
        self.keeper(false);
        let dir = self.own.with_file_name("promoted");
        promote_kept(&self.others.copy, &dir, SERVERS, &To(self.others.clone()))
            .map_err(|error| error.to_string())?;
        Ok(all(&JournaledStore::open(&dir.join("store.redb"), 1 << 20).unwrap()))
    }
}

fn wait_for(what: &str, holds: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < until, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn whole(store: &MirroredStore) {
    wait_for("the copy has all", || {
        store.describe().contains("with a copy on m2") && store.remarks().is_empty()
    });
}

#[test]
fn a_copy_on_another_machine_is_the_store_when_the_managers_is_gone() {
    let (cluster, mut model) = (Cluster::new(), Map::new());
    let store = cluster.open().unwrap();
    let mut n = 0;
    while !store.remarks().is_empty() {
        commit(&store, &mut model, n..n + 1);
        n += 1;
    }
    // And one commit that does not fit in a message.
    commit(&store, &mut model, n..n + 300);
    let large: Changes =
        (0..40u32).map(|n| (format!("large{n}").into_bytes(), Some(vec![n as u8; 300_000]))).collect();
    store.commit(&large).unwrap();
    super::super::memory::apply(&mut model, large);
    // The keeper starts anew, in the middle and while nothing is done: it is the same copy.
    for round in 0..3 {
        cluster.keeper(true);
        if round == 1 {
            let confirmed = store.confirmed().unwrap();
            thread::sleep(LEASE);
            wait_for("it may answer", || confirmed.holds());
        }
        commit(&store, &mut model, n + 3000 + round..n + 3001 + round);
    }
    // The manager is killed and comes back, with and without the last commit.
    drop(store);
    let table = cluster.own.join("store.redb");
    commit(&JournaledStore::open(&table, 1 << 20).unwrap(), &mut model, n + 4000..n + 4001);
    let store = cluster.open().unwrap();
    whole(&store);
    commit(&store, &mut model, n + 4001..n + 4010);
    drop(store);
    assert!(fs::read_to_string(&cluster.witness).unwrap().starts_with("whole"));
    assert!(
        (0..3).all(|n| !cluster.witness.with_file_name(format!("votes{n}")).exists()),
        "nobody was asked"
    );

    cluster.servers([false, true, true]);
    assert!(cluster.promote().unwrap() == model);
    // The former manager comes back: it serves nothing, and one server alone does not tell it why.
    let error = cluster.open().map(drop).unwrap_err();
    assert!(error.contains("was promoted"), "{error}");
}

#[test]
fn nothing_is_acknowledged_without_the_copy_before_enough_servers_know() {
    let (cluster, mut model) = (Cluster::new(), Map::new());
    let store = Arc::new(cluster.open().unwrap());
    whole(&store);
    commit(&*store, &mut model, 0..20);
    cluster.keeper(false);
    cluster.servers([true, false, false]);
    let commits = store.clone();
    let waits = thread::spawn(move || commits.commit(&put(20)));
    let text = || store.remarks().first().map(|remark| remark.text.clone()).unwrap_or_default();
    wait_for("it waits", || store.waits_for().is_some_and(|(_, what)| what.contains("m2")));
    wait_for("it says for what it waits", || text().contains("2 of 3 servers") && text().contains("n1, n2"));
    assert!(!store.confirmed().unwrap().holds() && !waits.is_finished());
    cluster.servers([true, true, false]);
    waits.join().unwrap().unwrap();
    super::super::memory::apply(&mut model, put(20));
    // It goes on alone; the copy is behind, whoever of the servers is asked.
    assert!(store.confirmed().unwrap().holds());
    commit(&*store, &mut model, 21..30);
    for there in [[true, false, true], [false, true, true]] {
        cluster.servers(there);
        let error = cluster.promote().unwrap_err();
        assert!(error.contains("lacks what was committed last"), "{error}");
    }
    // The keeper is back: a new copy, with another number.
    cluster.servers([true; 3]);
    cluster.keeper(true);
    whole(&store);
    commit(&*store, &mut model, 30..40);
    drop(store);
    cluster.servers([true, false, false]);
    let error = cluster.promote().unwrap_err();
    assert!(error.contains("2 of 3 servers have to say"), "{error}");
    cluster.servers([true, false, true]);
    assert!(cluster.promote().unwrap() == model);
}

/// The manager was only cut off, or stopped.
#[test]
fn a_manager_whose_copy_was_promoted_commits_and_answers_nothing_more() {
    let (cluster, mut model) = (Cluster::new(), Map::new());
    let store = cluster.open().unwrap();
    whole(&store);
    commit(&store, &mut model, 0..20);
    cluster.servers([false, true, true]);
    assert!(cluster.promote().unwrap() == model);
    assert!(!store.confirmed().unwrap().holds());
    cluster.servers([true; 3]);
    let error = store.commit(&put(20)).unwrap_err().to_string();
    assert!(error.contains("was promoted"), "{error}");
    assert!(store.commit(&put(21)).is_err() && store.tend().is_err() && !store.confirmed().unwrap().holds());
}

/// A way that is cut in one direction: a commit comes there, and so does it that the copy is given up.
#[test]
fn a_keeper_whose_answers_are_lost_has_no_copy_that_counts_and_says_so_when_it_is_heard() {
    let (cluster, mut model) = (Cluster::new(), Map::new());
    let store = Arc::new(cluster.open().unwrap());
    whole(&store);
    commit(&*store, &mut model, 0..20);
    let mute = |mute| cluster.others.mute.store(mute, SeqCst);
    for there in [[true, false, false], [true, false, true]] {
        mute(true);
        cluster.servers(there);
        let commits = store.clone();
        let waits = thread::spawn(move || commits.commit(&put(20)));
        if there[2] {
            waits.join().unwrap().unwrap();
        } else {
            let text = || store.remarks().first().map(|remark| remark.text.clone()).unwrap_or_default();
            wait_for("it waits for servers", || text().contains("2 of 3 servers"));
            assert!(!waits.is_finished());
            mute(false);
            waits.join().unwrap().unwrap();
        }
        super::super::memory::apply(&mut model, put(20));
        commit(&*store, &mut model, 21..30);
        // Whoever looks at the copy now finds that it does not count.
        mute(true);
        let error = cluster.promote().unwrap_err();
        assert!(error.contains("it lacks what was committed last"), "{error}");
        mute(false);
        cluster.keeper(true);
        whole(&store);
    }
    commit(&*store, &mut model, 30..40);
    drop(store);
    cluster.servers([true; 3]);
    assert!(cluster.promote().unwrap() == model);
}

/// Who counts what servers after a crash between the two commits: `order` has all cases.
#[test]
fn a_commit_that_changes_the_servers_is_made_where_it_is_safe_first() {
    let cluster = Cluster::new();
    let store = Arc::new(cluster.open().unwrap());
    whole(&store);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (notes, own) = (seen.clone(), Arc::clone(&store.store));
    *cluster.others.sees.lock() =
        Some(Box::new(move || notes.lock().push(own.snapshot().unwrap().get(KEY).unwrap())));
    let mut before = None;
    for (servers, store_first) in [(&[0, 1][..], true), (&[0], false), (&[0, 2], true), (&[0, 2, 1], false)] {
        let after = Some(servers.to_vec());
        store.commit(&[(KEY.to_vec(), after.clone())].into()).unwrap();
        let expected = if store_first { after.clone() } else { before };
        assert_eq!(std::mem::take(&mut *seen.lock()), [expected], "{servers:?}");
        before = after;
    }
    assert!(store.remarks().is_empty());
    // Two at once: in no order.
    for servers in [vec![0], vec![0, 1, 2]] {
        store.commit(&[(KEY.to_vec(), Some(servers))].into()).unwrap();
        assert!(seen.lock().is_empty());
        whole(&store);
    }
    *cluster.others.sees.lock() = None;
    drop(store);
    assert_eq!(cluster.promote().unwrap().get(KEY), Some(&vec![0, 1, 2]));
}

#[test]
fn a_keeper_listens_to_one_life_of_the_manager_and_says_no_to_what_it_does_not_understand() {
    let cluster = Cluster::new();
    let (first, mut model) = (cluster.place(), Map::new());
    let store = cluster.open().unwrap();
    whole(&store);
    commit(&store, &mut model, 0..5);
    let ask = |ask: &Ask| -> Answer {
        let keeper = cluster.others.keeper.lock();
        frame::decode(&keeper.as_ref().unwrap().answer(&frame::encode(ask))).unwrap()
    };
    let refused = |answer: Answer| assert!(matches!(answer, Answer::Refused { .. }), "{answer:?}");
    for stray in [
        Ask::Commit { life: 0, number: 6, changes: put(6) },
        Ask::Commit { life: 7, number: 6, changes: put(6) },
        Ask::Records { life: 7, last: 0, records: Vec::new() },
        Ask::Made { life: 7 },
        Ask::Count { life: 7, id: 9 },
        Ask::Beat { life: 7 },
        Ask::Forget { id: 9 },
        Ask::Vote { id: 9, promoted: true },
    ] {
        refused(ask(&stray));
    }
    let samples: Vec<Vec<u8>> = [
        Ask::Commit { life: 7, number: 6, changes: put(6) },
        Ask::Records { life: 7, last: 0, records: vec![(vec![1], vec![2])] },
    ]
    .iter()
    .map(frame::encode)
    .collect();
    let room = tempfile::tempdir().unwrap();
    let other = Keeper::new(room.path());
    crate::mutate::mutated(&samples, 2_000, |bytes| {
        drop(other.answer(bytes));
    });
    commit(&store, &mut model, 5..10);
    // What another life holds is taken over; the one before hears so, and gives the copy up by the keeper, which forgets it.
    let Answer::Held { last, .. } = ask(&Ask::Look { life: 7 }) else { panic!("no copy") };
    assert_eq!(last, JournaledStore::position(&store.store).1);
    refused(ask(&Ask::Commit { life: 7, number: last + 2, changes: put(6) }));
    drop(first);
    let error = cluster.promote().map(|promoted| assert!(promoted == model));
    assert!(error.is_ok(), "{error:?}");
}

/// A call may be carried out twice, and once of it late: after others that changed the same.
#[test]
fn what_comes_twice_and_late_gets_into_no_other_commit_and_into_no_other_copy() {
    let room = tempfile::tempdir().unwrap();
    let keeper = Keeper::new(room.path());
    let ask = |ask: Ask| -> Answer { frame::decode(&keeper.answer(&frame::encode(&ask))).unwrap() };
    let life = 1;
    let value = |value: u8| Changes::from([(vec![9], Some(vec![value]))]);
    let part = || Ask::Part { life, number: 5, changes: value(1) };
    assert_eq!(ask(Ask::Make { life, journal: 3, last: 4 }), Answer::Done);
    let stale = ask(Ask::Records { life, last: 2, records: vec![(vec![8], vec![0])] });
    assert!(matches!(stale, Answer::Refused { .. }), "{stale:?}");
    let asks = [
        Ask::Records { life, last: 4, records: vec![(vec![7], vec![0])] },
        Ask::Made { life },
        part(),
        part(),
        Ask::Commit { life, number: 5, changes: Changes::new() },
        Ask::Commit { life, number: 6, changes: value(2) },
        part(),
        Ask::Commit { life, number: 7, changes: Changes::from([(vec![6], Some(vec![0]))]) },
    ];
    asks.into_iter().for_each(|one| assert_eq!(ask(one), Answer::Done));
    drop(keeper);
    let copy = all(&JournaledStore::open(&room.path().join("store.redb"), 1 << 20).unwrap());
    assert_eq!(copy, Map::from([(vec![6], vec![0]), (vec![7], vec![0]), (vec![9], vec![2])]));
}
