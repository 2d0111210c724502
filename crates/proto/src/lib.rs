//! Ethernet, ARP, IPv4, ICMP, UDP, TCP as modules and stages. Pure.
