//! The settings of an installation that apply to all its policies.

use sluice_config::client_address::ClientAddress;

/// The settings of an installation that apply to all its policies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Installation {
    /// Source of client addresses for policies without `clientAddress`. Default: the address of the peer.
    pub client_address: Option<ClientAddress>,
}

#[cfg(feature = "args")]
pub use args::InstallationArgs;

#[cfg(feature = "args")]
mod args {
    use ipnet::IpNet;
    use serde::Deserialize as _;
    use serde::de::IntoDeserializer as _;
    use serde::de::value::Error;
    use sluice_config::client_address::{AddressHeader, ClientAddress};

    use super::Installation;

    /// The flags of a command that describe an installation.
    #[derive(clap::Args, Debug, Clone)]
    pub struct InstallationArgs {
        /// Networks of the proxies that policies without `clientAddress` trust, separated by commas
        #[arg(long, env = "SLUICE_TRUSTED_PROXIES", value_name = "CIDR", value_delimiter = ',')]
        trusted_proxies: Vec<IpNet>,
        /// Header in which these proxies report the addresses of clients: XForwardedFor or Forwarded
        #[arg(
            long,
            env = "SLUICE_CLIENT_ADDRESS_HEADER",
            value_name = "HEADER",
            default_value = "XForwardedFor"
        )]
        #[arg(value_parser = header)]
        client_address_header: AddressHeader,
    }

    impl From<&InstallationArgs> for Installation {
        fn from(args: &InstallationArgs) -> Self {
            let InstallationArgs { trusted_proxies, client_address_header } = args.clone();
            let is_set = !trusted_proxies.is_empty();
            let client_address = ClientAddress { trusted_proxies, header: client_address_header };
            Self { client_address: is_set.then_some(client_address) }
        }
    }

    fn header(text: &str) -> Result<AddressHeader, Error> {
        AddressHeader::deserialize(text.into_deserializer())
    }
}
