//! Bearer tokens from files: one a line.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use axum::http::{HeaderMap, header};
use blake2::{Blake2s256, Digest as _};
use subtle::ConstantTimeEq as _;
use thiserror::Error;
use zeroize::Zeroizing;

/// The shortest token, in bytes.
const MIN_LENGTH: usize = 16;

/// What a request may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Right {
    /// Look at what is known of the guests.
    View,
    /// Record them as well.
    Control,
}

/// The files of tokens, and what they said when they could be read last.
#[derive(Debug)]
pub(super) struct TokenFiles {
    view: Option<PathBuf>,
    control: Option<PathBuf>,
    now: RwLock<Tokens>,
}

impl TokenFiles {
    /// Reads the files, if there are any.
    ///
    /// # Errors
    /// One cannot be used.
    pub(super) fn read(
        view: Option<PathBuf>,
        control: Option<PathBuf>,
    ) -> Result<TokenFiles, TokenError> {
        let now = RwLock::new(Tokens::read(view.as_deref(), control.as_deref())?);
        Ok(TokenFiles { view, control, now })
    }

    /// Reads them again.
    ///
    /// # Errors
    /// One cannot be used now; the tokens before stay.
    pub(super) fn refresh(&self) -> Result<(), TokenError> {
        let tokens = Tokens::read(self.view.as_deref(), self.control.as_deref())?;
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = tokens;
        Ok(())
    }

    pub(super) fn now(&self) -> RwLockReadGuard<'_, Tokens> {
        self.now.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Those who may ask. Without any token everybody may, so that only this machine is served.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    /// Digests, so that a comparison takes the same time whatever a token's length is.
    known: Vec<(Right, [u8; 32])>,
}

/// A file of tokens cannot be used.
#[derive(Debug, Error)]
pub(crate) enum TokenError {
    #[error("cannot read the tokens in {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{}:{line}: expected a token of at least {MIN_LENGTH} printable ASCII characters \
             without spaces", path.display())]
    Token { path: PathBuf, line: usize },
    #[error("{} contains no token: expected one a line", path.display())]
    Empty { path: PathBuf },
}

impl Tokens {
    /// Reads the files; empty lines and those that begin with `#` are passed over.
    fn read(view: Option<&Path>, control: Option<&Path>) -> Result<Tokens, TokenError> {
        let mut tokens = Tokens::default();
        for (right, path) in [(Right::View, view), (Right::Control, control)] {
            if let Some(path) = path {
                tokens.add(right, path)?;
            }
        }
        Ok(tokens)
    }

    fn add(&mut self, right: Right, path: &Path) -> Result<(), TokenError> {
        let text = fs::read_to_string(path).map(Zeroizing::new);
        let text = text.map_err(|source| TokenError::Read { path: path.into(), source })?;
        let before = self.known.len();
        for (at, line) in text.lines().enumerate() {
            let token = line.trim();
            if token.is_empty() || token.starts_with('#') {
                continue;
            }
            if token.len() < MIN_LENGTH || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(TokenError::Token { path: path.into(), line: at + 1 });
            }
            self.known.push((right, digest(token.as_bytes())));
        }
        if self.known.len() == before {
            return Err(TokenError::Empty { path: path.into() });
        }
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// What a request with these headers may do; `None`: nothing.
    pub(super) fn right(&self, headers: &HeaderMap) -> Option<Right> {
        if self.is_empty() {
            return Some(Right::Control);
        }
        let value = headers.get(header::AUTHORIZATION)?.as_bytes();
        let (scheme, token) = value.split_at_checked(b"Bearer ".len())?;
        if !scheme.eq_ignore_ascii_case(b"bearer ") {
            return None;
        }
        let given = digest(token.trim_ascii());
        let mut found = None;
        // All of them: how long it takes tells nothing of which was right.
        for (right, known) in &self.known {
            if bool::from(known.ct_eq(&given)) {
                found = found.max(Some(*right));
            }
        }
        found
    }
}

fn digest(token: &[u8]) -> [u8; 32] {
    Blake2s256::digest(token).into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn with(value: &str) -> HeaderMap {
        [(header::AUTHORIZATION, value.parse().unwrap())].into_iter().collect()
    }

    #[test]
    fn a_token_gives_its_right_and_nothing_else_any() {
        let folder = tempfile::tempdir().unwrap();
        let (view, control) = (folder.path().join("view"), folder.path().join("control"));
        fs::write(&view, "# who looks\n0123456789abcdef\n").unwrap();
        fs::write(&control, "fedcba9876543210\n").unwrap();
        let tokens = Tokens::read(Some(&view), Some(&control)).unwrap();
        assert_eq!(tokens.right(&with("Bearer 0123456789abcdef")), Some(Right::View));
        assert_eq!(tokens.right(&with("bearer fedcba9876543210")), Some(Right::Control));
        for wrong in ["", "Bearer", "Bearer ", "Basic 0123456789abcdef", "Bearer 0123456789abcde"] {
            assert_eq!(tokens.right(&with(wrong)), None, "{wrong}");
        }
        assert_eq!(tokens.right(&HeaderMap::new()), None);
    }

    #[test]
    fn a_token_that_is_taken_out_of_its_file_is_worth_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        fs::write(&path, "0123456789abcdef\n").unwrap();
        let files = TokenFiles::read(None, Some(path.clone())).unwrap();
        let may = |token: &str| files.now().right(&with(&format!("Bearer {token}")));
        assert_eq!(may("0123456789abcdef"), Some(Right::Control));
        fs::write(&path, "fedcba9876543210\n").unwrap();
        files.refresh().unwrap();
        assert_eq!(may("0123456789abcdef"), None);
        assert_eq!(may("fedcba9876543210"), Some(Right::Control));
        // A file without tokens would let everybody in.
        fs::write(&path, "").unwrap();
        files.refresh().unwrap_err();
        fs::remove_file(&path).unwrap();
        files.refresh().unwrap_err();
        assert_eq!(may("0123456789abcdef"), None);
        assert_eq!(may("fedcba9876543210"), Some(Right::Control));
    }

    #[test]
    fn a_short_token_and_an_empty_file_are_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        fs::write(&path, "# none\n").unwrap();
        assert!(matches!(Tokens::read(None, Some(&path)), Err(TokenError::Empty { .. })));
        fs::write(&path, "\nshort\n").unwrap();
        let error = Tokens::read(Some(&path), None).unwrap_err();
        assert!(matches!(error, TokenError::Token { line: 2, .. }));
    }
}
