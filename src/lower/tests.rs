//! The same texts by the tools and by us, on trees that are alike.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use super::{Facts, Lowered, Split, perform};
use crate::classify::{Tier, Verdict, Witness, classify, render};

/// A tree in which every tool meets what it treats in its own way.
const TREE: &str = r#"
mkdir -p d/e/x full/e full/f/g ro
echo a > a; echo bb > b; : > empty; ln a h; echo c > d/c; ln d/c full/hc
echo s > suid; chmod 4755 suid; echo x > x.sh; chmod 751 x.sh; echo r > r; chmod 444 r
ln -s a l; ln -s nope dl; ln -s d ld; ln -s d/c lc; ln -s loop loop; ln -s no/where dl2; ln -s d/new dl3
mkfifo p; mkdir d/a; echo q > "it's"; echo s > 'a b'; chmod 2775 full; chmod 1777 ro; echo z > full/f/z
mkdir shut; echo x > shut/x; mkdir shut/d; echo u > unr; chmod 000 unr
touch -h -d '2001-02-03 04:05:06' l dl ld lc loop dl2 dl3
find . -depth ! -type l -exec touch -d '2001-02-03 04:05:06' {} +
chmod 555 shut
"#;

const TABLE: &[&str] = &[
    "mv a a",
    "mv a ./a",
    "mv a h",
    "mv l a",
    "mv a l",
    "mv l l",
    "mv lc d/c",
    "mv a b",
    "mv a new",
    "mv a d",
    "mv b d",
    "mv d/e full",
    "mv full/e d/e",
    "mv full/f d/e",
    "mv d d/e",
    "mv d b",
    "mv a ro/x",
    "mv a no/x",
    "mv a b/x",
    "mv no x",
    "mv no b/x",
    "mv no no/x",
    "mv ld full",
    "mv ld d",
    "mv dl new",
    "mv a dl",
    "mv a ld",
    "mv loop x",
    "mv a loop",
    "mv p q",
    "mv -n a b",
    "mv -n a new",
    "mv -f a r",
    "mv r a",
    "mv d ld",
    "mv loop/x y",
    "mv l h",
    "mv l 'a'",
    "cp -p b suid",
    "cp b suid",
    "mv a loop/x",
    "mv d new",
    "mv -n no b",
    "mv -n d b",
    "mv \"it's\" d",
    "mv no \"it's/x\"",
    "mv d/c b/c/d",
    "mv d d",
    "mv d full/../d",
    "cp a a",
    "cp a h",
    "cp a l",
    "cp l a",
    "cp l b",
    "cp a b",
    "cp a new",
    "cp a d",
    "cp b d",
    "cp d x",
    "cp a dl",
    "cp a dl3",
    "cp no x",
    "cp a no/x",
    "cp a b/x",
    "cp p x",
    "cp a p",
    "cp suid y",
    "cp x.sh y",
    "cp r y",
    "cp b h",
    "cp b lc",
    "cp a ld",
    "cp loop y",
    "cp a loop",
    "cp dl y",
    "cp -p suid y",
    "cp -p x.sh b",
    "cp -p x.sh new",
    "cp -r d new",
    "cp -r d full",
    "cp -r d d/e",
    "cp -r d b",
    "cp -r l new",
    "cp -r l b",
    "cp -r dl new",
    "cp -pr full new",
    "cp -r full new",
    "cp -r ro new",
    "cp -pr ro new",
    "cp -r p new",
    "cp -r a b",
    "cp -r a l",
    "cp -pr l new",
    "cp -r d no/x",
    "cp -r d ld",
    "cp -r ld new",
    "cp -r l l",
    "cp empty b",
    "cp a empty",
    "cp -p a h",
    "cp -r no x",
    "rm a",
    "rm a a",
    "rm d",
    "rm no",
    "rm no a d b",
    "rm l",
    "rm dl",
    "rm ld",
    "rm p",
    "rm r",
    "rm b/x",
    "rm no/x a",
    "rm -f no b/x no/y",
    "rm -f d a",
    "rm -r d",
    "rm -rf d no full",
    "rm -r a l ld",
    "rm -r ro",
    "rm -r ld",
    "rm 'x*' \"it's*\"",
    "rm \"it's no\" 'a#~'",
    "rm loop",
    "rm loop/x",
    "rm -f loop/x",
    "rmdir d",
    "rmdir d/e/x d/e d/a",
    "rmdir b",
    "rmdir ld",
    "rmdir no",
    "rmdir ro full/e",
    "rmdir b/x",
    "rmdir loop",
    "mkdir new",
    "mkdir 'a\\b' 'a\\b' 'it$x' 'it$x' \"it's\" a",
    "mkdir d",
    "mkdir new new/m new/m/n",
    "mkdir new/m new",
    "mkdir dl",
    "mkdir ld",
    "mkdir b/x",
    "mkdir no/x y",
    "mkdir a y d z",
    "mkdir -p a",
    "mkdir -p new/m/n",
    "mkdir -p d/e/x",
    "mkdir -p b/x",
    "mkdir -p b/x/y",
    "mkdir -p dl",
    "mkdir -p dl/x",
    "mkdir -p ld/n/m",
    "mkdir -p d/../n/./m",
    "mkdir -p loop/x",
    "mkdir full/n ro/n",
    "mkdir 'a b' 'c d'",
    "mkdir \"it's\"",
    "mkdir -p new/m new/n b ok",
    "mkdir loop/x",
    "mkdir -p loop",
    "touch a",
    "touch new",
    "touch new a no/x y",
    "touch d",
    "touch l",
    "touch dl",
    "touch dl2",
    "touch dl3",
    "touch p",
    "touch b/x",
    "touch loop",
    "touch ld/n",
    "touch a a",
    "touch r",
    "touch loop/x",
    "chmod 600 a",
    "chmod 0755 d",
    "chmod 1777 d",
    "chmod 000 l",
    "chmod 644 dl",
    "chmod 644 no a",
    "chmod 700 full",
    "chmod 0700 full ld",
    "chmod 644 p",
    "chmod 640 b/x",
    "chmod 640 loop h",
    "chmod 755 suid",
    "ln -s a new",
    "ln -s a b",
    "ln -s a d",
    "ln -s a full",
    "ln -s no/x new",
    "ln -s x no/y",
    "ln -s x b/y",
    "ln -s x dl",
    "ln -s d/c ld",
    "ln -s a loop/x",
    "ln -s x loop",
    "true > new",
    ": > a",
    ": >> a",
    "printf '%s\\n' one 'two three' > a",
    "printf '%s\\n' x >> h",
    "printf '%s\\n' x > l",
    "printf '%s\\n' x > dl3",
    "true > d",
    "true > no/x",
    "true > p",
    ": > r",
    "printf '%s\\n' '' > new",
    ": > loop",
    "mkdir n && mv a n && cp b n && rm -r d",
    "rm no && touch new",
    "cd d && rm c && touch new",
    "cd ld && touch ../viad",
    "cd no && touch a",
    "cd a && touch b",
    "cd ./d && mv c ../full",
    "touch new && cp p x",
    "cd d && printf '%s\\n' x > c",
    "mv a shut",
    "mv a shut/x",
    "mv shut/x y",
    "mv shut/d y",
    "mv shut y",
    "mv unr y",
    "cp a shut",
    "cp a shut/x",
    "cp unr y",
    "cp a unr",
    "cp -p a unr",
    "cp -p unr y",
    "cp unr no/x",
    "cp -p unr a",
    "cp -r shut y",
    "cp -pr shut y",
    "cp -r unr y",
    "cp a r",
    "rm shut/x a",
    "rm -r shut",
    "rm -rf shut a",
    "rm unr r",
    "rmdir shut/d",
    "mkdir shut/n",
    "mkdir -p shut/n/m",
    "touch shut/n",
    "touch unr shut/x",
    "chmod 600 unr",
    "ln -s a shut",
    "true > shut/n",
    ": >> unr",
    "cd shut && touch a",
    "mv a b && mv b a && mv a d/e",
    "rm -r full && mkdir full && cp -r d full",
];

#[derive(PartialEq, Eq, Debug)]
struct Entry {
    kind: char,
    mode: u32,
    content: Vec<u8>,
    /// The first of its names.
    linked: String,
    /// Whether it is the time that the tree was made with.
    old: bool,
    owner: (u32, u32),
}

fn read(root: &Path) -> BTreeMap<String, Entry> {
    let (mut out, mut inodes) = (BTreeMap::new(), BTreeMap::new());
    let mut todo = vec![root.to_path_buf()];
    let mut all = Vec::new();
    while let Some(path) = todo.pop() {
        if path.symlink_metadata().is_ok_and(|meta| meta.is_dir()) {
            // What an ordinary user has shut off from himself stays unseen, in both trees.
            let entries = std::fs::read_dir(&path).into_iter().flatten();
            todo.extend(entries.map(|e| e.unwrap().path()));
        }
        all.push(path);
    }
    all.sort();
    for path in all {
        let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
        let Ok(meta) = path.symlink_metadata() else { continue };
        let kind = meta.file_type();
        let (kind, content) = if kind.is_dir() {
            ('d', Vec::new())
        } else if kind.is_symlink() {
            ('l', std::fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec())
        } else if kind.is_file() {
            // An ordinary user cannot look into one of them.
            ('f', std::fs::read(&path).unwrap_or_default())
        } else {
            ('p', Vec::new())
        };
        let linked = inodes.entry(meta.ino()).or_insert_with(|| name.clone()).clone();
        let old = meta.mtime() == 981_173_106;
        let owner = (meta.uid(), meta.gid());
        out.insert(name, Entry { kind, mode: meta.mode() & 0o7777, content, linked, old, owner });
    }
    out
}

fn tree(at: &Path) {
    std::fs::create_dir(at).unwrap();
    let script = format!("umask 022\n{TREE}");
    let made = Command::new("sh").args(["-ec", &script]).current_dir(at).env("TZ", "UTC").status();
    assert!(made.unwrap().success());
}

fn facts(dir: &std::fs::File) -> Facts<'_> {
    Facts { dir: dir.as_fd(), within: None, asks: false, utf8: false, cdpath: false }
}

/// What came of a text, and whether it was performed to its end.
fn compare(text: &str, utf8: bool) -> Option<Lowered> {
    let Verdict::Witnessed(witness) = classify(text.as_bytes(), Tier::Exact) else { return None };
    let temp = tempfile::tempdir().unwrap();
    let (ours, theirs) = (temp.path().join("ours"), temp.path().join("theirs"));
    tree(&ours);
    tree(&theirs);
    let dir = std::fs::File::open(&ours).unwrap();
    let mut err = Vec::new();
    let lowered = perform(&witness, &Facts { utf8, ..facts(&dir) }, &mut err);
    let (text, code) = match lowered {
        Lowered::Done(code) => (text.as_bytes().to_vec(), Some(code)),
        Lowered::Back { first: 0, .. } => (b":".to_vec(), Some(0)),
        // What is before it was done.
        Lowered::Back { first, .. } => {
            let commands = witness.commands[..first].to_vec();
            (render(&Witness { commands, ..witness.clone() }), Some(0))
        }
    };
    let text = String::from_utf8(text).unwrap();
    let real = Command::new("dash")
        .args(["-c", &text])
        .current_dir(&theirs)
        .env("LC_ALL", if utf8 { "C.UTF-8" } else { "C" })
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (ours, theirs) = (read(&ours), read(&theirs));
    let open = Command::new("chmod").args(["-R", "u+rwX"]).arg(temp.path()).status();
    assert!(open.unwrap().success());
    for name in ours.keys().chain(theirs.keys()) {
        assert_eq!(ours.get(name), theirs.get(name), "{text}: {name}: ours, theirs; {lowered:?}");
    }
    assert_eq!(
        String::from_utf8_lossy(&err),
        String::from_utf8_lossy(&real.stderr),
        "{text}: ours, theirs"
    );
    assert_eq!(code.map(i32::from), real.status.code(), "{text}");
    Some(lowered)
}

#[test]
fn the_table_does_what_the_tools_do() {
    let mut back = Vec::new();
    // In the other locale nothing but the quotes changes.
    for text in TABLE.iter().filter(|text| text.contains(['\'', '"'])) {
        compare(text, true);
    }
    for text in TABLE {
        match compare(text, false) {
            Some(Lowered::Back { split, .. }) => back.push((*text, split)),
            Some(Lowered::Done(_)) => {}
            None => panic!("{text} is not witnessed"),
        }
    }
    // What is handed back is known, so that nothing is handed back by a mistake.
    let expected = [
        ("cp p x", Split::SpecialSource),
        ("cp a p", Split::SpecialTarget),
        ("cp -r l b", Split::Merge),
        ("cp -r d d/e", Split::Merge),
        ("true > d", Split::SpecialTarget),
        (": > loop", Split::Redirect),
        ("cd a && touch b", Split::CdFails),
        ("touch new && cp p x", Split::SpecialSource),
        ("mv l h", Split::ManyNames),
    ];
    for pair in expected {
        assert!(back.contains(&pair), "{pair:?} of {back:?}");
    }
    assert!(back.len() < TABLE.len() / 8, "{back:?}");
}

/// Texts from a seed.
struct Texts(u64);

impl Texts {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % 1_000_003).unwrap() % n
    }

    fn of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len())]
    }

    fn name(&mut self) -> &'static str {
        self.of(&[
            "a", "b", "h", "l", "dl", "ld", "lc", "loop", "dl2", "dl3", "p", "d", "d/c", "d/a",
            "d/e", "d/e/x", "full", "full/e", "full/f", "full/hc", "full/f/z", "ro", "ro/n",
            "suid", "x.sh", "r", "empty", "new", "new/m", "no/x", "b/x", "ld/c", "ld/new", "shut",
            "shut/x", "shut/d", "shut/n", "unr", "./a", "d/../b", "'a b'", "\"it's\"", "loop/x",
            "full/new", "d/c/x", "'*'", "new2",
        ])
    }

    fn command(&mut self) -> String {
        let (a, b, c) = (self.name(), self.name(), self.name());
        match self.below(12) {
            0 | 1 => format!("mv {}{a} {b}", self.of(&["", "", "-f ", "-n "])),
            2..=4 => format!("cp {}{a} {b}", self.of(&["", "", "-p ", "-r ", "-pr "])),
            5 => format!("rm {}{a} {b} {c}", self.of(&["", "", "-f ", "-r ", "-rf "])),
            6 => format!("mkdir {}{a} {b}", self.of(&["", "-p "])),
            7 => format!("touch {a} {b}"),
            8 => format!("chmod {} {a} {b}", self.of(&["644", "0700", "1777", "755"])),
            9 => format!("ln -s {a} {b}"),
            10 => format!("rmdir {a} {b}"),
            _ => format!("printf '%s\\n' {a} {} {b}", self.of(&[">", ">>"])),
        }
    }

    fn text(&mut self) -> String {
        let cd = if self.below(8) == 0 {
            self.of(&["cd d && ", "cd ld && ", "cd full && "])
        } else {
            ""
        };
        let more = self.below(3);
        let commands: Vec<_> = (0..=more).map(|_| self.command()).collect();
        format!("{cd}{}", commands.join(" && "))
    }
}

#[test]
fn random_texts_do_what_the_tools_do() {
    let number = |name: &str, default| {
        std::env::var(name).ok().map_or(default, |n| n.parse::<u64>().unwrap())
    };
    let (mut done, mut back) = (0, 0);
    let mut texts = Texts(number("TXFS_LOWER_SEED", 0x9e37_79b9));
    for n in 0..number("TXFS_LOWER_TEXTS", 150) {
        match compare(&texts.text(), n % 2 == 0) {
            Some(Lowered::Done(_)) => done += 1,
            Some(Lowered::Back { .. }) => back += 1,
            None => {}
        }
    }
    assert!(done > back, "{done} were performed, {back} handed back");
}

#[test]
fn nothing_is_changed_on_another_device() {
    let temp = tempfile::tempdir().unwrap();
    tree(&temp.path().join("t"));
    let before = read(&temp.path().join("t"));
    let dir = std::fs::File::open(temp.path().join("t")).unwrap();
    let device = dir.metadata().unwrap().dev();
    for text in [
        "mv a b",
        "rm a",
        "rm -r d",
        "mkdir n",
        "mkdir -p n/m",
        "touch a",
        "touch n",
        "touch dl",
        "chmod 600 a",
        "ln -s a n",
        ": > a",
        ": > n",
        "cp a b",
        "cp a n",
        "cp -r d n",
        "rmdir ro",
        "cp /etc/hostname n",
        "mkdir -p /n",
    ] {
        let Verdict::Witnessed(witness) = classify(text.as_bytes(), Tier::Exact) else {
            panic!("{text}")
        };
        let facts = Facts { within: Some(device + 1), ..facts(&dir) };
        let mut err = Vec::new();
        let lowered = perform(&witness, &facts, &mut err);
        assert_eq!(lowered, Lowered::Back { first: 0, split: Split::Outside }, "{text}");
        assert!(err.is_empty(), "{text}");
    }
    assert_eq!(before, read(&temp.path().join("t")));
}

#[test]
fn a_lookup_path_for_cd_is_not_followed() {
    let temp = tempfile::tempdir().unwrap();
    tree(&temp.path().join("t"));
    let dir = std::fs::File::open(temp.path().join("t")).unwrap();
    let facts = Facts { cdpath: true, ..facts(&dir) };
    for (text, expected) in [
        ("cd d && touch n", Lowered::Back { first: 0, split: Split::CdPath }),
        ("cd ./d && touch n", Lowered::Done(0)),
    ] {
        let Verdict::Witnessed(witness) = classify(text.as_bytes(), Tier::Exact) else {
            panic!("{text}")
        };
        assert_eq!(perform(&witness, &facts, &mut Vec::new()), expected, "{text}");
    }
}

/// A directory is given to its owner while it is filled, and not what a link in its place leads to.
#[test]
fn a_link_in_the_place_of_a_new_directory_leads_to_no_change_of_mode() {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::fs::{RenameFlags, renameat_with};
    let temp = tempfile::tempdir().unwrap();
    let at = |name: &str| temp.path().join(name);
    for name in ["from", "out"] {
        std::fs::create_dir(at(name)).unwrap();
        std::fs::set_permissions(at(name), PermissionsExt::from_mode(0o555)).unwrap();
    }
    let dir = std::fs::File::open(temp.path()).unwrap();
    let text = b"cp -r from new";
    let Verdict::Witnessed(witness) = classify(text, Tier::Exact) else { panic!("{text:?}") };
    let over = AtomicBool::new(false);
    // Whether a step meets what it is for is the other thread's doing.
    let tried = |_: std::io::Result<()>| {};
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                tried(std::os::unix::fs::symlink("out", at("link")));
                let how = RenameFlags::EXCHANGE;
                if renameat_with(&dir, "link", &dir, "new", how).is_ok() {
                    tried(std::fs::remove_dir(at("link")));
                }
            }
        });
        let end = std::time::Instant::now() + std::time::Duration::from_secs(2);
        while std::time::Instant::now() < end {
            perform(&witness, &facts(&dir), &mut std::io::sink());
            tried(std::fs::remove_file(at("new")));
            tried(std::fs::remove_dir(at("new")));
            tried(std::fs::remove_dir(at("out/from")));
        }
        over.store(true, Ordering::Relaxed);
    });
    let mode = at("out").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o555);
}
