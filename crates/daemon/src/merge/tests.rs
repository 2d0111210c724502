use super::*;

fn stat(busy: u64, rx: u64, class_paths: u64) -> Answer {
    let counters = |name: &str, count| BTreeMap::from([(name.to_owned(), count)]);
    Answer::Stat(Stat {
        engine: counters("busy-ns", busy),
        devices: BTreeMap::from([("eth1".to_owned(), counters("rx-packets", rx))]),
        classes: vec![ClassRow { name: "default".into(), paths: class_paths, ..ClassRow::default() }],
        programs: vec![ProgramRow {
            name: "nginx".into(),
            pid: 7,
            processes: 3,
            sockets: 2,
            ..ProgramRow::default()
        }],
        notices: vec!["the same".into()],
        ..Stat::default()
    })
}

#[test]
fn counts_are_added_and_each_engine_is_seen() {
    let Answer::Stat(all) = merge(vec![stat(5, 10, 1), stat(7, 30, 4)]) else { panic!("another answer") };
    assert_eq!(all.engine["busy-ns"], 12);
    assert_eq!(all.engines.iter().map(|one| one["busy-ns"]).collect::<Vec<_>>(), [5, 7]);
    assert_eq!(all.devices["eth1"]["rx-packets"], 40);
    assert_eq!((all.classes.len(), all.classes[0].paths), (1, 5));
    assert_eq!((all.programs.len(), all.programs[0].sockets, all.programs[0].processes), (1, 4, 3));
    assert_eq!(all.notices, ["the same"]);
}

#[test]
fn paths_say_whose_they_are_and_a_refusal_counts() {
    let paths = |id: &str| Answer::Paths { paths: vec![PathRow { id: id.into(), ..PathRow::default() }] };
    let Answer::Paths { paths: all } = merge(vec![paths("1.0"), paths("1.0")]) else {
        panic!("another answer")
    };
    assert_eq!(
        all.iter().map(|row| (row.engine, row.id.as_str())).collect::<Vec<_>>(),
        [(0, "0:1.0"), (1, "1:1.0")]
    );
    let refused = Answer::Error { message: "no".into() };
    assert!(matches!(merge(vec![Answer::Done, refused]), Answer::Error { .. }));
    assert!(matches!(merge(vec![Answer::Done, Answer::Done]), Answer::Done));
}
