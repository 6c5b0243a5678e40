//! One request, parsed and checked.

use alloc::borrow::Cow;
use alloc::string::String;
use alloc::vec::Vec;

use crate::failure::Failure;
use crate::http::encoding::{parse_query, percent_decode};

/// Headers beyond these make the request a bad one.
const MAX_HEADERS: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Method {
    Get,
    Put,
    Post,
    Patch,
    Delete,
}

impl Method {
    pub(crate) const ALL: [Self; 5] = [Self::Get, Self::Put, Self::Post, Self::Patch, Self::Delete];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Put => "PUT",
            Self::Post => "POST",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }
}

/// A request whose head is well formed and whose body has the length it says.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    pub(crate) method: Method,
    /// The path and the query as they came: what the signature covers.
    pub(crate) target: &'a str,
    /// The decoded parts of the path, without empty ones.
    pub(crate) segments: Vec<String>,
    query: Vec<(String, String)>,
    headers: Vec<(&'a str, &'a str)>,
    pub(crate) body: Cow<'a, [u8]>,
}

impl<'a> Request<'a> {
    /// Reads the text of one whole request.
    ///
    /// Fails on anything that is not HTTP/1.1 with a known method, an absolute path, at most 16
    /// headers of text and a body of exactly `content-length` bytes (none without that header).
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, Failure> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut head = httparse::Request::new(&mut headers);
        let body_start = match head.parse(bytes) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) => return Err(Failure::BadRequest("incomplete head")),
            Err(_) => return Err(Failure::BadRequest("not an HTTP request")),
        };
        let method = Method::ALL
            .into_iter()
            .find(|method| head.method == Some(method.name()))
            .ok_or(Failure::BadRequest("unknown method"))?;
        let target = head.path.unwrap_or_default();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let request = Self {
            method,
            target,
            segments: split_path(path)?,
            query: parse_query(query).ok_or(Failure::BadRequest("query does not decode"))?,
            headers: read_headers(head.headers)?,
            body: Cow::Borrowed(&bytes[body_start..]),
        };
        request.check_length()?;
        Ok(request)
    }

    /// The value of a header, whose name is given in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&'a str> {
        self.headers
            .iter()
            .find(|(candidate, _)| candidate.eq_ignore_ascii_case(name))
            .map(|&(_, value)| value)
    }

    /// The value of the first query parameter with this name.
    pub(crate) fn parameter(&self, name: &str) -> Option<&str> {
        self.query
            .iter()
            .find(|(candidate, _)| candidate == name)
            .map(|(_, value)| value.as_str())
    }

    /// The query parameter `limit`, or `default`; never above `maximum`.
    pub(crate) fn limit(&self, default: usize, maximum: usize) -> Result<usize, Failure> {
        match self.parameter("limit") {
            None => Ok(default),
            Some(text) => match text.parse::<usize>() {
                Ok(limit) => Ok(limit.min(maximum)),
                Err(_) => Err(Failure::BadRequest("limit is not a number")),
            },
        }
    }

    fn check_length(&self) -> Result<(), Failure> {
        let stated = match self.header("content-length") {
            None => Some(0),
            Some(text) => text.parse::<usize>().ok(),
        };
        if stated == Some(self.body.len()) {
            Ok(())
        } else {
            Err(Failure::BadRequest(
                "content-length does not match the body",
            ))
        }
    }
}

fn split_path(path: &str) -> Result<Vec<String>, Failure> {
    let relative = path
        .strip_prefix('/')
        .ok_or(Failure::BadRequest("path is not absolute"))?;
    relative
        .split('/')
        .filter(|segment| !segment.is_empty())
        .map(|segment| percent_decode(segment, false))
        .collect::<Option<_>>()
        .ok_or(Failure::BadRequest("path does not decode"))
}

fn read_headers<'a>(headers: &[httparse::Header<'a>]) -> Result<Vec<(&'a str, &'a str)>, Failure> {
    headers
        .iter()
        .map(|header| match core::str::from_utf8(header.value) {
            Ok(value) => Ok((header.name, value)),
            Err(_) => Err(Failure::BadRequest("header is not UTF-8")),
        })
        .collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn reads_all_parts() {
        let text = b"PUT /documents/a%2Fb//page?q=x+y&limit=900 HTTP/1.1\r\n\
            Host: demo\r\nContent-Length: 2\r\n\r\nhi";
        let request = Request::parse(text).unwrap();
        assert_eq!(request.method, Method::Put);
        assert_eq!(request.segments, ["documents", "a/b", "page"]);
        assert_eq!(request.parameter("q"), Some("x y"));
        assert_eq!(request.limit(5, 100).unwrap(), 100);
        assert_eq!(request.header("host"), Some("demo"));
        assert_eq!(&*request.body, b"hi");
    }

    #[test]
    fn refuses_what_is_not_a_whole_request() {
        let bad: &[&[u8]] = &[
            b"",
            b"GET / HTTP/1.1\r\n",
            b"BREW /pot HTTP/1.1\r\n\r\n",
            b"GET documents HTTP/1.1\r\n\r\n",
            b"GET /%zz HTTP/1.1\r\n\r\n",
            b"GET /?a=%zz HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\r\nx: \xFF\r\n\r\n",
            b"PUT / HTTP/1.1\r\ncontent-length: 3\r\n\r\nhi",
            b"PUT / HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
            b"PUT / HTTP/1.1\r\n\r\nhi",
            b"\x00\x01\x02\xFF",
        ];
        for bytes in bad {
            assert!(
                matches!(Request::parse(bytes), Err(Failure::BadRequest(_))),
                "{}",
                String::from_utf8_lossy(bytes)
            );
        }
    }
}
