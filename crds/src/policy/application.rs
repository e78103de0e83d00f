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
    /// Habits of the application. What it takes for the same is then the same client in a key.
    /// - QueryNamesIgnoreCase: ?Plan=a is ?plan=a. Without this and the two that follow, a value that came only under another spelling of
    ///   its name is not clear.
    /// - CookieNamesIgnoreCase: the cookie Session is the cookie session.
    /// - HeaderUnderscoresAreHyphens: X_Api_Key is X-Api-Key.
    /// - SemicolonEndsPath: /login;a is /login?a. Without the habit, /login;a/b is /login/b.
    /// - HostBehindSlashes: //host/login is /login. Without the habit, it is /host/login.
    /// - CookieValuesEndAtDelimiters: session=a{b is session=a, and so for `( ) < = > ? @ \ }` and a quotation mark.
    /// - CookieValuesEndAtAmpersands: session=a&b, session=a%26b and session=a%3bb are session=a. Not beside the one before.
    /// - HeaderCacheIgnoresCase: upper and lower case do not tell cookies apart, nor values of the header Authorization.
    /// - HeaderValuesAreLists: a header with a comma is not clear, because something before the pod may have verified one element alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub habits: Vec<Habit>,
}

/// A framework or server, with its habits:
/// - AspNet, also ASP.NET Core: QueryNamesIgnoreCase and CookieNamesIgnoreCase.
/// - Cheroot, the server of CherryPy: HeaderUnderscoresAreHyphens.
/// - Dancer2: HeaderUnderscoresAreHyphens and CookieValuesEndAtAmpersands.
/// - Fastify4, also Restify: SemicolonEndsPath.
/// - Jetty, with its default cache of headers: HeaderCacheIgnoresCase.
/// - Rack, of Ruby, on Puma or WEBrick: HeaderUnderscoresAreHyphens.
/// - Undertow, also WildFly and Spring Boot on it: CookieValuesEndAtDelimiters.
/// - Uwsgi: HeaderUnderscoresAreHyphens.
/// - Wsgiref, of Python's standard library: HeaderUnderscoresAreHyphens.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq)]
pub enum Product {
    #[allow(missing_docs)]
    AspNet,
    #[allow(missing_docs)]
    Cheroot,
    #[allow(missing_docs)]
    Dancer2,
    #[allow(missing_docs)]
    Fastify4,
    #[allow(missing_docs)]
    Jetty,
    #[allow(missing_docs)]
    Rack,
    #[allow(missing_docs)]
    Undertow,
    #[allow(missing_docs)]
    Uwsgi,
    #[allow(missing_docs)]
    Wsgiref,
}

impl Product {
    fn habits(self) -> &'static [Habit] {
        match self {
            Self::AspNet => &[Habit::QueryNamesIgnoreCase, Habit::CookieNamesIgnoreCase],
            Self::Cheroot | Self::Rack | Self::Uwsgi | Self::Wsgiref => &[Habit::HeaderUnderscoresAreHyphens],
            Self::Dancer2 => &[Habit::HeaderUnderscoresAreHyphens, Habit::CookieValuesEndAtAmpersands],
            Self::Fastify4 => &[Habit::SemicolonEndsPath],
            Self::Jetty => &[Habit::HeaderCacheIgnoresCase],
            Self::Undertow => &[Habit::CookieValuesEndAtDelimiters],
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
        let ends = [Habit::CookieValuesEndAtDelimiters, Habit::CookieValuesEndAtAmpersands];
        if ends.iter().all(|end| habits.contains(end)) {
            at.warning(
                "has two ends of cookies, of which CookieValuesEndAtAmpersands has no effect: remove one",
            );
        }
        if habits.is_empty() {
            at.warning("has no effect: name a product or a habit, or remove it");
        }
        habits
    }
}
