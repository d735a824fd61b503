//! X25519 with a key pair whose public half is known. `snow` computes that half again in each handshake, which would take longer than all
//! else that is done before it is known who the peer is.

use snow::Error;
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, DefaultResolver, FallbackResolver, RingResolver};
use snow::types::{Cipher, Dh, Hash, Random};

use crate::key::KEY_LEN;

/// Resolves as `snow` does by itself, except for the pair.
pub(super) struct KnownPair {
    public: [u8; KEY_LEN],
    private: [u8; KEY_LEN],
}

impl KnownPair {
    pub(super) const fn new(public: &[u8; KEY_LEN], private: &[u8; KEY_LEN]) -> Self {
        let (public, private) = (*public, *private);
        Self { public, private }
    }
}

fn usual() -> FallbackResolver {
    FallbackResolver::new(Box::new(RingResolver), Box::new(DefaultResolver))
}

impl CryptoResolver for KnownPair {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        usual().resolve_rng()
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        Some(Box::new(PairDh {
            usual: usual().resolve_dh(choice)?,
            public: self.public,
            private: self.private,
            is_pair: false,
        }))
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        usual().resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        usual().resolve_cipher(choice)
    }
}

/// Has the known pair if `is_pair`, else that of `usual`.
struct PairDh {
    usual: Box<dyn Dh>,
    public: [u8; KEY_LEN],
    private: [u8; KEY_LEN],
    is_pair: bool,
}

impl Dh for PairDh {
    fn name(&self) -> &'static str {
        self.usual.name()
    }

    fn pub_len(&self) -> usize {
        self.usual.pub_len()
    }

    fn priv_len(&self) -> usize {
        self.usual.priv_len()
    }

    fn set(&mut self, private: &[u8]) {
        self.is_pair = private == self.private;
        if !self.is_pair {
            self.usual.set(private);
        }
    }

    fn generate(&mut self, rng: &mut dyn Random) -> Result<(), Error> {
        self.is_pair = false;
        self.usual.generate(rng)
    }

    fn pubkey(&self) -> &[u8] {
        if self.is_pair {
            &self.public
        } else {
            self.usual.pubkey()
        }
    }

    fn privkey(&self) -> &[u8] {
        if self.is_pair {
            &self.private
        } else {
            self.usual.privkey()
        }
    }

    fn dh(&self, public: &[u8], out: &mut [u8]) -> Result<(), Error> {
        if !self.is_pair {
            return self.usual.dh(public, out);
        }
        let mut dh = DefaultResolver.resolve_dh(&DHChoice::Curve25519);
        let dh = dh.as_mut().ok_or(Error::Dh)?;
        dh.set(&self.private);
        dh.dh(public, out)
    }
}
