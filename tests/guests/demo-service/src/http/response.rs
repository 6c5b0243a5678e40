//! One response, built by a handler and written as HTTP/1.1 text.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::{self, Write};

use crate::checksum::Checksum;
use crate::http::status::Status;

#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: Status,
    headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
}

impl Response {
    pub(crate) fn new(status: Status, content_type: &str, body: Vec<u8>) -> Self {
        let mut response = Self {
            status,
            headers: Vec::with_capacity(4),
            body,
        };
        response.set_header("content-type", content_type.into());
        response
    }

    pub(crate) fn json(status: Status, body: Vec<u8>) -> Self {
        Self::new(status, "application/json", body)
    }

    pub(crate) fn empty(status: Status) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: Vec::new(),
        }
    }

    pub(crate) fn with_header(mut self, name: &'static str, value: String) -> Self {
        self.set_header(name, value);
        self
    }

    pub(crate) fn set_header(&mut self, name: &'static str, value: String) {
        self.headers.push((name, value));
    }

    /// Replaces `output` by this response, with its length and the checksum of its body.
    #[inline(never)]
    pub(crate) fn write_to(&self, output: &mut Vec<u8>) {
        output.clear();
        output.reserve(self.body.len() + 256);
        // Writing into a vector cannot fail.
        let _ = self.write_head(&mut Text(output));
        output.extend_from_slice(&self.body);
    }

    fn write_head(&self, output: &mut Text<'_>) -> fmt::Result {
        write!(output, "HTTP/1.1 {}\r\n", self.status)?;
        for (name, value) in &self.headers {
            write!(output, "{name}: {value}\r\n")?;
        }
        write!(output, "x-checksum: {:016x}\r\n", Checksum::of(&self.body))?;
        write!(output, "content-length: {}\r\n\r\n", self.body.len())
    }
}

/// Formats into bytes.
struct Text<'a>(&'a mut Vec<u8>);

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}
