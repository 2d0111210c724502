//! Sets of host names and wildcards, by binary search: one class may list thousands.

/// RFC 1035 §2.3.4; nothing longer can be meant.
const MAX_LEN: usize = 255;

/// A name in lower case without a dot at the end.
pub(super) struct Name {
    bytes: [u8; MAX_LEN],
    len: u8,
}

impl Name {
    /// Of a host without port; `None` for what is empty or too long.
    pub(super) fn new(host: &[u8]) -> Option<Name> {
        let host = host.strip_suffix(b".").unwrap_or(host);
        let mut bytes = [0; MAX_LEN];
        let place = bytes.get_mut(..host.len())?;
        place.copy_from_slice(host);
        place.make_ascii_lowercase();
        (!host.is_empty()).then_some(Name { bytes, len: host.len() as u8 })
    }

    /// Of `host`, `host:port`, `[address]` or `[address]:port` (RFC 3986 §3.2).
    pub(super) fn of_authority(authority: &[u8]) -> Option<Name> {
        let from = if authority.first() == Some(&b'[') { memchr::memchr(b']', authority)? } else { 0 };
        let port = memchr::memchr(b':', &authority[from..]);
        Name::new(&authority[..port.map_or(authority.len(), |at| from + at)])
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// Names and wildcards, each sorted.
#[derive(Clone, Debug)]
pub(super) struct Names {
    exact: Vec<Box<[u8]>>,
    /// What follows the asterisk, dot included.
    suffixes: Vec<Box<[u8]>>,
}

impl Names {
    /// Gives back the first that is not a name.
    pub(super) fn new(names: &[String]) -> Result<Names, &str> {
        let (mut exact, mut suffixes) = (Vec::new(), Vec::new());
        for given in names {
            let (host, list) = match given.strip_prefix("*.") {
                Some(host) => (host, &mut suffixes),
                None => (given.as_str(), &mut exact),
            };
            let name = Name::new(host.as_bytes()).filter(|_| is_host(host)).ok_or(given.as_str())?;
            let dot: &[u8] = if host.len() < given.len() { b"." } else { b"" };
            list.push([dot, name.as_bytes()].concat().into_boxed_slice());
        }
        exact.sort_unstable();
        suffixes.sort_unstable();
        Ok(Names { exact, suffixes })
    }

    /// Whether the name is among them; without names, any is.
    pub(super) fn hold(&self, name: Option<&Name>) -> bool {
        if self.exact.is_empty() && self.suffixes.is_empty() {
            return true;
        }
        let Some(name) = name.map(Name::as_bytes) else { return false };
        let has =
            |list: &[Box<[u8]>], wanted: &[u8]| list.binary_search_by(|one| (**one).cmp(wanted)).is_ok();
        // No label is empty, so a suffix does not stand at the very front.
        has(&self.exact, name)
            || !self.suffixes.is_empty()
                && (1..name.len()).any(|at| name[at] == b'.' && has(&self.suffixes, &name[at..]))
    }
}

/// Letters, digits, hyphens, underscores and dots; or an IPv6 address in brackets (RFC 3986 §3.2.2).
fn is_host(host: &str) -> bool {
    match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)),
    }
}
