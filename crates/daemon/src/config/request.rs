//! What a class asks of a request: the notation, and what is wrong with it.

use scoutline_proto::request::Matcher;
use scoutline_proto::request::matcher::{
    Conditions, CookieCondition, HeaderCondition, HeaderValue, MatcherError,
};
use toml::Spanned;

use super::Class;
use super::error::Fault;

/// `requests = "…"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Requests {
    /// What peers ask of programs here.
    #[default]
    Incoming,
    /// What programs here ask of peers.
    Outgoing,
    /// Either.
    Both,
}

impl From<Requests> for scoutline_engine::Requests {
    fn from(requests: Requests) -> Self {
        match requests {
            Requests::Incoming => Self::Incoming,
            Requests::Outgoing => Self::Outgoing,
            Requests::Both => Self::Both,
        }
    }
}

/// The conditions of a class in the words of `scoutline_proto`.
pub(super) fn conditions(class: &Class) -> Conditions {
    Conditions {
        server_names: texts(&class.tls_name),
        hosts: texts(&class.host),
        paths: texts(&class.url),
        methods: Vec::new(),
        headers: class.header.iter().map(|text| header(text.get_ref())).collect(),
        cookies: class.cookie.iter().map(|text| cookie(text.get_ref())).collect(),
    }
}

fn texts(of: &[Spanned<String>]) -> Vec<String> {
    of.iter().map(|text| text.get_ref().clone()).collect()
}

fn header(text: &str) -> HeaderCondition {
    let (name, value) = match text.split_once(':') {
        Some((name, value)) => (name, HeaderValue::Exact(value.trim().to_owned())),
        None => (text, HeaderValue::Any),
    };
    HeaderCondition { name: name.trim_end().to_owned(), value }
}

fn cookie(text: &str) -> CookieCondition {
    let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
    CookieCondition { name: name.trim().to_owned(), value: value.map(|value| value.trim().to_owned()) }
}

/// Checks what a class asks of requests.
pub(super) fn check(class: &Class) -> Result<(), Fault> {
    let name = class.name.get_ref();
    let of_class = |message: String| Err(Fault { at: class.name.span(), message });
    if !class.asks_request() {
        return match &class.requests {
            None => Ok(()),
            Some(requests) => Err(Fault {
                at: requests.span(),
                message: format!(
                    "class `{name}` says whose requests it is about and asks for none: give it tls_name, host, url, \
                     header or cookie, or remove requests"
                ),
            }),
        };
    }
    if class.listen_priority.is_some() {
        return of_class(format!(
            "class `{name}` asks for a request, and a connection begins before one is read: remove listen_priority, or \
             give it to the class in which such connections begin"
        ));
    }
    if class.connections.is_some() {
        return of_class(format!(
            "class `{name}` asks for a request, and connections are limited before one is read: remove connections, or \
             give it to the class in which such connections begin"
        ));
    }
    for (key, texts) in class.request() {
        for text in texts {
            check_text(key, text)?;
        }
    }
    // What is left to find is about several of them.
    let compiled = Matcher::new([(&conditions(class), 0)]);
    match compiled {
        Ok(_) => Ok(()),
        Err(MatcherError::NeverHolds { .. }) => of_class(format!(
            "class `{name}` has tls_name and asks for HTTP: what TLS carries cannot be read, so they never hold \
             together; make two classes of it"
        )),
        Err(error) => of_class(format!("class `{name}`: {error}")),
    }
}

/// Checks one condition by itself.
fn check_text(key: &str, text: &Spanned<String>) -> Result<(), Fault> {
    let mut alone = Conditions::default();
    let given = text.get_ref();
    let remedy = match key {
        "tls_name" => {
            alone.server_names.push(given.clone());
            "a host name without port, such as \"www.example.org\", or \"*.example.org\" for all below it"
        }
        "host" => {
            alone.hosts.push(given.clone());
            "a host without port, such as \"www.example.org\" or \"10.0.0.1\", or \"*.example.org\" for all below it"
        }
        "url" => {
            alone.paths.push(given.clone());
            "the beginning of a path, with its slash, such as \"/api/\"; the host goes under `host`"
        }
        "header" => {
            alone.headers.push(header(given));
            "a name such as \"X-Tier\", or \"X-Tier: gold\""
        }
        _ => {
            alone.cookies.push(cookie(given));
            "a name such as \"session\", or \"tier=gold\""
        }
    };
    // A wildcard's own host may be a single label, a name nothing at all.
    match Matcher::new([(&alone, 0)]) {
        Ok(_) => Ok(()),
        Err(_) => Err(Fault { at: text.span(), message: format!("{key} `{given}`: give {remedy}") }),
    }
}
