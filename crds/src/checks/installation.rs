//! The settings of an installation that apply to all its policies.

use std::collections::BTreeMap;

use sluice_config::client_address::ClientAddress;

/// The settings of an installation that apply to all its policies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installation {
    /// Source of client addresses for policies without `clientAddress`. Default: the address of the peer.
    pub client_address: Option<ClientAddress>,
    /// Largest `maxKeys` of a limit.
    pub max_keys: u64,
    /// Domains of gateways' questions that namespaces may name beside their own, with these namespaces.
    pub domains: BTreeMap<String, Vec<String>>,
    /// Text that follows "ask" where a policy wants more than the installation allows.
    pub contact: String,
}

/// Largest `maxKeys` of a limit, unless the installation sets another one.
const MAX_KEYS: u64 = 1_000_000;

impl Default for Installation {
    fn default() -> Self {
        let contact = "the administrators of Sluice".to_owned();
        Self { client_address: None, max_keys: MAX_KEYS, domains: BTreeMap::new(), contact }
    }
}

impl Installation {
    /// Reports whether a namespace may name a domain that is not its own.
    #[must_use]
    pub fn grants(&self, domain: &str, namespace: &str) -> bool {
        self.domains.get(domain).is_some_and(|namespaces| namespaces.iter().any(|known| known == namespace))
    }
}

#[cfg(feature = "args")]
pub use args::InstallationArgs;

#[cfg(feature = "args")]
mod args {
    use std::collections::BTreeMap;

    use ipnet::IpNet;
    use serde::Deserialize as _;
    use serde::de::IntoDeserializer as _;
    use serde::de::value::Error;
    use sluice_config::client_address::{AddressHeader, ClientAddress};

    use super::{Installation, MAX_KEYS};

    /// The flags of a command that describe an installation.
    #[derive(clap::Args, Debug, Clone)]
    pub struct InstallationArgs {
        /// Networks of the proxies that policies without `clientAddress` trust, separated by commas
        #[arg(long, env = "SLUICE_TRUSTED_PROXIES", value_name = "CIDR", value_delimiter = ',')]
        trusted_proxies: Vec<IpNet>,
        /// Header in which these proxies report the addresses of clients: XForwardedFor, Forwarded or ProxyProtocol
        #[arg(
            long,
            env = "SLUICE_CLIENT_ADDRESS_HEADER",
            value_name = "HEADER",
            default_value = "XForwardedFor"
        )]
        #[arg(value_parser = header)]
        client_address_header: AddressHeader,
        /// Largest maxKeys of a limit
        #[arg(long, env = "SLUICE_MAX_KEYS_PER_LIMIT", value_name = "KEYS", default_value_t = MAX_KEYS)]
        #[arg(value_parser = clap::value_parser!(u64).range(10_000..=100_000_000))]
        max_keys_per_limit: u64,
        /// Extra domains that the policies of a namespace may use in `rls.domain`, as DOMAIN=NAMESPACE, separated by commas
        #[arg(long, env = "SLUICE_DOMAINS", value_name = "DOMAIN=NAMESPACE", value_delimiter = ',')]
        #[arg(value_parser = grant)]
        domains: Vec<(String, String)>,
    }

    impl From<&InstallationArgs> for Installation {
        fn from(args: &InstallationArgs) -> Self {
            let InstallationArgs {
                trusted_proxies,
                client_address_header,
                max_keys_per_limit,
                domains: grants,
            } = args.clone();
            let mut domains = BTreeMap::<_, Vec<_>>::new();
            for (domain, namespace) in grants {
                domains.entry(domain).or_default().push(namespace);
            }
            let is_set = !trusted_proxies.is_empty();
            let client_address = ClientAddress { trusted_proxies, header: client_address_header };
            Self {
                client_address: is_set.then_some(client_address),
                max_keys: max_keys_per_limit,
                domains,
                ..Self::default()
            }
        }
    }

    fn grant(text: &str) -> Result<(String, String), String> {
        let parts =
            text.rsplit_once('=').filter(|(domain, namespace)| !domain.is_empty() && !namespace.is_empty());
        let (domain, namespace) = parts.ok_or("write DOMAIN=NAMESPACE")?;
        Ok((domain.to_owned(), namespace.to_owned()))
    }

    fn header(text: &str) -> Result<AddressHeader, Error> {
        AddressHeader::deserialize(text.into_deserializer())
    }
}
