//! Calls: from what the script writes to an [`Op`], and whether the answer is right.

use std::net::Ipv4Addr;

use scoutline_base::Address;

use crate::packet::{REMOTE, pattern_at};
use crate::script::{Call, Place, Value};
use crate::stack::{Answer, Op};

use super::{Failure, Fd, LOCAL_PORT, Result, Runner, Waiting, names};

/// What a call asks for beside its result.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked {
    /// The descriptor that it is about.
    fd: i32,
    kind: Kind,
    /// An int that an option or ioctl must give.
    int: Option<i64>,
    /// For `poll`.
    events: Vec<Option<i16>>,
    /// A name, as text.
    name: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Plain,
    /// It makes a descriptor; a stream's or a datagram socket's.
    Makes {
        datagram: bool,
    },
    Sends,
    /// Takes what it receives, unless it peeks; what it receives is compared unless it is thrown away.
    Receives {
        peeks: bool,
        truncates: bool,
    },
}

/// An answer for people.
pub(super) fn describe(answer: &Answer) -> String {
    if answer.value < 0 { names::errno_name(answer.errno) } else { answer.value.to_string() }
}

impl Runner<'_> {
    /// Does a call. With `due` it may block, and must return then.
    pub(super) fn call(&mut self, call: &Call, at: i64, due: Option<i64>, place: &Place) -> Result<()> {
        let (op, asked) = self.op_of(call).map_err(|what| Failure::Unsupported(place.clone(), what))?;
        let new_fd = call.result.map_or(-1, |fd| fd as i32);
        self.stack.start(op, new_fd);
        let waiting = Waiting { place: place.clone(), call: call.clone(), asked, due: due.unwrap_or(at) };
        self.waiting = Some(waiting);
        self.collect(place)?;
        if due.is_none() {
            self.finish(place)?;
        }
        Ok(())
    }

    /// Whether an answer is what the script says.
    pub(super) fn check_answer(
        &mut self,
        call: &Call,
        asked: &Asked,
        answer: &Answer,
        place: &Place,
    ) -> Result<()> {
        let differs = |text: String| Err(Failure::Differs(place.clone(), format!("{}: {text}", call.name)));
        let makes = matches!(asked.kind, Kind::Makes { .. });
        if let Some(expected) = call.result {
            let right = if makes && expected >= 0 { answer.value >= 0 } else { answer.value == expected };
            if !right {
                return differs(format!("gives {}, not {expected}", describe(answer)));
            }
        }
        if let Some(name) = &call.errno
            && (answer.value >= 0 || names::errno(name) != Some(answer.errno))
        {
            return differs(format!("gives {}, not {name}", describe(answer)));
        }
        if let Some(int) = asked.int {
            let found = answer.bytes.get(..4).and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes);
            if found.map(i64::from) != Some(int) {
                return differs(format!("tells {}, not {int}", found.unwrap_or_default()));
            }
        }
        for (index, expected) in asked.events.iter().enumerate() {
            let found = answer.events.get(index).copied().unwrap_or_default();
            if expected.is_some_and(|expected| expected != found) {
                return differs(format!("events {found:#x}, not {:#x}", expected.unwrap_or_default()));
            }
        }
        if let Some(name) = &asked.name {
            let found = answer.address.map(|(address, port)| format!("{address}:{port}")).unwrap_or_default();
            if found != *name {
                return differs(format!("tells {found}, not {name}"));
            }
        }
        self.note_data(call, asked, answer, place)
    }

    /// Counts what was written and read, and compares what was read.
    fn note_data(&mut self, call: &Call, asked: &Asked, answer: &Answer, place: &Place) -> Result<()> {
        let unchecked = self.data_unchecked;
        if let (Kind::Makes { datagram }, Some(number)) = (asked.kind, call.result)
            && answer.value >= 0
        {
            self.fds.insert(number as i32, Fd { datagram, ..Fd::default() });
        }
        let Some(fd) = self.fds.get_mut(&asked.fd) else { return Ok(()) };
        let count = answer.value.max(0) as u64;
        match asked.kind {
            Kind::Sends => fd.written += count,
            Kind::Receives { peeks, truncates } => {
                let position = if fd.datagram { 0 } else { fd.read };
                if !peeks {
                    fd.read += count;
                }
                let right = pattern_at(false, position, answer.bytes.len());
                if !truncates && !unchecked && answer.bytes != right {
                    let text = format!("{}: not what the peer sent at {position}", call.name);
                    return Err(Failure::Differs(place.clone(), text));
                }
            }
            Kind::Plain | Kind::Makes { .. } => {}
        }
        Ok(())
    }

    fn op_of(&mut self, call: &Call) -> std::result::Result<(Op, Asked), String> {
        let given = &call.arguments;
        let number = |index: usize| argument(given, index);
        let flags = |index: usize| if given.len() > index { argument(given, index) } else { Ok(0) };
        let fd = if given.is_empty() { 0 } else { number(0).unwrap_or(0) as i32 };
        let mut asked = Asked { fd, ..Asked::default() };
        let op = match call.name.as_str() {
            "socket" => {
                let kind = number(1)? as i32;
                let stream = kind & 0xf == libc::SOCK_STREAM;
                asked.kind = Kind::Makes { datagram: !stream };
                Op::Socket { inet6: false, stream, non_blocking: kind & libc::SOCK_NONBLOCK != 0 }
            }
            "bind" => {
                let port = self.port(given.get(1), LOCAL_PORT)?;
                Op::Bind { fd, at: (Address::UNSPECIFIED_V4, port) }
            }
            "listen" => Op::Listen { fd, backlog: number(1)? as i32 },
            "accept" | "accept4" => {
                asked.kind = Kind::Makes { datagram: false };
                Op::Accept { fd, non_blocking: flags(3)? as i32 & libc::SOCK_NONBLOCK != 0 }
            }
            "connect" => Op::Connect { fd, to: self.connects(fd, given.get(1))? },
            "write" | "send" | "sendto" => {
                asked.kind = Kind::Sends;
                let (len, flags) = (number(2)?.max(0) as usize, flags(3)? as i32);
                let to = match call.name.as_str() {
                    "sendto" if flags & libc::MSG_FASTOPEN != 0 => self.connects(fd, given.get(4))?,
                    "sendto" => self.address(given.get(4)),
                    _ => None,
                };
                Op::Send { fd, data: self.data(fd, len), flags, to, sent: 0 }
            }
            "writev" => {
                asked.kind = Kind::Sends;
                let len = vector_len(given.get(1))?;
                Op::Send { fd, data: self.data(fd, len), flags: 0, to: None, sent: 0 }
            }
            "sendmsg" | "recvmsg" => {
                let len = vector_len(given.get(1).and_then(|message| message.field("msg_iov")))?;
                let flags = flags(2)? as i32;
                if call.name == "sendmsg" {
                    asked.kind = Kind::Sends;
                    Op::Send { fd, data: self.data(fd, len), flags, to: None, sent: 0 }
                } else {
                    asked.kind = receives(flags);
                    Op::Receive { fd, len, flags }
                }
            }
            "read" | "recv" | "recvfrom" => {
                let flags = flags(3)? as i32;
                asked.kind = receives(flags);
                if let Some(Value::Text(from)) = given.get(4) {
                    asked.name = Some(from.clone());
                }
                Op::Receive { fd, len: number(2)?.max(0) as usize, flags }
            }
            "close" => Op::Close { fd },
            "shutdown" => Op::Shutdown { fd, how: number(1)? as i32 },
            "setsockopt" => {
                let option = (number(1)? as i32, number(2)? as i32);
                Op::SetOption { fd, option, value: option_value(option, given.get(3))? }
            }
            "getsockopt" => {
                asked.int = in_list(given.get(3));
                Op::GetOption { fd, option: (number(1)? as i32, number(2)? as i32), len: 4 }
            }
            "fcntl" => Op::Fcntl { fd, command: number(1)? as i32, argument: flags(2)? as i32 },
            "ioctl" => {
                asked.int = in_list(given.get(2));
                Op::Ioctl { fd, request: number(1)? as u64 }
            }
            "poll" => {
                let (fds, events) = poll_fds(given.first())?;
                asked.events = events;
                Op::Poll { fds, timeout: number(2)? as i32 }
            }
            "getsockname" | "getpeername" => {
                if let Some(Value::Text(name)) = given.get(1) {
                    asked.name = Some(name.clone());
                }
                Op::Name { fd, peer: call.name == "getpeername" }
            }
            name => return Err(format!("the call {name}")),
        };
        Ok((op, asked))
    }

    /// What a program writes next.
    fn data(&self, fd: i32, len: usize) -> Vec<u8> {
        let position = self.fds.get(&fd).filter(|fd| !fd.datagram).map_or(0, |fd| fd.written);
        pattern_at(true, position, len)
    }

    /// A port: `...` is the default; `"8081"` or an address says it.
    fn port(&mut self, value: Option<&Value>, default: u16) -> std::result::Result<u16, String> {
        let port = match value {
            None | Some(Value::Any) => default,
            Some(Value::Number(port)) => *port as u16,
            Some(value) => self.address(Some(value)).ok_or("this address")?.1,
        };
        self.ports.0 = Some(port).filter(|port| *port != 0);
        Ok(port)
    }

    /// Where a call connects to; `None`: to AF_UNSPEC.
    fn connects(
        &mut self,
        fd: i32,
        to: Option<&Value>,
    ) -> std::result::Result<Option<(Address, u16)>, String> {
        if matches!(to, Some(Value::Names(names)) if names == &["AF_UNSPEC"]) {
            return Ok(None);
        }
        let to = match to {
            None | Some(Value::Any) => (REMOTE.into(), LOCAL_PORT),
            value => self.address(value).ok_or("this address")?,
        };
        // The first connect makes the script's connection: the port is the peer's, ours its SYN tells.
        if self.fds.get(&fd).is_some_and(|fd| !fd.datagram)
            && self.ports == (Some(LOCAL_PORT), super::REMOTE_PORT)
        {
            self.ports = (None, to.1);
        } else {
            self.ports.1 = to.1;
        }
        Ok(Some(to))
    }

    /// `"192.0.2.1:80"`, or packetdrill's structure.
    #[allow(clippy::unused_self)] // beside its callers
    fn address(&self, value: Option<&Value>) -> Option<(Address, u16)> {
        match value? {
            Value::Any => Some((REMOTE.into(), super::REMOTE_PORT)),
            Value::Text(text) => {
                let (address, port) = text.split_once(':')?;
                Some((address.parse().ok()?, port.parse().ok()?))
            }
            structure => {
                let apply = |name: &str| match structure.field(name)? {
                    Value::Apply(_, arguments) => arguments.first().cloned(),
                    _ => None,
                };
                let Value::Text(address) = apply("sin_addr")? else { return None };
                let port = apply("sin_port")?.number()? as u16;
                Some((address.parse().ok()?, port))
            }
        }
    }
}

fn receives(flags: i32) -> Kind {
    Kind::Receives { peeks: flags & libc::MSG_PEEK != 0, truncates: flags & libc::MSG_TRUNC != 0 }
}

fn argument(given: &[Value], index: usize) -> std::result::Result<i64, String> {
    given.get(index).and_then(number_of).ok_or_else(|| format!("argument {}", index + 1))
}

fn number_of(value: &Value) -> Option<i64> {
    match value {
        Value::Number(number) => Some(*number),
        Value::Names(names) => names.iter().try_fold(0, |sum, name| Some(sum | names::value(name)?)),
        Value::Any => Some(0),
        _ => None,
    }
}

fn in_list(value: Option<&Value>) -> Option<i64> {
    match value? {
        Value::List(values) => number_of(values.first()?),
        _ => None,
    }
}

fn vector_len(value: Option<&Value>) -> std::result::Result<usize, String> {
    let Some(Value::List(parts)) = value else { return Err("this io vector".into()) };
    let len = |part: &Value| match part {
        Value::Structure(fields) => fields.get(1).and_then(|(_, value)| value.number()),
        _ => None,
    };
    parts.iter().map(len).sum::<Option<i64>>().map(|len| len.max(0) as usize).ok_or("this io vector".into())
}

/// Options about groups, whose values are addresses.
fn is_membership((level, name): (i32, i32)) -> bool {
    let names = [
        libc::IP_ADD_MEMBERSHIP,
        libc::IP_DROP_MEMBERSHIP,
        libc::IP_ADD_SOURCE_MEMBERSHIP,
        libc::IP_DROP_SOURCE_MEMBERSHIP,
    ];
    level == libc::IPPROTO_IP && names.contains(&name)
}

/// The memory of an option: ints, but for the two that are times.
fn option_value(option: (i32, i32), value: Option<&Value>) -> std::result::Result<Vec<u8>, String> {
    if let (true, Some(Value::List(values))) = (is_membership(option), value) {
        // Of addresses (`struct ip_mreq`, `struct ip_mreq_source`).
        let octets = |value: &Value| match value {
            Value::Text(text) => text.parse::<Ipv4Addr>().ok().map(|address| address.octets()),
            _ => None,
        };
        let octets: Option<Vec<[u8; 4]>> = values.iter().map(octets).collect();
        return octets.map(|octets| octets.concat()).ok_or_else(|| "these addresses".into());
    }
    let numbers: Vec<i64> = match value {
        Some(Value::List(values)) => values.iter().filter_map(number_of).collect(),
        Some(Value::Structure(fields)) => fields.iter().filter_map(|(_, value)| number_of(value)).collect(),
        Some(Value::Text(text)) => return Ok(text.clone().into_bytes()),
        _ => return Err("this value of an option".into()),
    };
    let times = [(libc::SOL_SOCKET, libc::SO_RCVTIMEO), (libc::SOL_SOCKET, libc::SO_SNDTIMEO)];
    Ok(if times.contains(&option) {
        numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
    } else {
        numbers.iter().flat_map(|number| (*number as i32).to_ne_bytes()).collect()
    })
}

/// What `poll` asks about, and what it must say.
type Polled = (Vec<(i32, i16)>, Vec<Option<i16>>);

fn poll_fds(value: Option<&Value>) -> std::result::Result<Polled, String> {
    let Some(Value::List(entries)) = value else { return Err("this list of descriptors".into()) };
    let mut polled = Polled::default();
    for entry in entries {
        let field = |name| entry.field(name).and_then(number_of);
        let (Some(fd), Some(events)) = (field("fd"), field("events")) else {
            return Err("this entry".into());
        };
        polled.0.push((fd as i32, events as i16));
        polled.1.push(field("revents").map(|events| events as i16));
    }
    Ok(polled)
}
