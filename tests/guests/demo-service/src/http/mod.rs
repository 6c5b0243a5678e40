//! Requests and responses as HTTP/1.1 text, whole messages in memory.

pub(crate) mod encoding;
pub(crate) mod reply;
pub(crate) mod request;
pub(crate) mod response;
pub(crate) mod status;

pub(crate) use request::{Method, Request};
pub(crate) use response::Response;
