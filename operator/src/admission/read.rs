//! Reads the objects of requests straight from their text: only the parts that are looked at, and only so many values. A value
//! takes many times the memory of its text, and anyone can send one to the webhook.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt::{Formatter, Result as Written};

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Which parts of an object are read.
#[derive(Clone, Copy)]
pub(super) struct Parts {
    /// How much a part counts, given the name of the field that contains it and its own; each of its items counts the same, and
    /// each object [`OBJECT`] more.
    /// `None`: it is not read.
    pub(super) cost: fn(&str, &str) -> Option<usize>,
    /// How much an object may count.
    pub(super) most: usize,
}

/// How much an object of JSON counts besides. A small one takes as much memory as so many entries of a list.
const OBJECT: usize = 10;

/// The parts of a policy or a store: all but who set which field. The largest example counts 1,500, and nothing but short
/// conditions on headers reaches this with 500 KB. It takes 40 MB to compile.
pub(super) const POLICY: Parts =
    Parts { cost: |of, field| ((of, field) != ("metadata", "managedFields")).then_some(1), most: 250_000 };

impl Parts {
    /// Reads an object.
    pub(super) fn read(self, text: &str) -> serde_json::Result<Value> {
        let part = Part { field: "", cost: 1, all: self, left: &Cell::new(self.most) };
        part.deserialize(&mut serde_json::Deserializer::from_str(text))
    }
}

/// A part that is read: the value of a field, or an item of it.
#[derive(Clone, Copy)]
struct Part<'a> {
    field: &'a str,
    cost: usize,
    all: Parts,
    left: &'a Cell<usize>,
}

impl Part<'_> {
    fn count<E: Error>(self, cost: usize) -> Result<(), E> {
        let left = self.left.get().checked_sub(cost);
        self.left.set(left.ok_or_else(|| E::custom("the object has too many fields and entries"))?);
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Part<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.count(self.cost)?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Part<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut Formatter<'_>) -> Written {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element_seed(self)? {
            items.push(item);
        }
        Ok(items.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Value, A::Error> {
        self.count(OBJECT)?;
        let mut fields = Map::new();
        while let Some(field) = object.next_key::<Cow<'_, str>>()? {
            match (self.all.cost)(self.field, &field) {
                Some(cost) => {
                    let value = object.next_value_seed(Part { field: &field, cost, ..self })?;
                    fields.insert(field.into_owned(), value);
                }
                None => drop(object.next_value::<IgnoredAny>()?),
            }
        }
        Ok(fields.into())
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::*;
    use crate::admission::serve::POD;
    use crate::injection::inject::inject;
    use crate::injection::inject::tests::{config, patches};

    #[test]
    fn what_is_read_of_a_pod_decides_as_the_whole_pod_does() {
        for pod in patches::pods() {
            let whole: Pod = serde_json::from_value(pod.clone()).unwrap();
            let read: Pod = serde_json::from_value(POD.read(&pod.to_string()).unwrap()).unwrap();
            let [read, whole] = [read, whole].map(|pod| inject(&pod, &config(true), &Default::default()));
            assert_eq!(read, whole, "{pod}");
        }
    }

    #[test]
    fn of_a_policy_everything_is_read_but_its_managed_fields() {
        let fields = json!({"f:spec": {}});
        let policy = json!({
            "kind": "RateLimitPolicy", "metadata": {"name": "p", "managedFields": [fields]},
            "spec": {"a": [1, -1, 0.5, true, null, "t\n"], "managedFields": {}},
        });
        let mut expected = policy.clone();
        expected["metadata"].as_object_mut().unwrap().remove("managedFields");
        assert_eq!(POLICY.read(&policy.to_string()).unwrap(), expected);
    }

    #[test]
    fn an_object_of_too_many_values_is_not_read() {
        let list = |number: usize| format!("[{}0]", "0,".repeat(number - 1));
        assert!(POLICY.read(&list(POLICY.most - 1)).is_ok());
        let error = POLICY.read(&list(POLICY.most)).unwrap_err().to_string();
        assert!(error.starts_with("the object has too many fields and entries"), "{error}");
        let pod =
            |containers: usize| json!({"spec": {"containers": vec![json!({}); containers]}}).to_string();
        assert!(POD.read(&pod(800)).is_ok() && POD.read(&pod(900)).is_err());
    }
}
