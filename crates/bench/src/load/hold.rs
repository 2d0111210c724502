//! Connections that do nothing, as `scoutline load hold`: it opens them, says `holding`, and keeps them until it is
//! stopped.

use std::net::{SocketAddrV4, TcpStream};
use std::thread;

use anyhow::{Context as _, Result};
use clap::Parser;

use crate::sys;

/// What `scoutline load hold` is told.
#[derive(Clone, Debug, Parser)]
#[command(name = "load hold", about = "Connections that do nothing")]
pub struct HoldArguments {
    /// The server.
    #[arg(long)]
    pub connect: SocketAddrV4,
    /// How many connections.
    #[arg(long)]
    pub count: usize,
}

/// Opens them, and waits until it is stopped.
pub fn hold(arguments: &HoldArguments) -> Result<()> {
    sys::raise_file_limit()?;
    let server = arguments.connect;
    let connect = |at| TcpStream::connect(server).with_context(|| format!("connection {at} to {server}"));
    let held: Result<Vec<TcpStream>> = (0..arguments.count).map(connect).collect();
    let _held = held?;
    println!("holding");
    loop {
        thread::park();
    }
}
