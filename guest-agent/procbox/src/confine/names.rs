//! Who resolves names for a sandbox with a network: the host's own resolver, at the other end of the way out.

use crate::config::Network;

/// Where programs look it up.
pub const RESOLVER_FILE: &str = "/etc/resolv.conf";

/// The file's content inside.
pub fn resolver_file(network: &Network) -> String {
    format!("nameserver {}\n", network.resolver)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resolver_of_the_network_is_the_only_one() {
        let network = Network { namespace: "/run/netns/eph-a".into(), resolver: "169.254.1.1".parse().unwrap() };
        assert_eq!(resolver_file(&network), "nameserver 169.254.1.1\n");
    }
}
