//! Tokens that users create for programs (`hq token`). Each token has a name and a role, is stored
//! with the state of the server, and becomes invalid as soon as it is revoked.
//!
//! Only a hash is stored, so that a reader of the journal or of a copy of it cannot use the token.
//! A token has 256 random bits, so a plain hash is sufficient, and the timing of the comparison
//! does not help to guess it.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use hq_core::refusal::Refusal;
use hq_core::server_state::ChangeKind;
use hq_protocol::client;
use hq_protocol::convert::{Role, TokenChange};
use ring::digest;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::secret::{Token, from_hex, hex};
use crate::clock::Clock;
use crate::core_handle::CoreHandle;

/// The maximum number of tokens. Each request with a token is compared with all of them.
const TOKENS_MAX: usize = 256;

/// The prefix of each token, by which users and secret scanners recognize it.
const PREFIX: &str = "hq_";

/// A token that can be revoked.
pub(crate) struct IssuedToken {
    role: Role,
    created_unix_ns: i64,
    /// The time of the last use since the server started, 0 if unused.
    used_unix_ns: AtomicI64,
    hash: [u8; digest::SHA256_OUTPUT_LEN],
    revoked: watch::Sender<bool>,
}

impl fmt::Debug for IssuedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issued")
            .field("role", &self.role)
            .finish_non_exhaustive()
    }
}

impl IssuedToken {
    fn new(role: Role, created_unix_ns: i64, hash: [u8; digest::SHA256_OUTPUT_LEN]) -> Arc<Self> {
        Arc::new(Self {
            role,
            created_unix_ns,
            used_unix_ns: AtomicI64::new(0),
            hash,
            revoked: watch::Sender::new(false),
        })
    }

    pub(super) const fn role(&self) -> Role {
        self.role
    }

    /// Returns a random number that is unique among tokens. 0 stands for the read token.
    pub(super) fn number(&self) -> u64 {
        let [first, ..] = self.hash.as_chunks().0 else {
            return 1;
        };
        u64::from_le_bytes(*first).max(1)
    }

    /// Returns whether the token has been revoked since the request was admitted. A handler that
    /// waits, for example for the body, checks this before it changes anything.
    pub(super) fn is_revoked(&self) -> bool {
        *self.revoked.borrow()
    }

    /// Waits until the token is revoked.
    pub(super) fn revoked(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut revoked = self.revoked.subscribe();
        async move {
            // An error means that the token itself was dropped.
            let _ = revoked.wait_for(|is_revoked| *is_revoked).await;
        }
    }

    /// Returns the stored form.
    fn record(&self) -> String {
        let hash = hex(&self.hash);
        json!({"role": self.role.name(), "created_unix_ns": self.created_unix_ns, "sha256": hash})
            .to_string()
    }

    fn from_record(text: &str) -> Option<Arc<Self>> {
        let value: Value = serde_json::from_str(text).ok()?;
        let role = Role::from_name(value["role"].as_str()?)?;
        let hash = from_hex(value["sha256"].as_str()?)?;
        let created = value["created_unix_ns"].as_i64()?;
        Some(Self::new(role, created, hash.try_into().ok()?))
    }

    fn told(&self, name: &str) -> client::Token {
        let used = self.used_unix_ns.load(Ordering::Relaxed);
        client::Token {
            name: name.to_owned(),
            role: client::TokenRole::from(self.role).into(),
            created_unix_ns: self.created_unix_ns,
            used_unix_ns: (used != 0).then_some(used),
        }
    }
}

/// All created tokens that are not revoked.
pub(crate) struct Tokens {
    core: CoreHandle,
    known: RwLock<BTreeMap<Box<str>, Arc<IssuedToken>>>,
    /// Held while a change is passed to the store, so that changes stay in order.
    changing: tokio::sync::Mutex<()>,
}

impl Tokens {
    /// Restores the tokens that the store contains.
    pub(crate) fn new(core: CoreHandle, kept: Vec<(String, String)>) -> Self {
        let restored = kept.into_iter().filter_map(|(name, record)| {
            let issued = IssuedToken::from_record(&record);
            if issued.is_none() {
                tracing::warn!(
                    "the token '{name}' is damaged in the journal and invalid; create it again"
                );
            }
            Some((name.into_boxed_str(), issued?))
        });
        Self {
            core,
            known: RwLock::new(restored.collect()),
            changing: tokio::sync::Mutex::default(),
        }
    }

    /// Returns the token with this text.
    pub(super) fn find(&self, shown: &str) -> Option<Arc<IssuedToken>> {
        let hash = sha256(shown);
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let found = known.values().find(|issued| issued.hash == hash)?;
        found
            .used_unix_ns
            .store(Clock::new().now().wall.0, Ordering::Relaxed);
        Some(Arc::clone(found))
    }

    /// Creates or revokes a token if requested, and lists all tokens. Returns when the change is on
    /// disk. A revoked token is invalid from the start of the call.
    ///
    /// # Errors
    ///
    /// Returns an error if the token does not exist or exists already, if there are too many, or if
    /// the server ends.
    pub(crate) async fn ask(&self, change: Option<TokenChange>) -> Result<client::Tokens, Refusal> {
        let secret = match change {
            None => String::new(),
            Some(TokenChange::Create { name, role }) => self.create(name, role).await?,
            Some(TokenChange::Revoke(name)) => {
                self.revoke(name).await?;
                String::new()
            }
        };
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let tokens = known.iter().map(|(name, issued)| issued.told(name));
        Ok(client::Tokens {
            tokens: tokens.collect(),
            secret,
        })
    }

    async fn create(&self, name: Box<str>, role: Role) -> Result<String, Refusal> {
        let random = Token::random().map_err(|error| Refusal::failed(error.to_string()))?;
        let secret = format!("{PREFIX}{}", random.as_str());
        let issued = IssuedToken::new(role, Clock::new().now().wall.0, sha256(&secret));
        let turn = self.changing.lock().await;
        {
            let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
            if known.contains_key(&name) {
                return Err(Refusal::conflict(format!(
                    "the token `{name}` exists already. Choose another name, or revoke it first"
                )));
            }
            if known.len() >= TOKENS_MAX {
                return Err(Refusal::too_large(format!(
                    "{TOKENS_MAX} tokens exist, which is the limit. Revoke some of them"
                )));
            }
            // The token's text is secret until it is on disk.
            known.insert(name.clone(), Arc::clone(&issued));
        }
        let record = Some(issued.record().into());
        self.core
            .store(ChangeKind::TokenChanged { name, record }, turn)
            .await?;
        Ok(secret)
    }

    async fn revoke(&self, name: Box<str>) -> Result<(), Refusal> {
        let turn = self.changing.lock().await;
        let gone = {
            let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
            known.remove(&name)
        };
        let Some(gone) = gone else {
            return Err(Refusal::not_found(format!("there is no token `{name}`")));
        };
        gone.revoked.send_replace(true);
        let record = None;
        self.core
            .store(ChangeKind::TokenChanged { name, record }, turn)
            .await
    }
}

fn sha256(text: &str) -> [u8; digest::SHA256_OUTPUT_LEN] {
    let mut hash = [0; digest::SHA256_OUTPUT_LEN];
    hash.copy_from_slice(digest::digest(&digest::SHA256, text.as_bytes()).as_ref());
    hash
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core_handle::{Event, Events};

    /// Passes a change to the store and returns the result.
    async fn change(
        tokens: &Arc<Tokens>,
        events: &mut Events,
        change: TokenChange,
    ) -> (client::Tokens, Option<(String, String)>) {
        let asked = Arc::clone(tokens);
        let asking = tokio::spawn(async move { asked.ask(Some(change)).await });
        assert!(events.take().await, "the handle is there");
        let Some(Event::Persist(changes, stored)) = events.next_request() else {
            panic!("it is stored");
        };
        assert!(!asking.is_finished(), "no client learns of it before");
        stored.send(()).expect("it is awaited");
        let told = asking.await.expect("no panic").expect("it is done");
        let Some(ChangeKind::TokenChanged { name, record }) = changes.into_iter().next() else {
            panic!("a token");
        };
        (told, record.map(|record| (name.into(), record.into())))
    }

    fn create(role: Role) -> TokenChange {
        let name = "ci".into();
        TokenChange::Create { name, role }
    }

    #[tokio::test]
    async fn a_token_opens_until_it_is_revoked_also_in_the_next_run() {
        let (core, mut events) = CoreHandle::new();
        let tokens = Arc::new(Tokens::new(core.clone(), Vec::new()));
        let (told, record) = change(&tokens, &mut events, create(Role::Submit)).await;
        let secret = told.secret;
        let record = record.expect("a record");
        assert!(!record.1.contains(&secret[PREFIX.len()..]), "{}", record.1);
        let found = tokens.find(&secret).expect("it opens");
        assert_eq!(found.role(), Role::Submit);
        assert!(tokens.find(&secret[..secret.len() - 1]).is_none());
        assert!(tokens.find("").is_none());
        let damaged = ("other".to_owned(), "{}".to_owned());
        let next = Arc::new(Tokens::new(core, vec![record, damaged]));
        assert_eq!(
            next.find(&secret).map(|found| found.role()),
            Some(Role::Submit)
        );
        let revoke = TokenChange::Revoke("ci".into());
        let (told, record) = change(&tokens, &mut events, revoke).await;
        assert!(told.tokens.is_empty() && record.is_none());
        assert!(tokens.find(&secret).is_none());
        // Requests that use the token end.
        found.revoked().await;
    }

    #[tokio::test]
    async fn a_token_that_is_revoked_opens_nothing_while_the_disk_is_full() {
        let (core, mut events) = CoreHandle::new();
        let tokens = Arc::new(Tokens::new(core, Vec::new()));
        let (told, _) = change(&tokens, &mut events, create(Role::Full)).await;
        let found = tokens.find(&told.secret).expect("it opens");
        let asked = Arc::clone(&tokens);
        let revoking =
            tokio::spawn(async move { asked.ask(Some(TokenChange::Revoke("ci".into()))).await });
        found.revoked().await;
        assert!(tokens.find(&told.secret).is_none() && !revoking.is_finished());
    }

    #[tokio::test]
    async fn names_are_taken_once() {
        let (core, mut events) = CoreHandle::new();
        let tokens = Arc::new(Tokens::new(core, Vec::new()));
        change(&tokens, &mut events, create(Role::Read)).await;
        let refused = tokens.ask(Some(create(Role::Full))).await;
        let text = refused.expect_err("it is there").text;
        assert!(text.contains("the token `ci` exists already"), "{text}");
        let refused = tokens.ask(Some(TokenChange::Revoke("x".into()))).await;
        let text = refused.expect_err("it is not there").text;
        assert!(text.contains("there is no token `x`"), "{text}");
    }
}
