//! Clients, for operators and never in metrics: who is limited, and what the limits do about a request or a client.
//!
//! - [`top`], [`mod@peek`], [`explain`], [`descriptors`], [`policies`]: the pages, in JSON, with the [`counter_state`] of a client.

mod counter_state;
mod descriptors;
mod explain;
mod peek;
mod policies;
mod top;

pub use explain::Validate;
pub(crate) use peek::peek;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sluice_config::client_pages;

use crate::publish::publisher::Publisher;

/// A page about clients, for operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Page {
    /// `/keys/top`
    Top,
    /// `/keys/peek`
    Peek,
    /// `/explain`
    Explain,
    /// `/explain/descriptors`
    ExplainDescriptors,
    /// `/policies`
    Policies,
}

impl Page {
    /// Returns the page of a path.
    #[must_use]
    pub fn at(path: &str) -> Option<Self> {
        match path {
            client_pages::TOP => Some(Self::Top),
            client_pages::PEEK => Some(Self::Peek),
            client_pages::EXPLAIN => Some(Self::Explain),
            client_pages::EXPLAIN_DESCRIPTORS => Some(Self::ExplainDescriptors),
            client_pages::POLICIES => Some(Self::Policies),
            _ => None,
        }
    }

    /// Reports whether the question is in the body of a POST.
    #[must_use]
    pub fn has_question(self) -> bool {
        match self {
            Self::Top | Self::Policies => false,
            Self::Peek | Self::Explain | Self::ExplainDescriptors => true,
        }
    }

    /// Returns the page in JSON, or what is wrong with the question.
    pub(crate) async fn read(
        self,
        publisher: &Publisher,
        question: &[u8],
        validate: Validate,
    ) -> Result<String, String> {
        let snapshot = &publisher.current();
        match self {
            Self::Top => Ok(json(&top::top(snapshot))),
            Self::Policies => Ok(json(&policies::policies(snapshot, publisher.files()))),
            Self::Peek => Ok(json(&peek(snapshot, &parse(question)?).await?)),
            Self::ExplainDescriptors => Ok(json(&descriptors::explain(snapshot, &parse(question)?).await?)),
            Self::Explain => Ok(json(&explain::explain(snapshot, &parse(question)?, validate).await?)),
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
