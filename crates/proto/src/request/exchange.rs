//! The requests and responses of one connection, joined: which class it is of now.
//!
//! The class is that of the most important request among those that were read and not answered, so that what blocks
//! an important request is as important as it is. When all are answered, it stays that of the last one: the head of
//! the next request comes with the old class. Of equally important ones, the one to be answered first gives it.
//!
//! Responses come in the order of the requests (RFC 9112 §9.3.2), so counting them tells which one is answered.

use std::collections::VecDeque;

use super::http::{
    RequestEvent, RequestKind, RequestReader, ResponseEvent, ResponseReader, State as ReaderState,
};
use super::matcher::{Facts, Importance, Matcher};
use super::tls::{self, ClientHello};
use super::{Limits, Opaque};
use crate::bindings::ClassIndex;

/// What one connection is being asked.
///
/// Inward bytes must be shown before the program gets them, each byte once, in order; outward bytes when the
/// program writes them. Each call gives the class if it has changed; between calls [`Exchange::class`] has it.
/// Once [`Exchange::opaque`] says something, there will be no more changes, and the exchange can be dropped.
#[derive(Clone, Debug)]
pub struct Exchange {
    limits: Limits,
    class: Option<ClassIndex>,
    stream: Stream,
    /// Of a TLS connection.
    server_name: Option<tls::ServerName>,
}

#[derive(Clone, Debug)]
enum Stream {
    /// Before the first byte.
    Start,
    Tls(ClientHello),
    // Boxed: an exchange that waits for its first byte, or for none any more, is a hundred bytes.
    Http(Box<Http>),
    Opaque(Opaque),
}

#[derive(Clone, Debug)]
struct Http {
    requests: RequestReader,
    responses: ResponseReader,
    outstanding: Outstanding,
    /// Interim responses that the oldest request has had.
    interim: u32,
}

impl Exchange {
    /// At the start of a connection.
    pub fn new(limits: Limits) -> Exchange {
        Exchange { limits, class: None, stream: Stream::Start, server_name: None }
    }

    /// Bytes from the peer. `possible` tells which classes the connection may still have.
    pub fn on_inward(
        &mut self,
        bytes: &[u8],
        matcher: &Matcher,
        possible: impl Fn(ClassIndex) -> bool,
    ) -> Option<ClassIndex> {
        let before = self.class;
        if let (Stream::Start, Some(&first)) = (&self.stream, bytes.first()) {
            self.stream = Stream::detect(first, &self.limits);
        }
        match &mut self.stream {
            Stream::Start | Stream::Opaque(_) => {}
            Stream::Tls(hello) => {
                let outcome = hello.on_bytes(bytes)?;
                let over = outcome.as_ref().err().map_or(Opaque::Encrypted, |&no| no.into());
                self.server_name = outcome.as_ref().ok().cloned();
                let facts = Facts::Tls(self.server_name());
                self.class = matcher.class_of(facts, possible).or(self.class);
                self.stream = Stream::Opaque(over);
            }
            Stream::Http(http) => {
                let result = http.on_inward(bytes, self.limits.outstanding, matcher, possible);
                self.settle(result);
            }
        }
        self.class.filter(|_| self.class != before)
    }

    /// Bytes from the peer that cannot be shown.
    pub fn skip_inward(&mut self, len: u64) -> Option<ClassIndex> {
        if len == 0 {
            return None;
        }
        let before = self.class;
        match &mut self.stream {
            Stream::Start | Stream::Tls(_) => self.stream = Stream::Opaque(Opaque::Unseen),
            Stream::Opaque(_) => {}
            Stream::Http(http) => {
                http.requests.skip(len);
                let result = http.check();
                self.settle(result);
            }
        }
        self.class.filter(|_| self.class != before)
    }

    /// Bytes from the program.
    pub fn on_outward(&mut self, bytes: &[u8]) -> Option<ClassIndex> {
        let before = self.class;
        match &mut self.stream {
            // The server speaks first: none of the protocols that we know.
            Stream::Start if !bytes.is_empty() => self.stream = Stream::Opaque(Opaque::Unsolicited),
            Stream::Start | Stream::Tls(_) | Stream::Opaque(_) => {}
            Stream::Http(http) => {
                let result = http.on_outward(bytes, self.limits.interim);
                self.settle(result);
            }
        }
        self.class.filter(|_| self.class != before)
    }

    /// Bytes from the program that cannot be shown (sendfile).
    pub fn skip_outward(&mut self, len: u64) -> Option<ClassIndex> {
        let before = self.class;
        match &mut self.stream {
            Stream::Start if len > 0 => self.stream = Stream::Opaque(Opaque::Unseen),
            Stream::Start | Stream::Tls(_) | Stream::Opaque(_) => {}
            Stream::Http(http) => {
                let event = http.responses.skip(len);
                http.on_response(event);
                let result = http.check();
                self.settle(result);
            }
        }
        self.class.filter(|_| self.class != before)
    }

    /// The classes are others. What was asked is not kept, except for a TLS server name, which is looked up again; so
    /// a class by an HTTP request is kept when it `remains` (there is such a class, and it asks for the same as
    /// before), and else given up until the next request.
    pub fn on_classes_changed(
        &mut self,
        matcher: &Matcher,
        possible: impl Fn(ClassIndex) -> bool,
        remains: impl Fn(ClassIndex) -> bool,
    ) {
        let remains = |class: Option<ClassIndex>| class.filter(|&class| remains(class));
        self.class = match &mut self.stream {
            Stream::Opaque(Opaque::Encrypted | Opaque::Unnamed(_)) => {
                matcher.class_of(Facts::Tls(self.server_name.as_ref().map(tls::ServerName::as_str)), possible)
            }
            Stream::Start | Stream::Tls(_) => None,
            Stream::Opaque(_) => remains(self.class),
            Stream::Http(http) => {
                http.outstanding.change(matcher, remains);
                http.outstanding.top().or(http.outstanding.last).or(remains(self.class))
            }
        };
    }

    /// So many of the next bytes from the peer need not be shown: skipping them does as well.
    pub fn unread_inward(&self) -> u64 {
        match &self.stream {
            Stream::Start | Stream::Tls(_) => 0,
            Stream::Opaque(_) => u64::MAX,
            Stream::Http(http) => http.requests.unread(),
        }
    }

    /// So many of the next bytes from the program need not be shown: skipping them does as well.
    pub fn unread_outward(&self) -> u64 {
        match &self.stream {
            Stream::Start => 0,
            Stream::Tls(_) | Stream::Opaque(_) => u64::MAX,
            Stream::Http(http) => http.responses.unread(),
        }
    }

    /// The server name that a TLS connection gave.
    pub fn server_name(&self) -> Option<&str> {
        self.server_name.as_ref().map(tls::ServerName::as_str)
    }

    /// The class by what was asked; `None` before anything was.
    pub fn class(&self) -> Option<ClassIndex> {
        self.class
    }

    /// Requests that were read and not answered.
    pub fn outstanding(&self) -> usize {
        match &self.stream {
            Stream::Http(http) => http.outstanding.requests.len(),
            _ => 0,
        }
    }

    /// Requests that were answered: the number of the one that is being answered now, if one is.
    pub fn answered(&self) -> u64 {
        match &self.stream {
            Stream::Http(http) => http.outstanding.answered,
            _ => 0,
        }
    }

    /// Why it does not look any more.
    pub fn opaque(&self) -> Option<Opaque> {
        match self.stream {
            Stream::Opaque(reason) => Some(reason),
            _ => None,
        }
    }

    /// Bytes of memory held besides itself.
    pub fn held(&self) -> usize {
        match &self.stream {
            Stream::Http(http) => {
                size_of::<Http>() + http.requests.held() + http.responses.held() + http.outstanding.held()
            }
            Stream::Tls(hello) => hello.held(),
            Stream::Start | Stream::Opaque(_) => self.server_name().map_or(0, str::len),
        }
    }

    /// The class after `stream` has moved on, and its end if it has one.
    fn settle(&mut self, result: Result<(), Opaque>) {
        if let Stream::Http(http) = &self.stream {
            self.class = http.outstanding.top().or(http.outstanding.last).or(self.class);
        }
        if let Err(reason) = result {
            self.stream = Stream::Opaque(reason);
        }
    }
}

impl Stream {
    /// By its first byte: a TLS handshake record, or the letters of a method.
    fn detect(first: u8, limits: &Limits) -> Stream {
        match first {
            tls::HANDSHAKE => Stream::Tls(ClientHello::new(limits)),
            b'\r' | b'\n' | b'!'..=b'~' => Stream::Http(Box::new(Http {
                requests: RequestReader::new(limits),
                responses: ResponseReader::new(limits),
                outstanding: Outstanding::default(),
                interim: 0,
            })),
            _ => Stream::Opaque(Opaque::NotHttp),
        }
    }
}

impl Http {
    fn on_inward(
        &mut self,
        mut bytes: &[u8],
        limit: usize,
        matcher: &Matcher,
        possible: impl Fn(ClassIndex) -> bool,
    ) -> Result<(), Opaque> {
        while let Some(event) = self.requests.on_bytes(&mut bytes) {
            let RequestEvent::Head { request, .. } = event else { continue };
            if self.outstanding.requests.len() >= limit {
                return Err(Opaque::TooManyOutstanding);
            }
            let class = matcher.class_of(Facts::Http(&request), &possible);
            let importance = class.map_or(0, |class| matcher.importance(class));
            self.outstanding.push(class, importance, request.kind());
        }
        self.check()
    }

    fn on_outward(&mut self, mut bytes: &[u8], most_interim: u32) -> Result<(), Opaque> {
        loop {
            let answers = self.outstanding.requests.front().map(|request| request.kind);
            let Some(event) = self.responses.on_bytes(&mut bytes, answers) else { break };
            self.on_response(Some(event));
            if self.interim > most_interim {
                return Err(Opaque::TooManyInterim);
            }
        }
        self.check()
    }

    fn on_response(&mut self, event: Option<ResponseEvent>) {
        match event {
            Some(ResponseEvent::Interim(_)) => self.interim += 1,
            Some(ResponseEvent::End(_)) => {
                self.interim = 0;
                self.outstanding.pop();
                if self.outstanding.requests.is_empty() {
                    self.requests.on_answered();
                }
            }
            Some(ResponseEvent::Head { .. }) | None => {}
        }
    }

    fn check(&self) -> Result<(), Opaque> {
        match (self.requests.state(), self.responses.state()) {
            (ReaderState::Opaque(reason), _) | (_, ReaderState::Opaque(reason)) => Err(reason),
            _ => Ok(()),
        }
    }
}

/// The requests that wait for their answers, and the most important of them: a queue with a maximum, in amortised
/// constant time.
#[derive(Clone, Debug, Default)]
struct Outstanding {
    requests: VecDeque<Waiting>,
    /// The requests that no later one exceeds in importance, in order: the first is the top.
    peaks: VecDeque<Peak>,
    answered: u64,
    /// The class of the request that was answered last.
    last: Option<ClassIndex>,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    class: Option<ClassIndex>,
    kind: RequestKind,
}

#[derive(Clone, Copy, Debug)]
struct Peak {
    /// Counted from the start of the connection.
    number: u64,
    class: ClassIndex,
    importance: Importance,
}

impl Outstanding {
    fn push(&mut self, class: Option<ClassIndex>, importance: Importance, kind: RequestKind) {
        let number = self.answered + self.requests.len() as u64;
        self.requests.push_back(Waiting { class, kind });
        self.rise(number, class, importance);
    }

    /// A request behind all that are in `peaks`.
    fn rise(&mut self, number: u64, class: Option<ClassIndex>, importance: Importance) {
        let Some(class) = class else { return };
        while self.peaks.back().is_some_and(|peak| peak.importance < importance) {
            self.peaks.pop_back();
        }
        self.peaks.push_back(Peak { number, class, importance });
    }

    /// Classes have gone, and others are of another importance.
    fn change(&mut self, matcher: &Matcher, remains: impl Fn(Option<ClassIndex>) -> Option<ClassIndex>) {
        self.last = remains(self.last);
        self.peaks.clear();
        for at in 0..self.requests.len() {
            let class = remains(self.requests[at].class);
            self.requests[at].class = class;
            let importance = class.map_or(0, |class| matcher.importance(class));
            self.rise(self.answered + at as u64, class, importance);
        }
    }

    fn pop(&mut self) {
        let Some(answered) = self.requests.pop_front() else { return };
        if self.peaks.front().is_some_and(|peak| peak.number == self.answered) {
            self.peaks.pop_front();
        }
        self.answered += 1;
        self.last = answered.class.or(self.last);
        if self.requests.is_empty() && self.requests.capacity() > KEPT {
            self.requests = VecDeque::new();
            self.peaks = VecDeque::new();
        }
    }

    fn top(&self) -> Option<ClassIndex> {
        self.peaks.front().map(|peak| peak.class)
    }

    fn held(&self) -> usize {
        self.requests.capacity() * size_of::<Waiting>() + self.peaks.capacity() * size_of::<Peak>()
    }
}

/// Places of the queue that stay between requests.
const KEPT: usize = 16;

#[cfg(test)]
mod tests;
