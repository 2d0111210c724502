//! The grammar, by recursive descent over the text.
//!
//! ```text
//! file      = { "--" name [ "=" value ] | "include" path | "`" command "`" | event }
//! event     = time ( "<" packet | ">" packet | name "(" values ")" "=" result | "quiet" )
//! time      = [ "+" ] seconds [ ( "~" | "..." ) [ "+" ] seconds ] | "*"
//! packet    = [ port ">" port ] [ "[" ecn "]" ] ( tcp | "udp" "(" n ")" | icmp | arp ) [ "{" marks "}" ]
//! tcp       = flags n ":" n "(" n ")" [ "ack" n ] [ "win" n ] [ "urg" n ] [ "<" options ">" ]
//! icmp      = [ "[" n ":" n "(" n ")" "]" ] "icmp" type [ code ] [ "mtu" n ]
//!           | "icmp" ( "echo" | "reply" ) "id" n "seq" n "(" n ")"
//! arp       = "arp" ( "request" | "reply" ) "from" address "for" address
//! ```

use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::{
    Arp, Body, Call, Ecn, Event, Icmp, Options, Packet, Place, Script, Tcp, TcpOption, Value, What, When,
    flag,
};

/// Why a script cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ParseError {
    /// The file cannot be read.
    #[error("{0}: {1}")]
    File(PathBuf, std::io::Error),
    /// The text is not of this language.
    #[error("{place}: expected {expected}, found `{found}`")]
    Text {
        /// Where.
        place: Place,
        /// What would have been right.
        expected: String,
        /// What stands there.
        found: String,
    },
}

type Result<T> = std::result::Result<T, ParseError>;

/// Files that include each other go this deep.
const MOST_INCLUDES: usize = 8;

/// Reads a script and what it includes; includes are looked for below `root`.
///
/// # Errors
/// With file and line.
pub fn load(path: &Path, root: &Path) -> Result<Script> {
    let mut script = Script {
        name: path.display().to_string(),
        about: String::new(),
        options: Vec::new(),
        events: Vec::new(),
    };
    let text = read(path)?;
    script.about = head_comment(&text);
    parse_into(&mut script, path, &text, root, 0)?;
    Ok(script)
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|error| ParseError::File(path.to_owned(), error))
}

fn head_comment(text: &str) -> String {
    let lines = text.lines().take_while(|line| line.starts_with("//"));
    lines.map(|line| line.trim_start_matches('/').trim()).collect::<Vec<_>>().join(" ")
}

fn parse_into(script: &mut Script, path: &Path, text: &str, root: &Path, depth: usize) -> Result<()> {
    let mut cursor =
        Cursor { text: text.as_bytes(), at: 0, line: 1, begun: 1, file: path.display().to_string().into() };
    loop {
        cursor.skip_blank();
        cursor.begun = cursor.line;
        if cursor.at_end() {
            return Ok(());
        }
        if cursor.eat("--") {
            let line = cursor.rest_of_line();
            let (name, value) = line.split_once('=').unwrap_or((&line, ""));
            script.options.push((name.trim().to_owned(), value.trim().to_owned()));
        } else if cursor.eat("include ") {
            let file = root.join(cursor.rest_of_line().trim());
            if depth == MOST_INCLUDES {
                return Err(cursor.error("fewer nested includes"));
            }
            let text = read(&file)?;
            parse_into(script, &file, &text, root, depth + 1)?;
        } else if cursor.peek() == b'`' || cursor.text[cursor.at..].starts_with(b"%{") {
            // Set-up of foreign scripts.
            let place = cursor.place();
            let what = cursor.foreign()?;
            script.events.push(Event { place, when: When::relative(0), what });
        } else {
            script.events.push(cursor.event()?);
        }
    }
}

impl When {
    fn relative(from: i64) -> When {
        When { relative: true, from, to: None, returns: false, any: false }
    }
}

struct Cursor<'a> {
    text: &'a [u8],
    at: usize,
    line: usize,
    /// Line on which the event began: errors name it, for what is missing is noticed further down.
    begun: usize,
    file: Rc<str>,
}

impl Cursor<'_> {
    fn at_end(&self) -> bool {
        self.at >= self.text.len()
    }

    /// The next byte; 0 at the end.
    fn peek(&self) -> u8 {
        self.text.get(self.at).copied().unwrap_or(0)
    }

    fn bump(&mut self) -> u8 {
        let byte = self.peek();
        self.line += usize::from(byte == b'\n');
        self.at += 1;
        byte
    }

    fn place(&self) -> Place {
        Place { file: Rc::clone(&self.file), line: self.line }
    }

    fn error(&self, expected: &str) -> ParseError {
        let rest = &self.text[self.at.min(self.text.len())..];
        let end = rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len()).min(40);
        ParseError::Text {
            place: Place { file: Rc::clone(&self.file), line: self.begun },
            expected: expected.to_owned(),
            found: String::from_utf8_lossy(&rest[..end]).into_owned(),
        }
    }

    /// Skips white space and comments.
    fn skip_blank(&mut self) {
        while !self.at_end() {
            let rest = &self.text[self.at..];
            if rest[0].is_ascii_whitespace() {
                self.bump();
            } else if rest.starts_with(b"//") || rest[0] == b'#' {
                while !self.at_end() && self.peek() != b'\n' {
                    self.bump();
                }
            } else if rest.starts_with(b"/*") {
                while !self.at_end() && !self.text[self.at..].starts_with(b"*/") {
                    self.bump();
                }
                self.at = (self.at + 2).min(self.text.len());
            } else {
                return;
            }
        }
    }

    /// Takes this text if it comes next.
    fn eat(&mut self, what: &str) -> bool {
        self.skip_blank();
        let found = self.text[self.at.min(self.text.len())..].starts_with(what.as_bytes());
        if found {
            self.at += what.len();
        }
        found
    }

    fn expect(&mut self, what: &str) -> Result<()> {
        if self.eat(what) { Ok(()) } else { Err(self.error(&format!("`{what}`"))) }
    }

    fn rest_of_line(&mut self) -> String {
        let start = self.at;
        while !self.at_end() && self.peek() != b'\n' {
            self.at += 1;
        }
        let line = String::from_utf8_lossy(&self.text[start..self.at]).into_owned();
        line.split(" //").next().unwrap_or_default().to_owned()
    }

    /// A name, without taking it.
    fn look_word(&mut self) -> &str {
        self.skip_blank();
        let rest = &self.text[self.at.min(self.text.len())..];
        let len = rest.iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_').count();
        std::str::from_utf8(&rest[..len]).unwrap_or_default()
    }

    fn word(&mut self) -> Result<String> {
        let word = self.look_word().to_owned();
        if word.is_empty() {
            return Err(self.error("a name"));
        }
        self.at += word.len();
        Ok(word)
    }

    /// Takes this whole word if it comes next.
    fn eat_word(&mut self, what: &str) -> bool {
        let found = self.look_word() == what;
        if found {
            self.at += what.len();
        }
        found
    }

    fn number(&mut self) -> Result<i64> {
        self.skip_blank();
        let negative = self.eat("-");
        let hexadecimal = self.eat("0x");
        let start = self.at;
        while self.peek().is_ascii_digit() || (hexadecimal && self.peek().is_ascii_hexdigit()) {
            self.at += 1;
        }
        let digits = std::str::from_utf8(&self.text[start..self.at]).unwrap_or_default();
        match i64::from_str_radix(digits, if hexadecimal { 16 } else { 10 }) {
            Ok(number) => Ok(if negative { -number } else { number }),
            Err(_) => Err(self.error("a number")),
        }
    }

    fn narrow<T: TryFrom<i64>>(&mut self) -> Result<T> {
        let number = self.number()?;
        T::try_from(number).map_err(|_| self.error("a number that fits"))
    }

    /// Seconds as microseconds.
    fn seconds(&mut self) -> Result<i64> {
        self.skip_blank();
        let start = self.at;
        while self.peek().is_ascii_digit()
            || (self.peek() == b'.' && !self.text[self.at..].starts_with(b".."))
        {
            self.at += 1;
        }
        let text = std::str::from_utf8(&self.text[start..self.at]).unwrap_or_default();
        match text.parse::<f64>() {
            Ok(seconds) => Ok((seconds * 1e6).round() as i64),
            Err(_) => Err(self.error("a time in seconds")),
        }
    }

    fn when(&mut self) -> Result<When> {
        if self.eat("*") {
            return Ok(When { any: true, ..When::relative(0) });
        }
        let relative = self.eat("+");
        let from = self.seconds()?;
        let mut when = When { relative, from, to: None, returns: false, any: false };
        if self.eat("~") {
            self.eat("+");
            when.to = Some(self.seconds()?);
        } else if self.eat("...") {
            self.eat("+");
            when.to = Some(self.seconds()?);
            when.returns = true;
        }
        Ok(when)
    }

    fn event(&mut self) -> Result<Event> {
        self.skip_blank();
        let place = self.place();
        let when = self.when()?;
        let what = if self.eat("<") {
            What::In(self.packet()?)
        } else if self.eat(">") {
            What::Out(self.packet()?)
        } else if self.eat_word("quiet") {
            What::Quiet
        } else if self.peek() == b'`' || self.text[self.at..].starts_with(b"%{") {
            self.foreign()?
        } else {
            What::Call(self.call()?)
        };
        Ok(Event { place, when, what })
    }

    fn foreign(&mut self) -> Result<What> {
        let (open, close, code) = if self.peek() == b'`' { ("`", "`", false) } else { ("%{", "}%", true) };
        self.expect(open)?;
        let start = self.at;
        while !self.text[self.at..].starts_with(close.as_bytes()) {
            if self.at_end() {
                return Err(self.error(close));
            }
            self.bump();
        }
        let text = String::from_utf8_lossy(&self.text[start..self.at]).into_owned();
        self.at += close.len();
        Ok(if code { What::Code(text) } else { What::Command(text) })
    }

    fn packet(&mut self) -> Result<Packet> {
        let ports = self.ports()?;
        let mut about = None;
        let mut ecn = None;
        if self.eat("[") {
            match self.look_word() {
                word if word.starts_with(|first: char| first.is_ascii_digit()) => {
                    about = Some(self.range()?);
                }
                _ => ecn = Some(self.ecn()?),
            }
            self.expect("]")?;
        }
        let body = match self.look_word() {
            "udp" => {
                self.word()?;
                Body::Udp(self.len()?)
            }
            "icmp" => {
                self.word()?;
                Body::Icmp(self.icmp(about)?)
            }
            "arp" => {
                self.word()?;
                Body::Arp(self.arp()?)
            }
            _ => Body::Tcp(self.tcp()?),
        };
        Ok(Packet { ports, ecn, body, marks: self.marks()? })
    }

    /// `40001>8080`, but not the `1:1(0)` of a segment.
    fn ports(&mut self) -> Result<Option<(u16, u16)>> {
        self.skip_blank();
        let rest = &self.text[self.at..];
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 || rest.get(digits) != Some(&b'>') {
            return Ok(None);
        }
        let from = self.narrow()?;
        self.expect(">")?;
        Ok(Some((from, self.narrow()?)))
    }

    fn ecn(&mut self) -> Result<Ecn> {
        match self.word()?.as_str() {
            "noecn" => Ok(Ecn::Not),
            "ect0" => Ok(Ecn::Ect0),
            "ect1" => Ok(Ecn::Ect1),
            "ce" => Ok(Ecn::Ce),
            _ => Err(self.error("noecn, ect0, ect1 or ce")),
        }
    }

    fn len(&mut self) -> Result<u32> {
        self.expect("(")?;
        let len = self.narrow()?;
        self.expect(")")?;
        Ok(len)
    }

    /// `first:end(len)`
    fn range(&mut self) -> Result<(u32, u32)> {
        let first: u32 = self.narrow()?;
        self.expect(":")?;
        let end: u32 = self.narrow()?;
        let len = self.len()?;
        if end.wrapping_sub(first) != len {
            return Err(self.error("first + length to be the end"));
        }
        Ok((first, len))
    }

    fn flags(&mut self) -> Result<u8> {
        self.skip_blank();
        let mut flags = 0;
        let start = self.at;
        loop {
            flags |= match self.peek() {
                b'F' => flag::FIN,
                b'S' => flag::SYN,
                b'R' => flag::RST,
                b'P' => flag::PSH,
                b'.' => flag::ACK,
                b'U' => flag::URG,
                b'E' => flag::ECE,
                b'W' => flag::CWR,
                b'-' => 0,
                _ if self.at > start => return Ok(flags),
                _ => {
                    return Err(self.error("a packet: flags (S, F, R, P, ., U, E, W or -), udp, icmp or arp"));
                }
            };
            self.at += 1;
        }
    }

    fn tcp(&mut self) -> Result<Tcp> {
        let flags = self.flags()?;
        let (sequence, len) = self.range()?;
        let mut tcp = Tcp {
            flags,
            sequence,
            len,
            acknowledgment: None,
            window: None,
            urgent: None,
            options: Options::List(Vec::new()),
        };
        if self.eat_word("ack") {
            tcp.acknowledgment = Some(self.narrow()?);
        }
        if self.eat_word("win") {
            tcp.window = Some(self.narrow()?);
        }
        if self.eat_word("urg") {
            tcp.urgent = Some(self.narrow()?);
        }
        if self.eat("<") {
            tcp.options = self.options()?;
        }
        Ok(tcp)
    }

    fn options(&mut self) -> Result<Options> {
        if self.eat("...") {
            self.expect(">")?;
            return Ok(Options::Any);
        }
        let mut list = Vec::new();
        while !self.eat(">") {
            if !list.is_empty() {
                self.expect(",")?;
            }
            list.push(self.option()?);
        }
        Ok(Options::List(list))
    }

    fn or_any<T: TryFrom<i64>>(&mut self) -> Result<Option<T>> {
        if self.eat("*") { Ok(None) } else { self.narrow().map(Some) }
    }

    fn option(&mut self) -> Result<TcpOption> {
        Ok(match self.word()?.as_str() {
            "eol" => TcpOption::End,
            "nop" => TcpOption::Nop,
            "mss" => TcpOption::Mss(self.or_any()?),
            "wscale" => TcpOption::WindowScale(self.or_any()?),
            "sackOK" => TcpOption::SackPermitted,
            "sack" => {
                let mut blocks = Vec::new();
                loop {
                    self.skip_blank();
                    if !self.peek().is_ascii_digit() {
                        return Ok(TcpOption::Sack(blocks));
                    }
                    let first = self.narrow()?;
                    self.expect(":")?;
                    blocks.push((first, self.narrow()?));
                }
            }
            "TS" => {
                self.expect("val")?;
                let value = self.or_any()?;
                self.expect("ecr")?;
                TcpOption::Timestamps(value, self.or_any()?)
            }
            "kind" => TcpOption::Other(self.narrow()?, self.bytes()?),
            "raw" => TcpOption::Raw(self.bytes()?),
            _ => return Err(self.error("an option: mss, wscale, sackOK, sack, TS, nop, eol, kind or raw")),
        })
    }

    fn bytes(&mut self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        loop {
            self.skip_blank();
            if !self.peek().is_ascii_digit() {
                return Ok(bytes);
            }
            bytes.push(self.narrow()?);
        }
    }

    fn icmp(&mut self, about: Option<(u32, u32)>) -> Result<Icmp> {
        let kind = match self.word()?.as_str() {
            word @ ("echo" | "reply") => {
                self.expect("id")?;
                let id = self.narrow()?;
                self.expect("seq")?;
                return Ok(Icmp::Echo(word == "echo", id, self.narrow()?, self.len()?));
            }
            "unreachable" => 3,
            "source_quench" => 4,
            "redirect" => 5,
            "time_exceeded" => 11,
            "parameter_problem" => 12,
            _ => return Err(self.error("an ICMP message")),
        };
        let code = match (kind, self.look_word()) {
            (3, "net_unreachable") | (11, "ttl") | (12, "pointer") => 0,
            (3, "host_unreachable") | (11, "reassembly") => 1,
            (3, "protocol_unreachable") => 2,
            (3, "port_unreachable") => 3,
            (3, "frag_needed") => 4,
            (3, "source_route_failed") => 5,
            (3, "admin_prohibited") => 13,
            _ => u8::MAX,
        };
        let code = if code == u8::MAX { 0 } else { self.word().map(|_| code)? };
        let mtu = if self.eat_word("mtu") { Some(self.narrow()?) } else { None };
        Ok(Icmp::Error { kind, code, mtu, about })
    }

    fn arp(&mut self) -> Result<Arp> {
        let request = match self.word()?.as_str() {
            "request" => true,
            "reply" => false,
            _ => return Err(self.error("request or reply")),
        };
        self.expect("from")?;
        let sender = self.address()?;
        self.expect("for")?;
        Ok(Arp { request, sender, target: self.address()? })
    }

    fn address(&mut self) -> Result<std::net::Ipv4Addr> {
        self.skip_blank();
        let start = self.at;
        while self.peek().is_ascii_digit() || self.peek() == b'.' {
            self.at += 1;
        }
        let text = std::str::from_utf8(&self.text[start..self.at]).unwrap_or_default();
        text.parse().map_err(|_| self.error("an address"))
    }

    fn marks(&mut self) -> Result<Vec<(String, Option<String>)>> {
        let mut marks = Vec::new();
        if !self.eat("{") {
            return Ok(marks);
        }
        while !self.eat("}") {
            if !marks.is_empty() {
                self.expect(",")?;
            }
            let name = self.word()?;
            self.skip_blank();
            let start = self.at;
            while !matches!(self.peek(), b',' | b'}' | b'\n' | 0) {
                self.at += 1;
            }
            let value = String::from_utf8_lossy(&self.text[start..self.at]).trim().to_owned();
            marks.push((name, (!value.is_empty()).then_some(value)));
        }
        Ok(marks)
    }

    fn call(&mut self) -> Result<Call> {
        let name = self.word()?;
        self.expect("(")?;
        let arguments = self.values(")")?;
        self.expect("=")?;
        let result = if self.eat("...") { None } else { Some(self.number()?) };
        let mut errno = None;
        if self.look_word().starts_with('E') {
            errno = Some(self.word()?);
            if self.eat("(") {
                while !self.at_end() && self.bump() != b')' {}
            }
        }
        Ok(Call { name, arguments, result, errno })
    }

    fn values(&mut self, close: &str) -> Result<Vec<Value>> {
        let mut values = Vec::new();
        while !self.eat(close) {
            if !values.is_empty() {
                self.expect(",")?;
            }
            values.push(self.value()?);
        }
        Ok(values)
    }

    fn value(&mut self) -> Result<Value> {
        self.skip_blank();
        Ok(match self.peek() {
            b'.' => {
                self.expect("...")?;
                Value::Any
            }
            b'"' => {
                self.bump();
                let start = self.at;
                while !self.at_end() && self.peek() != b'"' {
                    self.bump();
                }
                let text = String::from_utf8_lossy(&self.text[start..self.at]).into_owned();
                self.expect("\"")?;
                Value::Text(text)
            }
            b'[' => {
                self.bump();
                Value::List(self.values("]")?)
            }
            b'{' => {
                self.bump();
                let mut fields = Vec::new();
                while !self.eat("}") {
                    if !fields.is_empty() {
                        self.expect(",")?;
                    }
                    fields.push(self.field()?);
                }
                Value::Structure(fields)
            }
            b'-' | b'0'..=b'9' => Value::Number(self.number()?),
            _ => {
                let name = self.word()?;
                if self.eat("(") {
                    return Ok(Value::Apply(name, self.values(")")?));
                }
                let mut names = vec![name];
                while self.eat("|") {
                    names.push(self.word()?);
                }
                Value::Names(names)
            }
        })
    }

    /// `value`, `name=value`, or packetdrill's `name(count)=value`.
    fn field(&mut self) -> Result<(Option<String>, Value)> {
        let value = self.value()?;
        if !self.eat("=") {
            return Ok((None, value));
        }
        match value {
            Value::Names(names) if names.len() == 1 => Ok((Some(names[0].clone()), self.value()?)),
            Value::Apply(name, _) => Ok((Some(name), self.value()?)),
            _ => Err(self.error("a name before `=`")),
        }
    }
}
