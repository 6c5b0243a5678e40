//! After a drop, no secret may be left in memory: the tests read the memory byte by byte.
#![allow(unsafe_code, clippy::unwrap_used)]

use core::mem::MaybeUninit;
use core::slice;

use super::ephemeral::Ephemeral;
use super::keys::{Key, Keys, KeysError, MAX_KEYS, Role};
use super::noise::{Responder, Transport};
use super::secret::Secret;

/// A byte that occurs seldom in the secrets below.
const NOT_SECRET: u8 = 0xee;

/// Moves a value into memory and drops it there; returns its bytes before and after the drop.
fn drop_in_place<T, const BYTES: usize>(value: T) -> ([u8; BYTES], [u8; BYTES]) {
    const { assert!(size_of::<T>() == BYTES) };
    let mut place = MaybeUninit::<T>::uninit();
    let start = place.as_mut_ptr().cast::<u8>();
    let look = || {
        let mut bytes = [0; BYTES];
        for (at, byte) in bytes.iter_mut().enumerate() {
            // SAFETY: the place has this length and outlives the closure; `fill` below has
            // initialized every byte of it, including padding, and any byte value may be read.
            *byte = unsafe { start.add(at).read_volatile() };
        }
        bytes
    };
    // SAFETY: the place has this length, and nothing else refers to it.
    unsafe { slice::from_raw_parts_mut(start, BYTES) }.fill(NOT_SECRET);
    place.write(value);
    let before = look();
    // SAFETY: the value was written there above, and is not used again.
    unsafe { place.assume_init_drop() };
    (before, look())
}

/// Whether half of a secret is somewhere in these bytes.
fn holds(bytes: &[u8], secret: &[u8; 32]) -> bool {
    let mut windows = bytes.windows(16);
    windows.any(|window| window == &secret[..16] || window == &secret[16..])
}

fn secret(seed: u8) -> [u8; 32] {
    let mixed = (u64::from(seed) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    core::array::from_fn(|at| mixed.rotate_left(5 * at as u32) as u8 | 1)
}

/// The other tests could not fail if the search never found anything.
#[test]
fn what_does_not_erase_itself_is_found() {
    let (before, after) = drop_in_place::<_, 64>([secret(1), secret(2)]);
    for bytes in [before, after] {
        assert!(holds(&bytes, &secret(1)) && holds(&bytes, &secret(2)));
    }
}

#[test]
fn a_dropped_key_is_erased() {
    let (before, after) = drop_in_place(Key::from_bytes(secret(3)));
    assert_eq!((before, after), (secret(3), [0; 32]));
}

#[test]
fn all_of_an_agents_keys_are_erased() {
    let mut keys = Keys::new();
    for seed in 0..MAX_KEYS as u8 {
        keys.add(Role::View, Key::from_bytes(secret(seed))).unwrap();
    }
    let refused = keys.add(Role::View, Key::from_bytes(secret(99)));
    assert_eq!(refused, Err(KeysError::Full));
    let (before, after) = drop_in_place::<_, { size_of::<Keys>() }>(keys);
    for seed in 0..MAX_KEYS as u8 {
        assert!(holds(&before, &secret(seed)), "{seed}");
        assert!(!holds(&after, &secret(seed)), "{seed}");
    }
    assert!(!holds(&before, &secret(99)), "a ninth key is not added");
}

#[test]
fn ephemeral_and_shared_secrets_are_erased() {
    let (before, after) = drop_in_place(Ephemeral::from_bytes(secret(4)));
    assert_eq!((before, after), (secret(4), [0; 32]));
    let (before, after) = drop_in_place(Secret(secret(5)));
    assert_eq!((before, after), (secret(5), [0; 32]));
    let (before, after) = drop_in_place(Secret([6; 64]));
    assert_eq!((before, after), ([6; 64], [0; 64]));
}

/// A responder that has read the first message of an initiator with this key.
fn responder(key: &Key) -> Responder {
    let tag = Responder::first_message(key, b"prologue", secret(8)).unwrap();
    Responder::read(key, b"prologue", secret(8), &mut [], &tag).unwrap()
}

/// Every byte belongs to a key, a hash, a counter or the peer's public key: none may be left.
#[test]
fn a_handshake_and_its_records_keys_are_erased() {
    let key = Key::from_bytes(secret(7));
    let (before, after) = drop_in_place::<_, { size_of::<Responder>() }>(responder(&key));
    assert!(random_bytes(&before) > 100, "{before:?}");
    assert_eq!(random_bytes(&after), 0, "{after:?}");

    let written = responder(&key).write(&Ephemeral::from_bytes(secret(9)), &mut []);
    let (_, _, transport) = written.unwrap();
    let (before, after) = drop_in_place::<_, { size_of::<Transport>() }>(transport);
    assert!(random_bytes(&before) > 50, "{before:?}");
    assert_eq!(random_bytes(&after), 0, "{after:?}");
}

/// The number of bytes that are neither erased nor those of the empty place.
fn random_bytes(bytes: &[u8]) -> usize {
    let is_random = |byte: &&u8| **byte != 0 && **byte != NOT_SECRET;
    bytes.iter().filter(is_random).count()
}
