//! A program that sends datagrams through an ordinary socket as fast as it is let: work for whoever carries them.
//! It runs until it is stopped, as `scoutline load pour …`.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};

use anyhow::{Context as _, Result};
use clap::Parser;

use crate::sys;

/// Datagrams between two looks at what has gone wrong.
const BATCH: usize = 64;

/// What `scoutline load pour` is told.
#[derive(Clone, Debug, Parser)]
#[command(name = "load pour", about = "Datagrams from a socket, as fast as can be")]
pub struct PourArguments {
    /// The port to send from.
    #[arg(long)]
    pub port: u16,
    /// To whom.
    #[arg(long)]
    pub target: SocketAddrV4,
    /// Bytes of each.
    #[arg(long, default_value_t = 64)]
    pub bytes: usize,
    /// Run on this core only.
    #[arg(long)]
    pub cpu: Option<usize>,
}

/// Sends until it is stopped. Prints `sending` before.
pub fn pour(arguments: &PourArguments) -> Result<()> {
    if let Some(core) = arguments.cpu {
        sys::set_core(core).with_context(|| format!("cannot use core {core}"))?;
    }
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, arguments.port))?;
    socket.connect(arguments.target)?;
    println!("sending");
    let datagram = vec![0x5c; arguments.bytes];
    loop {
        // Nobody need listen: a refusal concerns an earlier datagram.
        let refused = (0..BATCH).filter(|_| socket.send(&datagram).is_err()).count();
        if refused == BATCH {
            socket.send(&datagram).context("cannot send")?;
        }
    }
}
