//! The cryptographic functions of the handshake. All come from `snow` except the key exchange.

use curve25519_dalek::montgomery::MontgomeryPoint;
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, DefaultResolver, FallbackResolver, RingResolver};
use snow::types::{Cipher, Dh, Hash, Random};

use crate::key::{KEY_LEN, SecretKey};

/// Knows the public key of the server's private key, which `snow` computes again in each handshake.
/// That computation is a tenth of what a handshake costs the server.
pub(super) struct Resolver {
    functions: FallbackResolver,
    /// The private and the public key of the server. Zeros if only the public key is known.
    known: [[u8; KEY_LEN]; 2],
}

impl Resolver {
    pub(super) fn new(key: &SecretKey) -> Self {
        let pair = key.server_private().zip(key.server_public());
        Self {
            functions: FallbackResolver::new(Box::new(RingResolver), Box::new(DefaultResolver)),
            known: pair.map_or_else(Default::default, |(private, public)| [*private, *public]),
        }
    }
}

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        self.functions.resolve_rng()
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        let pair = Box::new(X25519 {
            known: self.known,
            private: [0; KEY_LEN],
            public: [0; KEY_LEN],
        });
        (*choice == DHChoice::Curve25519).then_some(pair as Box<dyn Dh>)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        self.functions.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        self.functions.resolve_cipher(choice)
    }
}

/// X25519 (RFC 7748).
struct X25519 {
    known: [[u8; KEY_LEN]; 2],
    private: [u8; KEY_LEN],
    public: [u8; KEY_LEN],
}

impl X25519 {
    fn set_private(&mut self, private: [u8; KEY_LEN]) {
        let [known_private, known_public] = self.known;
        self.public = if private == known_private {
            known_public
        } else {
            MontgomeryPoint::mul_base_clamped(private).to_bytes()
        };
        self.private = private;
    }
}

impl Dh for X25519 {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        KEY_LEN
    }

    fn priv_len(&self) -> usize {
        KEY_LEN
    }

    fn set(&mut self, private: &[u8]) {
        if let Some(private) = private.first_chunk() {
            self.set_private(*private);
        }
    }

    fn generate(&mut self, random: &mut dyn Random) -> Result<(), snow::Error> {
        let mut private = [0; KEY_LEN];
        random.try_fill_bytes(&mut private)?;
        self.set_private(private);
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        &self.public
    }

    fn privkey(&self) -> &[u8] {
        &self.private
    }

    fn dh(&self, public: &[u8], out: &mut [u8]) -> Result<(), snow::Error> {
        let public = public.first_chunk().ok_or(snow::Error::Dh)?;
        let shared = MontgomeryPoint(*public).mul_clamped(self.private);
        out[..KEY_LEN].copy_from_slice(shared.as_bytes());
        Ok(())
    }
}
