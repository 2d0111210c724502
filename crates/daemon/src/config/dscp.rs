//! DSCPs by number and by name.

use std::fmt;
use std::str::FromStr;

/// A differentiated-services code point: `46`, `"EF"`, `"AF41"`, `"CS1"`, `"LE"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dscp(pub u8);

/// The names of IANA's registry "Differentiated Services Field Codepoints" (RFC 2474, 2597, 3246, 5865, 8622), and
/// the two usual ones for the default (RFC 2474 §4.1, RFC 4594).
const NAMES: [(&str, u8); 25] = [
    ("CS0", 0),
    ("DF", 0),
    ("BE", 0),
    ("LE", 1),
    ("CS1", 8),
    ("AF11", 10),
    ("AF12", 12),
    ("AF13", 14),
    ("CS2", 16),
    ("AF21", 18),
    ("AF22", 20),
    ("AF23", 22),
    ("CS3", 24),
    ("AF31", 26),
    ("AF32", 28),
    ("AF33", 30),
    ("CS4", 32),
    ("AF41", 34),
    ("AF42", 36),
    ("AF43", 38),
    ("CS5", 40),
    ("VOICE-ADMIT", 44),
    ("EF", 46),
    ("CS6", 48),
    ("CS7", 56),
];

impl Dscp {
    /// A number, if it is one.
    pub(super) fn of(number: i64) -> Option<Dscp> {
        u8::try_from(number).ok().filter(|&number| number < 64).map(Dscp)
    }
}

impl FromStr for Dscp {
    type Err = String;

    fn from_str(text: &str) -> Result<Dscp, String> {
        let named =
            NAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)).map(|&(_, dscp)| Dscp(dscp));
        named.or_else(|| Dscp::of(text.parse().ok()?)).ok_or_else(|| {
            format!(
                "`{text}` is no DSCP; write 0 to 63 or a name such as \"EF\", \"AF41\", \"CS1\" or \"LE\""
            )
        })
    }
}

impl fmt::Display for Dscp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|&&(_, dscp)| dscp == self.0) {
            Some((name, _)) => f.write_str(name),
            None => write!(f, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Dscp;

    #[test]
    fn names_and_numbers() {
        for (text, dscp) in
            [("EF", 46), ("ef", 46), ("LE", 1), ("CS1", 8), ("AF41", 34), ("63", 63), ("BE", 0)]
        {
            assert_eq!(text.parse(), Ok(Dscp(dscp)));
        }
        for wrong in ["64", "-1", "AF44", ""] {
            let error = wrong.parse::<Dscp>().unwrap_err();
            assert!(error.contains("0 to 63") && error.contains("EF"), "{error}");
        }
        assert_eq!(
            (Dscp(46).to_string(), Dscp(45).to_string(), Dscp(0).to_string()),
            ("EF".into(), "45".into(), "CS0".into())
        );
    }
}
