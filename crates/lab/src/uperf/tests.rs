use std::time::Duration;

use super::*;
use crate::netperf::{Kind, Spec};

/// The source's stream: two groups, both forms of its variables, a duration without a unit, three dots.
const STREAM: &str = "<?xml version=\"1.0\"?>
<profile name=\"TCP_STREAM\">
  <group nprocs=\"{number of connections}\">
    <transaction iterations=\"1\">
      <flowop type=\"connect\" options=\"remotehost={first peer IP} protocol=tcp\"/>
    </transaction>
    <transaction duration=\"120\">
      <flowop type=\"write\" options=\"count=16 size={message size}\"/>
    </transaction>
    <transaction iterations=\"1\">
      <flowop type=\"disconnect\"/>
    </transaction>
  </group>
  <group nprocs=\"${number of connections}\">
    <transaction iterations=\"1\">
      <flowop type=\"connect\" options=\"remotehost={second peer IP} protocol=tcp\"/>
    </transaction>
    <transaction duration=\"120\">
      <flowop type=\"write\" options=\"count=16 size={message size}\"/>
    </transaction>
  </group>
  ...
</profile>
";

/// uperf's own way: `$name`, nested groups, comments, threads.
const RR: &str = "<!-- <profile> --><profile name='r&amp;r'>
 <group nthreads='2'><group nprocs='$n'>
  <transaction><flowop type='Connect' options='remotehost=$h Protocol=TCP port=7000 tcp_nodelay'></flowop></transaction>
  <transaction duration='500ms'>
   <flowop type='write' options='size=1k'/><flowop type='read' options='size=1024'/>
  </transaction></group></group></profile>";

fn value(name: &str) -> Option<String> {
    let values = [
        ("number of connections", "4"),
        ("first peer IP", "10.0.0.2"),
        ("second peer IP", "10.1.0.2"),
        ("message size", "64KB"),
        ("n", "3"),
        ("h", "host2"),
    ];
    values.iter().find(|(have, _)| *have == name).map(|(_, value)| (*value).to_owned())
}

fn read(text: &str) -> Result<Profile, UperfError> {
    Profile::read(text, &value)
}

#[test]
fn the_sources_profile_is_a_stream_to_both_peers() {
    let profile = read(STREAM).unwrap();
    assert_eq!((profile.name.as_str(), profile.groups.len()), ("TCP_STREAM", 2));
    assert_eq!(profile.groups[0].transactions[1].until, Until::Duration(Duration::from_secs(120)));
    let test = profile.test().unwrap();
    assert_eq!(test.servers, ["10.0.0.2:6668", "10.1.0.2:6668"]);
    let spec = &test.spec;
    assert_eq!((spec.kind, spec.connections, spec.threads, spec.buffsize), (Kind::Stream, 8, 16, 64 << 10));
}

#[test]
fn groups_within_groups_multiply_and_a_write_with_a_read_is_rr() {
    let profile = read(RR).unwrap();
    assert_eq!((profile.name.as_str(), profile.groups.len(), profile.groups[0].strands), ("r&r", 1, 6));
    assert_eq!(profile.groups[0].transactions[0].flowops[0].options[3], ("tcp_nodelay".into(), None));
    // Names of protocols are written in either case by people, by uperf in small letters only.
    assert!(profile.test().unwrap_err().to_string().contains("protocol TCP"));
    let test = read(&RR.replace("=TCP", "=tcp")).unwrap().test().unwrap();
    let spec = &test.spec;
    assert_eq!((spec.kind, spec.connections, spec.ttime), (Kind::Rr, 6, Duration::from_millis(500)));
    assert_eq!(test.servers, ["host2:7000"]);
}

#[test]
fn what_is_written_is_read_as_it_was() {
    for text in [STREAM, RR] {
        let profile = read(text).unwrap();
        assert_eq!(read(&profile.to_string()).unwrap(), profile);
    }
    let servers = ["10.0.0.2:6668".to_owned(), "10.0.0.3:7000".to_owned()];
    for kind in [Kind::Stream, Kind::Rr] {
        let spec = Spec { connections: 5, threads: 1, buffsize: 1 << 20, ..Spec::new(kind) };
        let test = read(&Profile::of(&spec, &servers).unwrap().to_string()).unwrap().test().unwrap();
        assert_eq!(test.spec, Spec { connections: 10, ..spec });
        assert_eq!(test.servers, servers);
    }
    assert!(Profile::of(&Spec::new(Kind::Nwrite), &servers).is_none());
}

#[test]
fn what_is_wrong_is_named_with_its_line() {
    for (from, to, said) in [
        ("{message size}", "{nothing}", "line 8: the variable \"nothing\" has no value: give it by --set"),
        ("{first peer IP}", "{first", "line 5: } is missing"),
        ("duration=\"120\"", "duration=\"2 days\"", "line 7: \"2 days\" is no time"),
        ("duration=\"120\"", "duration=\"1e400\"", "line 7"),
        ("nprocs=\"{number of connections}\"", "", "line 3: a group needs nthreads or nprocs"),
        ("nprocs=\"{number of connections}\"", "nprocs=\"0\"", "line 3: a group needs at least one"),
        ("  </group>\n  <group", "  <group", "line 22: </profile> ends nothing; </group> is missing"),
        ("</profile>", "", "</profile> is missing"),
        ("<flowop type=\"disconnect\"/>", "<flow/>", "line 11: <flow> is not known here; flowop is"),
        ("<profile name", "<plan name", "no profile"),
        ("type=\"disconnect\"", "type=disconnect", "quotation marks"),
        ("count=16", "&", "&amp;"),
    ] {
        let text = STREAM.replacen(from, to, 1);
        assert_ne!(text, STREAM, "{from}");
        match read(&text) {
            Err(error) => assert!(error.to_string().contains(said), "{to}: {error}"),
            // Left open, the second group stands within the first.
            Ok(profile) => panic!("{to}: {profile:?}"),
        }
    }
    for (from, to, said) in [
        ("count=16 size={message size}", "count=16", "a write without size"),
        ("size={message size}", "size=rand(1,8k)", "size rand"),
        ("duration=\"120\"", "iterations=\"9\"", "give it a duration"),
        ("duration=\"120\"", "duration=\"120\" rate=\"9/s\"", "a rate is not kept to"),
        ("protocol=tcp", "protocol=sctp", "tcp and ssl"),
        ("type=\"disconnect\"", "type=\"sendfile\"", "the flowop sendfile"),
        ("nprocs=\"{number of connections}\"", "nprocs=\"2\"", "different numbers of strands"),
        ("count=16", "count=8", "different things"),
    ] {
        let error = read(&STREAM.replacen(from, to, 1)).unwrap().test().unwrap_err().to_string();
        assert!(error.contains(said), "{to}: {error}");
    }
    let many = read(&STREAM.replace("count=16", "count=9999")).unwrap().test().unwrap_err().to_string();
    assert!(many.contains("threads 9999"), "{many}");
}

#[test]
fn changed_profiles_never_panic() {
    crate::mutate::mutated(&[STREAM.into(), RR.into()], 20_000, |bytes| {
        if let Ok(profile) = read(&String::from_utf8_lossy(bytes)) {
            let _ = profile.test();
            let _ = read(&profile.to_string());
        }
    });
}
