//! The forms in which dumps come: line ends, quotes, encodings, locales, cut off, changed at random, large. Nothing panics, and every
//! line has a fate.

use advisor::dumps::{self, Document, document, import_scale, judge, run_books};
use proptest::prelude::*;

use super::{DUMPS, dump, rules, value};

#[path = "../../../../fuzz/mutate.rs"]
mod mutate;

/// Line ends and encodings change nothing in what is read, apart from being told.
#[test]
fn the_same_in_other_forms() {
    for (name, text) in DUMPS {
        let plain = dump(name);
        let wide: Vec<u8> =
            [0xff, 0xfe].into_iter().chain(text.encode_utf16().flat_map(u16::to_le_bytes)).collect();
        for bytes in [text.replace('\n', "\r\n").into_bytes(), wide] {
            let other = document(name, &bytes);
            assert_eq!(other.unknown, plain.unknown, "{name}");
            let entries =
                |doc: &Document| doc.listings.iter().flat_map(|l| l.entries.clone()).collect::<Vec<_>>();
            assert_eq!(entries(&other), entries(&plain), "{name}");
            assert!(rules(&other).contains("text-form"));
        }
        // Cut off anywhere, the part before reads as before.
        let half = document(name, &text.as_bytes()[..text.len() / 2]);
        assert!(half.read > 0 && half.read <= plain.read);
    }
}

/// Tables of vmo and ioo as those commands print them by themselves: units of two words and of none, a name too long for its
/// column, the second line of the head; whose they are is known by their names.
#[test]
fn aix_tables_that_no_command_stands_above() {
    let text = "\
NAME                      CUR    DEF    BOOT   MIN    MAX    UNIT           TYPE
     DEPENDENCIES
--------------------------------------------------------------------------------
maxfree                   1088   1088   1088   16     209715 4KB pages         D
     minfree
     memory_frames
--------------------------------------------------------------------------------
minperm%                  3      3      3      1      100    % memory          D
--------------------------------------------------------------------------------
j2_dynamicBufferPreallocation
                          16     16     16     0      256    16K slabs         D
--------------------------------------------------------------------------------
j2_inodeCacheSize         400    200    400    1      1000                     D
";
    let doc = document("vmo", text.as_bytes());
    assert_eq!(doc.unknown, []);
    assert_eq!(value(&doc, "aix/vmo/maxfree"), ("1088", 4));
    assert_eq!(value(&doc, "aix/vmo-unit/maxfree").0, "4KB pages");
    let on: Vec<_> =
        doc.entries().filter(|e| e.path == "aix/vmo-depends/maxfree").map(|e| &e.value).collect();
    assert_eq!(on, ["minfree", "memory_frames"]);
    assert_eq!(value(&doc, "aix/vmo/minperm%").0, "3");
    assert_eq!(value(&doc, "aix/ioo/j2_dynamicBufferPreallocation"), ("16", 11));
    assert_eq!(value(&doc, "aix/ioo-default/j2_inodeCacheSize").0, "200");
    let doc = document(
        "ioo",
        b"maxclient% = 80\nmaxpin% = 80\nminperm% = 3\nj2_maxPageReadAhead = 128\nsb_max = 4096\n",
    );
    assert_eq!(doc.unknown, []);
    assert_eq!(value(&doc, "aix/vmo/maxclient%").0, "80");
    assert_eq!(value(&doc, "aix/ioo/j2_maxPageReadAhead").0, "128");
    assert_eq!(value(&doc, "aix/no/sb_max").0, "4096");
}

#[test]
fn changed_dumps_never_panic() {
    let samples: Vec<Vec<u8>> = DUMPS.iter().map(|(_, text)| text.as_bytes().to_vec()).collect();
    mutate::mutated(&samples, 300, |bytes| {
        let doc = document("changed", bytes);
        assert_eq!(doc.read + doc.ignored.values().sum::<usize>() + doc.unknown.len(), doc.lines);
        let verdicts = judge(&doc);
        run_books(&doc, &verdicts);
        import_scale(&doc);
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Dumps in the forms in which they come: each change by itself or with others; nothing panics, and no line is lost.
    #[test]
    fn dumps_in_any_form(
        which in 0..DUMPS.len(), dos in any::<bool>(), quotes in any::<bool>(), wide in any::<bool>(), comma in any::<bool>(),
        twice in proptest::collection::vec(0..200usize, 0..6), cut in 0..=100usize,
        noise in proptest::collection::vec((0..200usize, "\\PC{0,60}|[a-z_]{1,9} = [0-9,.]{1,12}|[ \t|=:#\\[\\]-]{1,20}"), 0..4),
    ) {
        let mut lines: Vec<String> = DUMPS[which].1.lines().map(str::to_owned).collect();
        for at in twice {
            let line = lines[at % lines.len()].clone();
            lines.insert(at % lines.len(), line);
        }
        for (at, line) in noise {
            lines.insert(at % lines.len(), line);
        }
        let mut text = lines.join(if dos { "\r\n" } else { "\n" });
        if quotes {
            text = text.replace('"', "\u{201d}").replace('\'', "\u{2019}");
        }
        if comma {
            text = text.replace('.', ",");
        }
        let mut bytes = if wide {
            [0xff, 0xfe].into_iter().chain(text.encode_utf16().flat_map(u16::to_le_bytes)).collect()
        } else {
            text.into_bytes()
        };
        bytes.truncate(bytes.len() * cut / 100);
        read_whole(&bytes);
    }

    #[test]
    fn bytes_of_any_kind(bytes in proptest::collection::vec(any::<u8>(), 0..600), text in "(\\PC|\n|\t){0,400}") {
        read_whole(&bytes);
        read_whole(text.as_bytes());
    }
}

/// Reads, judges and imports; every line has a fate.
fn read_whole(bytes: &[u8]) {
    let doc = document("any", bytes);
    assert_eq!(doc.read + doc.ignored.values().sum::<usize>() + doc.unknown.len(), doc.lines);
    run_books(&doc, &judge(&doc));
    import_scale(&doc);
    dumps::facts(&doc);
}

/// Tables whose head is in another language are known by their shape; one that has none is told as not understood.
#[test]
fn other_locales() {
    for head in [
        "Dateisystem    Größe Benutzt Verf. Verw% Eingehängt auf",
        "Sys. de fichiers Taille Utilisé Dispo Uti% Monté sur",
        "ファイルシス   サイズ  使用  残り 使用% マウント位置",
        "Filesystem      Size  Used Avail Use% Mounted on",
    ] {
        let doc = document(
            "x",
            format!("$ df -h\n{head}\n/dev/sda1 246G 3,0G 244G 2% /\n/dev/sdb1 10G 10G 0 100% /d\n")
                .as_bytes(),
        );
        assert_eq!(
            (value(&doc, "df/sda1/used").0, value(&doc, "df/sdb1/percent")),
            ("3,0G", ("100", 4)),
            "{head}"
        );
        let verdicts = judge(&doc);
        assert!(rules(&doc).contains("filesystem-full") && doc.unknown.is_empty(), "{head}");
        // What stands on a disk of Linux is no file system of Storage Scale.
        assert!(run_books(&doc, &verdicts).is_empty());
    }
    let doc = document("x", "$ free\n       gesamt benutzt\nSpeicher: 263841816 1000\n".as_bytes());
    assert_eq!(doc.unknown.len(), 2);
}

/// Many listings, many lines of one, many that fit one pattern: bounded, and every line still has a fate.
#[test]
fn large_inputs_are_bounded() {
    let many_lines: String = (0..20_000).map(|i| format!("name{i} = {i}\n")).collect();
    let many_listings: String =
        (0..20_000).map(|i| format!("# lsattr -El ent{i}\nmedia_speed  {i}  Speed  True\n")).collect();
    let ports: String = (0..1_000).map(|i| format!("interface ethernet 1/{i} speed {i}\n")).collect();
    for text in [many_lines, format!("{many_listings}{ports}")] {
        let doc = document("large", text.as_bytes());
        assert_eq!(doc.read + doc.ignored.values().sum::<usize>() + doc.unknown.len(), doc.lines);
        assert!(judge(&doc).len() < 20_000 && doc.listings.len() < 10_000);
    }
}

/// Lines of files that were put together keep their places, and each part is counted.
#[test]
fn files_of_one_machine_are_read_together() {
    let files = || DUMPS.iter().map(|(name, text)| document(name, text.as_bytes())).collect::<Vec<_>>();
    let together = Document::together("all", files());
    assert_eq!(together.lines, files().iter().map(|file| file.lines).sum::<usize>());
    assert_eq!(
        together.read + together.ignored.values().sum::<usize>() + together.unknown.len(),
        together.lines
    );
    let places = together.listings.iter().map(|listing| together.place(listing.first));
    let alone: Vec<(String, u32)> =
        files().iter().flat_map(|f| f.listings.iter().map(|l| (f.name.clone(), l.first))).collect();
    assert_eq!(places.map(|(name, line)| (name.unwrap().to_owned(), line)).collect::<Vec<_>>(), alone);
    assert_eq!(files()[0].place(3), (None, 3));
    // Scale's outputs in one file, or one of them twice, are not the parts of a snap.
    let scale = [b"=== mmdiag: config ===\n ! workerThreads 1024\n".as_slice(), DUMPS[3].1.as_bytes()];
    let [config, all] = scale.map(|text| document("x", text));
    for (files, expected) in
        [(vec![&all], false), (vec![&config, &config], false), (vec![&config, &all], false)]
    {
        assert_eq!(Document::are_of_one_snap(&files), expected);
    }
}

/// What `ethtool -x` prints, with the key of its hash passed over.
#[test]
fn tables_of_receive_rings() {
    let text = "RX flow hash indirection table for ens1f0 with 4 RX ring(s):\n    0:      0     1     2     0     1     2     0     1\n\
        \x20   8:      0     1     2     0     1     2     0     1\nRSS hash key:\n6d:5a:56\nRSS hash function:\n    toeplitz: on\n    xor: off\n";
    let doc = document("x", text.as_bytes());
    assert_eq!((doc.unknown.len(), value(&doc, "linux/ethtool/ens1f0/rss/hash").0), (0, "toeplitz"));
    let facts = dumps::facts(&doc);
    let of = |name: &str| facts.int(&format!("net.ens1f0.rss_{name}"));
    assert_eq!(
        [of("rings"), of("used"), of("entries"), of("least"), of("most")],
        [Some(4), Some(3), Some(16), Some(0), Some(6)]
    );
    let none = "RX flow hash indirection table for e with 99999999999 RX ring(s):\n    0:  0  1\nRSS hash key:\nOperation not supported\n";
    assert!(dumps::facts(&document("x", none.as_bytes())).is_empty());
}
