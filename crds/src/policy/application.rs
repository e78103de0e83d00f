//! The application in the pods of a policy, where it reads requests in a way of its own.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sluice_config::request::Habit;

use crate::checks::field::Field;

/// The application behind the policy, so that keys use its reading of a request: by its product, by its habits, or both.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Application {
    /// Framework or server whose habits the application has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub product: Option<Product>,
    /// Habits of the application. A spelling that it takes for a name is then the same client in a key. Without the habit, a value that
    /// came only under another spelling of its name is not clear.
    /// - QueryNamesIgnoreCase: ?Plan=a is ?plan=a.
    /// - CookieNamesIgnoreCase: the cookie Session is the cookie session.
    /// - HeaderUnderscoresAreHyphens: X_Api_Key is X-Api-Key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub habits: Vec<Habit>,
}

/// A framework or server, with its habits:
/// - AspNet, also ASP.NET Core: QueryNamesIgnoreCase and CookieNamesIgnoreCase.
/// - Cheroot, the server of CherryPy: HeaderUnderscoresAreHyphens.
/// - Uwsgi: HeaderUnderscoresAreHyphens.
/// - Wsgiref, of Python's standard library: HeaderUnderscoresAreHyphens.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq)]
pub enum Product {
    #[allow(missing_docs)]
    AspNet,
    #[allow(missing_docs)]
    Cheroot,
    #[allow(missing_docs)]
    Uwsgi,
    #[allow(missing_docs)]
    Wsgiref,
}

impl Product {
    fn habits(self) -> &'static [Habit] {
        match self {
            Self::AspNet => &[Habit::QueryNamesIgnoreCase, Habit::CookieNamesIgnoreCase],
            Self::Cheroot | Self::Uwsgi | Self::Wsgiref => &[Habit::HeaderUnderscoresAreHyphens],
        }
    }
}

impl Application {
    /// Returns all habits, each once, in their order.
    pub(crate) fn compile(&self, at: &Field<'_>) -> Vec<Habit> {
        let of_product = self.product.map_or(&[][..], Product::habits);
        let mut habits: Vec<_> = of_product.iter().chain(&self.habits).copied().collect();
        habits.sort_unstable();
        habits.dedup();
        if habits.is_empty() {
            at.warning("has no effect: name a product or a habit, or remove it");
        }
        habits
    }
}
