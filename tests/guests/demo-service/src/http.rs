//! HTTP/1.1 messages: requests in, responses out.

use alloc::format;
use alloc::vec::Vec;

use blake2::digest::{Key, Mac as _};
use blake2::{Blake2s256, Blake2sMac256, Digest as _};
use miniz_oxide::deflate::core::{CompressorOxide, TDEFLFlush, compress_to_output};

/// A request whose signature has not been verified yet.
pub(crate) struct Request<'r> {
    pub(crate) method: &'r str,
    pub(crate) target: &'r str,
    pub(crate) signature: &'r [u8],
    pub(crate) accepts_deflate: bool,
    pub(crate) body: &'r [u8],
}

/// Why a request is refused: a 4xx status, and a text for the client.
#[derive(Debug)]
pub(crate) struct Refusal(pub(crate) u16, pub(crate) &'static str);

pub(crate) struct Response {
    pub(crate) status: u16,
    content_type: &'static str,
    encoding: &'static str,
    pub(crate) body: Vec<u8>,
}

impl<'r> Request<'r> {
    #[inline(never)]
    pub(crate) fn parse(bytes: &'r [u8]) -> Result<Self, Refusal> {
        let mut headers = [httparse::EMPTY_HEADER; 16];
        let mut head = httparse::Request::new(&mut headers);
        let Ok(httparse::Status::Complete(head_bytes)) = head.parse(bytes) else {
            return Err(Refusal(400, "not an HTTP request"));
        };
        let header = |name: &str| {
            let mut headers = head.headers.iter();
            let header = headers.find(|header| header.name.eq_ignore_ascii_case(name));
            header.map_or(&b""[..], |header| header.value)
        };
        let body = &bytes[head_bytes..];
        if header("Content-Length") != format!("{}", body.len()).as_bytes() {
            return Err(Refusal(400, "wrong length"));
        }
        Ok(Self {
            method: head.method.unwrap_or_default(),
            target: head.path.unwrap_or_default(),
            signature: header("Signature"),
            accepts_deflate: header("Accept-Encoding") == b"deflate",
            body,
        })
    }
}

/// Signs a request with the key that clients and service share.
#[inline(never)]
pub(crate) fn sign(
    key: &Key<Blake2sMac256>,
    method: &str,
    target: &str,
    body: &[u8],
) -> Blake2sMac256 {
    Blake2sMac256::new(key)
        .chain_update(format!("{method} {target}\n").as_bytes())
        .chain_update(body)
}

/// Whether a request is signed so: the comparison takes the same time for each that is not.
pub(crate) fn is_signed(signature: Blake2sMac256, given: &[u8]) -> bool {
    let mut bytes = [0; 32];
    let (pairs, rest) = given.as_chunks::<2>();
    let digits = pairs.iter().map(|pair| {
        let digit = |at: usize| char::from(pair[at]).to_digit(16);
        Some((digit(0)? << 4 | digit(1)?) as u8)
    });
    let is_hex = pairs.len() == bytes.len() && rest.is_empty();
    let read = bytes.iter_mut().zip(digits).all(|(byte, digits)| match digits {
        Some(digits) => {
            *byte = digits;
            true
        }
        None => false,
    });
    is_hex && read && signature.verify(&bytes.into()).is_ok()
}

impl Response {
    pub(crate) fn new(status: u16, content_type: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Self { status, content_type, encoding: "identity", body: body.into() }
    }

    #[inline(never)]
    pub(crate) fn deflate(&mut self, compressor: &mut CompressorOxide) {
        let mut output = Vec::new();
        compressor.reset();
        compress_to_output(compressor, &self.body, TDEFLFlush::Finish, |part| {
            output.extend_from_slice(part);
            true
        });
        self.body = output;
        self.encoding = "deflate";
    }

    /// Replaces the contents of `output` with the response.
    #[inline(never)]
    pub(crate) fn write_to(&self, output: &mut Vec<u8>) {
        let head = format!(
            "HTTP/1.1 {} \r\nContent-Type: {}\r\nContent-Encoding: {}\r\n\
             Content-Length: {}\r\nETag: \"{:x}\"\r\n\r\n",
            self.status,
            self.content_type,
            self.encoding,
            self.body.len(),
            Blake2s256::digest(&self.body)
        );
        output.clear();
        output.extend_from_slice(head.as_bytes());
        output.extend_from_slice(&self.body);
    }
}

impl From<Refusal> for Response {
    fn from(Refusal(status, reason): Refusal) -> Self {
        Self::new(status, "text/plain", reason)
    }
}
