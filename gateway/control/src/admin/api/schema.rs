//! JSON Schemas of the types that the API reads and writes. A type's own `Deserialize` makes its schema: [`Trace`] gives it
//! plain values and notes what it asks for, so that a type and its schema cannot differ.

use serde::de::value::StrDeserializer;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error as _, IntoDeserializer, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};
use serde_json::{Map, Value, json};
use std::cell::RefCell;
use std::collections::BTreeMap;

type Error = serde::de::value::Error;

/// Who sends the values of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// The client: fields with a default may be missing, and unknown fields are refused.
    Request,
    /// The gateway: every field is there, and newer gateways may say more.
    Response,
}

/// The schemas of named types, for the components of the document.
#[derive(Debug, Default)]
pub(super) struct Schemas(RefCell<BTreeMap<String, Value>>);

impl Schemas {
    /// The schema of a type; structs are referred to by their names.
    ///
    /// Panics: the type deserializes from something that is not plain (an enum whose variants have fields). Tests make all schemas.
    pub fn of<T: DeserializeOwned>(&self, direction: Direction) -> Value {
        let out = RefCell::new(Value::Null);
        let found = RefCell::new(BTreeMap::new());
        let trace = |omitted| T::deserialize(Trace { found: &found, out: &out, omitted });
        if let Err(e) = trace(None) {
            panic!("{} has no schema: {e}", std::any::type_name::<T>());
        }
        let schema = out.borrow().clone();
        let structs = found.borrow().clone();
        for (name, fields) in structs {
            let required: Vec<&str> = match direction {
                Direction::Response => fields.iter().map(|(field, _)| *field).collect(),
                // Without a field that is required, nothing can be read.
                Direction::Request => {
                    let missed = |field: &&'static str| trace(Some((name, *field))).is_err();
                    fields.iter().map(|(field, _)| *field).filter(missed).collect()
                }
            };
            let properties: Map<String, Value> =
                fields.iter().map(|(field, schema)| ((*field).to_owned(), schema.clone())).collect();
            let mut schema = json!({ "type": "object", "properties": properties });
            if !required.is_empty() {
                schema["required"] = json!(required);
            }
            if direction == Direction::Request {
                schema["additionalProperties"] = json!(false);
            }
            let before = self.0.borrow_mut().insert(name.to_owned(), schema.clone());
            assert!(before.is_none_or(|before| before == schema), "two types are called {name}");
        }
        schema
    }

    /// All of them, by name.
    pub fn into_components(self) -> Value {
        json!(self.0.into_inner())
    }
}

/// Structs by name, with the schemas of their fields.
type Structs = BTreeMap<&'static str, Vec<(&'static str, Value)>>;

/// Deserializes a plain value, and notes in `out` what was asked for.
struct Trace<'t> {
    found: &'t RefCell<Structs>,
    out: &'t RefCell<Value>,
    /// A field of a struct that is left out.
    omitted: Option<(&'static str, &'static str)>,
}

impl<'t> Trace<'t> {
    fn note(&self, schema: Value) {
        *self.out.borrow_mut() = schema;
    }

    fn at<'u>(&self, out: &'u RefCell<Value>) -> Trace<'u>
    where
        't: 'u,
    {
        Trace { found: self.found, out, omitted: self.omitted }
    }
}

/// Methods for numbers: what they note, and the value that they give.
macro_rules! plain {
    ($($method:ident => $schema:tt, $visit:ident($($value:expr)?);)*) => {
        $(
            fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
                self.note(json!($schema));
                visitor.$visit($($value)?)
            }
        )*
    };
}

impl<'de> Deserializer<'de> for Trace<'_> {
    type Error = Error;

    plain! {
        deserialize_any => {}, visit_unit();
        deserialize_ignored_any => {}, visit_unit();
        deserialize_unit => { "type": "null" }, visit_unit();
        deserialize_bool => { "type": "boolean" }, visit_bool(false);
        deserialize_i8 => { "type": "integer" }, visit_i64(0);
        deserialize_i16 => { "type": "integer" }, visit_i64(0);
        deserialize_i32 => { "type": "integer" }, visit_i64(0);
        deserialize_i64 => { "type": "integer" }, visit_i64(0);
        deserialize_u8 => { "type": "integer", "minimum": 0, "maximum": 255 }, visit_u64(0);
        deserialize_u16 => { "type": "integer", "minimum": 0, "maximum": 65535 }, visit_u64(0);
        deserialize_u32 => { "type": "integer", "minimum": 0, "maximum": 4294967295u32 }, visit_u64(0);
        deserialize_u64 => { "type": "integer", "minimum": 0 }, visit_u64(0);
        deserialize_f32 => { "type": "number" }, visit_f64(0.0);
        deserialize_f64 => { "type": "number" }, visit_f64(0.0);
        deserialize_char => { "type": "string", "minLength": 1, "maxLength": 1 }, visit_char(' ');
        deserialize_str => { "type": "string" }, visit_str("");
        deserialize_string => { "type": "string" }, visit_str("");
        deserialize_identifier => { "type": "string" }, visit_str("");
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("bytes"))
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("bytes"))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let inner = RefCell::new(Value::Null);
        let value = visitor.visit_some(self.at(&inner))?;
        self.note(json!({ "anyOf": [inner.into_inner(), { "type": "null" }] }));
        Ok(value)
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let item = RefCell::new(Value::Null);
        let value = visitor.visit_seq(Items { item: self.at(&item), left: 1 })?;
        self.note(json!({ "type": "array", "items": item.into_inner() }));
        Ok(value)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Error> {
        let item = RefCell::new(Value::Null);
        let value = visitor.visit_seq(Items { item: self.at(&item), left: len })?;
        self.note(json!({ "type": "array", "items": item.into_inner(), "minItems": len, "maxItems": len }));
        Ok(value)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_tuple(len, visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let value = RefCell::new(Value::Null);
        let read = visitor.visit_map(Entry { value: self.at(&value), given: false })?;
        self.note(json!({ "type": "object", "additionalProperties": value.into_inner() }));
        Ok(read)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let omitted = self.omitted.filter(|(of, _)| *of == name).map(|(_, field)| field);
        let given = fields.iter().copied().filter(|field| Some(*field) != omitted).collect();
        let schemas = RefCell::new(Vec::new());
        let value = visitor.visit_map(Fields { trace: &self, left: given, schemas: &schemas })?;
        self.found.borrow_mut().entry(name).or_insert_with(|| schemas.into_inner());
        self.note(json!({ "$ref": format!("#/components/schemas/{name}") }));
        Ok(value)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.note(json!({ "type": "string", "enum": variants }));
        let first = variants.first().ok_or_else(|| Error::custom("an enum without variants"))?;
        visitor.visit_enum(Variant(first))
    }
}

struct Items<'t> {
    item: Trace<'t>,
    left: usize,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        seed.deserialize(self.item.at(self.item.out)).map(Some)
    }
}

struct Entry<'t> {
    value: Trace<'t>,
    given: bool,
}

impl<'de> MapAccess<'de> for Entry<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        if std::mem::replace(&mut self.given, true) {
            return Ok(None);
        }
        let key: StrDeserializer<'_, Error> = "".into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(self.value.at(self.value.out))
    }
}

struct Fields<'t, 'u> {
    trace: &'u Trace<'t>,
    /// In the order of the type.
    left: std::collections::VecDeque<&'static str>,
    schemas: &'u RefCell<Vec<(&'static str, Value)>>,
}

impl<'de> MapAccess<'de> for Fields<'_, '_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        let Some(field) = self.left.front() else { return Ok(None) };
        let key: StrDeserializer<'_, Error> = (*field).into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Error> {
        let schema = RefCell::new(Value::Null);
        let value = seed.deserialize(self.trace.at(&schema))?;
        if let Some(field) = self.left.pop_front() {
            self.schemas.borrow_mut().push((field, schema.into_inner()));
        }
        Ok(value)
    }
}

struct Variant(&'static str);

impl<'de> EnumAccess<'de> for Variant {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Error> {
        let name: StrDeserializer<'_, Error> = self.0.into_deserializer();
        seed.deserialize(name).map(|value| (value, self))
    }
}

impl<'de> VariantAccess<'de> for Variant {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, _: T) -> Result<T::Value, Error> {
        Err(Error::custom("an enum whose variants have values"))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("an enum whose variants have values"))
    }

    fn struct_variant<V: Visitor<'de>>(self, _: &'static [&'static str], _: V) -> Result<V::Value, Error> {
        Err(Error::custom("an enum whose variants have values"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Deserialize)]
    #[serde(rename_all = "lowercase")]
    #[allow(dead_code, reason = "only the schema is made of it")]
    enum Colour {
        Red,
        Green,
    }

    #[derive(Deserialize)]
    #[allow(dead_code, reason = "only the schema is made of it")]
    struct Inner {
        names: Vec<String>,
        colour: Colour,
    }

    #[derive(Deserialize)]
    #[allow(dead_code, reason = "only the schema is made of it")]
    struct Outer {
        inner: Inner,
        #[serde(default)]
        weight: u16,
        limit: Option<f64>,
        counters: BTreeMap<String, u64>,
        any: Value,
    }

    #[test]
    fn a_schema_says_what_a_type_reads() {
        let schemas = Schemas::default();
        assert_eq!(
            schemas.of::<Vec<Outer>>(Direction::Request),
            json!({ "type": "array", "items": { "$ref": "#/components/schemas/Outer" } })
        );
        let all = schemas.into_components();
        assert_eq!(
            all["Outer"],
            json!({
                "type": "object",
                "required": ["inner", "counters", "any"],
                "additionalProperties": false,
                "properties": {
                    "inner": { "$ref": "#/components/schemas/Inner" },
                    "weight": { "type": "integer", "minimum": 0, "maximum": 65535 },
                    "limit": { "anyOf": [{ "type": "number" }, { "type": "null" }] },
                    "counters": { "type": "object", "additionalProperties": { "type": "integer", "minimum": 0 } },
                    "any": {},
                }
            })
        );
        assert_eq!(all["Inner"]["properties"]["colour"], json!({ "type": "string", "enum": ["red", "green"] }));
    }

    #[test]
    fn a_response_has_all_its_fields() {
        let schemas = Schemas::default();
        schemas.of::<Outer>(Direction::Response);
        let outer = &schemas.into_components()["Outer"];
        assert_eq!(outer["required"], json!(["inner", "weight", "limit", "counters", "any"]));
        assert!(outer.get("additionalProperties").is_none());
    }
}
