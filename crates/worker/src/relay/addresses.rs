//! Reads from the kernel the addresses at which other machines may reach this one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hq_protocol::access::RelayAddress;

/// Returns the addresses of a relay on this machine, or its host name if the kernel lists none.
pub(super) fn own(hostname: &str, port: u16) -> Vec<RelayAddress> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let mut found = ipv4(&read("/proc/net/fib_trie"));
    found.extend(ipv6(&read("/proc/net/if_inet6")));
    let mut hosts: Vec<String> = found.iter().map(ToString::to_string).collect();
    if hosts.is_empty() {
        hosts.push(hostname.to_owned());
    }
    hosts
        .into_iter()
        .map(|host| RelayAddress { host, port })
        .collect()
}

/// Returns the local addresses in the routing table. Each is a leaf, followed by its type.
fn ipv4(table: &str) -> Vec<IpAddr> {
    let mut found: Vec<IpAddr> = Vec::new();
    let mut leaf: Option<Ipv4Addr> = None;
    for line in table.lines() {
        let line = line.trim_start();
        if let Some(address) = line.strip_prefix("|-- ") {
            leaf = address.trim().parse().ok();
        } else if line.starts_with("/32 host LOCAL")
            && let Some(address) = leaf.filter(|address| !address.is_loopback())
            && !found.contains(&address.into())
        {
            // Each address is listed both in the main and in the local table.
            found.push(address.into());
        }
    }
    found
}

/// Returns the global addresses. A line is `ADDRESS INDEX PREFIX SCOPE FLAGS NAME`, in hexadecimal
/// digits.
fn ipv6(list: &str) -> Vec<IpAddr> {
    const GLOBAL: &str = "00";
    let address = |line: &str| {
        let mut words = line.split_whitespace();
        let address = u128::from_str_radix(words.next()?, 16).ok()?;
        (words.nth(2)? == GLOBAL).then_some(Ipv6Addr::from(address).into())
    };
    list.lines().filter_map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_interfaces_are_found_and_loopback_is_left_out() {
        let table = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     \
                     |-- 192.0.2.0\n        /24 link UNICAST\nLocal:\n  +-- 0.0.0.0/0 2 0 2\n        \
                     |-- 127.0.0.1\n           /32 host LOCAL\n           |-- 192.0.2.2\n              /32 host LOCAL\n           \
                     |-- 192.0.2.255\n              /32 link BROADCAST\n           |-- 192.0.2.2\n              /32 host LOCAL\n";
        assert_eq!(ipv4(table), [IpAddr::from([192, 0, 2, 2])]);
        let list = "00000000000000000000000000000001 01 80 10 80       lo\n\
                    fe80000000000000020c29fffe2b0e5c 02 40 20 80     eth0\n\
                    20010db8000000000000000000000001 02 40 00 80     eth0\n";
        let expected: IpAddr = "2001:db8::1".parse().expect("an address");
        assert_eq!(ipv6(list), [expected]);
        assert!(ipv4("").is_empty() && ipv6("garbage\n").is_empty());
    }

    #[test]
    fn there_is_always_one() {
        let found = own("node1", 7);
        assert!(!found.is_empty() && found.iter().all(|address| address.port == 7));
    }
}
