//! What `--so_flags` may say: `name=value` or `name`, with commas between. The defaults are those of packetdrill's own
//! `run_all.py`.
//!
//! | flag | default | what |
//! |---|---|---|
//! | `ip4=ADDRESS/LEN` | 192.168.0.1/16 | our address: packetdrill's `--local_ip` |
//! | `gateway4=ADDRESS` | 192.168.0.2 | behind it lies `--remote_ip` |
//! | `ip6=ADDRESS/LEN` | fd3d:a0b:17d6::1/64 | the same of IPv6 |
//! | `gateway6=ADDRESS` | fd3d:a0b:17d6::2 | |
//! | `mtu=BYTES` | 1500 | packetdrill's `--mtu` |
//! | `seed=NUMBER` | 1 | what everything random follows from |
//! | `sysctls` | off | take over the kernel's settings of TCP, as the script's first commands leave them |
//! | `congestion=NAME` | the kernel's, or cubic | congestion control, whatever the kernel's is |
//!
//! With `sysctls` scripts that set up the kernel set up our stack. Run packetdrill in a network namespace of its own
//! then (`unshare -n`), or it is the machine's settings that those scripts change.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use scoutline_proto::tcp::Algorithm;

/// The flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flags {
    /// Our address, the length of its prefix, the gateway.
    pub ip4: (Ipv4Addr, u8, Ipv4Addr),
    /// The same of IPv6.
    pub ip6: (Ipv6Addr, u8, Ipv6Addr),
    /// Of the link, in bytes.
    pub mtu: u32,
    /// What everything random follows from.
    pub seed: u64,
    /// Take over the kernel's settings.
    pub sysctls: bool,
    /// Congestion control, if said.
    pub congestion: Option<Algorithm>,
}

impl Default for Flags {
    fn default() -> Flags {
        let ip6 = |last| Ipv6Addr::new(0xfd3d, 0x0a0b, 0x17d6, 0, 0, 0, 0, last);
        Flags {
            ip4: (Ipv4Addr::new(192, 168, 0, 1), 16, Ipv4Addr::new(192, 168, 0, 2)),
            ip6: (ip6(1), 64, ip6(2)),
            mtu: 1500,
            seed: 1,
            sysctls: false,
            congestion: None,
        }
    }
}

/// A flag that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FlagError {
    /// There is no such flag.
    #[error("there is no flag {0:?}; there are ip4, gateway4, ip6, gateway6, mtu, seed, sysctls, congestion")]
    Unknown(String),
    /// Its value is none.
    #[error("{0:?} is no value of {1}")]
    Value(String, String),
}

impl FromStr for Flags {
    type Err = FlagError;

    fn from_str(text: &str) -> Result<Flags, FlagError> {
        let mut flags = Flags::default();
        for flag in text.split(',').map(str::trim).filter(|flag| !flag.is_empty()) {
            let (name, value) = flag.split_once('=').unwrap_or((flag, ""));
            match name {
                "ip4" => (flags.ip4.0, flags.ip4.1) = network(name, value, 32)?,
                "gateway4" => flags.ip4.2 = parse(name, value)?,
                "ip6" => (flags.ip6.0, flags.ip6.1) = network(name, value, 128)?,
                "gateway6" => flags.ip6.2 = parse(name, value)?,
                "mtu" => flags.mtu = parse(name, value)?,
                "seed" => flags.seed = parse(name, value)?,
                "sysctls" => flags.sysctls = true,
                "congestion" => {
                    let wrong = || FlagError::Value(value.to_owned(), name.to_owned());
                    flags.congestion = Some(Algorithm::by_name(value).ok_or_else(wrong)?);
                }
                _ => return Err(FlagError::Unknown(name.to_owned())),
            }
        }
        Ok(flags)
    }
}

fn parse<T: FromStr>(name: &str, value: &str) -> Result<T, FlagError> {
    value.parse().map_err(|_| FlagError::Value(value.to_owned(), name.to_owned()))
}

fn network<T: FromStr>(name: &str, value: &str, longest: u8) -> Result<(T, u8), FlagError> {
    let (address, len) = value.split_once('/').unwrap_or((value, ""));
    let len: u8 = parse(name, len)?;
    if len > longest {
        return Err(FlagError::Value(value.to_owned(), name.to_owned()));
    }
    Ok((parse(name, address)?, len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read() {
        let flags: Flags = "ip4=10.0.0.1/8, gateway4=10.0.0.2,mtu=1280,sysctls".parse().expect("flags");
        assert_eq!(flags.ip4, (Ipv4Addr::new(10, 0, 0, 1), 8, Ipv4Addr::new(10, 0, 0, 2)));
        assert_eq!((flags.mtu, flags.sysctls, flags.seed), (1280, true, 1));
        assert_eq!("".parse(), Ok(Flags::default()));
    }

    #[test]
    fn what_is_no_flag_is_told() {
        assert_eq!("color=red".parse::<Flags>(), Err(FlagError::Unknown("color".into())));
        for wrong in ["ip4=10.0.0.1", "ip4=10.0.0.1/33", "mtu=", "gateway6=10.0.0.1", "congestion=slow"] {
            assert!(matches!(wrong.parse::<Flags>(), Err(FlagError::Value(..))), "{wrong}");
        }
    }
}
