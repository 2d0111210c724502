//! Low ports are for those who have the privilege (bind(2), capabilities(7), ip(7) `ip_unprivileged_port_start`): the rule
//! that library, daemon and supervisor keep.

/// CAP_NET_BIND_SERVICE.
pub const BIND_SERVICE: u32 = 10;

/// The lowest port for everybody, in this network namespace.
pub fn first_port() -> u16 {
    let first = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    first.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(1024)
}

/// The effective capabilities of who has this `/proc/PID/status`.
pub fn effective(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0)
}

/// Whether who has these capabilities may bind to any port.
pub fn may_bind_all(effective: u64) -> bool {
    effective >> BIND_SERVICE & 1 != 0
}

#[cfg(test)]
mod tests {
    use super::{effective, may_bind_all};

    #[test]
    fn the_privilege_of_low_ports_is_read() {
        let may = |status: &str| may_bind_all(effective(status));
        assert!(may("Name:\tx\nCapEff:\t0000000000000400\nCapBnd:\t0\n"));
        assert!(may("CapEff:\t000001ffffffffff\n"));
        assert!(!may("CapPrm:\t0000000000000400\nCapEff:\t00000000000003ff\n"));
        assert!(!may(""));
    }
}
