//! Clients, for operators and never in metrics: who is limited, and what the limits do about a request or a client.
//!
//! - [`heavy_hitters`]: the most frequent keys of a stream, in bounded memory.
//! - [`denied`]: those of the denials of a limit in the last minutes.
//! - [`denial_log`]: log lines about denials.
//! - [`top`], [`peek`], [`explain`], [`policies`]: the pages, in JSON, with the [`counter_state`] of a client.

mod counter_state;
mod denial_log;
mod denied;
mod explain;
mod heavy_hitters;
mod peek;
mod policies;
mod top;

pub(crate) use denial_log::DenialLog;
pub(crate) use denied::DeniedClients;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sluice_config::client_pages;

use crate::config::snapshot::Snapshot;

/// A page of the debug port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClientPage {
    /// `/keys/top`
    Top,
    /// `/keys/peek`
    Peek,
    /// `/explain`
    Explain,
    /// `/policies`
    Policies,
}

impl ClientPage {
    /// Returns the page of a path.
    pub(crate) fn at(path: &str) -> Option<Self> {
        match path {
            client_pages::TOP => Some(Self::Top),
            client_pages::PEEK => Some(Self::Peek),
            client_pages::EXPLAIN => Some(Self::Explain),
            client_pages::POLICIES => Some(Self::Policies),
            _ => None,
        }
    }

    /// Reports whether the question is in the body of a POST.
    pub(crate) fn has_question(self) -> bool {
        match self {
            Self::Top | Self::Policies => false,
            Self::Peek | Self::Explain => true,
        }
    }

    /// Returns the page in JSON, or what is wrong with the question.
    pub(crate) async fn read(self, snapshot: &Snapshot, question: &[u8]) -> Result<String, String> {
        match self {
            Self::Top => Ok(json(&top::top(snapshot))),
            Self::Policies => Ok(json(&policies::policies(snapshot))),
            Self::Peek => Ok(json(&peek::peek(snapshot, &parse(question)?).await?)),
            Self::Explain => Ok(json(&explain::explain(snapshot, &parse(question)?).await?)),
        }
    }
}

fn parse<T: DeserializeOwned>(question: &[u8]) -> Result<T, String> {
    serde_json::from_slice(question).map_err(|error| format!("the question is not valid: {error}"))
}

fn json(page: &impl Serialize) -> String {
    // Plain data always serializes.
    serde_json::to_string_pretty(page).unwrap_or_default() + "\n"
}
