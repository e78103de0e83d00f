//! JSON that is read with bounds: objects that are objects, and arrays that end.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// An object. What is derived for a structure takes an array of its fields too, in the order of the source.
pub(super) struct Object<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
            type Value = T;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(fields))
            }
        }
        deserializer.deserialize_map(Fields(PhantomData)).map(Self)
    }
}

/// An array of at most `MAX` elements. Reading ends at the next one.
struct List<T, const MAX: usize>(Vec<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for List<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Elements<T, const MAX: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Elements<T, MAX> {
            type Value = Vec<T>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, "an array of at most {MAX}")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Vec<T>, E> {
                Err(E::custom(format_args!("this is a list: write [{text:?}]")))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Vec<T>, A::Error> {
                let mut list = Vec::new();
                while let Some(element) = elements.next_element()? {
                    if list.len() == MAX {
                        return Err(A::Error::custom(format_args!("these are more than {MAX}")));
                    }
                    list.push(element);
                }
                Ok(list)
            }
        }
        deserializer.deserialize_seq(Elements::<T, MAX>(PhantomData)).map(Self)
    }
}

/// Reads an optional array.
pub(super) fn list<'de, D, T, const MAX: usize>(deserializer: D) -> Result<Option<Vec<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(Option::<List<T, MAX>>::deserialize(deserializer)?.map(|list| list.0))
}

/// Reads an object with any names, each of which is there once, in whatever case.
pub(super) fn named<'de, D, T>(deserializer: D) -> Result<BTreeMap<String, T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct Entries<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
        type Value = BTreeMap<String, T>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
            let mut map = BTreeMap::new();
            while let Some((name, value)) = entries.next_entry::<String, T>()? {
                let name = name.to_ascii_lowercase();
                if map.contains_key(&name) {
                    return Err(A::Error::custom(format_args!(
                        "duplicate field `{name}`: write a header that is repeated as an array of its values"
                    )));
                }
                map.insert(name, value);
            }
            Ok(map)
        }
    }
    deserializer.deserialize_map(Entries(PhantomData))
}

/// Reads an optional array of objects.
pub(super) fn objects<'de, D, T, const MAX: usize>(deserializer: D) -> Result<Option<Vec<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let objects = Option::<List<Object<T>, MAX>>::deserialize(deserializer)?;
    Ok(objects.map(|objects| objects.0.into_iter().map(|object| object.0).collect()))
}

/// Reads an optional object.
pub(super) fn object<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(Option::<Object<T>>::deserialize(deserializer)?.map(|object| object.0))
}
