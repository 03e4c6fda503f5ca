//! Planted violations: the checker catches each, and lets pass what may be.

use std::collections::BTreeMap;

use super::{
    cells::{Seen, cells, read, record},
    checker::{Appended, Bytes, Class, Hold, NameOp, Names, Outcome, When, held_twice},
};

const FILE: u32 = 5;

fn seen(tags: &[u32]) -> Vec<Seen> {
    let cell = |(place, tag): (u32, &u32)| match tag {
        0 => Seen::Zero,
        tag => read(&cells(FILE, place, 1, *tag)),
    };
    (0..).zip(tags).map(cell).collect()
}

fn classes(bytes: &Bytes, tags: &[u32], when: When) -> Vec<Class> {
    bytes.check(0, &seen(tags), true, when).into_iter().map(|v| v.class).collect()
}

/// Two cells fsynced as write 1, the first overwritten by 2.
fn overwritten() -> Bytes {
    let mut bytes = Bytes::new(FILE);
    bytes.wrote(0, 2, 1, true, false);
    bytes.synced(true);
    bytes.wrote(0, 1, 2, true, false);
    bytes
}

#[test]
fn a_lost_and_a_stale_byte() {
    let mut bytes = overwritten();
    assert_eq!(classes(&bytes, &[2, 1], When::Live), []);
    assert_eq!(classes(&bytes, &[1, 1], When::Live), [Class::Stale], "an acknowledged write counts at once");
    assert_eq!(classes(&bytes, &[0, 1], When::Live), [Class::Lost]);
    assert_eq!(classes(&bytes, &[1, 1], When::Doubt), [], "it was not fsynced");
    bytes.synced(true);
    assert_eq!(classes(&bytes, &[1, 1], When::Rest), [Class::Stale]);
    assert_eq!(classes(&bytes, &[2, 0], When::Rest), [Class::Lost]);
    assert_eq!(classes(&bytes, &[2], When::Rest), [Class::Lost, Class::Lost], "too short");
    assert_eq!(classes(&bytes, &[2, 1, 0], When::Rest), [Class::Stale], "too long");
}

#[test]
fn what_a_dead_mount_had_not_fsynced_may_be_lost_and_no_more() {
    let mut bytes = overwritten();
    bytes.wrote(0, 1, 3, true, false);
    bytes.synced(false);
    for may in [1, 2, 3] {
        assert_eq!(classes(&bytes, &[may, 1], When::Rest), []);
    }
    assert_eq!(classes(&bytes, &[2, 0], When::Rest), [Class::Lost]);
    assert_eq!(classes(&bytes, &[2, 3], When::Rest), [Class::Stale]);
    bytes.saw(&seen(&[2, 1]));
    assert_eq!(classes(&bytes, &[3, 1], When::Rest), [Class::Stale], "what was seen at rest stays");
    let mut durable = overwritten();
    durable.wrote(1, 1, 4, true, true);
    durable.synced(false);
    assert_eq!(classes(&durable, &[2, 1], When::Rest), [Class::Stale], "an O_DSYNC write is durable at once");
}

#[test]
fn a_failed_write_may_be_there_and_a_cut_off_byte_is_not() {
    let mut bytes = overwritten();
    bytes.wrote(1, 1, 3, false, false);
    for may in [1, 3] {
        assert_eq!(classes(&bytes, &[2, may], When::Live), []);
    }
    let mut bytes = overwritten();
    bytes.truncated(1, true);
    bytes.wrote(2, 1, 4, true, false);
    bytes.synced(true);
    assert_eq!(classes(&bytes, &[2, 0, 4], When::Rest), []);
    assert_eq!(classes(&bytes, &[2, 1, 4], When::Rest), [Class::Stale], "cut off and back");
}

#[test]
fn a_durable_write_makes_itself_durable_and_nothing_behind_it() {
    let mut bytes = overwritten();
    bytes.wrote(4, 1, 3, true, false);
    bytes.wrote(2, 1, 4, true, true);
    assert_eq!(classes(&bytes, &[2, 1, 4], When::Live), [Class::Lost, Class::Lost], "all of it is there");
    bytes.synced(false);
    for may in [&[1, 1, 4, 0, 3][..], &[2, 1, 4]] {
        assert_eq!(classes(&bytes, may, When::Rest), []);
    }
    assert!(classes(&bytes, &[2, 1], When::Rest).contains(&Class::Lost));
}

#[test]
fn bytes_of_others_and_mixed_bytes() {
    let bytes = overwritten();
    let mut two = seen(&[2, 1]);
    two.swap(0, 1);
    assert!(bytes.check(0, &two, true, When::Live).iter().all(|v| v.class == Class::Foreign));
    let foreign = bytes.check(1, &[Seen::Foreign], false, When::Live);
    assert_eq!(foreign[0].class, Class::Foreign);
}

fn records(tags: &[u32]) -> Vec<Seen> {
    tags.iter().flat_map(|tag| record(FILE, *tag, 2)).collect::<Vec<u8>>().chunks(512).map(read).collect()
}

fn appended() -> Appended {
    let mut file = Appended::default();
    file.appended(1, 11, 2, true);
    file.appended(1, 12, 2, true);
    file.synced(1);
    file.appended(2, 21, 2, false);
    file
}

fn of(file: &Appended, seen: &[Seen]) -> Vec<Class> {
    file.check(FILE, seen).into_iter().map(|v| v.class).collect()
}

#[test]
fn a_torn_a_lost_a_doubled_and_a_misplaced_append() {
    let mut file = appended();
    assert_eq!(of(&file, &records(&[11, 21, 12])), []);
    assert_eq!(of(&file, &records(&[11, 12])), [], "21 failed");
    assert_eq!(of(&file, &records(&[12, 11])), [Class::Append]);
    assert_eq!(of(&file, &records(&[11, 12, 12])), [Class::Append]);
    assert_eq!(of(&file, &records(&[12])), [Class::Lost]);
    assert_eq!(of(&file, &records(&[11, 12, 99])), [Class::Foreign]);
    let mut torn = records(&[11, 12]);
    torn.insert(3, records(&[21])[0]);
    assert!(of(&file, &torn).contains(&Class::Append));
    let mut holes = records(&[11, 12]);
    holes.extend([Seen::Zero; 2]);
    assert_eq!(of(&file, &holes), [], "21 can have left a hole");
    holes.push(Seen::Zero);
    assert_eq!(of(&file, &holes), [Class::Lost]);
    file.saw(&records(&[11, 12]));
    assert_eq!(of(&file, &records(&[11, 12])), []);
    assert_eq!(of(&file, &records(&[12, 11])), [Class::Lost], "what was there stays");
}

fn listing(names: &[(&str, u32)]) -> BTreeMap<String, Option<u32>> {
    names.iter().map(|(name, tag)| ((*name).to_owned(), Some(*tag))).collect()
}

fn rename() -> NameOp {
    NameOp::Rename("a".into(), "b".into())
}

fn made() -> Names {
    let mut names = Names::default();
    assert_eq!(names.did(&NameOp::Create("a".into(), 1), Outcome::Done), None);
    names
}

#[test]
fn a_resurrected_a_lost_and_a_half_renamed_name() {
    let mut names = made();
    assert_eq!(names.did(&rename(), Outcome::Done), None);
    assert!(names.clone().check(&listing(&[("b", 1)])).is_none());
    assert!(names.clone().check(&listing(&[("a", 1), ("b", 1)])).is_some(), "a came back");
    assert!(names.clone().check(&listing(&[])).is_some(), "both are gone");
    assert!(names.check(&listing(&[("b", 2)])).is_some(), "another file");

    let mut unknown = made();
    assert_eq!(unknown.did(&rename(), Outcome::Unknown), None);
    for may in ["a", "b"] {
        assert!(unknown.clone().check(&listing(&[(may, 1)])).is_none());
    }
    assert!(unknown.clone().check(&listing(&[("a", 1), ("b", 1)])).is_some(), "half a rename");
    assert!(unknown.clone().check(&listing(&[])).is_some(), "the other half");
    assert!(unknown.check(&listing(&[("b", 1)])).is_none());
    assert!(unknown.check(&listing(&[("a", 1)])).is_some(), "what was seen at rest stays");
}

#[test]
fn a_file_made_without_an_answer_may_be_empty() {
    let mut names = made();
    assert_eq!(names.did(&NameOp::Create("b".into(), 2), Outcome::Unknown), None);
    let with = |content| BTreeMap::from([("a".to_owned(), Some(1)), ("b".to_owned(), content)]);
    for may in [listing(&[("a", 1)]), with(None), with(Some(2))] {
        assert!(names.clone().check(&may).is_none(), "{may:?}");
    }
    assert!(names.clone().check(&with(Some(3))).is_some(), "another's content");
    assert!(
        names.check(&BTreeMap::from([("a".to_owned(), None), ("b".to_owned(), None)])).is_some(),
        "a was filled"
    );
}

#[test]
fn an_operation_done_twice_and_one_refused_without_reason() {
    let mut names = made();
    assert!(names.clone().did(&NameOp::Create("a".into(), 2), Outcome::Done).is_some(), "O_EXCL twice");
    assert!(names.clone().did(&NameOp::Unlink("a".into()), Outcome::Refused).is_some(), "it is there");
    assert!(names.did(&NameOp::Create("a".into(), 2), Outcome::Refused).is_none());
    assert!(names.did(&NameOp::Unlink("a".into()), Outcome::Done).is_none());
    assert!(names.check(&listing(&[("a", 1)])).is_some(), "resurrected");
}

#[test]
fn a_lock_held_twice() {
    let hold = |worker, from, to| Hold { worker, from, to };
    assert!(held_twice(&[hold(1, 0, 5), hold(2, 5, 9), hold(1, 10, 12)]).is_none());
    assert!(held_twice(&[hold(1, 0, 5), hold(2, 4, 9)]).is_some());
    assert!(held_twice(&[hold(1, 0, 50), hold(1, 2, 3), hold(2, 10, 12)]).is_some());
}
