//! Connected UDP sockets by the thousand, most of which do nothing, as `scoutline load herd`: it opens them, says
//! `holding`, asks [`echo`](super::echo) on a few of them for a while if told so, says what came of that, and keeps all until
//! it is stopped.
//!
//! Each socket is bound to a port of its own that others of its kind share (SO_REUSEPORT): a machine has not ports enough
//! for a million.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use serde::{Deserialize, Serialize};

use crate::sys;

/// Questions that are under way at a time, each on a socket of its own.
const UNDER_WAY: usize = 64;
/// Bytes of a question.
const LEN: usize = 32;
/// An answer that takes longer is lost.
const PATIENCE: Duration = Duration::from_millis(200);

/// What `scoutline load herd` is told.
#[derive(Clone, Debug, Parser)]
#[command(name = "load herd", about = "Connected UDP sockets, most of which do nothing")]
pub struct HerdArguments {
    /// The other side.
    #[arg(long)]
    pub connect: SocketAddrV4,
    /// Our address.
    #[arg(long)]
    pub source: Ipv4Addr,
    /// The first socket's port; the others have those behind.
    #[arg(long)]
    pub port: u16,
    /// How many.
    #[arg(long)]
    pub count: u16,
    /// On so many of them questions are asked, in turn.
    #[arg(long, default_value_t = 0)]
    pub active: usize,
    /// For how long.
    #[arg(long, default_value_t = 1.0)]
    pub seconds: f64,
}

/// What came of asking.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct HerdReport {
    /// Questions that were answered.
    pub answered: u64,
    /// Questions that were not.
    pub lost: u64,
    /// How long that took.
    pub seconds: f64,
}

/// Opens them, asks, and waits until it is stopped.
pub fn herd(arguments: &HerdArguments) -> Result<()> {
    sys::raise_file_limit()?;
    let open = |at: u16| -> Result<UdpSocket> {
        let here = SocketAddrV4::new(arguments.source, arguments.port + at);
        let socket = sys::shared_udp_socket(here).with_context(|| format!("cannot take {here}"))?;
        socket.connect(arguments.connect).with_context(|| format!("cannot connect {here}"))?;
        Ok(socket)
    };
    let sockets: Vec<UdpSocket> = (0..arguments.count).map(open).collect::<Result<_>>()?;
    println!("holding");
    ensure!(arguments.active <= sockets.len(), "there are not so many sockets");
    if arguments.active > 0 {
        let report = ask(&sockets[..arguments.active], Duration::from_secs_f64(arguments.seconds))?;
        println!("{}", serde_json::to_string(&report)?);
    }
    loop {
        thread::park();
    }
}

fn ask(sockets: &[UdpSocket], time: Duration) -> Result<HerdReport> {
    let mut report = HerdReport::default();
    for socket in sockets {
        socket.set_read_timeout(Some(PATIENCE))?;
    }
    let begin = Instant::now();
    let (mut question, mut room) = ([0; LEN], [0; LEN]);
    for part in sockets.chunks(UNDER_WAY).cycle() {
        if begin.elapsed() >= time {
            break;
        }
        // Each turn asks something else, so that a late answer is not taken for that to the next.
        question[..8].copy_from_slice(&(report.answered + report.lost).to_le_bytes());
        for socket in part {
            socket.send(&question).context("cannot send")?;
        }
        for socket in part {
            loop {
                match socket.recv(&mut room) {
                    Ok(len) if room[..len] == question => report.answered += 1,
                    Ok(_) => continue,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => report.lost += 1,
                    Err(error) => return Err(error).context("cannot receive"),
                }
                break;
            }
        }
    }
    report.seconds = begin.elapsed().as_secs_f64();
    Ok(report)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};
    use std::time::Duration;

    #[test]
    fn questions_are_answered_and_counted() {
        let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let there = server.local_addr().unwrap();
        std::thread::spawn(move || {
            let mut room = [0; 64];
            while let Ok((len, from)) = server.recv_from(&mut room) {
                server.send_to(&room[..len], from).unwrap();
            }
        });
        let socket = |_| {
            // Not shared: of shared ports the kernel gives one to two sockets at times, and one of them hears nothing.
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            socket.connect(there).unwrap();
            socket
        };
        let sockets: Vec<UdpSocket> = (0..100).map(socket).collect();
        let report = super::ask(&sockets, Duration::from_millis(50)).unwrap();
        assert!(report.answered >= 64 && report.lost < report.answered, "{report:?}");
    }
}
