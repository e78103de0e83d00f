//! Rules of protocols, each of which a model can turn off.

use std::fmt::Debug;
use std::marker::PhantomData;

/// The rules of one protocol.
pub trait Rule: Copy + Debug + Send + Sync + 'static {
    /// All of them.
    const ALL: &'static [Self];

    /// Returns the id, by which the code that obeys the rule names it too.
    fn id(self) -> &'static str;

    /// Returns the name of the property that a protocol without the rule violates.
    fn keeps(self) -> &'static str;

    /// Returns the position in [`Rule::ALL`].
    fn position(self) -> usize;
}

/// A set of rules: those that a protocol obeys.
#[derive(Debug)]
pub struct Rules<R> {
    off: u32,
    of: PhantomData<fn() -> R>,
}

impl<R> Clone for Rules<R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for Rules<R> {}

impl<R: Rule> Rules<R> {
    /// All rules.
    #[must_use]
    pub fn all() -> Self {
        Self { off: 0, of: PhantomData }
    }

    /// Returns the set without a rule.
    #[must_use]
    pub fn without(self, rule: R) -> Self {
        Self { off: self.off | 1 << rule.position(), ..self }
    }

    /// Reports whether the protocol obeys a rule.
    #[must_use]
    pub fn has(self, rule: R) -> bool {
        self.off & 1 << rule.position() == 0
    }
}

/// Declares the rules of a protocol: `Variant = "id" keeps "property"`. `hack/lint/rules.py` reads these lines.
macro_rules! rules {
    ($(#[$doc:meta])* $name:ident { $($(#[$rule:meta])* $variant:ident = $id:literal keeps $property:expr;)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[$rule])* $variant,)+
        }

        impl $crate::rules::Rule for $name {
            const ALL: &'static [Self] = &[$(Self::$variant),+];

            fn id(self) -> &'static str {
                match self {
                    $(Self::$variant => $id,)+
                }
            }

            fn keeps(self) -> &'static str {
                match self {
                    $(Self::$variant => $property,)+
                }
            }

            fn position(self) -> usize {
                self as usize
            }
        }
    };
}
pub(crate) use rules;
