//! The `OpenAPI` document of the door, made from the types of its bodies.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Value, json};

use crate::checks::body::{
    BatchAnswerBody, CheckAnswerBody, CheckBody, ProblemBody, SettleAnswerBody, SettleBody,
};
use crate::checks::{CHECK, OPENAPI, SETTLE};

/// Returns the document.
#[must_use]
pub fn document() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut requests = settings.clone().for_deserialize().into_generator();
    let mut answers = settings.for_serialize().into_generator();
    let check = content(&mut requests, schema::<CheckBody>);
    let settle = content(&mut requests, schema::<SettleBody>);
    let (one, many) = (schema::<CheckAnswerBody>(&mut answers), schema::<BatchAnswerBody>(&mut answers));
    let checked = json!({"application/json": {"schema": {"oneOf": [one, many]}}});
    let settled = content(&mut answers, schema::<SettleAnswerBody>);
    let problem = json!({"application/problem+json": {"schema": schema::<ProblemBody>(&mut answers)}});
    let mut schemas = requests.take_definitions(true);
    schemas.extend(answers.take_definitions(true));
    let responses = |ok: &str, content: &Value, problems: &[(&str, &str)]| -> Value {
        let mut all = serde_json::Map::new();
        all.insert("200".to_owned(), json!({"description": ok, "content": content}));
        for (status, description) in problems {
            all.insert((*status).to_owned(), json!({"description": description, "content": problem}));
        }
        Value::Object(all)
    };
    let common = [
        ("400", "The body is not valid: `field` says where. Nothing is charged"),
        ("401", "The caller shows neither a client certificate nor a valid token"),
        ("403", "The caller is not listed"),
        ("404", "There is no such policy, limit or reservation, or it is none of the caller's"),
        ("405", "The path has another method"),
        ("408", "The body did not come within 30 seconds"),
        ("413", "The body is longer than 1 MiB"),
        ("415", "The content type is not application/json"),
        ("503", "There are no policies yet, or the store did not answer a settlement"),
    ];
    let mut of_check = responses("The decisions. A denial is one too", &checked, &common);
    of_check["422"] = json!({"description": "A key or a cost does not fit its limit. Nothing is charged", "content": problem});
    of_check["429"] = json!({
        "description": "With `?status=429`: at least one check is denied",
        "headers": {"Retry-After": {"description": "Time after which to try again, in seconds", "schema": {"type": "integer"}}},
        "content": checked,
    });
    let of_settle = responses("The reservation is settled, by this call or before", &settled, &common);
    let status = json!({
        "name": "status", "in": "query", "required": false,
        "description": "429: a denial has this status instead of 200",
        "schema": {"type": "integer", "enum": [429]},
    });
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Sluice checks",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Ask whether a client may go on, reserve a cost in advance, and settle it. See docs/checks.md.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://127.0.0.1:8080", "description": "sluice serve"}],
        "security": [{"serviceAccountToken": []}, {"clientCertificate": []}, {}],
        "tags": [{"name": "checks", "description": "Checks and reservations"}],
        "paths": {
            CHECK: {"post": {
                "operationId": "check", "tags": ["checks"], "summary": "Check limits, or a request",
                "parameters": [status],
                "requestBody": {"required": true, "content": check},
                "responses": of_check,
            }},
            SETTLE: {"post": {
                "operationId": "settle", "tags": ["checks"], "summary": "Settle a reservation",
                "requestBody": {"required": true, "content": settle},
                "responses": of_settle,
            }},
            OPENAPI: {"get": {
                "operationId": "openapi", "tags": ["checks"], "summary": "This document", "security": [{}],
                "responses": {
                    "200": {"description": "This document", "content": {"application/json": {"schema": {"type": "object"}}}},
                    "404": {"description": "The door is closed", "content": problem},
                },
            }},
        },
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "serviceAccountToken": {
                    "type": "http", "scheme": "bearer", "bearerFormat": "JWT",
                    "description": "A token of a Kubernetes service account for the audience sluice.dev/service",
                },
                "clientCertificate": {"type": "mutualTLS", "description": "A client certificate that service.callers names"},
            },
        },
    })
}

fn schema<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    generator.subschema_for::<T>().to_value()
}

fn content(generator: &mut SchemaGenerator, schema: fn(&mut SchemaGenerator) -> Value) -> Value {
    json!({"application/json": {"schema": schema(generator)}})
}
