//! The program of a test (`real_programs/wishes.rs`): asks for things by the crate `scoutline-scout` on a connection to the
//! address that it is given, in a class of priority 0 and without permission to rise.

use std::net::TcpStream;
use std::process::ExitCode;

const USAGE: &str = "usage: scoutline run -- scoutline-wishes ADDRESS:PORT\n\
    connects there and asks for places in the schedule, of which a program without permission gets some";

fn main() -> ExitCode {
    match std::env::args().nth(1) {
        Some(word) if word == "--help" || word == "-h" => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        Some(peer) if !peer.starts_with('-') => {
            ask(&peer);
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn ask(peer: &str) {
    let errno = |result: std::io::Result<()>| result.err().and_then(|error| error.raw_os_error());
    let stream = TcpStream::connect(peer).unwrap();
    assert_eq!(scoutline_scout::class(&stream).unwrap(), "default");
    assert_eq!(scoutline_scout::priority(&stream).unwrap(), Some(0));
    assert_eq!(errno(scoutline_scout::set_priority(&stream, Some(1))), Some(libc::EPERM));
    assert_eq!(errno(scoutline_scout::set_class(&stream, Some("top"))), Some(libc::EPERM));
    assert_eq!(errno(scoutline_scout::set_class(&stream, Some("nosuch"))), Some(libc::ENOENT));
    scoutline_scout::set_background(&stream, true).unwrap();
    assert_eq!(scoutline_scout::priority(&stream).unwrap(), None);
    assert!(scoutline_scout::background(&stream).unwrap());
    scoutline_scout::set_background(&stream, false).unwrap();
    scoutline_scout::set_extended(&stream, Some(false)).unwrap();
    assert!(!scoutline_scout::extended(&stream).unwrap());
    scoutline_scout::set_extended(&stream, None).unwrap();
    scoutline_scout::set_priority(&stream, None).unwrap();
    scoutline_scout::set_class(&stream, None).unwrap();
    assert_eq!(scoutline_scout::priority(&stream).unwrap(), Some(0));
    println!("all of it");
}
