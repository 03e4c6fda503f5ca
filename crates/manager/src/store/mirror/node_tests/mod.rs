//! A copy that another machine keeps, three or four servers and a manager in one process: machines are cut off, stopped and started, and what
//! was acknowledged is in whatever may be promoted.

mod half;
mod made;

use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    time::Instant,
};

use base::NodeId;
use wire::frame;

use super::{
    super::{Look, Read, RedbStore, memory},
    message::{Answer, Ask, Life},
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
    /// The keeper is killed there.
    dies: Mutex<Option<Dies>>,
}

type Sees = Box<dyn Fn() + Send>;

/// At which message a keeper dies.
struct Dies {
    at: Box<dyn FnMut(&Ask) -> bool + Send>,
    /// It has done what it was asked, and not said so.
    done: bool,
    /// Sees its files then.
    sees: Box<dyn Fn(&Path) + Send>,
}

impl Others {
    /// It ends without a word, and another process begins with the files as they are.
    fn kill(&self, keeper: &mut Option<Keeper>, sees: &dyn Fn(&Path)) {
        let (files, former) = (self.copy.with_extension("files"), self.copy.with_extension("former"));
        fs::create_dir(&files).unwrap();
        for entry in fs::read_dir(&self.copy).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), files.join(entry.file_name())).unwrap();
        }
        fs::rename(&self.copy, &former).unwrap();
        fs::rename(&files, &self.copy).unwrap();
        // What an end in good order writes goes elsewhere.
        *keeper = None;
        fs::remove_dir_all(&former).unwrap();
        sees(&self.copy);
        *keeper = Some(Keeper::new(&self.copy));
    }
}

struct To(Arc<Others>);

impl Way for To {
    fn keeper(&self, body: Vec<u8>, patience: Duration) -> Result<Vec<u8>, String> {
        let ask = frame::decode(&body).unwrap();
        if let (Ask::Commit { .. }, Some(sees)) = (&ask, &*self.0.sees.lock()) {
            sees();
        }
        let dies = self.0.dies.lock().take_if(|dies| (dies.at)(&ask));
        if let Some(dies) = dies {
            let mut keeper = self.0.keeper.lock();
            if dies.done {
                keeper.as_ref().unwrap().answer(&body);
            }
            self.0.kill(&mut keeper, &*dies.sees);
            return Err("the connection has ended".into());
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
            dies: Mutex::default(),
            copy,
            servers: (0..4).map(server).collect(),
        };
        Cluster { own, witness: dir.path().join("mirror"), others: Arc::new(others), _dir: dir }
    }

    fn place(&self) -> Node {
        Node::new(Box::new(To(self.others.clone())), "m2", self.both(), SERVERS).unwrap()
    }

    fn both(&self) -> Witness {
        Witness::new(&self.witness, &self.own.join("store.redb"))
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

fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < until, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn whole_now(store: &MirroredStore) -> bool {
    store.describe().contains("with a copy on m2") && store.remarks().is_empty()
}

fn whole(store: &MirroredStore) {
    wait_for("the copy has all", || whole_now(store));
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
    memory::apply(&mut model, large);
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
    memory::apply(&mut model, put(20));
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
    let in_the_way = cluster.others.copy.join("new.redb");
    for there in [[true, false, false], [true, false, true]] {
        // As soon as it is heard another copy could be made, which counts.
        fs::create_dir(&in_the_way).unwrap();
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
        memory::apply(&mut model, put(20));
        commit(&*store, &mut model, 21..30);
        // Whoever looks at the copy now finds that it does not count.
        mute(true);
        let error = cluster.promote().unwrap_err();
        assert!(error.contains("it lacks what was committed last"), "{error}");
        mute(false);
        fs::remove_dir(&in_the_way).unwrap();
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
    let seven = Life::new(7, 0);
    let refused = |answer: Answer| assert!(matches!(answer, Answer::Refused { .. }), "{answer:?}");
    for stray in [
        Ask::Commit { life: Life::new(0, 0), number: 6, changes: put(6) },
        Ask::Commit { life: seven, number: 6, changes: put(6) },
        Ask::Records { life: seven, last: 0, records: Vec::new() },
        Ask::Made { life: seven },
        Ask::Count { life: seven, id: 9 },
        Ask::Beat { life: seven },
        Ask::Forget { id: 9 },
        Ask::Vote { id: 9, promoted: true },
    ] {
        refused(ask(&stray));
    }
    let samples: Vec<Vec<u8>> = [
        Ask::Commit { life: seven, number: 6, changes: put(6) },
        Ask::Records { life: seven, last: 0, records: vec![(vec![1], vec![2])] },
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
    let Answer::Held { last, .. } = ask(&Ask::Look { life: seven }) else { panic!("no copy") };
    assert_eq!(last, JournaledStore::position(&store.store).1);
    refused(ask(&Ask::Commit { life: seven, number: last + 2, changes: put(6) }));
    drop(first);
    let error = cluster.promote().map(|promoted| assert!(promoted == model));
    assert!(error.is_ok(), "{error:?}");
}

fn change_servers(store: &MirroredStore, model: &mut Map, ids: &[u8]) {
    let changes = Changes::from([(KEY.to_vec(), Some(ids.to_vec()))]);
    store.commit(&changes).unwrap();
    memory::apply(model, changes);
}

/// The last server is gone, and the copy does not answer: there is nobody to ask.
#[test]
fn without_servers_a_copy_that_does_not_answer_is_waited_for() {
    let (cluster, mut model) = (Cluster::new(), Map::new());
    let store = Arc::new(cluster.open().unwrap());
    whole(&store);
    change_servers(&store, &mut model, &[]);
    whole(&store);
    cluster.keeper(false);
    let commits = store.clone();
    let waits = thread::spawn(move || commits.commit(&put(20)));
    wait_for("it says for what it waits", || {
        store.remarks().first().is_some_and(|remark| remark.text.contains("1 of 0 servers"))
    });
    cluster.keeper(true);
    waits.join().unwrap().unwrap();
    memory::apply(&mut model, put(20));
    whole(&store);
    drop(store);
    assert!(cluster.promote().unwrap() == model);
}

/// Nothing was committed when the copy was missed.
#[test]
fn whoever_commits_while_a_copy_is_given_up_is_said_to_wait() {
    let cluster = Cluster::new();
    let store = Arc::new(cluster.open().unwrap());
    whole(&store);
    cluster.keeper(false);
    cluster.servers([false; 3]);
    wait_for("it is missed", || {
        store.remarks().first().is_some_and(|remark| remark.text.contains("2 of 3 servers"))
    });
    let commits = store.clone();
    let waits = thread::spawn(move || commits.commit(&put(20)));
    wait_for("it waits", || store.waits_for().is_some_and(|(_, what)| what.contains("2 of 3 servers")));
    assert!(store.describe().contains("that is waited for") && !waits.is_finished());
    cluster.servers([true; 3]);
    waits.join().unwrap().unwrap();
    assert!(store.waits_for().is_none());
}

/// Beside the cluster's own file and beside the store: one is lost, or from the time of an earlier copy.
#[test]
fn a_lost_or_an_old_witness_hides_no_copy_that_is_to_be_given_up() {
    let beside = |cluster: &Cluster| cluster.own.join("store.kept");
    let places: [fn(&Cluster) -> PathBuf; 2] = [|cluster| cluster.witness.clone(), beside];
    for (of, older) in places.into_iter().flat_map(|of| [(of, false), (of, true)]) {
        let (cluster, mut model) = (Cluster::new(), Map::new());
        let store = cluster.open().unwrap();
        whole(&store);
        let file = of(&cluster);
        let earlier = fs::read(&file).unwrap();
        change_servers(&store, &mut model, &[0]);
        change_servers(&store, &mut model, &[0, 1, 2]);
        wait_for("another copy counts", || whole_now(&store) && fs::read(&file).unwrap() != earlier);
        drop(store);
        if older {
            fs::write(&file, &earlier).unwrap()
        } else {
            fs::remove_file(&file).unwrap()
        }
        // The copy is not there to say which it is, and the manager goes on without.
        cluster.keeper(false);
        let store = cluster.open().unwrap();
        commit(&store, &mut model, 0..20);
        drop(store);
        let error = cluster.promote().map(drop).unwrap_err();
        assert!(error.contains("lacks what was committed last"), "{error}");
    }
}
