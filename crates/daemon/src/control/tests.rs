//! The whole plane over real sockets, with a fake engine in this thread's place.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use scoutline_abi::api::{Answer, ProgramRow, Request, Stat};

use crate::attach::Owners;
use crate::classes::Classes;
use crate::config::Config;
use crate::engine::fake::FakeEngine;
use crate::plane::{Ended, Plane, PlaneSettings, Told};

fn serve<R: Send>(name: &str, engine: &FakeEngine, tool: impl FnOnce(&Path) -> R + Send) -> (Ended, R) {
    let control: PathBuf =
        std::env::temp_dir().join(format!("scoutline-control-{name}-{}", std::process::id()));
    let owners = Owners { uid: rustix::process::geteuid().as_raw(), group: None };
    let settings = PlaneSettings { control: control.clone(), mode: 0o600, owners };
    let config = Config::quick("eth1", "10.0.0.1/24".parse().unwrap(), None).unwrap();
    let mut plane = Plane::bind(&settings, Classes::new(&config)).unwrap();
    let ((stop, _stopper), (reload, _reloader)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
    let told = Told { stop, reload };
    let done = std::thread::scope(|scope| {
        let tool = scope.spawn(|| tool(&control));
        let ended = plane.serve(engine, &told).unwrap();
        (ended, tool.join().unwrap())
    });
    drop(plane);
    assert!(!control.exists());
    done
}

fn answers(stream: &UnixStream) -> impl Iterator<Item = Answer> + use<> {
    BufReader::new(stream.try_clone().unwrap())
        .lines()
        .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
}

#[test]
fn questions_reach_the_engine_and_stop_stops() {
    let programs = vec![ProgramRow {
        name: "nginx".into(),
        pid: 1,
        processes: 3,
        sockets: 5,
        rings_refused: 0,
        rings_left: 0,
        ring_sockets: 0,
        calls_dispatched: 0,
    }];
    let engine = FakeEngine::answering(move |request| match request {
        Request::Stat => Answer::Stat(Stat { programs: programs.clone(), ..Stat::default() }),
        _ => Answer::Paths { paths: Vec::new() },
    });
    let (ended, ()) = serve("stop", &engine, |path| {
        let mut stream = UnixStream::connect(path).unwrap();
        // Three questions at once are answered one after the other.
        stream.write_all(b"{\"command\":\"ps\"}\n\n{\"command\":\"stat\"}\n{\"command\":\"pss\"}\n").unwrap();
        let mut answers = answers(&stream);
        assert!(matches!(answers.next(), Some(Answer::Paths { .. })));
        let Some(Answer::Stat(stat)) = answers.next() else { panic!("no stat") };
        assert_eq!(stat.version, env!("CARGO_PKG_VERSION"));
        assert_eq!((stat.programs[0].processes, stat.notices.len()), (3, 1));
        let Some(Answer::Error { message }) = answers.next() else { panic!("no error") };
        assert_eq!(message, "there is no command `pss`; did you mean `ps`?");

        // A half close still gets its answer.
        let mut half = UnixStream::connect(path).unwrap();
        half.write_all(b"{\"command\":\"ps\"}\n").unwrap();
        half.shutdown(std::net::Shutdown::Write).unwrap();
        let lines: Vec<Answer> = self::answers(&half).collect();
        assert_eq!(lines.len(), 1);

        // Somebody who sends without end is cut off.
        let mut endless = UnixStream::connect(path).unwrap();
        let sent = (0..100).map_while(|_| endless.write_all(&[b'x'; 4096]).ok()).count();
        assert!(sent < 100);

        stream.write_all(b"{\"command\":\"stop\"}\n").unwrap();
        assert!(matches!(answers.next(), Some(Answer::Done)));
    });
    assert_eq!(ended, Ended::Asked);
}

#[test]
fn an_engine_that_dies_ends_the_plane() {
    let engine = FakeEngine::answering(|_| Answer::Done);
    engine.die();
    let (ended, ()) = serve("dies", &engine, |_| ());
    assert_eq!(ended, Ended::EngineGone);
}

#[test]
fn classes_change_through_the_socket() {
    let engine = FakeEngine::answering(|_| Answer::Done);
    let (ended, ()) = serve("classes", &engine, |path| {
        let mut stream = UnixStream::connect(path).unwrap();
        let add = r#"{"command":"class-add","name":"web","keys":[["local_port","80"]],"before":null}"#;
        let wrong = r#"{"command":"class-set","name":"wb","keys":[]}"#;
        let rest = ["{\"command\":\"classes\"}", "{\"command\":\"reload\"}", "{\"command\":\"stop\"}"];
        for line in [add, wrong].into_iter().chain(rest) {
            stream.write_all(format!("{line}\n").as_bytes()).unwrap();
        }
        let mut answers = answers(&stream);
        assert!(matches!(answers.next(), Some(Answer::Done)), "once the engine has said so");
        let Some(Answer::Error { message }) = answers.next() else { panic!("no error") };
        assert_eq!(message, "there is no class `wb`; did you mean `web`?");
        let Some(Answer::Classes { classes }) = answers.next() else { panic!("no classes") };
        assert_eq!(classes[0].keys["local_port"], serde_json::json!([80]));
        let Some(Answer::Error { message }) = answers.next() else { panic!("no error") };
        assert!(message.contains("without a file"), "{message}");
        assert!(matches!(answers.next(), Some(Answer::Done)));
    });
    assert_eq!(ended, Ended::Asked);
}

#[test]
fn what_is_no_request_is_told_why_in_plain_words() {
    for (line, says) in [
        ("ps", "this is no JSON, from character 1 on"),
        ("{\"command\":\"ps\"", "this is no JSON"),
        ("[]", "a request says its command; write one request a line, such as {\"command\":\"ps\"}"),
        ("{\"command\":7}", "a request says its command"),
        ("{\"command\":\"pss\"}", "there is no command `pss`; did you mean `ps`?"),
        ("{\"command\":\"frobnicate\"}", "there are: ps, stat, graph, classes, class-add"),
        ("{\"command\":\"class-add\",\"keys\":[]}", "the command `class-add` needs \"name\""),
        ("{\"command\":\"class-add\",\"name\":1,\"keys\":[]}", "`class-add` is given values of another kind"),
        ("{\"command\":\"set\",\"keys\":[[1]]}", "`set` is given values of another kind"),
    ] {
        let refusal = super::parse(line.as_bytes()).unwrap_err();
        assert!(refusal.contains(says), "{line}: {refusal}");
        for word in ["tagged", "enum", "variant", "expected", "field", "sequence", "struct"] {
            assert!(!refusal.contains(word), "{line}: {refusal}");
        }
    }
    assert_eq!(super::parse(b"{\"command\":\"ps\"}\n"), Ok(Request::Ps));
}
