//! Sends back what it gets, as `scoutline load echo` does.

use anyhow::{Context as _, Result};
use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::{tcp, udp};
use smoltcp::time::Instant;

use crate::{BUFFER, Service, listen};

/// No message is longer.
const ROOM: usize = 2048;

/// Over TCP: one connection, and one that comes before its end is seen.
pub(crate) struct Tcp {
    sockets: [SocketHandle; 2],
    port: u16,
}

impl Tcp {
    pub(crate) fn new(sockets: &mut SocketSet<'_>, port: u16) -> Result<Tcp> {
        let handles = [listen(sockets, port)?, listen(sockets, port)?];
        for handle in handles {
            sockets.get_mut::<tcp::Socket>(handle).set_nagle_enabled(false);
        }
        Ok(Tcp { sockets: handles, port })
    }
}

impl Service for Tcp {
    fn on_poll(&mut self, sockets: &mut SocketSet<'_>, _now: Instant) -> Result<()> {
        let mut room = [0; ROOM];
        for handle in self.sockets {
            let socket = sockets.get_mut::<tcp::Socket>(handle);
            while socket.can_recv() && socket.send_capacity() - socket.send_queue() >= ROOM {
                let count = socket.recv_slice(&mut room)?;
                socket.send_slice(&room[..count])?;
            }
            if !socket.may_recv() && socket.state() == tcp::State::CloseWait {
                socket.close();
            }
            if !socket.is_open() {
                socket.listen(self.port).context("cannot listen")?;
            }
        }
        Ok(())
    }
}

/// Over UDP.
pub(crate) struct Udp {
    socket: SocketHandle,
}

impl Udp {
    pub(crate) fn new(sockets: &mut SocketSet<'_>, port: u16) -> Result<Udp> {
        let buffer = || udp::PacketBuffer::new(vec![udp::PacketMetadata::EMPTY; 1024], vec![0; BUFFER]);
        let mut socket = udp::Socket::new(buffer(), buffer());
        socket.bind(port).context("cannot bind")?;
        Ok(Udp { socket: sockets.add(socket) })
    }
}

impl Service for Udp {
    fn on_poll(&mut self, sockets: &mut SocketSet<'_>, _now: Instant) -> Result<()> {
        let mut room = [0; ROOM];
        let socket = sockets.get_mut::<udp::Socket>(self.socket);
        while socket.can_recv() && socket.can_send() {
            // One that is longer than the room is lost.
            let Ok((count, from)) = socket.recv_slice(&mut room) else { continue };
            socket.send_slice(&room[..count], from.endpoint)?;
        }
        Ok(())
    }
}
