//! Journals move: into an etcd of one member and back, whatever step a crash comes after.

use super::{
    super::{
        super::JournaledStore,
        migrate::{Step, into_etcd, into_file, to_etcd, to_file},
    },
    *,
};

#[test]
fn a_store_goes_into_etcd_and_back_with_all_it_has() {
    let etcd = Member::start(&[]);
    let (place, path) = (etcd.place("rope"), new_table(etcd.dir.path(), "store"));
    let mut model = Map::new();
    let in_file = |model: &mut Map, numbers: std::ops::Range<u32>| {
        let store = JournaledStore::open(&path, 1 << 20).unwrap();
        for n in numbers {
            let changes: Changes = [(n.to_be_bytes().to_vec(), Some(vec![1; 9]))].into();
            store.commit(&changes).unwrap();
            memory::apply(model, changes);
        }
        assert!(all(&store) == *model);
    };
    in_file(&mut model, 0..100);
    // A place that has one, and an etcd that is not there: nothing is changed.
    drop(open(&new_table(etcd.dir.path(), "other"), &etcd.place("other")).unwrap());
    for (place, why) in [
        (etcd.place("other"), "has one already"),
        ("etcd://127.0.0.1:1/x".parse().unwrap(), "etcd at 127.0.0.1:1"),
    ] {
        let error = to_etcd(&path, 1 << 20, &place, "a test").unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
        in_file(&mut model, 100..101);
    }
    for round in 0..2 {
        // The second time as if it had ended before it was told.
        (0..2).for_each(|_| to_etcd(&path, 1 << 20, &place, "a test").unwrap());
        let store = open(&path, &place).unwrap();
        assert!(all(&store) == model && !journal_path(&path).exists());
        commit(&store, &mut model, 200 + round..250 + round);
        drop(store);
        assert!(JournaledStore::open(&path, 1 << 20).is_err(), "only etcd has its journal");
        (0..2).for_each(|_| to_file(&path, 1 << 20, &place, "a test").unwrap());
        in_file(&mut model, 300..350);
        assert!(open(&path, &place).is_err(), "its journal is a file");
        let error = to_etcd(&path, 1 << 20, &place, "a test").unwrap_err().to_string();
        assert!(error.contains("taken into a file"), "{error}");
        clear(&etcd, "rope/");
    }
}

/// The store's files as a crash leaves them, if each is there, in place of others.
fn copied(from: &Path, to: &Path) {
    for extension in ["redb", "journal", "mark", "member"] {
        let (from, to) = (from.with_extension(extension), to.with_extension(extension));
        let _ = std::fs::remove_file(&to); // it may not be there
        if from.exists() {
            std::fs::copy(from, to).unwrap();
        }
    }
}

/// Whatever step a crash comes after, the same command goes on, and whoever starts meanwhile has all or is refused by name.
#[test]
fn a_migration_that_ends_at_any_step_is_finished_by_the_same_command() {
    let etcd = Member::start(&[]);
    let (place, path) = (etcd.place("rope"), new_table(etcd.dir.path(), "store"));
    let crash = etcd.dir.path().join("crash.redb");
    let mut model = Map::new();
    let store = JournaledStore::open(&path, 1 << 20).unwrap();
    for n in 0..50u32 {
        let changes: Changes = [(n.to_be_bytes().to_vec(), Some(vec![1; 9]))].into();
        store.commit(&changes).unwrap();
        memory::apply(&mut model, changes);
    }
    drop(store);
    let in_file = |path: &Path, model: &Map| {
        let store = JournaledStore::open(path, 1 << 20).map_err(|error| error.to_string())?;
        assert!(all(&store) == *model);
        Ok::<(), String>(())
    };
    // Ends after a step; the files are as they were then.
    let ends_at = |at: Step| {
        let crash = crash.clone();
        let from = path.clone();
        move |step: Step| {
            if step != at {
                return Ok(());
            }
            copied(&from, &crash);
            Err(StoreError::Damaged { reason: "the end".into() })
        }
    };
    use Step::{Ended, Gone, LetGo, Taken, There, Unmarked};
    for (round, at) in [Taken, LetGo, Unmarked, Gone, Gone, There].into_iter().enumerate() {
        let before = etcd.dir.path().join("before.redb");
        copied(&path, &before);
        let error = into_etcd(&path, 1 << 20, &place, "a test", &mut ends_at(at)).unwrap_err().to_string();
        assert!(error.contains("the end"), "{at:?}: {error}");
        // cluster.toml names the file yet: it is served whole, or refused by name.
        copied(&crash, &path);
        match in_file(&path, &model) {
            Ok(()) => assert!(at != There, "{at:?}"),
            Err(error) => {
                assert!(at == There && error.contains("has its journal in etcd"), "{at:?}: {error}")
            }
        }
        // Another attempt ends at the same step, the next one does not.
        copied(&crash, &path);
        into_etcd(&path, 1 << 20, &place, "a test", &mut ends_at(at)).unwrap_err();
        copied(&crash, &path);
        if at == Gone {
            // The table knows its new journal, and etcd does not yet; then it does, and nothing was claimed.
            let of = RedbStore::open(&path, 1 << 20).unwrap().mark().unwrap().unwrap();
            let of = Mark { journal: 0x77, etcd: Some(0), ..of };
            RedbStore::open(&path, 1 << 20).unwrap().commit_marked(&Changes::new(), of, true).unwrap();
            if round == 4 {
                etcd.put("rope/start", &format!("1 {:016x} {:016x}", 0x77, of.applied));
            }
        }
        to_etcd(&path, 1 << 20, &place, "a test").unwrap();
        assert!(all(&open(&path, &place).unwrap()) == model, "{at:?}");
        if at != There {
            clear(&etcd, "rope/");
            copied(&before, &path);
        }
    }
    // And back, with a standby that is behind.
    let store = open(&path, &place).unwrap();
    let standby = etcd.dir.path().join("standby.redb");
    crashed(&path, &standby, false);
    commit(&store, &mut model, 100..130);
    drop(store);
    for at in [Taken, Ended, LetGo, Unmarked, Gone] {
        into_file(&path, 1 << 20, &place, "a test", &mut ends_at(at)).unwrap_err();
        copied(&crash, &path);
        let served = open(&path, &place).map(|store| assert!(all(&store) == model));
        let error = if at == Taken { String::new() } else { "the journal in etcd ended with record".into() };
        assert!(served.err().unwrap_or_default().contains(&error), "{at:?}");
        if at != Taken {
            let error = open(&standby, &place).err().unwrap();
            assert!(error.contains("migrate --to-file"), "{error}");
            copied(&crash, &path);
            let behind = etcd.dir.path().join("behind.redb");
            copied(&standby, &behind);
            let error = to_file(&behind, 1 << 20, &place, "a test").unwrap_err().to_string();
            assert!(error.contains("it is not the one that went on"), "{error}");
        }
        copied(&crash, &path);
    }
    to_file(&path, 1 << 20, &place, "a test").unwrap();
    in_file(&path, &model).unwrap();
}
