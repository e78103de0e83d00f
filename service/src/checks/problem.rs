//! Problems: answers that say what is wrong with a question, and in which field.

use std::borrow::Cow;

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};

use crate::checks::body::ProblemBody;

/// The content type of problem details.
const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

/// A problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    status: StatusCode,
    detail: Cow<'static, str>,
    /// JSON pointer of the field.
    field: Option<String>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { status, detail: detail.into(), field: None }
    }

    /// A field that is not as it should be.
    pub(crate) fn of_field(field: impl Into<String>, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { field: Some(field.into()), ..Self::new(StatusCode::BAD_REQUEST, detail) }
    }

    /// Returns the problem with another status.
    pub(crate) fn with(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    /// Returns the problem with the place of the check that it is about.
    pub(crate) fn within(mut self, place: &str) -> Self {
        if !place.is_empty() {
            self.field = Some(format!("{place}{}", self.field.unwrap_or_default()));
        }
        self
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let Self { status, detail, field } = self;
        let title = status.canonical_reason().unwrap_or("Error");
        let body = ProblemBody {
            kind: "about:blank",
            title,
            status: status.as_u16(),
            detail: detail.into_owned(),
            field,
        };
        (status, [(CONTENT_TYPE, PROBLEM_JSON)], Json(body)).into_response()
    }
}
