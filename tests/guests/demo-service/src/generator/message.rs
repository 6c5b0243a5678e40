//! The text of a signed request.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::hashing::Keyring;
use crate::http::Method;

pub(crate) struct Message {
    method: Method,
    target: String,
    headers: String,
    body: Vec<u8>,
}

impl Message {
    pub(crate) fn new(method: Method, target: String) -> Self {
        Self {
            method,
            target,
            headers: String::new(),
            body: Vec::new(),
        }
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push_str(&format!("{name}: {value}\r\n"));
        self
    }

    pub(crate) fn accepting_deflate(self) -> Self {
        self.header("accept-encoding", "deflate")
    }

    pub(crate) fn body(mut self, body: Vec<u8>) -> Self {
        self.body = body;
        self
    }

    pub(crate) fn deflated_body(self, body: Vec<u8>) -> Self {
        self.header("content-encoding", "deflate").body(body)
    }

    /// The whole text, signed in the name of a client.
    pub(crate) fn sign(self, keyring: &Keyring, client: &str) -> Vec<u8> {
        let signature = keyring
            .sign(client, self.method, &self.target, &self.body)
            .to_hex();
        let head = format!(
            "{} {} HTTP/1.1\r\nhost: demo\r\nx-client: {client}\r\nx-signature: {signature}\r\n\
             content-length: {}\r\n{}\r\n",
            self.method.name(),
            self.target,
            self.body.len(),
            self.headers,
        );
        let mut text = head.into_bytes();
        text.extend_from_slice(&self.body);
        text
    }
}
