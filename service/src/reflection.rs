//! The methods and messages of the gRPC port in the form of protobuf, for tools that ask a server what it has, such as grpcurl.
//! Fields that the service does not read are left out.

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto,
    FileDescriptorProto, FileDescriptorSet, MessageOptions, MethodDescriptorProto, ServiceDescriptorProto,
};

/// A name, a number, and a type in the words of protobuf. Types with a dot are messages, and enums with `enum ` before it.
type Field = (&'static str, i32, &'static str);

/// A file of definitions.
struct File {
    path: &'static str,
    package: &'static str,
    needs: &'static [&'static str],
    /// Messages by their names. Those with a dot are within the one before it.
    messages: &'static [(&'static str, &'static [Field])],
    /// Enums by their names, each with the names of its numbers from 0 on. Those with a dot are within a message.
    enums: &'static [(&'static str, &'static [&'static str])],
    /// A service, and its method with the types of request and response.
    service: Option<(&'static str, [&'static str; 3])>,
}

const DURATION: &str = "google/protobuf/duration.proto";
const STRUCT: &str = "google/protobuf/struct.proto";
const WRAPPERS: &str = "google/protobuf/wrappers.proto";
const BASE: &str = "envoy/config/core/v3/base.proto";
const UNIT: &str = "envoy/type/v3/ratelimit_unit.proto";
const DESCRIPTOR: &str = "envoy/extensions/common/ratelimit/v3/ratelimit.proto";

const FILES: [File; 7] = [
    File {
        path: DURATION,
        package: "google.protobuf",
        needs: &[],
        messages: &[("Duration", &[("seconds", 1, "int64"), ("nanos", 2, "int32")])],
        enums: &[],
        service: None,
    },
    File {
        path: WRAPPERS,
        package: "google.protobuf",
        needs: &[],
        messages: &[("UInt64Value", &[("value", 1, "uint64")])],
        enums: &[],
        service: None,
    },
    File {
        path: STRUCT,
        package: "google.protobuf",
        needs: &[],
        messages: &[
            ("Struct", &[("fields", 1, "repeated .google.protobuf.Struct.FieldsEntry")]),
            ("Struct.FieldsEntry", &[("key", 1, "string"), ("value", 2, ".google.protobuf.Value")]),
            (
                "Value",
                &[
                    ("number_value", 2, "double"),
                    ("string_value", 3, "string"),
                    ("bool_value", 4, "bool"),
                    ("struct_value", 5, ".google.protobuf.Struct"),
                    ("list_value", 6, ".google.protobuf.ListValue"),
                ],
            ),
            ("ListValue", &[("values", 1, "repeated .google.protobuf.Value")]),
        ],
        enums: &[],
        service: None,
    },
    File {
        path: BASE,
        package: "envoy.config.core.v3",
        needs: &[],
        messages: &[("HeaderValue", &[("key", 1, "string"), ("value", 2, "string")])],
        enums: &[],
        service: None,
    },
    File {
        path: UNIT,
        package: "envoy.type.v3",
        needs: &[],
        messages: &[],
        enums: &[("RateLimitUnit", &["UNKNOWN", "SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR", "WEEK"])],
        service: None,
    },
    File {
        path: DESCRIPTOR,
        package: "envoy.extensions.common.ratelimit.v3",
        needs: &[UNIT, WRAPPERS],
        messages: &[
            (
                "RateLimitDescriptor",
                &[
                    (
                        "entries",
                        1,
                        "repeated .envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry",
                    ),
                    (
                        "limit",
                        2,
                        ".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.RateLimitOverride",
                    ),
                    ("hits_addend", 3, ".google.protobuf.UInt64Value"),
                    ("is_negative_hits", 4, "bool"),
                ],
            ),
            ("RateLimitDescriptor.Entry", &[("key", 1, "string"), ("value", 2, "string")]),
            (
                "RateLimitDescriptor.RateLimitOverride",
                &[("requests_per_unit", 1, "uint32"), ("unit", 2, "enum .envoy.type.v3.RateLimitUnit")],
            ),
        ],
        enums: &[],
        service: None,
    },
    File {
        path: "envoy/service/ratelimit/v3/rls.proto",
        package: "envoy.service.ratelimit.v3",
        needs: &[BASE, DESCRIPTOR, DURATION, STRUCT],
        messages: &[
            (
                "RateLimitRequest",
                &[
                    ("domain", 1, "string"),
                    ("descriptors", 2, "repeated .envoy.extensions.common.ratelimit.v3.RateLimitDescriptor"),
                    ("hits_addend", 3, "uint32"),
                ],
            ),
            (
                "RateLimitResponse",
                &[
                    ("overall_code", 1, "enum .envoy.service.ratelimit.v3.RateLimitResponse.Code"),
                    (
                        "statuses",
                        2,
                        "repeated .envoy.service.ratelimit.v3.RateLimitResponse.DescriptorStatus",
                    ),
                    ("response_headers_to_add", 3, "repeated .envoy.config.core.v3.HeaderValue"),
                    ("request_headers_to_add", 4, "repeated .envoy.config.core.v3.HeaderValue"),
                    ("dynamic_metadata", 6, ".google.protobuf.Struct"),
                ],
            ),
            (
                "RateLimitResponse.RateLimit",
                &[
                    ("requests_per_unit", 1, "uint32"),
                    ("unit", 2, "enum .envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit"),
                    ("name", 3, "string"),
                    ("unit_multiplier", 4, "uint32"),
                ],
            ),
            (
                "RateLimitResponse.DescriptorStatus",
                &[
                    ("code", 1, "enum .envoy.service.ratelimit.v3.RateLimitResponse.Code"),
                    ("current_limit", 2, ".envoy.service.ratelimit.v3.RateLimitResponse.RateLimit"),
                    ("limit_remaining", 3, "uint32"),
                    ("duration_until_reset", 4, ".google.protobuf.Duration"),
                ],
            ),
        ],
        enums: &[
            ("RateLimitResponse.Code", &["UNKNOWN", "OK", "OVER_LIMIT"]),
            (
                "RateLimitResponse.RateLimit.Unit",
                &["UNKNOWN", "SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR", "WEEK"],
            ),
        ],
        service: Some((
            "RateLimitService",
            [
                "ShouldRateLimit",
                ".envoy.service.ratelimit.v3.RateLimitRequest",
                ".envoy.service.ratelimit.v3.RateLimitResponse",
            ],
        )),
    },
];

/// Returns the definitions of the door `rls`.
pub(crate) fn definitions() -> FileDescriptorSet {
    FileDescriptorSet { file: FILES.iter().map(File::to_proto).collect() }
}

impl File {
    fn to_proto(&self) -> FileDescriptorProto {
        let mut file = FileDescriptorProto {
            name: Some(self.path.to_owned()),
            package: Some(self.package.to_owned()),
            dependency: self.needs.iter().map(|&path| path.to_owned()).collect(),
            syntax: Some("proto3".to_owned()),
            ..FileDescriptorProto::default()
        };
        for (path, fields) in self.messages {
            let (parent, name) = split(path);
            let message = message(name, fields);
            match parent.and_then(|parent| find(&mut file.message_type, parent)) {
                Some(parent) => parent.nested_type.push(message),
                None => file.message_type.push(message),
            }
        }
        for (path, names) in self.enums {
            let (parent, name) = split(path);
            let values = (0..).zip(*names).map(|(number, value)| EnumValueDescriptorProto {
                name: Some((*value).to_owned()),
                number: Some(number),
                options: None,
            });
            let found = EnumDescriptorProto {
                name: Some(name.to_owned()),
                value: values.collect(),
                ..EnumDescriptorProto::default()
            };
            match parent.and_then(|parent| find(&mut file.message_type, parent)) {
                Some(parent) => parent.enum_type.push(found),
                None => file.enum_type.push(found),
            }
        }
        file.service = self
            .service
            .iter()
            .map(|(name, [method, input, output])| ServiceDescriptorProto {
                name: Some((*name).to_owned()),
                method: vec![MethodDescriptorProto {
                    name: Some((*method).to_owned()),
                    input_type: Some((*input).to_owned()),
                    output_type: Some((*output).to_owned()),
                    ..MethodDescriptorProto::default()
                }],
                options: None,
            })
            .collect();
        file
    }
}

fn split(path: &str) -> (Option<&str>, &str) {
    path.rsplit_once('.').map_or((None, path), |(parent, name)| (Some(parent), name))
}

/// Returns a message by the names on its path.
fn find<'a>(messages: &'a mut [DescriptorProto], path: &str) -> Option<&'a mut DescriptorProto> {
    let (first, rest) = path.split_once('.').map_or((path, None), |(first, rest)| (first, Some(rest)));
    let found = messages.iter_mut().find(|message| message.name() == first)?;
    match rest {
        Some(rest) => find(&mut found.nested_type, rest),
        None => Some(found),
    }
}

fn message(name: &str, fields: &[Field]) -> DescriptorProto {
    // Maps are repeated entries, which say so.
    let is_map_entry = name == "FieldsEntry";
    DescriptorProto {
        name: Some(name.to_owned()),
        field: fields.iter().map(field).collect(),
        options: is_map_entry.then(|| MessageOptions { map_entry: Some(true), ..MessageOptions::default() }),
        ..DescriptorProto::default()
    }
}

fn field(&(name, number, kind): &Field) -> FieldDescriptorProto {
    let (label, kind) = match kind.strip_prefix("repeated ") {
        Some(kind) => (Label::Repeated, kind),
        None => (Label::Optional, kind),
    };
    let (kind, type_name) = match kind {
        "string" => (Type::String, None),
        "bool" => (Type::Bool, None),
        "double" => (Type::Double, None),
        "int32" => (Type::Int32, None),
        "int64" => (Type::Int64, None),
        "uint32" => (Type::Uint32, None),
        "uint64" => (Type::Uint64, None),
        other => match other.strip_prefix("enum ") {
            Some(name) => (Type::Enum, Some(name.to_owned())),
            None => (Type::Message, Some(other.to_owned())),
        },
    };
    FieldDescriptorProto {
        name: Some(name.to_owned()),
        number: Some(number),
        label: Some(label as i32),
        r#type: Some(kind as i32),
        type_name,
        json_name: Some(json_name(name)),
        ..FieldDescriptorProto::default()
    }
}

/// Returns the name of a field in JSON: `hitsAddend` for `hits_addend`.
fn json_name(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |name, word| {
        let (initial, rest) = word.split_at(word.len().min(1));
        name + &initial.to_ascii_uppercase() + rest
    })
}
