//! Which class a request belongs to: the conditions of all classes, compiled.
//!
//! As in the rules about addresses and ports, a class has a list of each kind of condition. An empty list holds for
//! everything; of one kind any must hold, of different kinds all. Classes are tried in order, the first that holds
//! wins. Conditions about the network are the caller's: it says which classes are still *possible*.
//!
//! | kind | holds when |
//! |---|---|
//! | server name, host | the name is the same, or ends with what follows the asterisk of `*.example.org` (any number of labels, at least one); without case, port, and a dot at the end |
//! | path | the normalised path begins with it, byte by byte: `/admin` holds for `/administrator`, `/admin/` does not |
//! | method | it is the same, case included (RFC 9110 §9.1) |
//! | header | a field of this name is there, or has, or begins with the value, case included |
//! | cookie | a cookie of this name is there, or has the value as sent, quotes included |
//!
//! **Paths are normalised** as nginx and Apache read them, so that another spelling of a path does not escape its
//! class: cut at `?` or `#`, percent-encoding undone once (`%2F` too), runs of slashes made one, then the segments
//! `.` and `..` resolved (at the root `..` leads nowhere). An invalid percent sign stays as it is. What is left to
//! the server stays different: parameters of segments (`;v=1`), backslashes, case. Prefixes in rules are normalised
//! alike, but for their last segment, which may be the start of any.
//!
//! What is not known does not hold: HTTP conditions for a TLS connection, a host where none was sent.

mod names;
mod path;

use names::Names;
use path::Prefixes;

use super::http::Request;
use crate::bindings::ClassIndex;

/// How important a class is; greater is more important.
pub type Importance = u32;

/// What a class asks of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// Server names of TLS connections.
    pub server_names: Vec<String>,
    /// HTTP hosts.
    pub hosts: Vec<String>,
    /// Prefixes of URL paths, with the slash in front.
    pub paths: Vec<String>,
    /// HTTP methods.
    pub methods: Vec<String>,
    /// Fields of the head.
    pub headers: Vec<HeaderCondition>,
    /// Cookies.
    pub cookies: Vec<CookieCondition>,
}

/// A condition on a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderCondition {
    /// Its name, in any case.
    pub name: String,
    /// What it must be.
    pub value: HeaderValue,
}

/// What a field's value must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderValue {
    /// Anything.
    Any,
    /// This.
    Exact(String),
    /// Something that begins so.
    Prefix(String),
}

/// A condition on a cookie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CookieCondition {
    /// Its name.
    pub name: String,
    /// Its value; `None` for any.
    pub value: Option<String>,
}

/// What is known of a request.
#[derive(Clone, Copy, Debug)]
pub enum Facts<'a> {
    /// The head of an HTTP request.
    Http(&'a Request<'a>),
    /// The server name of a TLS connection, in lower case; `None` when it gave none.
    Tls(Option<&'a str>),
}

/// A condition that cannot be compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MatcherError {
    /// A name that no request can have.
    #[error("`{name}` is neither a host name nor `*.` and one, without port")]
    Name {
        /// Number of the class.
        class: ClassIndex,
        /// As given.
        name: String,
    },
    /// A path without a slash in front.
    #[error("the path `{path}` does not begin with a slash")]
    Path {
        /// Number of the class.
        class: ClassIndex,
        /// As given.
        path: String,
    },
    /// An empty method, or name of a header or cookie, or one with a character that it cannot have.
    #[error("`{token}` cannot be a method or a name")]
    Token {
        /// Number of the class.
        class: ClassIndex,
        /// As given.
        token: String,
    },
    /// Conditions on TLS and on HTTP: what TLS carries cannot be read, so they never hold together.
    #[error("a TLS server name and conditions on HTTP never hold together")]
    NeverHolds {
        /// Number of the class.
        class: ClassIndex,
    },
}

/// The conditions of all classes.
#[derive(Clone, Debug, Default)]
pub struct Matcher {
    classes: Vec<Class>,
    uses_hosts: bool,
    uses_paths: bool,
}

#[derive(Clone, Debug)]
struct Class {
    number: ClassIndex,
    importance: Importance,
    /// `None`: every request will do.
    conditions: Option<Box<Compiled>>,
}

#[derive(Clone, Debug)]
struct Compiled {
    server_names: Names,
    hosts: Names,
    paths: Prefixes,
    methods: Vec<String>,
    headers: Vec<HeaderCondition>,
    cookies: Vec<CookieCondition>,
}

impl Matcher {
    /// Compiles the classes in order; each has its position for a number.
    ///
    /// # Errors
    /// As for [`Matcher::numbered`].
    pub fn new<'a>(
        classes: impl IntoIterator<Item = (&'a Conditions, Importance)>,
    ) -> Result<Matcher, MatcherError> {
        let classes = (0..).zip(classes);
        Matcher::numbered(classes.map(|(number, (conditions, importance))| (number, conditions, importance)))
    }

    /// Compiles the classes in order. By its number a class is named, here and in exchanges.
    ///
    /// # Errors
    /// [`MatcherError`] for the first condition that makes no sense.
    pub fn numbered<'a>(
        classes: impl IntoIterator<Item = (ClassIndex, &'a Conditions, Importance)>,
    ) -> Result<Matcher, MatcherError> {
        let mut matcher = Matcher::default();
        for (number, conditions, importance) in classes {
            matcher.uses_hosts |= !conditions.hosts.is_empty();
            matcher.uses_paths |= !conditions.paths.is_empty();
            let conditions = conditions.compile(number)?;
            matcher.classes.push(Class { number, importance, conditions });
        }
        Ok(matcher)
    }

    /// Whether any class asks something of a request.
    pub fn needs_request(&self) -> bool {
        self.classes.iter().any(|class| class.conditions.is_some())
    }

    /// Whether a request could decide among these classes: one that asks something is possible, and none before it
    /// takes everything. Without this, a connection needs no [`Exchange`](super::Exchange).
    pub fn needs_request_among(&self, possible: impl Fn(ClassIndex) -> bool) -> bool {
        let first = self.classes.iter().find(|class| possible(class.number));
        first.is_some_and(|class| class.conditions.is_some())
    }

    /// The first possible class whose conditions hold.
    pub fn class_of(&self, facts: Facts<'_>, possible: impl Fn(ClassIndex) -> bool) -> Option<ClassIndex> {
        let known = Known::new(self, facts);
        let holds = |class: &Class| class.conditions.as_ref().is_none_or(|asked| asked.hold(&known));
        self.classes.iter().find(|class| possible(class.number) && holds(class)).map(|class| class.number)
    }

    /// The first possible class that asks nothing: what a connection is before its first request.
    pub fn class_without_request(&self, possible: impl Fn(ClassIndex) -> bool) -> Option<ClassIndex> {
        let mut classes = self.classes.iter().filter(|class| class.conditions.is_none());
        classes.find(|class| possible(class.number)).map(|class| class.number)
    }

    /// How important a class is; 0 for one that there is not.
    pub fn importance(&self, class: ClassIndex) -> Importance {
        self.classes.iter().find(|other| other.number == class).map_or(0, |class| class.importance)
    }
}

impl Conditions {
    /// True when every request will do.
    pub fn is_empty(&self) -> bool {
        self.server_names.is_empty() && !self.asks_http()
    }

    fn asks_http(&self) -> bool {
        !(self.hosts.is_empty()
            && self.paths.is_empty()
            && self.methods.is_empty()
            && self.headers.is_empty()
            && self.cookies.is_empty())
    }

    fn compile(&self, class: ClassIndex) -> Result<Option<Box<Compiled>>, MatcherError> {
        if self.is_empty() {
            return Ok(None);
        }
        if !self.server_names.is_empty() && self.asks_http() {
            return Err(MatcherError::NeverHolds { class });
        }
        let fields = self.headers.iter().map(|header| &header.name);
        let cookies = self.cookies.iter().map(|cookie| &cookie.name);
        if let Some(token) = self.methods.iter().chain(fields).chain(cookies).find(|token| !is_token(token)) {
            return Err(MatcherError::Token { class, token: token.clone() });
        }
        let name = |name: &str| MatcherError::Name { class, name: name.to_owned() };
        let path = |path: &str| MatcherError::Path { class, path: path.to_owned() };
        Ok(Some(Box::new(Compiled {
            server_names: Names::new(&self.server_names).map_err(name)?,
            hosts: Names::new(&self.hosts).map_err(name)?,
            paths: Prefixes::new(&self.paths).map_err(path)?,
            methods: self.methods.clone(),
            headers: self.headers.clone(),
            cookies: self.cookies.clone(),
        })))
    }
}

/// RFC 9110 §5.6.2: what methods, fields and cookies are named with.
fn is_token(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(allowed)
}

/// The facts, normalised once for all classes.
struct Known<'a> {
    request: Option<&'a Request<'a>>,
    server_name: Option<names::Name>,
    host: Option<names::Name>,
    path: Option<std::borrow::Cow<'a, [u8]>>,
}

impl<'a> Known<'a> {
    fn new(matcher: &Matcher, facts: Facts<'a>) -> Known<'a> {
        match facts {
            Facts::Tls(name) => Known {
                request: None,
                server_name: name.and_then(|name| names::Name::new(name.as_bytes())),
                host: None,
                path: None,
            },
            Facts::Http(request) => Known {
                request: Some(request),
                server_name: None,
                host: request.host.filter(|_| matcher.uses_hosts).and_then(names::Name::of_authority),
                path: request
                    .path()
                    .filter(|_| matcher.uses_paths)
                    .map(|path| path::normalise(path.as_bytes())),
            },
        }
    }
}

/// An empty condition holds for everything.
fn any_or<T>(conditions: &[T], holds: impl Fn(&T) -> bool) -> bool {
    conditions.is_empty() || conditions.iter().any(holds)
}

impl Compiled {
    fn hold(&self, known: &Known<'_>) -> bool {
        self.server_names.hold(known.server_name.as_ref())
            && self.hosts.hold(known.host.as_ref())
            && self.paths.hold(known.path.as_deref())
            && any_or(&self.methods, |method| known.request.is_some_and(|request| request.method == method))
            && any_or(&self.headers, |header| known.request.is_some_and(|request| header.holds(request)))
            && any_or(&self.cookies, |cookie| known.request.is_some_and(|request| cookie.holds(request)))
    }
}

impl HeaderCondition {
    fn holds(&self, request: &Request<'_>) -> bool {
        request.field(&self.name).any(|value| match &self.value {
            HeaderValue::Any => true,
            HeaderValue::Exact(exact) => value == exact.as_bytes(),
            HeaderValue::Prefix(prefix) => value.starts_with(prefix.as_bytes()),
        })
    }
}

impl CookieCondition {
    fn holds(&self, request: &Request<'_>) -> bool {
        let value_holds = |value: &[u8]| self.value.as_ref().is_none_or(|wanted| value == wanted.as_bytes());
        request.cookies().any(|(name, value)| name == self.name.as_bytes() && value_holds(value))
    }
}

#[cfg(test)]
mod tests;
