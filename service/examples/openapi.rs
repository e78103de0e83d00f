//! Prints the description of the HTTP door in OpenAPI, which `GET /v1/openapi.json` answers.

fn main() {
    println!("{:#}", sluice_service::checks::openapi::document());
}
