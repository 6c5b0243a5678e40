//! The status codes this service answers with.

use core::fmt;

/// The status of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
#[non_exhaustive]
pub enum Status {
    /// The body is the answer.
    Ok = 200,
    /// A document was made.
    Created = 201,
    /// The document is gone, and there is nothing more to say.
    NoContent = 204,
    /// The client's copy is still right.
    NotModified = 304,
    /// Not HTTP, or not what the route reads.
    BadRequest = 400,
    /// The signature is missing or wrong.
    Unauthorized = 401,
    /// No such route or document.
    NotFound = 404,
    /// The route exists with other methods.
    MethodNotAllowed = 405,
    /// The request or its inflated body is too big.
    PayloadTooLarge = 413,
    /// Well formed, but it cannot be done.
    Unprocessable = 422,
    /// The client used up its share of requests.
    TooManyRequests = 429,
}

impl Status {
    /// The number on the wire.
    pub const fn code(self) -> u16 {
        self as u16
    }

    /// True for the codes of the 200s and 300s.
    pub const fn is_success(self) -> bool {
        self.code() < 400
    }

    /// The words behind the number.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Created => "Created",
            Self::NoContent => "No Content",
            Self::NotModified => "Not Modified",
            Self::BadRequest => "Bad Request",
            Self::Unauthorized => "Unauthorized",
            Self::NotFound => "Not Found",
            Self::MethodNotAllowed => "Method Not Allowed",
            Self::PayloadTooLarge => "Payload Too Large",
            Self::Unprocessable => "Unprocessable Content",
            Self::TooManyRequests => "Too Many Requests",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.code(), self.reason())
    }
}
