//! Why a request could not be served.

use alloc::string::ToString;
use alloc::vec::Vec;
use core::fmt;

use serde_json_alloc::json;

use crate::expression::ExpressionError;
use crate::http::Response;
use crate::http::status::Status;
use crate::template::RenderError;

/// The reasons to refuse a request. Each becomes a response with a status and a JSON body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    BadRequest(&'static str),
    Unauthorized,
    NoSuchRoute,
    NoSuchDocument,
    MethodNotAllowed,
    TooLarge,
    InvalidJson { line: usize, column: usize },
    InvalidDocument(&'static str),
    Expression(ExpressionError),
    Render(RenderError),
    OverQuota,
}

impl Failure {
    pub(crate) fn status(&self) -> Status {
        match self {
            Self::BadRequest(_) | Self::InvalidJson { .. } => Status::BadRequest,
            Self::Unauthorized => Status::Unauthorized,
            Self::NoSuchRoute | Self::NoSuchDocument => Status::NotFound,
            Self::MethodNotAllowed => Status::MethodNotAllowed,
            Self::TooLarge => Status::PayloadTooLarge,
            Self::InvalidDocument(_) | Self::Expression(_) | Self::Render(_) => {
                Status::Unprocessable
            }
            Self::OverQuota => Status::TooManyRequests,
        }
    }

    #[cold]
    pub(crate) fn into_response(self) -> Response {
        let body = json!({ "error": self.to_string(), "status": self.status().code() });
        // A map of two plain values always serializes.
        let body = serde_json_alloc::to_vec(&body).unwrap_or_else(|_| Vec::new());
        Response::json(self.status(), body)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadRequest(reason) | Self::InvalidDocument(reason) => f.write_str(reason),
            Self::Unauthorized => f.write_str("the signature is missing or wrong"),
            Self::NoSuchRoute => f.write_str("no such route"),
            Self::NoSuchDocument => f.write_str("no such document"),
            Self::MethodNotAllowed => f.write_str("this route does not know the method"),
            Self::TooLarge => f.write_str("the request is too large"),
            Self::InvalidJson { line, column } => {
                write!(f, "the JSON breaks at line {line}, column {column}")
            }
            Self::Expression(error) => error.fmt(f),
            Self::Render(error) => error.fmt(f),
            Self::OverQuota => f.write_str("the client used up its share of requests"),
        }
    }
}

impl From<serde_json_alloc::Error> for Failure {
    fn from(error: serde_json_alloc::Error) -> Self {
        Self::InvalidJson {
            line: error.line(),
            column: error.column(),
        }
    }
}

impl From<ExpressionError> for Failure {
    fn from(error: ExpressionError) -> Self {
        Self::Expression(error)
    }
}

impl From<RenderError> for Failure {
    fn from(error: RenderError) -> Self {
        Self::Render(error)
    }
}
