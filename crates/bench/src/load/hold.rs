//! Connections that do nothing, as `scoutline load hold`: it opens them, says `holding`, and keeps them until it is
//! stopped.

use std::net::{SocketAddrV4, TcpStream};
use std::os::fd::OwnedFd;
use std::thread;

use anyhow::{Context as _, Result};
use clap::Parser;
use rustix::net::{AddressFamily, SocketType};

use crate::sys;

/// What `scoutline load hold` is told.
#[derive(Clone, Debug, Parser)]
#[command(name = "load hold", about = "Connections that do nothing")]
pub struct HoldArguments {
    /// The server; without one, sockets that lead nowhere.
    #[arg(long)]
    pub connect: Option<SocketAddrV4>,
    /// How many connections.
    #[arg(long)]
    pub count: usize,
}

/// Opens them, and waits until it is stopped.
pub fn hold(arguments: &HoldArguments) -> Result<()> {
    sys::raise_file_limit()?;
    let open = |at| match arguments.connect {
        Some(server) => TcpStream::connect(server)
            .map(OwnedFd::from)
            .with_context(|| format!("connection {at} to {server}")),
        None => rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)
            .with_context(|| format!("socket {at}")),
    };
    let held: Result<Vec<OwnedFd>> = (0..arguments.count).map(open).collect();
    let _held = held?;
    println!("holding");
    loop {
        thread::park();
    }
}
