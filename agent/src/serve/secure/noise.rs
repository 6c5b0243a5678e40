//! `Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s`, the responder's side.
//!
//! ```text
//! -> psk, e
//! <- e, ee
//! ```
//!
//! Section and function names are those of the Noise Protocol Framework, revision 34. All lengths
//! are fixed, so nothing here can panic; all secrets are erased when they are dropped.

use chacha20poly1305::aead::AeadInPlace;
use chacha20poly1305::{ChaCha20Poly1305, KeyInit};
use core::fmt;
use unikprof_proto::secure::{KEY, NAME, TAG};
use zeroize::ZeroizeOnDrop;

use super::ephemeral::Ephemeral;
use super::hash::{HASH, derive, digest};
use super::keys::Key;
use super::secret::Secret;

/// A responder that has read a valid first message for its key.
pub(crate) struct Responder {
    symmetric: Symmetric,
    peer: Secret,
}

impl Responder {
    /// Reads the first message, `-> psk, e` and a payload, which is decrypted in place. `None` if
    /// it was not made with `key` and this prologue.
    pub(crate) fn read(
        key: &Key,
        prologue: &[u8],
        ephemeral: [u8; 32],
        payload: &mut [u8],
        tag: &[u8; TAG],
    ) -> Option<Self> {
        let mut symmetric = Self::begin(key, prologue, ephemeral);
        symmetric.decrypt_and_hash(payload, tag)?;
        Some(Self { symmetric, peer: Secret(ephemeral) })
    }

    /// The tokens `psk, e`.
    fn begin(key: &Key, prologue: &[u8], ephemeral: [u8; 32]) -> Symmetric {
        let mut symmetric = Symmetric::new(prologue);
        symmetric.mix_key_and_hash(key.bytes());
        symmetric.mix_hash(&ephemeral);
        symmetric.mix_key(&ephemeral);
        symmetric
    }

    /// The tag of a first message that [`read`](Self::read) accepts: an initiator's without a
    /// payload.
    #[cfg(test)]
    pub(super) fn first_message(
        key: &Key,
        prologue: &[u8],
        ephemeral: [u8; 32],
    ) -> Option<[u8; TAG]> {
        Self::begin(key, prologue, ephemeral).encrypt_and_hash(&mut [])
    }

    /// Writes the second message, `<- e, ee` and a payload, which is encrypted in place. Returns
    /// the public key, the payload's tag, and the ciphers for records; `None` if the peer's public
    /// key is a point of small order.
    pub(crate) fn write(
        mut self,
        ephemeral: &Ephemeral,
        payload: &mut [u8],
    ) -> Option<([u8; 32], [u8; TAG], Transport)> {
        let public = ephemeral.public();
        self.symmetric.mix_hash(&public);
        self.symmetric.mix_key(&public);
        let shared = ephemeral.shared(self.peer.0)?;
        self.symmetric.mix_key(&shared.0);
        let tag = self.symmetric.encrypt_and_hash(payload)?;
        Some((public, tag, self.symmetric.split()))
    }
}

/// The ciphers for both directions of a conversation after its handshake.
pub(crate) struct Transport {
    receiving: Cipher,
    sending: Cipher,
}

impl Transport {
    /// Decrypts the next record in place; `None` if it is not authentic.
    pub(crate) fn open(&mut self, ciphertext: &mut [u8], tag: &[u8; TAG]) -> Option<()> {
        self.receiving.decrypt(&[], ciphertext, tag)
    }

    /// Encrypts the next record in place; `None` after 2^64 - 1 records, the limit for one key.
    pub(crate) fn seal(&mut self, plaintext: &mut [u8]) -> Option<[u8; TAG]> {
        self.sending.encrypt(&[], plaintext)
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport").finish_non_exhaustive()
    }
}

/// `CipherState`: a key and the number of its uses.
#[derive(ZeroizeOnDrop)]
struct Cipher {
    key: Secret<KEY>,
    nonce: u64,
}

impl Cipher {
    fn new(key: Secret) -> Self {
        Self { key, nonce: 0 }
    }

    /// The AEAD, which erases its own copy of the key.
    fn aead(&self) -> ChaCha20Poly1305 {
        ChaCha20Poly1305::new((&self.key.0).into())
    }

    /// The next nonce. The last value is reserved by the framework.
    fn nonce(&self) -> Option<[u8; 12]> {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&self.nonce.to_le_bytes());
        (self.nonce < u64::MAX).then_some(nonce)
    }

    fn encrypt(&mut self, associated: &[u8], text: &mut [u8]) -> Option<[u8; TAG]> {
        let nonce = self.nonce()?;
        let sealed = self.aead().encrypt_in_place_detached((&nonce).into(), associated, text);
        self.nonce += 1;
        Some(sealed.ok()?.into())
    }

    fn decrypt(&mut self, associated: &[u8], text: &mut [u8], tag: &[u8; TAG]) -> Option<()> {
        let nonce = self.nonce()?;
        self.aead()
            .decrypt_in_place_detached((&nonce).into(), associated, text, tag.into())
            .ok()?;
        self.nonce += 1;
        Some(())
    }
}

/// `SymmetricState`.
struct Symmetric {
    chaining_key: Secret,
    hash: Secret<HASH>,
    cipher: Cipher,
}

impl Symmetric {
    fn new(prologue: &[u8]) -> Self {
        // The protocol's name is longer than a hash.
        const { assert!(NAME.len() > HASH) };
        let hash = digest(&[NAME.as_bytes()]);
        let mut symmetric = Self {
            chaining_key: Secret(hash),
            hash: Secret(hash),
            cipher: Cipher::new(Secret([0; KEY])),
        };
        symmetric.mix_hash(prologue);
        symmetric
    }

    fn mix_hash(&mut self, data: &[u8]) {
        self.hash.0 = digest(&[&self.hash.0, data]);
    }

    fn mix_key(&mut self, material: &[u8; 32]) {
        let [chaining_key, key, _] = derive(&self.chaining_key, material);
        self.chaining_key = chaining_key;
        self.cipher = Cipher::new(key);
    }

    fn mix_key_and_hash(&mut self, material: &[u8; 32]) {
        let [chaining_key, hash, key] = derive(&self.chaining_key, material);
        self.chaining_key = chaining_key;
        self.mix_hash(&hash.0);
        self.cipher = Cipher::new(key);
    }

    fn encrypt_and_hash(&mut self, payload: &mut [u8]) -> Option<[u8; TAG]> {
        let tag = self.cipher.encrypt(&self.hash.0, payload)?;
        self.hash.0 = digest(&[&self.hash.0, payload, &tag]);
        Some(tag)
    }

    fn decrypt_and_hash(&mut self, payload: &mut [u8], tag: &[u8; TAG]) -> Option<()> {
        let hash = digest(&[&self.hash.0, payload, tag]);
        self.cipher.decrypt(&self.hash.0, payload, tag)?;
        self.hash.0 = hash;
        Some(())
    }

    /// The initiator's key comes first; this is the responder.
    fn split(&self) -> Transport {
        let [receiving, sending, _] = derive(&self.chaining_key, &[]);
        Transport { receiving: Cipher::new(receiving), sending: Cipher::new(sending) }
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    /// A message of a published conversation: payload and ciphertext.
    type Message = (&'static str, &'static str);

    /// From the test vectors of the cacophony project, which snow has too:
    /// `Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s`.
    const PROLOGUE: &str = "4a6f686e2047616c74";
    const PSK: &str = "54686973206973206d7920417573747269616e20706572737065637469766521";
    const RESPONDER: &str = "bbdb4cdbd309f1a1f2e1456967fe288cadd6f712d65dc7b7793d5e63da6b375b";
    const FIRST: Message = (
        "4c756477696720766f6e204d69736573",
        "ca35def5ae56cec33dc2036731ab14896bc4c75dbb07a61f879f8e3afa4c7944\
         fda936bec35a8adfdff198386f7d5475880897edaaf7495314c99095a2e4d66a",
    );
    const SECOND: Message = (
        "4d757272617920526f746862617264",
        "95ebc60d2b1fa672c1f46a8aa265ef51bfe38e7ccb39ec5be34069f144808843\
         4cd2a371993ba41ea11448024fca32766b169183c9e691a7a433279da7e729",
    );
    /// Alternating, the initiator's first.
    const RECORDS: [Message; 4] = [
        ("462e20412e20486179656b", "bc44da303ae0beb08075fc4eb4e58235c67c2d1f53a4f2fff0bca7"),
        ("4361726c204d656e676572", "416d1af83e9fa6966ce4e871156b131aa9bd7e9a1d6f8794f4872a"),
        (
            "4a65616e2d426170746973746520536179",
            "8a7d81b77bcc6c072f2b807da066efba6b5fab9edf71a7faceb2c8454b0cfef608",
        ),
        (
            "457567656e2042f6686d20766f6e2042617765726b",
            "1e2ee010f72894824a25a867664ff298f2548a145dc4e9d27b1cad83f32fa7c54d69dc3279",
        ),
    ];

    fn bytes(hex: &str) -> Vec<u8> {
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        (0..hex.len()).step_by(2).map(byte).collect()
    }

    fn key(hex: &str) -> [u8; 32] {
        bytes(hex).try_into().unwrap()
    }

    fn read_first(change: impl FnOnce(&mut [u8])) -> Option<Responder> {
        let mut message = bytes(FIRST.1);
        change(&mut message);
        let (ephemeral, rest) = message.split_first_chunk_mut::<32>().unwrap();
        let (payload, tag) = rest.split_last_chunk_mut::<TAG>().unwrap();
        let key = Key::from_bytes(key(PSK));
        let responder = Responder::read(&key, &bytes(PROLOGUE), *ephemeral, payload, tag)?;
        assert_eq!(payload, bytes(FIRST.0));
        Some(responder)
    }

    /// A test against our own client would not find a mistake that both sides share.
    #[test]
    fn a_published_conversation_goes_as_published() {
        let responder = read_first(|_| {}).unwrap();
        let mut payload = bytes(SECOND.0);
        let ephemeral = Ephemeral::from_bytes(key(RESPONDER));
        let (public, tag, mut transport) = responder.write(&ephemeral, &mut payload).unwrap();
        let second = bytes(SECOND.1);
        let length = second.len();
        assert_eq!(&public, &second[..32]);
        assert_eq!(payload, second[32..length - TAG]);
        assert_eq!(&tag, &second[length - TAG..]);
        for (turn, (plaintext, ciphertext)) in RECORDS.into_iter().enumerate() {
            let (mut plaintext, mut ciphertext) = (bytes(plaintext), bytes(ciphertext));
            let (text, tag) = ciphertext.split_last_chunk_mut::<TAG>().unwrap();
            if turn % 2 == 0 {
                transport.open(text, tag).unwrap();
                assert_eq!(text, plaintext);
            } else {
                assert_eq!(&transport.seal(&mut plaintext).unwrap(), tag);
                assert_eq!(text, plaintext);
            }
        }
    }

    #[test]
    fn every_altered_bit_of_the_first_message_fails_it() {
        for bit in 0..FIRST.1.len() * 4 {
            let read = read_first(|message| message[bit / 8] ^= 1 << (bit % 8));
            assert!(read.is_none(), "bit {bit}");
        }
    }

    /// Points of small order give everybody the same shared secret: zero.
    #[test]
    fn a_point_of_small_order_is_refused() {
        let ephemeral = Ephemeral::from_bytes([7; 32]);
        for low in [0, 1] {
            let mut point = [0; 32];
            point[0] = low;
            assert!(ephemeral.shared(point).is_none());
        }
        assert!(ephemeral.shared([9; 32]).is_some());
    }
}
