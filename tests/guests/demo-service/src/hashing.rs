//! Hash: BLAKE3 over documents, over requests and their signatures.

use alloc::string::String;

use blake3::{Hash, Hasher};
use serde_json_alloc::Value;

use crate::http::Method;

/// The secret that clients and service share.
#[derive(Clone)]
pub(crate) struct Keyring {
    master: [u8; 32],
}

impl Keyring {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            master: blake3::derive_key("unikprof demo service 2026 keyring", &seed.to_le_bytes()),
        }
    }

    /// Signs a request in the name of a client, with that client's own key.
    #[inline(never)]
    pub(crate) fn sign(&self, client: &str, method: Method, target: &str, body: &[u8]) -> Hash {
        let key = blake3::keyed_hash(&self.master, client.as_bytes());
        let mut hasher = Hasher::new_keyed(key.as_bytes());
        update_text(&mut hasher, method.name());
        update_text(&mut hasher, target);
        hasher.update(body);
        hasher.finalize()
    }

    /// Checks a signature in hexadecimal, in constant time.
    pub(crate) fn verify(
        &self,
        client: &str,
        method: Method,
        target: &str,
        body: &[u8],
        signature: &str,
    ) -> bool {
        Hash::from_hex(signature)
            .is_ok_and(|given| given == self.sign(client, method, target, body))
    }
}

/// The digest of a JSON value: the same for the same value, however it was written.
#[inline(never)]
pub(crate) fn digest(value: &Value) -> Hash {
    let mut hasher = Hasher::new();
    update_value(&mut hasher, value);
    hasher.finalize()
}

/// The entity tag of a body.
pub(crate) fn entity_tag(body: &[u8]) -> String {
    let hash = blake3::hash(body).to_hex();
    let mut tag = String::with_capacity(34);
    tag.push('"');
    tag.push_str(&hash[..32]);
    tag.push('"');
    tag
}

/// Adds a text and its length, so that neighbouring texts cannot trade characters.
pub(crate) fn update_text(hasher: &mut Hasher, text: &str) {
    hasher.update(&(text.len() as u64).to_le_bytes());
    hasher.update(text.as_bytes());
}

fn update_value(hasher: &mut Hasher, value: &Value) {
    match value {
        Value::Null => {
            hasher.update(b"0");
        }
        Value::Bool(truth) => {
            hasher.update(if *truth { b"t" } else { b"f" });
        }
        Value::Number(number) => {
            hasher.update(b"n");
            let bits = number.as_f64().unwrap_or_default().to_bits();
            hasher.update(&bits.to_le_bytes());
        }
        Value::String(text) => {
            hasher.update(b"s");
            update_text(hasher, text);
        }
        Value::Array(items) => {
            hasher.update(b"a");
            hasher.update(&(items.len() as u64).to_le_bytes());
            for item in items {
                update_value(hasher, item);
            }
        }
        Value::Object(members) => {
            hasher.update(b"o");
            hasher.update(&(members.len() as u64).to_le_bytes());
            for (name, member) in members {
                update_text(hasher, name);
                update_value(hasher, member);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json_alloc::{from_str, json};

    #[test]
    fn a_digest_ignores_how_the_value_was_written() {
        let value: Value = from_str(r#"{ "b": [1, 2.0], "a": "x" }"#).unwrap();
        assert_eq!(digest(&value), digest(&json!({"a": "x", "b": [1.0, 2]})));
    }

    #[test]
    fn different_values_have_different_digests() {
        let values = [
            json!(null),
            json!(true),
            json!(false),
            json!(0),
            json!(1),
            json!("0"),
            json!([]),
            json!({}),
            json!([[], []]),
            json!([[[]]]),
            json!(["ab", "c"]),
            json!(["a", "bc"]),
        ];
        for (position, value) in values.iter().enumerate() {
            for other in &values[position + 1..] {
                assert_ne!(digest(value), digest(other), "{value} {other}");
            }
        }
    }

    #[test]
    fn a_signature_fits_one_client_one_target_and_one_body() {
        let keyring = Keyring::new(5);
        let hex = keyring.sign("ann", Method::Put, "/a", b"body").to_hex();
        assert!(keyring.verify("ann", Method::Put, "/a", b"body", &hex));
        assert!(!keyring.verify("bob", Method::Put, "/a", b"body", &hex));
        assert!(!keyring.verify("ann", Method::Post, "/a", b"body", &hex));
        assert!(!keyring.verify("ann", Method::Put, "/b", b"body", &hex));
        assert!(!keyring.verify("ann", Method::Put, "/a", b"Body", &hex));
        assert!(!keyring.verify("ann", Method::Put, "/ab", b"ody", &hex));
        assert!(!keyring.verify("ann", Method::Put, "/a", b"body", "zz"));
        assert!(!Keyring::new(6).verify("ann", Method::Put, "/a", b"body", &hex));
    }
}
