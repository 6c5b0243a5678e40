//! The certificate that is shown, from its files.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use thiserror::Error;
use tokio_rustls::TlsAcceptor;
use zeroize::Zeroizing;

use super::config::ServeConfig;

/// A certificate cannot be used.
#[derive(Debug, Error)]
pub(crate) enum TlsError {
    #[error("[serve] has only one of `certificate` and `private-key`; TLS needs both")]
    Half,
    #[error("cannot use {} for TLS: {problem}", path.display())]
    File { path: PathBuf, problem: String },
}

/// The files, and what speaks TLS with what they said when they could be used last.
pub(super) struct Tls {
    chain: PathBuf,
    key: PathBuf,
    now: Mutex<(Files, TlsAcceptor)>,
}

/// The bytes of both.
#[derive(PartialEq)]
struct Files {
    chain: Vec<u8>,
    key: Zeroizing<Vec<u8>>,
}

impl Tls {
    /// Reads the files; `None` if the configuration has none.
    ///
    /// # Errors
    /// [`TlsError`].
    pub(super) fn read(settings: &ServeConfig) -> Result<Option<Tls>, TlsError> {
        let (chain, key) = match (&settings.certificate, &settings.private_key) {
            (None, None) => return Ok(None),
            (Some(chain), Some(key)) => (chain.clone(), key.clone()),
            _ => return Err(TlsError::Half),
        };
        let files = Files::read(&chain, &key)?;
        let acceptor = files.acceptor(&chain, &key)?;
        let now = Mutex::new((files, acceptor));
        Ok(Some(Tls { chain, key, now }))
    }

    /// Reads the files again. Connections that are open keep their certificate.
    ///
    /// # Errors
    /// They cannot be used now, as while only one of them is new; the certificate before stays.
    pub(super) fn refresh(&self) -> Result<(), TlsError> {
        let files = Files::read(&self.chain, &self.key)?;
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        if now.0 != files {
            let acceptor = files.acceptor(&self.chain, &self.key)?;
            *now = (files, acceptor);
        }
        Ok(())
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        let now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        now.1.clone()
    }
}

impl Files {
    fn read(chain: &Path, key: &Path) -> Result<Files, TlsError> {
        let read = |path: &Path| fs::read(path).map_err(|error| unusable(path, error));
        Ok(Files { chain: read(chain)?, key: Zeroizing::new(read(key)?) })
    }

    fn acceptor(&self, chain: &Path, key: &Path) -> Result<TlsAcceptor, TlsError> {
        let certificates = CertificateDer::pem_slice_iter(&self.chain)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| unusable(chain, error))?;
        let private =
            PrivateKeyDer::from_pem_slice(&self.key).map_err(|error| unusable(key, error))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map(rustls::ConfigBuilder::<rustls::ServerConfig, _>::with_no_client_auth)
            .and_then(|config| config.with_single_cert(certificates, private))
            .map_err(|error| unusable(chain, error))?;
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

fn unusable(path: &Path, problem: impl ToString) -> TlsError {
    TlsError::File { path: path.into(), problem: problem.to_string() }
}
