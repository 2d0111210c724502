//! The grammar, by recursive descent over the text.
//!
//! ```text
//! file      = { "--" name [ "=" value ] | "include" path | "`" command "`" | event }
//! event     = time ( "<" packet | ">" packet | name "(" values ")" "=" result | "quiet" )
//! time      = [ "+" ] seconds [ ( "~" | "..." ) [ "+" ] seconds ] | "*"
//! packet    = [ port ">" port ] [ "[" ecn "]" ] ( tcp | "udp" "(" n ")" | icmp | arp | ip6 ) [ "{" marks "}" ]
//! tcp       = flags n ":" n "(" n ")" [ "ack" n ] [ "win" n ] [ "urg" n ] [ "<" options ">" ]
//! icmp      = [ "[" n ":" n "(" n ")" "]" ] "icmp" type [ code ] [ "mtu" n ]
//!           | "icmp" ( "echo" | "reply" ) "id" n "seq" n "(" n ")"
//! arp       = "arp" ( "request" | "reply" ) "from" address "for" address
//! ip6       = "ip6" next "from" address "to" address [ "hop" n ] "[" { byte | ".." | "@" address | "(" n ")" } "]"
//! ```

mod call;
mod packet;
mod six;

use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::{Event, Place, Script, What, When};

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
}
