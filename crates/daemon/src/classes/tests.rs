use std::path::PathBuf;

use scoutline_abi::api::{Answer, ClassKeys, Reloaded, Request};
use scoutline_engine::ClassSettings;
use scoutline_sched::Level;

use super::{Classes, Handled};
use crate::config::Config;
use crate::engine::{Command, fake::FakeEngine};

const DEVICE: &str = "[[device]]\nname = \"eth1\"\naddress = \"10.0.0.1/24\"\n";

/// A file, and the classes of a daemon that was started with it.
struct Bed {
    path: PathBuf,
    classes: Classes,
    engine: FakeEngine,
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Bed {
    fn new(name: &str, rest: &str) -> Bed {
        let path = std::env::temp_dir().join(format!("scoutline-classes-{name}-{}.toml", std::process::id()));
        std::fs::write(&path, format!("{DEVICE}{rest}")).unwrap();
        let classes = Classes::new(&Config::load(&path).unwrap());
        Bed { path, classes, engine: FakeEngine::new() }
    }

    fn write(&self, text: &str) {
        std::fs::write(&self.path, text).unwrap();
    }

    /// What the engine was told, and the answer that follows when it is done.
    fn ask(&mut self, request: &Request) -> Result<(Vec<ClassSettings>, Answer), String> {
        match self.classes.handle(request, &self.engine) {
            Handled::Now(Answer::Error { message }) => {
                assert!(self.engine.next().is_none(), "a refused change reaches nobody: {message}");
                Err(message)
            }
            Handled::Later(answer, _) => loop {
                match self.engine.next() {
                    // When the file is read again, its permissions and settings go before the classes.
                    Some(Command::SetPermissions(_) | Command::SetLive(..)) => {}
                    Some(Command::SetClasses(settings, _)) => return Ok((settings, answer)),
                    _ => panic!("the engine was not told"),
                }
            },
            other => panic!("{other:?}"),
        }
    }

    fn changed(&mut self, request: &Request) -> Vec<ClassSettings> {
        self.ask(request).unwrap_or_else(|message| panic!("{message}")).0
    }

    fn list(&mut self) -> Vec<ClassKeys> {
        match self.classes.handle(&Request::Classes, &self.engine) {
            Handled::Now(Answer::Classes { classes }) => classes,
            other => panic!("{other:?}"),
        }
    }

    fn names(&mut self) -> Vec<String> {
        self.list().into_iter().map(|class| class.name).collect()
    }
}

fn keys(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn add(name: &str, pairs: &[(&str, &str)], before: Option<&str>) -> Request {
    Request::ClassAdd { name: name.into(), keys: keys(pairs), before: before.map(str::to_owned) }
}

fn set(name: &str, pairs: &[(&str, &str)]) -> Request {
    Request::ClassSet { name: name.into(), keys: keys(pairs) }
}

fn remove(name: &str) -> Request {
    Request::ClassRemove { name: name.into() }
}

fn place(name: &str, before: Option<&str>) -> Request {
    Request::ClassMove { name: name.into(), before: before.map(str::to_owned) }
}

#[test]
fn classes_come_change_move_and_go() {
    let mut bed = Bed::new("change", "[[class]]\nname = \"web\"\nlocal_port = [80]\n");
    assert_eq!(bed.names(), ["web", "default"]);
    let told = bed.changed(&add("backup", &[("idle", "true"), ("local_port", "873,8000-8100")], None));
    assert_eq!(
        told.iter().map(|class| class.name.as_str()).collect::<Vec<_>>(),
        ["web", "backup", "default"]
    );
    assert_eq!((told[1].level, &told[1].local_ports[..]), (Level::Idle, &[873..=873, 8000..=8100][..]));
    bed.changed(&add("preferred", &[("source", "10.0.0.7/32"), ("priority", "2")], Some("web")));
    assert_eq!(bed.names(), ["preferred", "web", "backup", "default"]);

    let told = bed.changed(&set("preferred", &[("priority", "5"), ("mark", "EF"), ("connections", "7")]));
    assert_eq!((told[0].level, told[0].mark, told[0].connections), (Level::Priority(5), Some(46), Some(7)));
    let told = bed.changed(&set("preferred", &[("priority", ""), ("mark", "")]));
    assert_eq!((told[0].level, told[0].mark, told[0].connections), (Level::Priority(0), None, Some(7)));

    bed.changed(&place("backup", Some("preferred")));
    assert_eq!(bed.names(), ["backup", "preferred", "web", "default"]);
    bed.changed(&place("backup", None));
    assert_eq!(bed.names(), ["preferred", "web", "backup", "default"]);
    bed.changed(&place("preferred", Some("backup")));
    assert_eq!(bed.names(), ["web", "preferred", "backup", "default"]);
    bed.changed(&remove("web"));
    assert_eq!(bed.names(), ["preferred", "backup", "default"]);
    let list = bed.list();
    assert_eq!(list[0].keys["source"], serde_json::json!(["10.0.0.7/32"]));
    assert_eq!(list[1].keys["local_port"], serde_json::json!([873, "8000-8100"]));
}

#[test]
fn the_last_class_can_be_changed_and_stays_the_last() {
    let mut bed = Bed::new("last", "[[class]]\nname = \"web\"\nlocal_port = [80]\n");
    let told = bed.changed(&set("default", &[("priority", "1")]));
    assert_eq!(told.last().unwrap().level, Level::Priority(1));
    bed.changed(&add("later", &[("local_port", "81")], None));
    assert_eq!(bed.names(), ["web", "later", "default"]);
    bed.changed(&place("web", None));
    assert_eq!(bed.names(), ["later", "web", "default"]);
    bed.changed(&remove("default"));
    assert_eq!(bed.names(), ["later", "web", "default"], "one that takes everything is always there");
    assert!(bed.ask(&remove("default")).unwrap_err().contains("always there"));
    bed.changed(&add("more", &[("local_port", "82")], Some("default")));
    assert_eq!(bed.names(), ["later", "web", "more", "default"]);
}

#[test]
fn what_is_wrong_is_refused_with_the_remedy_and_changes_nothing() {
    let mut bed = Bed::new(
        "wrong",
        "[[class]]\nname = \"preferred\"\nsource = [\"10.0.0.7\"]\n[[class]]\nname = \"rest\"\npriority = 1\n",
    );
    let before = bed.list();
    let cases: [(Request, &str); 20] = [
        (set("prefered", &[("priority", "1")]), "there is no class `prefered`; did you mean `preferred`?"),
        (remove("x"), "there is no class `x`; there are: preferred, rest, default"),
        (place("preferred", Some("rst")), "there is no class `rst`; did you mean `rest`?"),
        (
            set("preferred", &[("prioritty", "1")]),
            "class `preferred`: unknown key `prioritty`; did you mean `priority`?",
        ),
        (set("preferred", &[("prioritty", "")]), "unknown key `prioritty`; did you mean `priority`?"),
        (set("preferred", &[("priority", "64")]), "class `preferred`: priority = 64 is out of range"),
        (
            set("preferred", &[("priority", "high")]),
            "class `preferred`: priority = \"high\" is no number; it must be 0 to 63",
        ),
        (
            set("preferred", &[("priority", "-1")]),
            "class `preferred`: priority = -1 is out of range; it must be 0 to 63",
        ),
        (set("preferred", &[("memory", "0")]), "class `preferred`: memory = 0 is out of range"),
        (set("preferred", &[("idle", "true"), ("priority", "1")]), "is idle and has a priority"),
        (set("preferred", &[("memory", "lots")]), "`lots` is no size"),
        (set("preferred", &[("name", "b")]), "keeps its name"),
        (
            set("preferred", &[("interface", "eth9")]),
            "interface `eth9` is none of the devices; there is eth1",
        ),
        (
            set("preferred", &[("source", "")]),
            "class `preferred` would take everything, and leave nothing for `default`: give it a condition",
        ),
        (
            set("default", &[("priority", "1")]),
            "nothing is left for class `default`: `rest` before it takes everything",
        ),
        (set("preferred", &[("dscp", "\"]\n[[class]]")]), "is no DSCP"),
        (add("rest", &[], None), "there is a class `rest` already; change it with `scoutline class set rest"),
        (add("new", &[], None), "class `new` would take everything, and leave nothing for `default`"),
        (add("new", &[("source", "0.0.0.0/0")], None), "class `new` would take everything"),
        (add("", &[("local_port", "1")], None), "a class needs a name"),
    ];
    for (request, expected) in cases {
        let refusal = bed.ask(&request).expect_err(expected);
        assert!(refusal.contains(expected), "{request:?}\n gave: {refusal}\n  not: {expected}");
        assert!(!refusal.contains('\n'), "one line: {refusal}");
    }
    assert_eq!(bed.list(), before);
}

#[test]
fn the_class_default_is_always_listed() {
    let mut bed = Bed::new("always", "");
    assert!(
        bed.ask(&add("all", &[("priority", "1")], None)).unwrap_err().contains("leave nothing for `default`")
    );
    assert_eq!(bed.names(), ["default"]);
    // A file may have one that takes everything, as the last.
    let mut bed = Bed::new("rest", "[[class]]\nname = \"rest\"\n");
    assert_eq!(bed.names(), ["rest", "default"]);
    let told = bed.changed(&set("rest", &[("priority", "1")]));
    assert_eq!(told.iter().map(|class| class.name.as_str()).collect::<Vec<_>>(), ["rest", "default"]);
    bed.changed(&add("web", &[("local_port", "80")], Some("default")));
    assert_eq!(bed.names(), ["web", "rest", "default"]);
    assert!(bed.ask(&remove("default")).unwrap_err().contains("always there"));
    bed.changed(&remove("rest"));
    assert_eq!(bed.names(), ["web", "default"]);
}

#[test]
fn settings_are_set_and_listed() {
    let mut bed = Bed::new("settings", "");
    let set = |word: &str| Request::Set { keys: vec![("linux.share".into(), word.into())] };
    let Handled::Later(Answer::Done, done) = bed.classes.handle(&set("30"), &bed.engine) else { panic!() };
    let Some(Command::SetLive(live, sender)) = bed.engine.next() else { panic!("the engine was not told") };
    assert_eq!(live.linux, scoutline_sched::schedule::Linux::Percent(30));
    sender.send(Answer::Done).unwrap();
    assert!(matches!(done.try_recv(), Ok(Answer::Done)), "it is done when the engine says so");
    assert_eq!(bed.ask(&set("100")).unwrap_err(), "share = 100 is out of range; it must be 1 to 99");
    let Handled::Now(Answer::Settings { settings }) = bed.classes.handle(&Request::Settings, &bed.engine)
    else {
        panic!("no list")
    };
    let share = settings.iter().find(|row| row.key == "linux.share").unwrap();
    assert_eq!((&share.value, &share.default), (&30.into(), &serde_json::Value::Null));
}

#[test]
fn the_file_is_read_again() {
    let mut bed = Bed::new(
        "reload",
        "[[class]]\nname = \"a\"\nlocal_port = [1]\n[[class]]\nname = \"b\"\nlocal_port = [2]\n",
    );
    bed.changed(&add("by hand", &[("local_port", "9")], None));
    bed.write(&format!(
        "{DEVICE}mtu = 1400\ndriver = \"tap\"\n[engine]\ncpu = 1\nspin_us = 200\nqueue_packets = 99\n\
         [[class]]\nname = \"b\"\nlocal_port = [2]\n[[class]]\nname = \"c\"\nlocal_port = [3]\n\
         [[class]]\nname = \"a\"\nlocal_port = [1, 11]\n"
    ));
    let (told, answer) = bed.ask(&Request::Reload).unwrap();
    let Answer::Reloaded(reloaded) = answer else { panic!("{answer:?}") };
    let expected = Reloaded {
        added: vec!["c".into()],
        changed: vec!["a".into()],
        removed: vec!["by hand".into()],
        reordered: true,
        settings: vec!["engine.queue_packets".into()],
        restart: vec!["[engine] cpu".into(), "[[device]] eth1".into()],
    };
    assert_eq!(reloaded, expected, "what is written with its default value has not changed");
    assert_eq!(told.iter().map(|class| class.name.as_str()).collect::<Vec<_>>(), ["b", "c", "a", "default"]);
    assert_eq!(told[2].local_ports, [1..=1, 11..=11]);

    // Nothing but a core of its own.
    bed.write(&format!("{DEVICE}[engine]\ncpu = 1\n"));
    let (_, answer) = bed.ask(&Request::Reload).unwrap();
    let Answer::Reloaded(Reloaded { removed, reordered: false, restart, .. }) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(
        (&removed[..], &restart[..]),
        (&["b", "c", "a"].map(String::from)[..], &["[engine] cpu".to_owned()][..])
    );

    // Back again: nothing needs a restart, for nothing of that had been taken over.
    bed.write(DEVICE);
    let (told, answer) = bed.ask(&Request::Reload).unwrap();
    assert!(matches!(answer, Answer::Reloaded(Reloaded { restart, .. }) if restart.is_empty()));
    assert_eq!(told.len(), 1);
}

#[test]
fn a_wrong_file_changes_nothing() {
    let mut bed = Bed::new("broken", "[[class]]\nname = \"a\"\nlocal_port = [1]\n");
    let before = bed.list();
    let eth2 = "[[device]]\nname = \"eth2\"\naddress = \"10.1.0.1/24\"\n";
    for (text, expected) in [
        (format!("{DEVICE}[[class]]\nname = \"a\"\nprioritty = 1\n"), ".toml:6: unknown key `prioritty`"),
        ("[[class]]\n".to_owned(), "[[class]] without `name`"),
        (String::new(), "there is no [[device]]"),
        (
            format!("{DEVICE}{eth2}[[class]]\nname = \"a\"\ninterface = [\"eth2\"]\n"),
            ".toml:9: interface `eth2` is none of the devices; there is eth1; devices that were added need a restart",
        ),
    ] {
        bed.write(&text);
        let refusal = bed.ask(&Request::Reload).unwrap_err();
        assert!(refusal.contains(expected), "{refusal}");
    }
    std::fs::remove_file(&bed.path).unwrap();
    assert!(bed.ask(&Request::Reload).unwrap_err().contains("No such file"));
    assert_eq!(bed.list(), before);

    let quick = Config::quick("eth1", "10.0.0.1/24".parse().unwrap(), None).unwrap();
    bed.classes = Classes::new(&quick);
    assert!(!bed.classes.has_file());
    assert!(bed.ask(&Request::Reload).unwrap_err().contains("started without a file"));
    bed.changed(&add("web", &[("local_port", "80")], None));
    assert_eq!(bed.names(), ["web", "default"]);
}
